"""Run metrics on benchmarks, keep the results, and compare them."""

from __future__ import annotations

from discode.bench._agreement import AgreementProtocol, measure_agreement
from discode.bench._arena import ArenaDifference, ArenaPlan, ArenaResult, ArenaSystem, hold_arena
from discode.bench._compare import MetricComparison, MetricDifference, compare_metrics
from discode.bench._figures import plot_systems
from discode.bench._published import PublishedCell, published_cell, published_cells
from discode.bench._run import label_metrics, run_metrics
from discode.bench._runlog import MetricResult, RunLog
from discode.bench._systems import (
    JoinedScores,
    SystemComparison,
    SystemDifference,
    SystemMean,
    compare_systems,
    join_systems,
)
from discode.bench._tables import TableCell, plot_runs, render_table, table_cells

__all__ = [
    "AgreementProtocol",
    "ArenaDifference",
    "ArenaPlan",
    "ArenaResult",
    "ArenaSystem",
    "JoinedScores",
    "MetricComparison",
    "MetricDifference",
    "MetricResult",
    "PublishedCell",
    "RunLog",
    "SystemComparison",
    "SystemDifference",
    "SystemMean",
    "TableCell",
    "compare_metrics",
    "compare_systems",
    "hold_arena",
    "join_systems",
    "label_metrics",
    "measure_agreement",
    "plot_runs",
    "plot_systems",
    "published_cell",
    "published_cells",
    "render_table",
    "run_metrics",
    "table_cells",
]
