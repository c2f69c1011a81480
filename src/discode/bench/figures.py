"""Plot runs: one panel per benchmark, one line per metric, with intervals and the paper's value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from discode.bench.runlog import RunLog
from discode.bench.tables import MEASURE_SYMBOLS, benchmark_title, table_cells
from discode.errors import InputError, require

PLOT_SUFFIXES = (".png", ".svg", ".pdf")


def plot_runs(runs: Mapping[str, RunLog], path: Path) -> None:
    """Draw runs, which are given by name; the best metric is at the top."""
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise InputError(f"{path.name}: plots are written to {', '.join(PLOT_SUFFIXES)}")
    require("matplotlib", "plot").use("Agg")
    pyplot = require("matplotlib.pyplot", "plot")
    deciding = {"tau_c", "mean"}
    every = [cell for cell in table_cells(runs) if cell.measure in deciding]
    names = list(dict.fromkeys(cell.benchmark for cell in every))
    across = min(2, len(names))
    down = -(-len(names) // across)
    height = 1.1 + 0.32 * max(sum(c.benchmark == name for c in every) for name in names)
    figure, panels = pyplot.subplots(
        down, across, figsize=(max(6.0, 4.8 * across), height * down), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for panel in panels.flat[len(names) :]:
        panel.set_visible(False)
    for panel, name in zip(panels.flat, names, strict=False):
        rows = sorted((c for c in every if c.benchmark == name), key=lambda cell: cell.value)
        for place, cell in enumerate(rows):
            panel.plot([cell.low, cell.high], [place, place], color="#2563eb", lw=2, alpha=0.5)
            panel.plot(
                cell.value, place, "o", color="#2563eb", ms=6, label="_" * (place > 0) + "ours"
            )
            if not math.isnan(cell.paper):
                panel.plot(
                    cell.paper, place, "D", color="#b45309", mfc="none", ms=7,
                    label="_" * any(not math.isnan(c.paper) for c in rows[:place]) + "the paper",
                )  # fmt: skip
        panel.set_ylim(-0.6, len(rows) - 0.4)
        panel.set_yticks(range(len(rows)), [cell.metric for cell in rows])
        panel.set_xlabel(f"{MEASURE_SYMBOLS[rows[0].measure]}, %")
        panel.set_title(benchmark_title(name), fontsize=10)
        panel.grid(axis="x", alpha=0.25)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
        panel.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=140)
    pyplot.close(figure)
