"""What tests of local models share: marks, images of noise, differences of readings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from PIL import Image

from discode.readings import Readings

LOCAL_MODEL_MARKS = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # transformers warns a lot
    pytest.mark.usefixtures("one_thread"),
]


def noise_image(width: int = 90, height: int = 60, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8))


def noise_images(*sizes: tuple[int, int]) -> list[Image.Image]:
    """Images of these widths and heights, each unlike the others."""
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 255, (h, w, 3), dtype=np.uint8)) for w, h in sizes]


def largest_difference(a: Readings, b: Readings) -> float:
    """The largest difference of two readings' log-probabilities."""
    pairs = [(a.answer_logp, b.answer_logp), (a.stem_logp, b.stem_logp)]
    return max(float(np.abs(x - y).max()) for x, y in pairs)


def run_python(code: str, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | env,
    )


@contextmanager
def count_generated(backend: Any) -> Iterator[list[int]]:
    """Collect the numbers of the captions for which the backend lets its model generate."""
    calls: list[int] = []
    generate = backend.runner.generate

    def counted(group: Any, index: int, most: int) -> Any:
        calls.append(index)
        return generate(group, index, most)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend.runner, "generate", counted)
        yield calls
