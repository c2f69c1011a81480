"""P(Yes) of local models against the last logits of plain transformers: VQAScore, packed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image

from discode import load
from discode._pairs import Pair
from discode._prompts import VQASCORE
from discode._scales import YES_NO
from discode.errors import InputError
from discode.metrics._registry import MetricFactory
from tests.helpers.local_models import LOCAL_MODEL_MARKS, noise_images
from tests.helpers.tiny_lvlms import ask, make

pytestmark = LOCAL_MODEL_MARKS
CAPTIONS = ("a dog runs", "x", "two men on a boat", "a red ball")
ASKED = [(image, text) for image in noise_images((80, 60), (40, 90)) for text in CAPTIONS]
PAIRS = [Pair(image, text) for image, text in ASKED]


def p_yes(folder: Path, image: Image.Image, caption: str) -> float:
    """The formula, in plain transformers: P("Yes") where the answer begins."""
    model = hf.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor = hf.AutoProcessor.from_pretrained(folder)
    text = f'Does this figure show "{caption}"? Please answer yes or no.'
    with torch.inference_mode():
        logits = model(**ask(processor, image, text)).logits[0, -1].double()
    vocabulary = processor.tokenizer.get_vocab()
    # Many vocabularies also have it with a space before it.
    ids = [vocabulary[name] for name in ("Yes", "▁Yes", "ĠYes") if name in vocabulary]
    return float(logits.softmax(-1)[ids].sum())


@pytest.mark.parametrize(
    "family", ["llava_next_llama", "llava_next_vicuna", "qwen2_vl", "gemma3", "internvl", "smolvlm"]
)
def test_vqascore_is_the_published_formula(family: str, tmp_path: Path) -> None:
    folder = make(family, tmp_path / family, answers=True, begins="yes")
    factory = MetricFactory(str(folder), {"device": "cpu", "read": "forced"})
    scores = factory.make("vqascore").score_pairs(PAIRS)
    expected = [p_yes(folder, *asked) for asked in ASKED]
    assert factory.judge.backend.runner.packed  # type: ignore[attr-defined]
    assert np.ptp(expected) > 1e-3
    assert scores.value == pytest.approx(expected, abs=1e-5)


def test_the_row_is_a_judge_with_its_prompt_scale_and_method(tmp_path: Path) -> None:
    folder = make("llava_next_llama", tmp_path / "llava", answers=True, begins="yes")
    scores = MetricFactory(str(folder), {"device": "cpu"}).make("vqascore").score_pairs(PAIRS[:2])
    judge = load(str(folder), method="p-yes", prompt=VQASCORE, scale=YES_NO, device="cpu")
    assert scores.value.tolist() == judge.score_pairs(PAIRS[:2]).value.tolist()
    assert scores.signature["scale"] == "yes-no"


def test_a_model_without_the_scale_is_refused() -> None:
    with pytest.raises(InputError, match="yes-no"):
        MetricFactory("embedded").make("vqascore")
