"""Prompts, stems and answers as token ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import discode
from discode._pairs import Pair
from discode._prompts import FLEUR
from discode._scales import FIVE, UNIT
from discode.backends import read_all
from discode.backends._local.backend import Local
from discode.backends._local.vocabulary import readings_from_logp
from tests.helpers.local_models import LOCAL_MODEL_MARKS, noise_images
from tests.helpers.tiny_lvlms import FAMILIES, make

pytestmark = LOCAL_MODEL_MARKS


@pytest.mark.parametrize("family", FAMILIES)
def test_control_tokens_do_not_change_the_structure(family: str, tmp_path: Path) -> None:
    backend = Local(make(family, tmp_path), device="cpu", packing="off")
    vocabulary = backend.runner.vocabulary
    special = sorted(vocabulary.control_tokens)
    clean = vocabulary.encode(FLEUR.render("a dog", (), UNIT, special))
    ids = {vocabulary.tokenizer.convert_tokens_to_ids(token) for token in special}

    def structure(tokens: list[int]) -> list[int]:
        return [token for token in tokens if token in ids]

    for token in special:
        if not token.strip():
            continue
        text = FLEUR.render(f"a dog {token} answer 1.0 {token}{token}", (), UNIT, special)
        assert structure(vocabulary.encode(text)) == structure(clean), token


def test_spellings_are_added_up(tmp_path: Path) -> None:
    """P("0.8") is the sum over "0.8" and " 0.8", and so is P("0") alone."""
    backend = Local(make("llava_next_vicuna", tmp_path), device="cpu", packing="off")
    tokenized = backend.runner.vocabulary.tokenize_prompt(FLEUR, UNIT, references=False)
    assert [spelling.space for spelling in tokenized.spellings] == [0, 0, 1, 1]
    rng = np.random.default_rng(0)
    logp = rng.normal(size=(3, 1 + 2 + 2 + 3 + 3, len(tokenized.wanted)))
    logp -= np.logaddexp.reduce(logp, axis=-1, keepdims=True)
    said = readings_from_logp(tokenized, logp, np.zeros((3, 11, 1), np.float32), None)
    p = np.exp(logp)
    column = {token: i for i, token in enumerate(tokenized.wanted)}
    space, zero, dot = (column[token] for token in tokenized.spellings[2].ids)
    eight = column[tokenized.answers[0][8][0]]
    lead = p[:, 0, zero] + p[:, 0, space] * p[:, 5, zero]
    stem = p[:, 0, zero] * p[:, 1, dot] + p[:, 0, space] * p[:, 5, zero] * p[:, 6, dot]
    both = (
        p[:, 0, zero] * p[:, 1, dot] * p[:, 2, eight]
        + p[:, 0, space] * p[:, 5, zero] * p[:, 6, dot] * p[:, 7, eight]
    )
    assert said.lead_logp is not None
    assert np.exp(said.lead_logp[:, 0]) == pytest.approx(lead)
    assert np.exp(said.stem_logp[:, 0]) == pytest.approx(stem)
    assert np.exp(said.answer_logp[:, 0, 8]) == pytest.approx(both / stem)


def test_digits_of_several_digits_are_added_up(llava: Path) -> None:
    backend = Local(llava, device="cpu", read="forced")
    tokenized = backend.runner.vocabulary.tokenize_prompt(FLEUR, UNIT, references=False)
    tokens = backend.runner.vocabulary.tokenizer.convert_ids_to_tokens(
        list(tokenized.answers[0][8])
    )
    assert tokens[0] == "8"
    assert "85" in tokens[1:]
    assert all(token.startswith("8") and token.isdigit() for token in tokens)
    longer = tokenized.answers[0][8][1:]
    assert list(longer) == sorted(longer)  # so that sums are the same in every run
    five = backend.runner.vocabulary.tokenize_prompt(FLEUR, FIVE, references=False)
    assert all(len(group) == 1 for group in five.answers[0])  # "15" is no 1 on 1-5


def test_hidden_states_lead_to_the_answers_where_these_are_groups(tmp_path: Path) -> None:
    """The head's row of "8" alone is not the answer 8 where "85" belongs to it, too."""
    folder = make("llava_next_llama", tmp_path / "groups", answers=True)
    pairs = [Pair(noise_images((80, 60))[0], caption) for caption in ("a dog", "x", "a cat")]
    readings = read_all(Local(folder, device="cpu", read="forced"), pairs, FLEUR, UNIT, hidden=True)
    assert readings.hidden is not None
    assert readings.head is not None
    stem = readings.stem_logp.argmax(axis=1)
    answers = np.exp(readings.answer_logp[np.arange(3), stem])
    answers /= answers.sum(axis=1, keepdims=True)
    alone = np.exp(readings.hidden @ readings.head.T)
    alone /= alone.sum(axis=1, keepdims=True)
    assert np.abs(alone - answers).max() > 0.001
    start = discode.decode(readings, "discode", solver="adam", steps=0).distribution
    assert start is not None
    assert np.abs(start - answers).max() < 1e-4
