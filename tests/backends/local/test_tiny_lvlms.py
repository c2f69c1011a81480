"""The tiny checkpoints that other tests use: complete, alive, and true to their families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from tests.helpers import tiny_lvlms as tiny
from tests.helpers.local_models import noise_image

pytest.importorskip("num2words", reason="local models are tested with discode-eval[dev]")
pytestmark = pytest.mark.usefixtures("one_thread")
TEXT = "Caption: a dog runs.\n\nScore:"


def load(folder: Path) -> tuple[Any, Any]:
    model = hf.AutoModelForImageTextToText.from_pretrained(folder)
    return model, hf.AutoProcessor.from_pretrained(folder)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_checkpoint_sees_and_reads(family: str, tmp_path: Path) -> None:
    model, processor = load(tiny.make(family, tmp_path))
    tokenizer, head = processor.tokenizer, model.get_output_embeddings()
    with torch.no_grad():
        inputs = tiny.ask(processor, noise_image(60, 40), TEXT)
        out = model(**inputs, output_hidden_states=True)
        other = model(**tiny.ask(processor, noise_image(60, 40, seed=1), TEXT)).logits[0, -1]
        text = model(**tiny.ask(processor, noise_image(60, 40), TEXT.replace("dog", "cat"))).logits[
            0, -1
        ]
        torch.testing.assert_close(head(out.hidden_states[-1]), out.logits)
    last = out.logits[0, -1]
    assert last.dtype == torch.float32
    assert torch.isfinite(out.logits).all()
    assert 15 < out.logits.max() < 31
    assert last.std() > 0.5
    assert (last - other).abs().max() > 0.02
    assert (last - text).abs().max() > 0.02

    ids = inputs["input_ids"][0].tolist()
    assert ids.count(tokenizer.bos_token_id) == (tokenizer.bos_token is not None)
    assert ids.count(model.config.image_token_id) > 1 or family == "mllama"
    assert tokenizer.added_tokens_decoder[model.config.image_token_id].special
    assert "".join(tokenizer.decode(ids).split()).count("Caption:adogruns.Score:") == 1


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_images_of_any_shape(family: str, tmp_path: Path) -> None:
    model, processor = load(tiny.make(family, tmp_path))
    sizes = (60, 40), (20, 30), (16, 16), (200, 50), (33, 150)
    lengths = set()
    for size in sizes:
        inputs = tiny.ask(processor, noise_image(*size), TEXT)
        with torch.no_grad():
            assert model(**inputs).logits.isfinite().all()
        lengths.add(inputs["input_ids"].shape[1])
    fixed = family in ("llava", "gemma3", "gemma3_short_window", "paligemma", "mllama")
    assert len(lengths) == 1 if fixed else len(lengths) > 1
    assert max(lengths) < 200


def pieces(tokenizer: Any, text: str) -> list[str]:
    found: list[str] = tokenizer.tokenize(text)
    return found


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_numbers_are_cut_as_the_family_cuts_them(family: str) -> None:
    tokenizer = tiny.FAMILIES[family]().processor.tokenizer
    space = ["▁"] if family in ("llava", "llava_next_vicuna", "llava_next_mistral") else []
    llama3 = family in ("llava_next_llama", "idefics3", "llama4", "mllama")
    assert pieces(tokenizer, "7") == [*space, "7"]
    assert pieces(tokenizer, "0.7") == [*space, "0", ".", "7"]
    assert pieces(tokenizer, "1.0") == [*space, "1", ".", "0"]
    assert pieces(tokenizer, "0.85") == [*space, "0", ".", *(["85"] if llama3 else ["8", "5"])]
    text = "Ein Höhlenbär\n\n — 猫 <b>0.7</b>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_it_can_be_made_to_answer(family: str, tmp_path: Path) -> None:
    model, processor = load(tiny.make(family, tmp_path, answers=True))
    inputs = tiny.ask(processor, noise_image(60, 40), TEXT)
    start = inputs["input_ids"].shape[1]
    made = model.generate(**inputs, max_new_tokens=3, do_sample=False)[0, start:]
    first, dot, digit = processor.tokenizer.convert_ids_to_tokens(made)
    assert first in "01"
    assert dot == "."
    assert digit.isdecimal()


def test_weights_are_the_same_every_time(tmp_path: Path) -> None:
    tiny.write("gemma3", tmp_path / "first")
    torch.manual_seed(7)
    tiny.write("gemma3", tmp_path / "second")
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
