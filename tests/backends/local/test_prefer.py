"""Preferences of local models against the last logits of plain transformers, in both orders."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image

from discode import Pair, load
from tests.helpers.local_models import LOCAL_MODEL_MARKS, noise_images
from tests.helpers.tiny_lvlms import ask, make

pytestmark = LOCAL_MODEL_MARKS
CAPTIONS = ("a dog runs", "two men on a boat", "a red ball")
ASKED = [(i, a, b) for i in noise_images((80, 60), (40, 90)) for a, b in permutations(CAPTIONS, 2)]


def p_first(folder: Path, image: Image.Image, a: str, b: str) -> float:
    """P(A) / (P(A) + P(B)) where the answer begins, in plain transformers."""
    model = hf.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor = hf.AutoProcessor.from_pretrained(folder)
    text = (
        f"Which of two captions describes the image better?\n\nA: {a}\n\nB: {b}\n\n"
        "Answer with A or B only:"
    )
    with torch.inference_mode():
        logits = model(**ask(processor, image, text)).logits[0, -1].double()
    vocabulary = processor.tokenizer.get_vocab()
    p = logits.softmax(-1)
    both = [
        float(sum(p[vocabulary[s + label]] for s in ("", "▁", "Ġ") if s + label in vocabulary))
        for label in "AB"
    ]
    return both[0] / sum(both)


@pytest.mark.parametrize("family", ["llava_next_llama", "llava_next_vicuna", "qwen2_vl", "gemma3"])
def test_it_is_the_mean_of_both_orders(family: str, tmp_path: Path) -> None:
    folder = make(family, tmp_path / family, answers=True, begins="letters")
    judge = load(str(folder), device="cpu", read="forced")
    done = judge.prefer_pairs([Pair(image, a, (b,)) for image, a, b in ASKED])
    assert not done.errors
    forward = np.array([p_first(folder, *asked) for asked in ASKED])
    backward = 1 - np.array([p_first(folder, image, b, a) for image, a, b in ASKED])
    assert judge.backend.runner.packed  # type: ignore[attr-defined]
    assert done.value == pytest.approx((forward + backward) / 2, abs=5e-6)
    assert done.flip == pytest.approx(forward - backward, abs=5e-6)
    assert np.ptp(done.value) > 1e-4
