"""Images are processed without their text, and become the inputs that the processor makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from discode._prompts import FLEUR
from discode._scales import UNIT
from discode.backends._local import forward
from discode.backends._local.backend import Local
from discode.backends._local.forward import Runner
from discode.backends._local.image_part import ImagePart
from discode.backends._local.prefix import ProcessedImage
from tests.helpers.local_models import LOCAL_MODEL_MARKS, noise_images
from tests.helpers.tiny_lvlms import FAMILIES, make

pytestmark = LOCAL_MODEL_MARKS
SIZES = ((80, 60), (60, 80), (50, 120), (80, 60), (30, 30), (60, 80), (80, 60))
WHOLE = {"paligemma"}
"""Families whose prompts do not begin with the image and the instruction."""


def processed(
    runner: Runner, images: list[Image.Image], processor: Any = None
) -> list[ProcessedImage]:
    """Process images; with ``processor``, as a processor that has no separate image part does."""
    tokenized = runner.vocabulary.tokenize_prompt(FLEUR, UNIT, references=False)
    with pytest.MonkeyPatch.context() as patch:
        if processor is not None:
            patch.setattr(runner, "_image_part", ImagePart(processor))
            patch.setattr(runner, "_texts", {})
        return [runner.process_image(image, tokenized) for image in images]


def assert_equal(ours: list[ProcessedImage], theirs: list[ProcessedImage]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        for a, b in ((one.ids, other.ids), (one.positions, other.positions)):
            assert a is b is None or torch.equal(a, b)
        assert one.inputs.keys() == other.inputs.keys()
        for name, value in one.inputs.items():
            assert value.dtype == other.inputs[name].dtype
            assert torch.equal(value, other.inputs[name])
        assert (one.opened is None) == (other.opened is None)


def count_texts(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    process = runner.process

    def count(text: str, *rest: Any) -> Any:
        texts.append(text)
        return process(text, *rest)

    monkeypatch.setattr(runner, "process", count)
    return texts


@pytest.mark.parametrize("family", FAMILIES)
def test_inputs_are_those_of_the_whole_processor(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Local(make(family, tmp_path / family), device="cpu").runner
    images = noise_images(*SIZES)
    whole = processed(runner, images, object())
    texts = count_texts(runner, monkeypatch)
    assert_equal(processed(runner, images), whole)
    # The text is processed once for images of one size.
    assert len(texts) == (len(SIZES) if family in WHOLE else len({*SIZES}))


@pytest.mark.parametrize("change", ["pixels", "options", "twice", "names"])
def test_a_processor_that_does_more_is_run_as_a_whole(
    change: str, llava: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Local(llava, device="cpu").runner

    class Odd(type(runner.processor)):  # type: ignore[misc]
        def __call__(self, *, images: Any, **given: Any) -> Any:
            wide = images[0][0].width > images[0][0].height
            if change == "options":
                given["do_normalize"] = wide
            if change == "twice":
                self.image_processor(images, return_tensors="pt")
            inputs = super().__call__(images=images, **given)
            if change == "pixels" and wide:
                inputs["pixel_values"] = inputs["pixel_values"] + 1
            if change == "names":
                inputs["seen"] = torch.tensor([wide])
            return inputs

    runner.processor.__class__ = Odd
    images = noise_images(*SIZES)
    whole = processed(runner, images, object())
    for some in (images, images[::-1]):
        monkeypatch.setattr(runner, "_image_part", ImagePart(runner.processor))
        monkeypatch.setattr(runner, "_texts", {})
        texts = count_texts(runner, monkeypatch)
        assert_equal(processed(runner, some), whole if some is images else whole[::-1])
        assert len(texts) >= len(SIZES)


def test_texts_of_few_sizes_are_kept(llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Local(llava, device="cpu").runner
    monkeypatch.setattr(forward, "KEPT_TEXTS", 2)
    images = noise_images(*SIZES)
    assert_equal(processed(runner, images), processed(runner, images, object()))
    assert len(runner._texts) <= 2
