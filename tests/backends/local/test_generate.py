"""Answers that begin with a space, with prose or with a letter, and where the rating is in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discode._pairs import Pair
from discode._prompts import FLEUR
from discode._scales import FIVE, LETTERS, TEN, UNIT, Scale
from discode.backends import read_all
from discode.backends._local.backend import Local
from discode.errors import InputError
from tests.helpers.local_models import LOCAL_MODEL_MARKS, count_generated, noise_images
from tests.helpers.tiny_lvlms import make

pytestmark = LOCAL_MODEL_MARKS

CAPTIONS = ["a dog runs", "x", "two men on a boat near the long wharf of a harbour at night " * 4]
PAIRS = [Pair(image, text) for image in noise_images((80, 60), (40, 90)) for text in CAPTIONS]


def mass(readings: Any) -> Any:
    """The probability that the answer is a rating, pair by pair."""
    first = readings.answer_logp[:, 0] if readings.lead_logp is None else readings.lead_logp
    return np.exp(first).sum(axis=1)


def test_an_answer_without_a_rating_fails(llava: Path) -> None:
    """Random weights: the rating is unlikely, and nothing like it is generated."""
    forced = read_all(Local(llava, device="cpu", read="forced"), PAIRS, FLEUR, FIVE)
    assert mass(forced).max() < 0.1
    assert not forced.errors
    for read in ("generate", "auto"):
        said = read_all(Local(llava, device="cpu", read=read), PAIRS, FLEUR, FIVE)
        assert list(said.errors) == list(range(len(PAIRS)))
        assert np.isnan(said.answer_logp).all()
        assert all("read=forced" in reason for reason in said.errors.values())


def test_generate_reads_what_was_written(tmp_path: Path) -> None:
    folder = make("llava_next_llama", tmp_path / "talks", answers=True, begins="rating")
    said = read_all(Local(folder, device="cpu", read="generate"), PAIRS, FLEUR, UNIT, hidden=True)
    auto = read_all(Local(folder, device="cpu", read="auto"), PAIRS, FLEUR, UNIT, hidden=True)
    assert not said.errors
    assert set(np.asarray(said.how)) == {"generated"}
    assert set(np.asarray(auto.how)) == {"forced"}  # it begins so by itself: nothing to generate
    for name in ("answer_logp", "stem_logp", "lead_logp", "hidden"):
        assert np.abs(getattr(said, name) - getattr(auto, name)).max() < 1e-4, name


@pytest.mark.parametrize(
    "family", ["llava_next_vicuna", "llava_next_mistral", "idefics3", "paligemma"]
)
@pytest.mark.parametrize("scale", [UNIT, TEN, LETTERS], ids=lambda scale: scale.name)
def test_a_space_before_the_rating_needs_no_generation(
    family: str, scale: Scale, tmp_path: Path
) -> None:
    begins = {UNIT: "space", TEN: "digit", LETTERS: "letters"}[scale]
    folder = make(family, tmp_path / family, answers=True, begins=begins)
    backend = Local(folder, device="cpu")
    assert "space" in backend.identity.revision.split("+")
    with count_generated(backend) as count:
        said = read_all(backend, PAIRS, FLEUR, scale)
    assert not count
    assert set(np.asarray(said.how)) == {"forced"}
    assert mass(said).min() > 0.9
    if scale is LETTERS:
        return
    # without the second spelling, as before: hardly any mass, and every pair generated
    vocabulary = backend.runner.vocabulary
    both = vocabulary.tokenize_prompt(FLEUR, scale, references=False)
    single = replace(both, spellings=both.spellings[: len(scale.stems)])
    with pytest.MonkeyPatch.context() as patch, count_generated(backend) as count:
        patch.setattr(vocabulary, "tokenize_prompt", lambda *_, **__: single)
        after_generation = read_all(backend, PAIRS, FLEUR, scale)
        patch.setattr(backend, "options", replace(backend.options, read="forced"))
        assert mass(read_all(backend, PAIRS, FLEUR, scale)).max() < 0.1
    assert len(count) == len(PAIRS)
    assert not after_generation.errors
    assert np.abs(np.exp(said.answer_logp) - np.exp(after_generation.answer_logp)).max() < 0.1


@pytest.mark.parametrize("family", ["llava_next_llama", "qwen2_vl", "gemma3", "paligemma"])
def test_prose_before_the_rating(family: str, tmp_path: Path) -> None:
    folder = make(family, tmp_path / family, answers=True, begins="prose")
    backend = Local(folder, device="cpu")
    with count_generated(backend) as count:
        said = read_all(backend, PAIRS, FLEUR, UNIT, hidden=True)
    assert len(count) == len(PAIRS)
    assert not said.errors
    assert set(np.asarray(said.how)) == {"generated"}
    assert np.isfinite(said.answer_logp).all()  # after both stems
    assert np.isfinite(said.stem_logp).all()
    assert mass(said).min() > 0.8
    # the oracle: the distributions of generate itself, step by step
    tokenized = backend.runner.vocabulary.tokenize_prompt(FLEUR, UNIT, references=False)
    group, _ = backend._prepare(PAIRS[:3], [0, 1, 2], tokenized)
    if group.image.opened is not None:
        return  # its processor builds each prompt, which the readings above went through
    for row, suffix in enumerate(group.suffixes):
        ids = torch.cat([group.image.ids, torch.tensor([suffix])], dim=1)
        inputs = backend.runner.model_inputs([group.image], longer=len(suffix))
        made = backend.runner.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **inputs,
            max_new_tokens=5,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens = made.sequences[0, ids.shape[1] :].tolist()
        logp = [step[0].double().log_softmax(-1) for step in made.logits]
        stem = [0, 1][tokens[2] == tokenized.stems[1][0]]
        assert tuple(tokens[2:4]) == tokenized.stems[stem]
        path = float(logp[2][tokens[2]] + logp[3][tokens[3]])
        digits = [float(logp[4][list(g)].logsumexp(-1)) for g in tokenized.answers[stem]]
        assert said.stem_logp[row, stem] == pytest.approx(path, abs=1e-4)
        assert np.abs(said.answer_logp[row, stem] - digits).max() < 1e-4


def test_a_letter_after_a_space_is_that_letter(tmp_path: Path) -> None:
    folder = make("llava_next_llama", tmp_path / "letters", answers=True, begins="letters")
    backend = Local(folder, device="cpu", read="generate")
    said = read_all(backend, PAIRS, FLEUR, LETTERS)
    tokenized = backend.runner.vocabulary.tokenize_prompt(FLEUR, LETTERS, references=False)
    assert not said.errors
    group, _ = backend._prepare(PAIRS[:3], [0, 1, 2], tokenized)
    for row in range(3):
        written = backend.runner.vocabulary.tokenizer.decode(backend.runner.generate(group, row)[0])
        assert written.startswith(" ")
        assert LETTERS.answers[int(said.answer_logp[row, 0].argmax())] == written.strip()


def test_a_rating_in_other_tokens_is_not_read(llava: Path) -> None:
    vocabulary = Local(llava, device="cpu", read="forced").runner.vocabulary
    tokenized = vocabulary.tokenize_prompt(FLEUR, UNIT, references=False)
    word, zero, dot, eight = vocabulary.tokenizer.convert_tokens_to_ids(["Ġthe", "0", ".", "8"])
    long = vocabulary.tokenizer.convert_tokens_to_ids("85")
    pieces = [" the ", "0", ".", "8"]
    assert tokenized.before_rating([word, zero, dot, eight], pieces) == [word]
    assert tokenized.before_rating([zero, dot, long], ["0", ".", "85"]) == []
    for tokens in ([word, zero, dot, word], [word, eight, dot, eight]):
        with pytest.raises(InputError):
            tokenized.before_rating(tokens, pieces)
