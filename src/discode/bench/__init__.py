"""Run metrics on benchmarks, keep the results, and compare them."""

from __future__ import annotations

from discode.bench.agreement import AgreementProtocol, measure_agreement
from discode.bench.compare import MetricComparison, MetricDifference, compare_metrics
from discode.bench.figures import plot_systems
from discode.bench.published import PublishedCell, published_cell, published_cells
from discode.bench.run import label_metrics, run_metrics
from discode.bench.runlog import MetricResult, RunLog
from discode.bench.systems import (
    JoinedScores,
    SystemComparison,
    SystemDifference,
    SystemMean,
    compare_systems,
    join_systems,
)
from discode.bench.tables import TableCell, plot_runs, render_table, table_cells

__all__ = [
    "AgreementProtocol",
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
