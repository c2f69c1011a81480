"""The paper's "Computational overhead for scoring": decoding time relative to the model's.

All rows are timed in one run on one machine: the backbone reads one pair at a time, and a decoder
scores one reading at a time. In the batch columns captions are packed and readings are decoded
together. Every time is the mean of several runs ± their standard deviation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from discode._pairs import Pair
from discode._paper.base import Study, StudySetup
from discode._scales import UNIT
from discode.backends import Backend, open_backend, read_all
from discode.bench._layout import CellTable, TableValue
from discode.bench._results import StudyResult
from discode.bench._tables import published_table
from discode.decoders import get_decoder
from discode.errors import InputError
from discode.images import demo_path
from discode.options import SIZE, TEXT, Option
from discode.readings import Readings

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
class Cost:
    """Seconds per pair of the backbone and of a decoder, in several runs."""

    method: str
    backbone: tuple[float, ...]
    scoring: tuple[float, ...]

    @property
    def overhead(self) -> float:
        """Mean scoring in percent of the mean backbone."""
        return 100 * fmean(self.scoring) / fmean(self.backbone)


def show_seconds(seconds: Sequence[float]) -> str:
    """Format the mean and the standard deviation of several runs as the paper does.

    >>> show_seconds([0.0217, 0.0239]), show_seconds([0.2, 0.282]), show_seconds([1.0])
    ('2.28e-02 ± 1.6e-03', '0.241 ± 0.058', '1.000')
    """
    small = (mean := fmean(seconds)) < 0.1
    shown = f"{mean:.2e}" if small else f"{mean:.3f}"
    if len(seconds) == 1:
        return shown
    spread = stdev(seconds)
    return f"{shown} ± " + (f"{spread:.1e}" if small else f"{spread:.3f}")


def measure(
    backend: Backend, images: Sequence[Path], captions: int = 16, runs: int = 5
) -> tuple[list[Cost], list[Cost]]:
    """Time the backbone and every decoder of the table: one pair at a time, and in a batch.

    ``images`` must be JPEGs: models may cache images, so every run gets unique copies. Models
    without hidden states have no row for Adam. ``captions`` is the number per image in the batch,
    ``runs`` the number of timings.
    """
    texts = [f"{CAPTION} {i}" for i in range(captions)]
    hidden = "hidden" in backend.capabilities

    def read(pairs: list[Pair]) -> Readings:
        return read_all(backend, pairs, backend.prompt, UNIT, hidden=hidden)

    readings = read([Pair(image, text) for image in images for text in texts])  # also warms up
    if readings.errors:
        raise InputError(f"nothing to time: {next(iter(readings.errors.values()))}")
    singles = [_unseen(images, [CAPTION], run) for run in range(runs)]
    batches = [_unseen(images, texts, runs + run) for run in range(runs)]
    single = _time(runs, len(images), lambda: [read([pair]) for pair in singles.pop()])
    packed = _time(runs, len(images) * captions, lambda: read(batches.pop()))
    rows = [readings.take([i % len(readings)]) for i in range(20)]
    block = readings.take(np.arange(512) % len(readings))
    alone, batch = [], []
    for name, method in TIMED.items():
        decoder = get_decoder(method)
        if decoder.requires and not hidden:
            continue
        decode = decoder.decode
        decode(rows[0])  # warms up
        each = _time(runs, len(rows), lambda decode=decode: [decode(row) for row in rows])  # type: ignore[misc]  # bound at once
        alone.append(Cost(name, single, each))
        batch.append(Cost(name, packed, _time(runs, len(block), partial(decode, block))))
    return alone, batch


def _unseen(images: Sequence[Path], captions: Sequence[str], number: int) -> list[Pair]:
    """Build pairs with unique JPEGs: the same pixels, with a number as a JPEG comment."""
    comment = b"\xff\xfe\x00\x04" + number.to_bytes(2, "big")
    files = [image.read_bytes() for image in images]
    return [Pair(file[:2] + comment + file[2:], text) for file in files for text in captions]


def _time(runs: int, items: int, run: Callable[[], object]) -> tuple[float, ...]:
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        seconds.append((time.perf_counter() - start) / items)
    return tuple(seconds)


_ELSEWHERE = "on a machine that the paper does not name: compare shares, not seconds"
_IMAGES = ("astronaut.jpg", "cat.jpg", "coffee.jpg", "city.jpg")


def _open(setup: StudySetup) -> Backend:
    if shape := setup.options["random_weights"]:
        from discode.backends._local.backend import Local  # needs discode-eval[hf]
        from discode.backends._local.random_weights import random_model

        options = next(iter(setup.judges.values())).options
        model = random_model(shape, options.get("device"), options.get("dtype"))
        return open_backend(Local(model, read="forced"))
    if len(setup.judges) != 1:
        raise InputError("cost times one model at a time; give exactly one --model")
    return next(iter(setup.judges.values())).judge.backend


def _run(setup: StudySetup) -> StudyResult:
    backend = _open(setup)
    captions, runs = setup.options["captions"], setup.options["runs"]
    images = [demo_path() / name for name in _IMAGES]
    alone, batch = measure(backend, images, captions, runs)
    who = backend.identity
    named = f"{who.model} {who.revision} {who.dtype}"
    notes = [f"seconds per pair, the mean of {runs} runs ± their standard deviation"]
    tables = {
        "cost": _table(alone, f"{named}, one pair at a time", notes),
        "cost-batch": _table(batch, f"{named}, {captions} captions per image, 512 readings"),
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
        times = fmean(adam.scoring) / fmean(closed.scoring)
        findings.append(f"Adam takes {times:.0f} times as long as the closed form.")
    return StudyResult(tables, findings=findings)


def _table(costs: Sequence[Cost], title: str, notes: Sequence[str] = ()) -> CellTable:
    rows: list[list[TableValue]] = [
        [cost.method, *map(show_seconds, (cost.backbone, cost.scoring)), f"{cost.overhead:.3g}"]
        for cost in costs
    ]
    return CellTable(("method", "model s", "scoring s", "overhead %"), rows, title, notes)


STUDY = Study(
    "cost",
    "time the model and the decoders: the paper's computational overhead for scoring",
    ("cost",),
    _run,
    options=(
        Option("captions", 16, "captions per image, for the batch columns", (SIZE,)),
        Option("runs", 5, "number of timings", (SIZE,)),
        Option(
            "random_weights", None,
            "an architecture instead of a model: llava-next-8b, -13b, -34b, -72b, tiny",
            (TEXT, None),
        ),
    ),
)  # fmt: skip
