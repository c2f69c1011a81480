"""The paper's "Computational overhead for scoring": the time of a decoder beside that of the model.

All rows are timed in one run on one machine: the backbone reads one pair at a time, as in the
paper, and a decoder scores one reading at a time. In the ``batch`` columns captions are packed and
readings are decoded together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from discode.backends import Backend, open_backend
from discode.bench.layout import CellTable
from discode.benchmarks.base import BenchmarkOption, integer_option
from discode.decoders import get_decoder
from discode.errors import InputError
from discode.images import ImageSource, demo_path
from discode.pairs import Pair
from discode.prompts import Prompt
from discode.readings import Readings
from discode.scales import UNIT
from discode.studies.base import Study, StudyResult, StudySetup

METHODS = {
    "raw": "raw",
    "smoothing": "smoothing",
    "FLEUR": "fleur",
    "DISCODE": "discode",
    "DISCODE by Adam": "discode:solver=adam",
}
CAPTION = "a man in a red shirt is riding a bike down a hill"


@dataclass(frozen=True)
class Cost:
    """Seconds per pair of the backbone and of a decoder, one pair at a time and in a batch."""

    method: str
    backbone: float
    scoring: float
    backbone_batch: float
    scoring_batch: float

    @property
    def overhead(self) -> float:
        """Scoring in percent of the backbone, both one at a time."""
        return 100 * self.scoring / self.backbone

    @property
    def overhead_batch(self) -> float:
        """Scoring in percent of the backbone, both in a batch."""
        return 100 * self.scoring_batch / self.backbone_batch


def measure(
    backend: Backend,
    prompt: Prompt,
    images: Sequence[ImageSource],
    captions: int = 16,
    repeats: int = 3,
) -> list[Cost]:
    """Time the backbone and every decoder of the table.

    Args:
        backend: The model; it must return hidden states, for Adam.
        prompt: How it is asked.
        images: Some images.
        captions: Captions per image, for the batch columns.
        repeats: How often to time; the shortest counts, since noise only adds.
    """
    ones = [Pair(image, CAPTION) for image in images]
    many = [Pair(image, f"{CAPTION} {i}") for image in images for i in range(captions)]

    def read(pairs: list[Pair]) -> Readings:
        return backend.read(pairs, prompt, UNIT, hidden=True)

    readings = read(many)  # also warms up
    single = _best(repeats, lambda: [read([pair]) for pair in ones]) / len(ones)
    packed = _best(repeats, lambda: read(many)) / len(many)
    rows = [readings.take([i % len(readings)]) for i in range(20)]
    several = readings.take(np.arange(512) % len(readings))
    result = []
    for name, method in METHODS.items():
        decoder = get_decoder(method)
        decoder.decode(rows[0])
        one = _best(repeats, lambda d=decoder: [d.decode(row) for row in rows]) / len(rows)  # type: ignore[misc]  # bound at once
        block = _best(repeats, lambda d=decoder: d.decode(several)) / len(several)  # type: ignore[misc]  # bound at once
        result.append(Cost(name, single, one, packed, block))
    return result


def _best(times: int, run: Callable[[], object]) -> float:
    shortest = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        run()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


_IMAGES = ("astronaut.jpg", "cat.jpg", "coffee.jpg", "rocket.jpg")
_COLUMNS = ("method", "backbone s", "scoring s", "overhead %", "packed s", "batched s", "%")


def _run(setup: StudySetup) -> StudyResult:
    captions = int(setup.options["captions"])
    if shape := setup.options["random_weights"]:
        from discode.backends.local.backend import Local
        from discode.backends.local.random_weights import random_model

        options = next(iter(setup.judges.values())).options
        model = random_model(shape, options.get("device"), options.get("dtype"))
        backend = open_backend(Local(model, read="forced"))
    elif len(setup.judges) == 1:
        backend = next(iter(setup.judges.values())).open_judge().backend
    else:
        raise InputError("the cost of one model is timed at a time; give one --model")
    images = [demo_path() / name for name in _IMAGES]
    rows = [
        [
            row.method, f"{row.backbone:.4f}", f"{row.scoring:.6f}", f"{row.overhead:.4f}",
            f"{row.backbone_batch:.4f}", f"{row.scoring_batch:.7f}", f"{row.overhead_batch:.5f}",
        ]
        for row in measure(backend, backend.prompt, images, captions)
    ]  # fmt: skip
    who = backend.identity
    note = (
        f"{who.model} {who.revision} {who.dtype}; one pair at a time, then {captions} captions per "
        "image packed and 512 readings per batch"
    )
    return StudyResult({"cost": CellTable(_COLUMNS, rows, notes=[note])})


STUDY = Study(
    "cost",
    "time the model and the decoders: the paper's computational overhead for scoring",
    ("cost",),
    _run,
    options={
        "captions": integer_option(16, "captions per image, for the batch columns", low=1),
        "random_weights": BenchmarkOption(
            "", "an architecture instead of a model: llava-next-8b, -13b, -34b, tiny", pattern=".*"
        ),
    },
)
