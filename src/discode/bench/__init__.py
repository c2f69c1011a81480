"""Run metrics on benchmarks, keep the results, and compare them."""

from __future__ import annotations

from discode.bench.agreement import AgreementProtocol, measure_agreement
from discode.bench.compare import MetricComparison, MetricDifference, compare_metrics
from discode.bench.figures import plot_systems
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

__all__ = [
    "AgreementProtocol",
    "JoinedScores",
    "MetricComparison",
    "MetricDifference",
    "MetricResult",
    "RunLog",
    "SystemComparison",
    "SystemDifference",
    "SystemMean",
    "compare_metrics",
    "compare_systems",
    "join_systems",
    "label_metrics",
    "measure_agreement",
    "plot_systems",
    "run_metrics",
]
