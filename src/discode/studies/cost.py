"""The paper's "Computational overhead for scoring": the time of a decoder beside that of the model.

All rows are timed in one run on one machine: the backbone reads one pair at a time, as in the
paper, and a decoder scores one reading at a time. In the batch columns captions are packed and
readings are decoded together. Every time is the mean of several runs ± their standard deviation.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from discode.backends import Backend
from discode.decoders import get_decoder
from discode.errors import InputError
from discode.images import ImageSource
from discode.pairs import Pair
from discode.prompts import Prompt
from discode.readings import Readings
from discode.scales import UNIT

TIMED = {
    "raw": "raw",
    "smoothing": "smoothing",
    "FLEUR": "fleur",
    "DISCODE": "discode",
    "DISCODE by Adam": "discode:solver=adam",
}
"""The decoders of the table, by the name in its rows."""
CAPTION = "a man in a red shirt is riding a bike down a hill"


@dataclass(frozen=True)
class RunTime:
    """Seconds: the mean of several runs and their standard deviation, NaN for one run."""

    mean: float
    spread: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> RunTime:
        """Summarise the runs.

        >>> RunTime.of([1.0, 3.0])
        RunTime(mean=2.0, spread=1.4142135623730951)
        """
        spread = statistics.stdev(seconds) if len(seconds) > 1 else float("nan")
        return cls(statistics.fmean(seconds), spread)

    def __str__(self) -> str:
        """Return "2.28e-02 ± 1.1e-03", as the paper prints it."""
        shown = f"{self.mean:.2e}" if self.mean < 0.01 else f"{self.mean:.3f}"
        if self.spread != self.spread:
            return shown
        return f"{shown} ± " + (
            f"{self.spread:.1e}" if self.spread < 0.001 else f"{self.spread:.3f}"
        )


@dataclass(frozen=True)
class Cost:
    """Seconds per pair of the backbone and of a decoder, one pair at a time and in a batch."""

    method: str
    backbone: RunTime
    scoring: RunTime
    backbone_batch: RunTime
    scoring_batch: RunTime

    @property
    def overhead(self) -> float:
        """Scoring in percent of the backbone, both one at a time."""
        return 100 * self.scoring.mean / self.backbone.mean

    @property
    def overhead_batch(self) -> float:
        """Scoring in percent of the backbone, both in a batch."""
        return 100 * self.scoring_batch.mean / self.backbone_batch.mean


def measure(
    backend: Backend,
    prompt: Prompt,
    images: Sequence[ImageSource],
    captions: int = 16,
    runs: int = 5,
) -> list[Cost]:
    """Time the backbone and every decoder of the table.

    Args:
        backend: The model; where it gives no hidden states, Adam has no row.
        prompt: How it is asked.
        images: Some images.
        captions: Captions per image, for the batch columns.
        runs: How often to time.
    """
    if captions < 1:
        raise InputError(f"captions={captions} is not allowed; give 1 or more")
    if runs < 1:
        raise InputError(f"runs={runs} is not allowed; give 1 or more")
    ones = [Pair(image, CAPTION) for image in images]
    many = [Pair(image, f"{CAPTION} {i}") for image in images for i in range(captions)]
    hidden = "hidden" in backend.capabilities

    def read(pairs: list[Pair]) -> Readings:
        return backend.read(pairs, prompt, UNIT, hidden=hidden)

    readings = read(many)  # also warms up
    if readings.errors:
        raise InputError(f"nothing to time: {next(iter(readings.errors.values()))}")
    read([ones[0]])
    single = _time(runs, len(ones), lambda: [read([pair]) for pair in ones])
    packed = _time(runs, len(many), lambda: read(many))
    rows = [readings.take([i % len(readings)]) for i in range(20)]
    several = readings.take(np.arange(512) % len(readings))
    result = []
    for name, method in TIMED.items():
        decoder = get_decoder(method)
        if decoder.requires and not hidden:
            continue
        decoder.decode(rows[0])
        one = _time(runs, len(rows), lambda d=decoder: [d.decode(row) for row in rows])  # type: ignore[misc]  # bound at once
        block = _time(runs, len(several), lambda d=decoder: d.decode(several))  # type: ignore[misc]  # bound at once
        result.append(Cost(name, single, one, packed, block))
    return result


def _time(runs: int, items: int, run: Callable[[], object]) -> RunTime:
    """Return the seconds per item of some runs."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        seconds.append((time.perf_counter() - start) / items)
    return RunTime.of(seconds)
