"""The paper's "Computational overhead for scoring": the time of a decoder beside that of the model.

All rows are timed in one run on one machine: the backbone reads one pair at a time, and a decoder
scores one reading at a time. In the batch columns captions are packed and readings are decoded
together. Every time is the mean of several runs ± their standard deviation.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from discode.backends import Backend, open_backend, read_all
from discode.bench.layout import CellTable, TableValue
from discode.decoders import get_decoder
from discode.errors import InputError
from discode.images import ImageSource, demo_path
from discode.options import SIZE, TEXT, Option
from discode.pairs import Pair
from discode.paper.base import Study, StudyResult, StudySetup
from discode.paper.published import published_cells
from discode.paper.run_tables import published_table
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
        """Return the mean and the spread, as the paper prints them.

        >>> str(RunTime(0.0228, 0.0011)), str(RunTime(0.241, 0.03))
        ('2.28e-02 ± 1.1e-03', '0.241 ± 0.030')
        """
        small = self.mean < 0.1
        mean = f"{self.mean:.2e}" if small else f"{self.mean:.3f}"
        spread = f"{self.spread:.1e}" if small else f"{self.spread:.3f}"
        return mean if math.isnan(self.spread) else f"{mean} ± {spread}"


@dataclass(frozen=True)
class Cost:
    """Seconds per pair of the backbone and of a decoder."""

    method: str
    backbone: RunTime
    scoring: RunTime

    @property
    def overhead(self) -> float:
        """Scoring in percent of the backbone."""
        return 100 * self.scoring.mean / self.backbone.mean


def measure(
    backend: Backend,
    prompt: Prompt,
    images: Sequence[ImageSource],
    captions: int = 16,
    runs: int = 5,
) -> tuple[list[Cost], list[Cost]]:
    """Time the backbone and every decoder of the table: one pair at a time, and in a batch.

    Args:
        backend: The model; where it gives no hidden states, Adam has no row.
        prompt: How it is asked.
        images: Some images.
        captions: Captions per image of the batch.
        runs: How often to time.
    """
    ones = [Pair(image, CAPTION) for image in images]
    many = [Pair(image, f"{CAPTION} {i}") for image in images for i in range(captions)]
    hidden = "hidden" in backend.capabilities

    def read(pairs: list[Pair]) -> Readings:
        return read_all(backend, pairs, prompt, UNIT, hidden=hidden)

    readings = read(many)  # also warms up
    if readings.errors:
        raise InputError(f"nothing to time: {next(iter(readings.errors.values()))}")
    read([ones[0]])
    single = _time(runs, len(ones), lambda: [read([pair]) for pair in ones])
    packed = _time(runs, len(many), lambda: read(many))
    rows = [readings.take([i % len(readings)]) for i in range(20)]
    block = readings.take(np.arange(512) % len(readings))
    alone, batch = [], []
    for name, method in TIMED.items():
        decode = get_decoder(method).decode
        if get_decoder(method).requires and not hidden:
            continue
        decode(rows[0])
        alone.append(Cost(name, single, _time(runs, len(rows), partial(_each, decode, rows))))
        batch.append(Cost(name, packed, _time(runs, len(block), partial(decode, block))))
    return alone, batch


def _each(decode: Callable[[Readings], object], rows: Sequence[Readings]) -> None:
    for row in rows:
        decode(row)


def _time(runs: int, items: int, run: Callable[[], object]) -> RunTime:
    """Return the seconds per item of some runs."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        seconds.append((time.perf_counter() - start) / items)
    return RunTime.of(seconds)


_ELSEWHERE = "another machine, which the paper does not name: compare shares, not seconds"
_IMAGES = ("astronaut.jpg", "cat.jpg", "coffee.jpg", "city.jpg")


def _open(setup: StudySetup) -> Backend:
    if shape := setup.options["random_weights"]:
        from discode.backends.local.backend import Local  # needs discode-eval[hf]
        from discode.paper.random_weights import random_model

        options = next(iter(setup.judges.values())).options
        model = random_model(shape, options.get("device"), options.get("dtype"))
        return open_backend(Local(model, read="forced"))
    if len(setup.judges) != 1:
        raise InputError("the cost of one model is timed at a time; give one --model")
    return next(iter(setup.judges.values())).open_judge().backend


def _run(setup: StudySetup) -> StudyResult:
    backend = _open(setup)
    captions, runs = setup.options["captions"], setup.options["runs"]
    images = [demo_path() / name for name in _IMAGES]
    alone, batch = measure(backend, backend.prompt, images, captions, runs)
    who = backend.identity
    named = f"{who.model} {who.revision} {who.dtype}"
    notes = [f"seconds per pair, the mean of {runs} runs ± their standard deviation"]
    tables = {
        "cost": _table(alone, f"{named}, one pair at a time", notes),
        "cost-batch": _table(
            batch, f"{named}, {captions} captions per image, 512 readings at once"
        ),
        "cost-paper": replace(published_table("cost"), notes=[_ELSEWHERE]),
    }
    by_name = {cost.method: cost for cost in alone}
    closed, adam = by_name["DISCODE"], by_name.get("DISCODE by Adam")
    closed_batch = next(cost for cost in batch if cost.method == "DISCODE")
    findings = [
        f"DISCODE's closed form takes {closed.overhead:.2g} % of the model's time, one pair at a "
        f"time, and {closed_batch.overhead:.2g} % in a batch."
    ]
    if adam is not None:
        low, high = _paper_ratio()
        times = adam.scoring.mean / closed.scoring.mean
        findings.append(
            f"Adam takes {times:.0f} times as long as the closed form; the paper's numerical "
            f"solution {low:.0f} to {high:.0f} times."
        )
    return StudyResult(tables, findings=findings)


def _table(costs: Sequence[Cost], title: str, notes: Sequence[str] = ()) -> CellTable:
    rows: list[list[TableValue]] = [
        [cost.method, str(cost.backbone), str(cost.scoring), f"{cost.overhead:.3g}"]
        for cost in costs
    ]
    return CellTable(("method", "model s", "scoring s", "overhead %"), rows, title, notes)


def _paper_ratio() -> tuple[float, float]:
    """Return how much longer the paper takes without its closed form: least and most."""
    seconds: dict[str, dict[bool, float]] = {}
    for cell in published_cells("cost", "discode", "scoring s"):
        seconds.setdefault(cell.model, {})[bool(cell.setting)] = cell.value
    ratios = [both[True] / both[False] for both in seconds.values()]
    return min(ratios), max(ratios)


STUDY = Study(
    "cost",
    "time the model and the decoders: the paper's computational overhead for scoring",
    ("cost",),
    _run,
    options=(
        Option("captions", 16, "captions per image, for the batch columns", (SIZE,)),
        Option("runs", 5, "how often each time is taken", (SIZE,)),
        Option(
            "random_weights", None,
            "an architecture instead of a model: llava-next-8b, -13b, -34b, -72b, tiny",
            (TEXT, None),
        ),
    ),
)  # fmt: skip
