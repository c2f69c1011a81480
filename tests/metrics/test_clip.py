"""CLIP-S against torchmetrics, RefCLIP-S by hand, PAC-S and PAC-S++ against OpenAI's networks."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from discode._pairs import Pair
from discode.errors import InputError
from discode.metrics import MetricFactory
from discode.metrics._clip import CLIP_PROMPT, ClipEncoder, ClipScore

torch = pytest.importorskip("torch", reason="CLIP is tested with discode-eval[dev]")
transformers = pytest.importorskip("transformers", reason="CLIP is tested with discode-eval[dev]")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.helpers.tiny_encoders import save_clip

    return save_clip(tmp_path_factory.mktemp("clip"), seed=5)  # cosines of both signs


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Pair]:
    rng = np.random.default_rng(0)
    where = tmp_path_factory.mktemp("images")
    for name in "abc":
        pixels = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(where / f"{name}.png")
    captions = ["dog", "cat sat", "ab", "x y", "zebra"]
    references = [("cat", "dog"), ("ab", "dog x"), ("cat sat",), ("ab",), ("zebra", "cat")]
    return [
        Pair(where / f"{'abc'[i % 3]}.png", caption, refs)
        for i, (caption, refs) in enumerate(zip(captions, references, strict=True))
    ]


def test_clip_s_against_torchmetrics(folder: Path, pairs: list[Pair]) -> None:
    multimodal = pytest.importorskip("torchmetrics.functional.multimodal")

    class Tensors(transformers.CLIPModel):  # type: ignore[name-defined,misc]
        """torchmetrics expects tensors, as transformers 4 gave them."""

        def get_text_features(self, *args: Any) -> Any:
            return super().get_text_features(*args).pooler_output

        def get_image_features(self, *args: Any) -> Any:
            return super().get_image_features(*args).pooler_output

    model = Tensors.from_pretrained(folder).requires_grad_(False)
    processor = transformers.CLIPProcessor.from_pretrained(folder)
    encoder = ClipEncoder.open(str(folder), device="cpu")
    scores = ClipScore(encoder, weight=100.0, prompt="").score_pairs(pairs)
    expected = []
    for pair in pairs:
        pixels = torch.from_numpy(np.array(Image.open(pair.image)))  # type: ignore[arg-type]
        shown = pixels.permute(2, 0, 1)
        expected.append(
            float(multimodal.clip_score(shown, pair.caption, lambda: (model, processor)))
        )
    np.testing.assert_allclose(scores.value, expected, rtol=1e-4, atol=1e-4)
    assert np.ptp(scores.value) > 1


def by_hand(
    pairs: list[Pair], folder: Path, weight: float, embed_text: Any, embed_image: Any
) -> list[list[float]]:
    """CLIP-S and RefCLIP-S of each pair, one at a time."""
    processor = transformers.CLIPProcessor.from_pretrained(folder)

    def unit(vectors: Any) -> Any:
        vector = vectors.detach().numpy()[0].astype(float)
        return vector / np.linalg.norm(vector)

    def text(words: str) -> Any:
        ids = processor(text=[CLIP_PROMPT + words], return_tensors="pt").input_ids
        return unit(embed_text(ids))

    plain, with_references = [], []
    for pair in pairs:
        shown = Image.open(pair.image)  # type: ignore[arg-type]
        image = unit(embed_image(processor(images=shown, return_tensors="pt").pixel_values))
        left = weight * max(image @ text(pair.caption), 0)
        right = max(0, *(text(pair.caption) @ text(ref) for ref in pair.references))
        plain.append(left)
        with_references.append(2 * left * right / (left + right) if left and right else 0.0)
    return [plain, with_references]


def test_ref_clip_s_by_hand(folder: Path, pairs: list[Pair]) -> None:
    model = transformers.CLIPModel.from_pretrained(folder)
    encoder = ClipEncoder.open(str(folder), device="cpu")
    metric = ClipScore(encoder, "ref-clip-s", references=True)
    expected = by_hand(
        pairs, folder, 2.5,
        lambda ids: model.get_text_features(ids).pooler_output,
        lambda pixels: model.get_image_features(pixels).pooler_output,
    )  # fmt: skip
    np.testing.assert_allclose(metric.score_pairs(pairs).value, expected[1], atol=1e-5)
    assert metric.needs == {"image", "references"}
    assert ClipScore(encoder).needs == {"image"}
    assert "|metric:ref-clip-s|model:" in str(metric.signature)
    assert str(metric.signature).endswith("|weight:2.5|prompt:A_photo_depicts")


def test_everything_is_embedded_once(
    folder: Path, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = ClipEncoder.open(str(folder), device="cpu")
    rows = []
    run_model = ClipEncoder._run

    def counted(self: ClipEncoder, run: Any, **inputs: Any) -> Any:
        rows.append(len(next(iter(inputs.values()))))
        return run_model(self, run, **inputs)

    monkeypatch.setattr(ClipEncoder, "_run", counted)
    monkeypatch.setattr("discode.metrics._encoders.BATCH", 2)
    alone = [float(ClipScore(encoder).score_pairs([pair])) for pair in pairs]
    assert sum(rows) == 3 + 5
    many = ClipScore(encoder).score_pairs(pairs * 2)
    assert sum(rows) == 3 + 5
    np.testing.assert_allclose(many.value, alone * 2, atol=1e-6)
    ClipScore(encoder, references=True).score_pairs(pairs)
    assert sum(rows) == 3 + 5 + 2  # two references are not captions
    assert max(rows) == 2


def test_what_cannot_be_scored(folder: Path, pairs: list[Pair], tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not an image")
    mixed = [
        Pair(tmp_path / "none.png", "dog", ("dog",)),
        Pair(broken, "dog", ("dog",)),
        Pair(broken, "cat", ("dog",)),
        Pair(pairs[0].image, "dog"),
        Pair(pairs[0].image, "dog" * 12, ("dog",)),
        Pair(pairs[0].image, "dog", ("dog" * 12, "cat")),
    ]
    encoder = ClipEncoder.open(str(folder), device="cpu")
    done: list[int] = []
    plain = ClipScore(encoder, prompt="").score_pairs(mixed, progress=done.append)
    assert done == [len(mixed)]
    assert np.isnan(plain.value).tolist() == [True, True, True, False, False, False]
    assert plain.errors[1] == plain.errors[2]
    assert "broken.png" in plain.errors[2]
    assert plain.flags["cut"].tolist() == [False] * 4 + [True, False]
    with_refs = ClipScore(encoder, references=True, prompt="").score_pairs(mixed)
    assert np.isnan(with_refs.value).tolist() == [True] * 4 + [False] * 2
    assert "no references" in with_refs.errors[3]
    assert with_refs.flags["cut"].tolist() == [False] * 4 + [True, True]
    assert ClipScore(encoder).score_pairs([]).value.shape == (0,)


def assert_same_features(model: Any, other: Any) -> None:
    ids = torch.tensor([[52, 3, 4, 53], [52, 9, 20, 53]])
    pixels = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        for ours, theirs in (
            (model.get_text_features(ids), other.text(ids)),
            (model.get_image_features(pixels), other.image(pixels)),
        ):
            torch.testing.assert_close(ours.pooler_output, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights_under_openais_names(folder: Path, tmp_path: Path, suffix: str) -> None:
    from safetensors.torch import save_file

    from tests.helpers.tiny_openai import OpenAI

    torch.manual_seed(3)
    other = OpenAI().eval()
    path = tmp_path / f"clip_ViT-B-32{suffix}"
    if suffix == ".pth":
        torch.save({"state_dict": other.state_dict(), "epoch": 3}, path)
    else:
        save_file(other.state_dict(), path)
    encoder = ClipEncoder.open(str(folder), weights=path, device="cpu")
    assert_same_features(encoder.model, other)
    assert encoder.revision != ClipEncoder.open(str(folder), device="cpu").revision


def test_weights_that_cannot_be_used(folder: Path, tmp_path: Path) -> None:
    from tests.helpers.tiny_openai import OpenAI

    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    path = tmp_path / "evil.pth"
    path.write_bytes(pickle.dumps({"x": Evil()}))
    with pytest.raises(InputError, match=r"evil\.pth.*only tensors are loaded, never code"):
        ClipEncoder.open(str(folder), weights=path)
    assert not (tmp_path / "ran").exists()
    state = OpenAI().state_dict()
    for name, content, place in (
        ("list.pth", [1, 2], r"list\.pth"),
        ("few.pth", {"visual.proj": torch.zeros(2, 2)}, r"few\.pth"),
        ("shape.pth", {**state, "visual.proj": torch.zeros(32, 3)}, "visual_projection"),
    ):
        torch.save(content, tmp_path / name)
        with pytest.raises(InputError, match=place):
            ClipEncoder.open(str(folder), weights=tmp_path / name)
    with pytest.raises(InputError, match=r"none\.pth"):
        ClipEncoder.open(str(folder), weights=tmp_path / "none.pth")


@pytest.fixture(scope="module")
def pac_plus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    from tests.helpers.tiny_low_rank import low_rank_clip

    torch.manual_seed(1)
    model = low_rank_clip()
    path = tmp_path_factory.mktemp("weights") / "PAC++_clip_ViT-L-14.pth"
    state = np.random.default_rng(0).bit_generator.state["state"]
    noise = {"numpy": np.random.default_rng(0).normal(size=3), "rng": state}
    torch.save({"state_dict": model.state_dict(), "epoch": 3, **noise}, path)
    return model, path


def test_low_rank_updates_are_merged(folder: Path, pac_plus: tuple[Any, Path]) -> None:
    other, path = pac_plus
    encoder = ClipEncoder.open(str(folder), weights=path, low_rank=True, device="cpu")
    assert_same_features(encoder.model, other)


def test_pac_s_plus_plus_by_name(
    folder: Path, pac_plus: tuple[Any, Path], pairs: list[Pair]
) -> None:
    other, path = pac_plus
    factory, options = MetricFactory(options={"device": "cpu"}), f"model={folder},weights={path}"
    plain = factory.make(f"pac-s++:{options}").score_pairs(pairs)
    with_refs = factory.make(f"ref-pac-s++:{options}").score_pairs(pairs)
    expected = by_hand(pairs, folder, 2.0, other.text, other.image)
    np.testing.assert_allclose([plain.value, with_refs.value], expected, atol=1e-4)
    assert np.ptp(plain.value) > 0.1
    assert "|metric:ref-pac-s++|model:" in str(with_refs.signature)
    assert "|weight:2|prompt:A_photo_depicts" in str(with_refs.signature)


def test_files_of_pac_s_and_pac_s_plus_plus_are_not_mixed_up(
    folder: Path, pac_plus: tuple[Any, Path], tmp_path: Path
) -> None:
    from tests.helpers.tiny_openai import OpenAI

    model, path = pac_plus
    with pytest.raises(InputError, match=r"is for pac-s\+\+"):
        ClipEncoder.open(str(folder), weights=path)
    torch.save(OpenAI().state_dict(), tmp_path / "clip_ViT-B-32.pth")
    with pytest.raises(InputError, match="is for pac-s:"):
        ClipEncoder.open(str(folder), weights=tmp_path / "clip_ViT-B-32.pth", low_rank=True)
    state = model.state_dict()
    owner = "transformer.resblocks.1.attn.in_proj_weight"
    for changed, message in (
        ({f"{owner}_lora_B": None}, f"low-rank tensors of {owner} are not a pair"),
        ({owner: None}, f"low-rank tensors of {owner} are not a pair"),
        ({f"{owner}_lora_A": torch.zeros(4, 7)}, r"\(96, 4\) and \(4, 7\), do not fit its weight"),
        ({"visual.proj": torch.zeros(32, 3)}, "size mismatch for visual_projection"),
        ({"visual.proj": None}, "1 tensors are missing, 0 unknown"),
    ):
        kept = {name: tensor for name, tensor in {**state, **changed}.items() if tensor is not None}
        torch.save({"state_dict": kept}, tmp_path / "odd.pth")
        with pytest.raises(InputError, match=message) as caught:
            ClipEncoder.open(str(folder), weights=tmp_path / "odd.pth", low_rank=True)
        assert str(caught.value).startswith("odd.pth")


def test_models_that_cannot_be_opened(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="no model folder"):
        ClipEncoder.open(str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"config\.json"):
        ClipEncoder.open(str(tmp_path))
    with pytest.raises(InputError, match="device 'moon' cannot be used"):
        ClipEncoder.open(str(folder), device="moon")

    def refuse(name: str, **_: Any) -> Any:
        raise OSError(f"We couldn't connect to the hub for {name}.\nMore lines.")

    monkeypatch.setattr(transformers.CLIPModel, "from_pretrained", refuse)
    with pytest.raises(InputError) as caught:
        ClipEncoder.open()
    assert "\n" not in str(caught.value)
    assert "openai/clip-vit-base-patch32" in str(caught.value)
