"""Answers that the model generates itself, and where in them the rating is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discode.pairs import Pair
from discode.prompts import FLEUR
from discode.scales import FIVE, UNIT

pytest.importorskip("torch", reason="local models need discode[hf]")
pytest.importorskip("transformers", reason="local models need discode[hf]")
pytest.importorskip("torchvision", reason="the image processors of most models need it")

from discode.backends.local.backend import Local
from discode.backends.local.generate import GeneratedText, find_answer
from tests.helpers.local_models import LOCAL_MODEL_MARKS, noise_images
from tests.helpers.tiny_lvlms import make

pytestmark = LOCAL_MODEL_MARKS

CAPTIONS = ["a dog runs", "x", "two men on a boat near the long wharf of a harbour at night " * 4]


def test_generate_reads_the_papers_way(llava: Path) -> None:
    forced = Local(llava, device="cpu", read="forced")
    backend = Local(llava, device="cpu", read="generate")
    pairs = [Pair(image, text) for image in noise_images((80, 60)) for text in CAPTIONS]
    said = backend.read(pairs, FLEUR, FIVE)
    plain = forced.read(pairs, FLEUR, FIVE)
    for row in range(len(pairs)):
        if row in said.errors:
            assert "did not answer with a rating" in said.errors[row]
            assert np.isnan(said.answer_logp[row]).all()
        else:
            assert said.how is not None
            assert said.how[row] == "generated"
    # random weights hardly ever write a rating at once; where they do, both ways agree
    assert len(said) == len(plain) == 3


def test_generate_reads_what_was_written(tmp_path: Path) -> None:
    folder = make("llava_next_llama", tmp_path / "talks", answers=True)
    pairs = [Pair(image, text) for image in noise_images((80, 60), (40, 90)) for text in CAPTIONS]
    said = Local(folder, device="cpu", read="generate").read(pairs, FLEUR, UNIT)
    forced = Local(folder, device="cpu", read="auto").read(pairs, FLEUR, UNIT)
    assert said.how is not None
    assert forced.how is not None
    assert set(said.how) == {"generated"}
    assert set(forced.how) == {"forced"}  # it would have begun so by itself: no way out needed
    assert not said.errors
    for row in range(len(pairs)):
        stem = int(np.flatnonzero(np.isfinite(said.stem_logp[row]))[0])
        assert stem == forced.stem_logp[row].argmax()
        assert np.abs(said.answer_logp[row, stem] - forced.answer_logp[row, stem]).max() < 1e-4
        assert abs(said.stem_logp[row, stem] - forced.stem_logp[row, stem]) < 1e-4


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        (["0", ".", "7"], (0, 2)),
        (["1", ".", "0"], (1, 2)),
        (["Score", ":", " ", "0", ".", "85"], (0, 5)),
        (["1", "0", ".", "5"], None),  # 10.5 holds no "0."
        (["3", ".", "0", ".", "5"], None),
        (["I", " think"], None),
        (["0.", "7"], (0, 1)),
        (["1"], None),
    ],
)
def test_the_place_of_the_answer(pieces: list[str], found: tuple[int, int] | None) -> None:
    tokenized: Any = type("TokenizedPrompt", (), {"scale": UNIT})
    assert find_answer(GeneratedText([], pieces, None, None), tokenized) == found
