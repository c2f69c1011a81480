"""Plots of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from discode.bench import RunLog
from discode.errors import InputError
from discode.paper import plot_runs


def test_a_plot(runs: dict[str, RunLog], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots want discode-eval[plot]")
    plot_runs(runs, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000
    with pytest.raises(InputError, match="plots are written"):
        plot_runs(runs, tmp_path / "a.txt")
