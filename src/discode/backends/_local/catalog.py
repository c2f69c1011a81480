"""The vision-language models that ``discode models`` lists: the paper's ten, and others in use.

They are the rows of ``data/models.csv``, which is documentation: other models work, too.
``packed`` records whether captions of an image share its computation; the check of a loaded model
decides.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

TINY = "tiny"
"""Tested with a tiny checkpoint of the same class, in the layout of the hub."""
STAND_IN = "stand-in"
"""Tested with tiny code with the same interface."""
UNTRIED = ""


@dataclass(frozen=True)
class HubModel:
    """A model of the hub; its real weights were never run."""

    hub: str
    billions: float
    kind: str
    """transformers' model type."""
    packed: bool
    remote: bool
    """Whether it needs its own code, through an adapter."""
    tested: str
    paper: str
    """Its name in the paper, if it is one of the paper's ten."""
    note: str

    @property
    def opens(self) -> bool:
        return not self.note.startswith("does not open")

    @property
    def memory(self) -> float:
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
