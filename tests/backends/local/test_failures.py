"""What goes wrong while a local model runs: odd or broken images, too little memory."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import discode
from discode._pairs import Pair
from discode._prompts import FLEUR
from discode._scales import UNIT
from discode.backends import read_all
from discode.backends._local.backend import Local
from discode.errors import InputError
from tests.helpers.local_models import (
    LOCAL_MODEL_MARKS,
    largest_difference,
    noise_image,
)
from tests.helpers.samples import encoded
from tests.helpers.tiny_lvlms import make

pytestmark = LOCAL_MODEL_MARKS


@pytest.fixture(scope="module", params=["llava_next_llama", "qwen2_vl"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(request.param, tmp_path_factory.mktemp("tiny") / request.param)


def test_bad_images_fail_their_own_rows(folder: Path, tmp_path: Path) -> None:
    good, strip = encoded(noise_image()), encoded(noise_image(3000, 10))
    half = tmp_path / "half.png"
    half.write_bytes(good[: len(good) // 2])
    images: dict[str, Any] = {
        "good": good,
        "half": half,
        "empty": b"",
        "strip": strip,
        "text": b"not an image",
        "other": encoded(noise_image(seed=1)),
        "missing": tmp_path / "none.png",
    }
    captions = ["a dog runs", "a cat"]
    shown = [image for image in images.values() for _ in captions]
    judge = discode.load(folder, device="cpu", read="forced")
    scores = judge.score(shown, captions * len(images))
    reasons = {"half": "truncated", "empty": "", "text": "", "missing": "read"}
    if folder.name == "qwen2_vl":  # Qwen's own bound
        reasons["strip"] = "processor refuses the image: absolute aspect ratio"
    for row, name in enumerate(name for name in images for _ in captions):
        assert np.isnan(scores.value[row]) == (name in reasons), name
        assert reasons.get(name, "") in scores.errors.get(row, "")
        assert "\n" not in scores.errors.get(row, "")
    for name in ("good", "other"):  # and stand where they were tokenized for
        row = list(images).index(name) * 2
        alone = judge.score(images[name], captions)
        assert np.abs(alone.value - scores.value[row : row + 2]).max() < 1e-4


@contextmanager
def memory_for(model: Any, tokens: int) -> Iterator[list[int]]:
    """Run out of memory in the last layer, when all others have filled their caches."""
    seen: list[int] = []

    def look(_: Any, args: Any, kwargs: Any) -> None:
        states = args[0] if args else kwargs["hidden_states"]
        seen.append(states.shape[0] * states.shape[1])
        # a second try inside an except block would find the memory of the first still held
        assert sys.exc_info()[0] is None
        if seen[-1] > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nMore.")

    hook = model.get_decoder().layers[-1].register_forward_pre_hook(look, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


def test_short_of_memory_captions_come_in_smaller_chunks(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Local(folder, device="cpu", read="forced")
    pairs = [Pair(noise_image(), f"caption {i} " + "word " * (i % 7)) for i in range(60)]
    with memory_for(backend.runner.model, 10**9) as seen:
        whole = read_all(backend, pairs, FLEUR, UNIT, hidden=True)
    prefix, chunk = seen[0], max(seen[1:])
    assert chunk > 2 * prefix
    with (
        memory_for(backend.runner.model, max(prefix, chunk // 5)) as seen,
        caplog.at_level(logging.WARNING, "discode"),
    ):
        said = read_all(backend, pairs, FLEUR, UNIT, hidden=True)
    assert len(seen) > 6
    assert not said.errors
    assert largest_difference(said, whole) < 1e-5
    assert said.hidden is not None
    assert whole.hidden is not None
    assert np.abs(said.hidden - whole.hidden).max() < 1e-4
    size = backend.runner.batch_captions
    assert size is not None
    assert size < 60
    assert f"out of memory; continuing with {size} captions at once" in caplog.text


def test_short_of_memory_images_come_one_by_one(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Local(folder, device="cpu", read="forced", batch_images=4)
    pairs = [Pair(noise_image(seed=seed), text) for seed in range(9) for text in ("a dog", "a cat")]
    with memory_for(backend.runner.model, 10**9) as seen:
        whole = read_all(backend, pairs, FLEUR, UNIT)
    alone = seen[0] // 4
    with (
        memory_for(backend.runner.model, int(1.5 * alone)) as seen,
        caplog.at_level(logging.WARNING, "discode"),
    ):
        said = read_all(backend, pairs, FLEUR, UNIT)
        tries = len([size for size in seen if size > 1.5 * alone])
        again = read_all(backend, pairs, FLEUR, UNIT)
    assert not said.errors
    assert largest_difference(said, whole) < 1e-4
    assert largest_difference(again, whole) < 1e-4
    assert tries == 2  # with four and with two; then it is known
    assert len([size for size in seen if size > 1.5 * alone]) == tries
    assert backend.runner.batch_captions is None  # it was not the captions
    assert "continuing with 2 images at once" in caplog.text
    assert "continuing with 1 images at once" in caplog.text


def test_an_image_too_large_for_the_memory_fails_alone(llava: Path) -> None:
    backend = Local(llava, device="cpu", read="forced", batch_images=1)
    backend.runner.one_pass = False
    images = noise_image(16, 16), noise_image(48, 16), noise_image(16, 16, seed=1)
    pairs = [Pair(image, text) for image in images for text in ("a dog", "a cat")]
    with memory_for(backend.runner.model, 10**9) as seen:
        whole = read_all(backend, pairs, FLEUR, UNIT)
    first = seen[0]
    assert max(seen) > first
    with memory_for(backend.runner.model, first):
        said = read_all(backend, pairs, FLEUR, UNIT)
    assert list(said.errors) == [2, 3]
    for reason in said.errors.values():
        assert reason.startswith("the model ran out of memory with this image alone: CUDA out of")
        assert "\n" not in reason
    rest = [0, 1, 4, 5]
    assert largest_difference(said.take(rest), whole.take(rest)) < 1e-5
    # the judge goes on, too, and a later run is as quick as ever
    assert backend.runner.batch_captions is None


def test_an_image_too_large_for_one_pass_takes_two(llava: Path) -> None:
    backend = Local(llava, device="cpu", read="forced")
    backend.runner.one_pass_tokens = 4096
    pairs = [Pair(noise_image(), text) for text in ("a dog", "a cat")]
    with memory_for(backend.runner.model, 10**9) as seen:
        whole = read_all(backend, pairs, FLEUR, UNIT)
    assert len(seen) == 1
    with memory_for(backend.runner.model, seen[0] - 1) as seen:
        said = read_all(backend, pairs, FLEUR, UNIT)
    assert len(seen) > 2
    assert not said.errors
    assert largest_difference(said, whole) < 1e-4


def test_a_model_that_fails_without_a_word(llava: Path) -> None:
    backend = Local(llava, device="cpu", read="forced")

    def fail(*_: Any) -> None:
        raise AssertionError

    hook = backend.runner.model.register_forward_pre_hook(fail)
    said = read_all(backend, [Pair(noise_image(), "a dog")], FLEUR, UNIT)
    hook.remove()
    assert said.errors == {0: "the model failed on this image: AssertionError"}


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("shapes differ\nby far")]
)
def test_a_model_that_cannot_run_is_no_traceback(
    llava: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("discode.backends._local.forward.Runner.run", fail)
    with pytest.raises(InputError, match=r"llava .*(memory|shapes differ$)"):
        discode.load(llava, device="cpu").score(noise_image(), "a dog")
