"""Polos against a plain network in the layout of the published checkpoint, one pair at a time."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from discode._pairs import Pair
from discode.errors import InputError
from discode.metrics import MetricFactory
from discode.metrics._polos import Polos

torch = pytest.importorskip("torch", reason="Polos is tested with discode-eval[dev]")
transformers = pytest.importorskip("transformers", reason="Polos is tested with discode-eval[dev]")
pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = {
    "model": "PolosEstimator", "layer": "mix", "pool": "cls", "activations": "Tanh",
    "final_activation": False, "hidden_sizes": "24,12", "batch_size": 64,
}  # fmt: skip


def plain_network(text_folder: Path) -> Any:
    """The tensors of a checkpoint under their names: text encoder, mixture, network, CLIP."""
    from torch import nn

    from tests.helpers.tiny_openai import OpenAI

    torch.manual_seed(2)
    model: Any = nn.Module()
    model.encoder, model.scalar_mix, estimator = nn.Module(), nn.Module(), nn.Module()
    model.encoder.model = transformers.RobertaModel.from_pretrained(text_folder)
    for name, weight in model.encoder.model.named_parameters():  # not the folder's weights
        nn.init.normal_(weight, mean=float("Norm" in name), std=0.4)
    model.scalar_mix.scalar_parameters = nn.ParameterList(
        nn.Parameter(torch.randn(1)) for _ in range(3)
    )
    model.scalar_mix.gamma = nn.Parameter(torch.tensor([1.5]))
    model.scalar_mix.register_buffer("dropout_mask", torch.zeros(3))
    model.scalar_mix.register_buffer("dropout_fill", torch.full((3,), -1e20))
    sizes = {"linear_1": (4 * 32 + 6 * 16, 24), "linear_2": (24, 12), "linear_3": (12, 1)}
    estimator.ff = nn.Sequential(OrderedDict((n, nn.Linear(*size)) for n, size in sizes.items()))
    model.ff = nn.Sequential(estimator, nn.Sigmoid())
    for weight in estimator.ff.parameters():
        nn.init.normal_(weight, std=0.4)
    model.clip = OpenAI()
    return model.eval()


class Oracle:
    """Polos as its authors' code computes it for one pair, with nothing batched."""

    def __init__(self, clip_folder: Path, text_folder: Path) -> None:
        self.network = plain_network(text_folder)
        self.processor = transformers.CLIPProcessor.from_pretrained(clip_folder)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(text_folder)

    def sentence(self, text: str) -> Any:
        ids = torch.tensor([self.tokenizer(text)["input_ids"]])
        layers = self.network.encoder.model(ids, output_hidden_states=True).hidden_states
        mix = self.network.scalar_mix
        weights = torch.cat(list(mix.scalar_parameters)).softmax(0)
        mixed = sum(
            weight * (layer - layer.mean()) / torch.sqrt(layer.var(correction=0) + 1e-12)
            for weight, layer in zip(weights, layers, strict=True)
        )
        return (mix.gamma * mixed)[0, 0]

    def clip_text(self, text: str) -> Any:
        words = self.processor(text=["A photo depicts " + text], return_tensors="pt")
        return self.network.clip.text(words.input_ids)[0]

    def __call__(self, pair: Pair) -> float:
        shown = Image.open(pair.image)  # type: ignore[arg-type]
        v = self.network.clip.image(self.processor(images=shown, return_tensors="pt").pixel_values)
        v, s, e = v[0], self.sentence(pair.caption), self.clip_text(pair.caption)
        scores: list[float] = []
        for reference in pair.references:
            r, t = self.sentence(reference), self.clip_text(reference)
            texts = [r, s, (s - r).abs(), s * r]
            images = [v, e, (v - e).abs(), v * e, (t - e).abs(), t * e]
            layers = self.network.ff[0].ff
            x = torch.tanh(layers.linear_1(torch.cat([*texts, *images])))
            scores.append(torch.sigmoid(layers.linear_3(torch.tanh(layers.linear_2(x)))).item())
        return max(scores)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A CLIP, and a RoBERTa of which nothing but configuration and tokenizer is at hand."""
    from tests.helpers.tiny_encoders import save_clip, save_roberta

    clip = save_clip(tmp_path_factory.mktemp("clip"))
    return clip, save_roberta(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def oracle(folders: tuple[Path, Path]) -> Oracle:
    return Oracle(*folders)


@pytest.fixture(scope="module")
def state(oracle: Oracle) -> dict[str, Any]:
    """The state dict, with the buffer that transformers kept when Polos was trained."""
    positions = {"encoder.model.embeddings.position_ids": torch.arange(42)[None]}
    return {**oracle.network.state_dict(), **positions}


@pytest.fixture(scope="module")
def checkpoint(state: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as Lightning 1.3 writes it: classes of its own as keys and values."""
    module = ModuleType("pytorch_lightning_of_old")
    stop = type("EarlyStopping", (), {"__module__": module.__name__})
    module.EarlyStopping = stop  # type: ignore[attr-defined]
    stopped: Any = stop()
    stopped.patience = 1
    path = tmp_path_factory.mktemp("polos") / "reprod.ckpt"
    sys.modules[module.__name__] = module
    try:
        kept = {"callbacks": {stop: {"self": stopped}}, "hyper_parameters": SETTINGS}
        torch.save({"epoch": 7, "state_dict": state, "best": np.ones(2), **kept}, path)
    finally:
        del sys.modules[module.__name__]
    return path


@pytest.fixture
def pairs(tmp_path: Path) -> list[Pair]:
    rng = np.random.default_rng(0)
    for name in "ab":
        pixels = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    texts = {"dog": ("cat", "a dog"), "cat sat": ("ab",), "ab": ("zebra", "x y", "cat sat")}
    return [
        Pair(tmp_path / f"{name}.png", caption, references)
        for caption, references in texts.items()
        for name in "ab"
    ]


def test_against_a_plain_network(
    folders: tuple[Path, Path],
    checkpoint: Path,
    oracle: Oracle,
    pairs: list[Pair],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clip, text = folders
    for weights in text.glob("*.safetensors"):
        weights.unlink()  # the checkpoint has them
    with torch.no_grad():
        expected = [oracle(pair) for pair in pairs]
    assert np.ptp(expected) > 0.05
    for size in (2, 64):
        monkeypatch.setattr("discode.metrics._encoders.BATCH", size)
        metric = MetricFactory(options={"device": "cpu"}).make(
            f"polos:text_model={text},weights={checkpoint},model={clip}"
        )
        scores = metric.score_pairs(pairs)
        np.testing.assert_allclose(scores.value, expected, atol=1e-5)
        alone = [float(metric.score_pairs([pair])) for pair in pairs]
        np.testing.assert_allclose(alone, expected, atol=1e-5)
    assert metric.needs == {"image", "references"}
    assert f"|metric:polos|model:{clip.name}|text:{text.name}|" in str(scores.signature)
    assert "|normalised:text" in str(scores.signature)


def test_what_cannot_be_scored(
    folders: tuple[Path, Path], checkpoint: Path, pairs: list[Pair], tmp_path: Path
) -> None:
    image = pairs[0].image
    odd = [
        Pair(tmp_path / "none.png", "dog", ("cat",)),
        Pair(image, "dog"),
        Pair(image, "dog", ("cat", "dog" * 15)),
        Pair(image, "", ("cat",)),
    ]
    clip, text = map(str, folders)
    metric = Polos.open(checkpoint, clip_model=clip, text_model=text, device="cpu")
    done: list[int] = []
    scores = metric.score_pairs(odd, progress=done.append)
    assert sum(done) == len(odd)
    assert np.isnan(scores.value).tolist() == [True, True, False, False]
    assert "none.png" in scores.errors[0]
    assert "no references" in scores.errors[1]
    assert scores.flags["cut"].tolist() == [False, False, True, False]
    assert metric.score_pairs([]).value.shape == (0,)


def test_files_that_are_not_polos(
    folders: tuple[Path, Path], state: dict[str, Any], tmp_path: Path
) -> None:
    clip, text = map(str, folders)

    def refused(changed: dict[str, Any]) -> str:
        content = {**state, **changed}
        content = {name: part for name, part in content.items() if part is not None}
        settings = content.pop("settings", SETTINGS)
        torch.save({"state_dict": content, "hyper_parameters": settings}, tmp_path / "odd.ckpt")
        with pytest.raises(InputError) as caught:
            Polos.open(tmp_path / "odd.ckpt", clip_model=clip, text_model=text, device="cpu")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    ff, mixed = "ff.0.ff.linear_", "scalar_mix.scalar_parameters.3"
    for place, changed in (
        ("scalar_mix.gamma", {"scalar_mix.gamma": None}),
        (f"{ff}2.weight", {f"{ff}2.weight": None, f"{ff}4.weight": torch.zeros(1, 1)}),
        ("CLIP: 1 tensors", {"clip.text_projection": None}),
        ("text encoder: 0 tensors", {"encoder.model.more": torch.zeros(1)}),
        ("4 layers", {mixed: torch.zeros(1)}),
        ("9 features", {f"{ff}1.weight": torch.zeros(24, 9)}),
        ("pool=avg", {"settings": {**SETTINGS, "pool": "avg"}}),
    ):
        assert place in refused(changed)
    torch.save({"weight": torch.zeros(1)}, tmp_path / "other.ckpt")
    with pytest.raises(InputError, match=r"other\.ckpt"):
        Polos.open(tmp_path / "other.ckpt")
    torch.save({"state_dict": state}, tmp_path / "good.ckpt")
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match=re.escape(str(folder))):
            Polos.open(tmp_path / "good.ckpt", clip_model=clip, text_model=str(folder))


def test_classes_in_a_file_are_never_imported(tmp_path: Path) -> None:
    from discode.metrics._clip_weights import read_clip_weights

    class Evil:
        def __reduce__(self) -> Any:
            return (shutil.copy, (__file__, str(tmp_path / "ran")))

    class System:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "ran"),))

    torch.save({"state_dict": {"a": torch.ones(1)}, "evil": Evil()}, tmp_path / "evil.ckpt")
    assert list(read_clip_weights(tmp_path / "evil.ckpt", low_rank=False)) == ["a"]
    assert not (tmp_path / "ran").exists()
    torch.save({"a": torch.ones(1), "evil": Evil()}, tmp_path / "evil.ckpt")
    with pytest.raises(InputError, match="is not a state dict"):
        read_clip_weights(tmp_path / "evil.ckpt", low_rank=False)
    torch.save({"a": torch.ones(1), "evil": System()}, tmp_path / "evil.ckpt")
    with pytest.raises(InputError, match=r"whose module .* is blocked.*never code"):
        read_clip_weights(tmp_path / "evil.ckpt", low_rank=False)
