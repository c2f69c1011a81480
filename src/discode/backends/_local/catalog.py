"""The vision-language models that ``discode models`` lists: the paper's ten, and others in use.

They are the rows of ``data/models.csv``: documentation, not a condition. ``packed`` says whether
captions of an image share its computation; the check when a model is opened decides.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

TINY = "tiny"
"""A tiny checkpoint of the same class, in the layout of the hub, was run, packed and not."""
STAND_IN = "stand-in"
"""Tiny code with the same interface was run."""
UNTRIED = ""


@dataclass(frozen=True)
class HubModel:
    """A model of the hub; nothing was ever run with its real weights."""

    hub: str
    billions: float
    kind: str
    """transformers' model type."""
    packed: bool
    remote: bool
    """Whether it opens only with code of its own, which an adapter calls."""
    tested: str
    paper: str
    """What the paper calls it, if it is one of its ten."""
    note: str

    @property
    def memory(self) -> float:
        """Gigabytes of the weights in bfloat16."""
        return 2 * self.billions

    @property
    def memory_4bit(self) -> float:
        """Gigabytes of the weights in 4 bit, scales included."""
        return 0.56 * self.billions


def _read() -> tuple[HubModel, ...]:
    path = Path(__file__).parents[2] / "data" / "models.csv"
    with path.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return tuple(
        HubModel(hub, float(billions), kind, packed == "yes", remote == "yes", *texts)
        for hub, billions, kind, packed, remote, *texts in rows
    )


CATALOG = _read()
