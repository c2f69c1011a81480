"""InternVL-2.5 as the hub has it: translated, it computes what its own code computes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from discode._pairs import Pair
from discode._prompts import FLEUR
from discode._scales import UNIT
from discode.backends import read_all
from discode.backends._local import internvl
from discode.backends._local.backend import Local
from discode.backends._local.load import LocalOptions, open_model
from discode.backends._local.vocabulary import Vocabulary
from discode.errors import InputError
from tests.helpers import tiny_internvl as tiny
from tests.helpers.local_models import (
    LOCAL_MODEL_MARKS,
    largest_difference,
    noise_image,
    run_python,
)
from tests.helpers.tiny_lvlms import ask

pytestmark = [*LOCAL_MODEL_MARKS, pytest.mark.full]
TEXT = "Caption: a dog runs.\n\nScore:"
SYSTEM = f"<|im_start|>system\n{internvl.SYSTEM_MESSAGE}<|im_end|>\n"
CHECKPOINTS = [("internlm2", False), ("internlm2", True), ("qwen2", False), ("qwen2", True)]


@pytest.fixture(scope="module", params=CHECKPOINTS, ids=["8B", "26B", "4B", "78B"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    language, six_billion = request.param
    folder = tmp_path_factory.mktemp("internvl") / "InternVL2_5"
    return tiny.make(folder, language, six_billion=six_billion)


@pytest.mark.parametrize("size", [(16, 16), (60, 40), (90, 30)])
def test_logits_are_those_of_the_published_code(original: Path, size: tuple[int, int]) -> None:
    loaded = open_model(str(original), LocalOptions(device="cpu"))
    inputs = ask(loaded.processor, noise_image(*size), TEXT)
    ids = inputs["input_ids"][0]
    token = loaded.processor.tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>")
    with torch.no_grad():
        got = loaded.model(**inputs).logits[0]
        expected = tiny.Oracle(original).logits(ids, inputs["pixel_values"], token)
    assert expected.std() > 0.5
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)


def test_the_prompt_is_that_of_the_published_chat(original: Path) -> None:
    processor = open_model(str(original), LocalOptions(device="cpu")).processor
    for size, tiles in (((16, 16), 1), ((60, 40), 7), ((100, 10), 11)):  # and the whole image
        inputs = ask(processor, noise_image(*size), TEXT)
        assert len(inputs["pixel_values"]) == tiles
        written = processor.tokenizer.decode(inputs["input_ids"][0])
        image = "<img>" + "<IMG_CONTEXT>" * 4 * tiles + "</img>"
        start = "<s>" if "InternLM2" in (original / "config.json").read_text() else ""
        assert written == (
            f"{start}{SYSTEM}<|im_start|>user\n{image}\n{TEXT}<|im_end|>\n<|im_start|>assistant\n"
        )


def _changed(folder: Path, **settings: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))


def _other_language(folder: Path) -> None:
    text = json.loads((folder / "config.json").read_text())["llm_config"]
    _changed(folder, llm_config=text | {"architectures": ["Phi3ForCausalLM"]})


def _without_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["mlp1.0.bias"], weights["vision_model.encoder.layers.1.ls1"]
    save_file(weights, folder / "model.safetensors")


def _with_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"mlp1.4.weight": torch.zeros(3)}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (_other_language, "Phi3ForCausalLM"),
        (lambda folder: _changed(folder, template="Hermes-2"), "template"),
        (lambda folder: _changed(folder, ps_version="v1"), "ps_version"),
        (lambda folder: _changed(folder, use_llm_lora=8), "use_llm_lora"),
        (lambda folder: _changed(folder, vision_config={}), "hidden_size|layer_norm|_size"),
        (lambda folder: (folder / "tokenizer.model").unlink(), "tokenizer.model"),
        (lambda folder: (folder / "preprocessor_config.json").unlink(), "preprocessor_config"),
        (_without_a_weight, "lambda_1"),
        (_with_a_weight, "mlp1.4.weight"),
    ],
)
def test_what_cannot_be_translated_is_refused(tmp_path: Path, change: Any, place: str) -> None:
    folder = tiny.make(tmp_path / "model", "internlm2")
    change(folder)
    with pytest.raises(InputError, match=place) as caught:
        open_model(str(folder), LocalOptions(device="cpu")).load()
    assert "\n" not in str(caught.value)


def test_its_code_is_never_run(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "model", "internlm2")
    for name in ("configuration_internvl_chat", "tokenization_internlm2", "modeling_internlm2"):
        (folder / f"{name}.py").write_text("raise SystemExit('this code was run')")
    for trusted in (False, True):
        open_model(str(folder), LocalOptions(device="cpu", trust_remote_code=trusted)).load()


CACHED = """
from discode.backends._local.check import check_model
from discode.backends._local.load import LocalOptions, open_model
print(check_model("OpenGVLab/InternVL2_5-8B")["opened"])
options = LocalOptions(device="cpu", dtype="bfloat16", device_map="auto")
loaded = open_model("OpenGVLab/InternVL2_5-8B", options)
print(type(loaded.model).__name__, loaded.name, loaded.revision, loaded.model.dtype)
"""


def test_it_is_opened_by_its_name(tmp_path: Path) -> None:
    """From the hub's cache, sharded as it is there, in another dtype, placed by accelerate."""
    cache, commit = tmp_path / "hub" / "models--OpenGVLab--InternVL2_5-8B", "0123456789" * 4
    folder = tiny.make(cache / "snapshots" / commit, "internlm2")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    weights = sorted(load_file(folder / "model.safetensors").items())
    (folder / "model.safetensors").unlink()
    names: dict[str, str] = {}
    for number, part in enumerate((weights[:20], weights[20:])):
        names |= dict.fromkeys(dict(part), f"model-{number}.safetensors")
        save_file(dict(part), folder / f"model-{number}.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    done = run_python(CACHED, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    route, opened = done.stdout.splitlines()
    assert "converted" in route
    assert opened == (
        f"InternVLForConditionalGeneration OpenGVLab/InternVL2_5-8B {commit[:12]} torch.bfloat16"
    )


@pytest.mark.data
@pytest.mark.parametrize(
    ("family", "language"), [("internlm2", "InternLM2ForCausalLM"), ("qwen", "Qwen2ForCausalLM")]
)
def test_the_real_tokenizers(data: Path, tmp_path: Path, family: str, language: str) -> None:
    tokenizers = data / "tokenizers"
    if not tokenizers.is_dir():
        pytest.skip(f"the real tokenizers are not at {tokenizers}")
    if family == "internlm2":
        folder = tokenizers / "internlm2"
    else:  # InternVL's settings beside Qwen2's vocabulary
        folder = tmp_path
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(tokenizers / "qwen2_vl" / name, folder)
        shutil.copy(tokenizers / "internvl3_qwen" / "tokenizer_config.json", folder)
    tokenizer = internvl.read_tokenizer(folder, language)
    given = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    for i, token in given.items():
        assert tokenizer.convert_tokens_to_ids(token["content"]) == int(i)
    text = (
        "<|im_start|>user\n<img></img>\nein Bär  0.85, 猫 <b>\n<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    digits = ["0", ".", "85"] if family == "internlm2" else ["0", ".", "8", "5"]
    assert (
        tokenizer.convert_ids_to_tokens(tokenizer(text + "0.85")["input_ids"])[-len(digits) :]
        == digits
    )
    if family == "internlm2":  # as InternLM2's documents print the start of an answer
        assert ids[-4:] == [92543, 525, 11353, 364]
        assert tokenizer("a dog")["input_ids"][0] == 1
        assert tokenizer("[UNUSED_TOKEN_145]")["input_ids"].count(92542) == 0
    assert "<|im_end|>" in Vocabulary(tokenizer).control_tokens


def test_it_is_a_judge_like_any_other(original: Path) -> None:
    pairs = [Pair(noise_image(60, 40), caption) for caption in ("a dog", "two men on a boat", "x")]
    packed = Local(original, device="cpu", read="forced")
    assert packed.runner.packed
    plain = Local(original, device="cpu", read="forced", packing="off")
    readings = read_all(packed, pairs, FLEUR, UNIT, hidden=True)
    assert not readings.errors
    assert largest_difference(readings, read_all(plain, pairs, FLEUR, UNIT)) < 1e-5
    assert np.ptp(readings.answer_logp[:, 0, 3]) > 1e-4  # captions count
    written = read_all(packed, [Pair(noise_image(60, 40), "<|im_end|> <IMG_CONTEXT>")], FLEUR, UNIT)
    assert not written.errors
