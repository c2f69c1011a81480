"""The numbers that are printed in the paper's tables, to compare a run with.

``data/published.csv`` has them all, one cell per row, in percent where the paper prints percent.
Cells that the paper leaves empty ("--") are left out. ``system`` is our name of a metric where we
have it, ``printed`` the paper's; "fleur" with a model is the paper's own run of FLEUR's smoothing
on that model.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from discode.errors import InputError, lookup

PAPER_TABLES = {
    "sota_main": "the state of the art on Flickr8k, Composite, Pascal-50S",
    "rice": "the state of the art on MCEval",
    "refdisode": "metrics with references, in full",
    "foil": "FOIL with one and four references",
    "ablation": "without each term of the loss",
    "ablation_appendix": "the same, in full",
    "sigma": "the variance in α",
    "rating": "four rating scales",
    "rating_appendix": "raw, smoothing and DISCODE on four scales, in full",
    "divergence": "six divergences",
    "divergence_appendix": "the same, in full",
    "llms": "four sizes of LLaVA-NeXT",
    "llms_appendix": "the same, in full",
    "mdce_llm_full": "the same, on MCEval's domains",
    "lmms": "six other models",
    "lmms_appendix": "the same, in full",
    "mdce_lmm_full": "the same, on MCEval's domains",
    "cost": "seconds per caption",
    "dataset_statistics": "sizes of the benchmarks",
}
"""The paper's tables by the label in its source."""


@dataclass(frozen=True)
class PublishedCell:
    """A number in a table of the paper.

    ``column`` is a benchmark and a measure ("flickr8k-cf tau_b", "pascal50s HC", "mceval mean");
    ``setting`` what a row varies ("sigma2=0.05", "scale=five", "divergence=beta").
    """

    table: str
    system: str
    group: str
    """"reference-free" or "with references"."""
    model: str
    setting: str
    column: str
    value: float
    printed: str
    note: str


def published_cells(
    table: str | None = None, system: str | None = None, column: str | None = None
) -> tuple[PublishedCell, ...]:
    """Return the paper's cells, or those of a table, a system, a column.

    >>> [cell.value for cell in published_cells("sota_main", "cider", "composite tau_c")]
    [37.7]
    """
    cells = _cells()
    if table is not None:
        lookup(PAPER_TABLES, table, "table")
    for name, value in (("system", system), ("column", column)):
        if value is not None:
            known = dict.fromkeys(getattr(cell, name) for cell in cells if getattr(cell, name))
            lookup(known, value, name)
    return tuple(
        cell
        for cell in cells
        if table in (None, cell.table)
        and system in (None, cell.system)
        and column in (None, cell.column)
    )


@cache
def _cells() -> tuple[PublishedCell, ...]:
    path = Path(__file__).parents[1] / "data" / "published.csv"
    if not path.is_file():
        raise InputError("this installation lacks the published numbers; reinstall discode")
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(
            PublishedCell(**{**row, "value": float(row["value"])})  # type: ignore[arg-type]  # the rest is text
            for row in csv.DictReader(file)
        )
