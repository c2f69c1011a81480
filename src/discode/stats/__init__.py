"""How well metrics agree with people: correlations, preferences, intervals, tests. Only numpy.

A statistic that is resampled is a function of *how often each row counts*, such as ``KendallPlan``
and ``AccuracyPlan``.
"""

from discode.stats.base import UndefinedWarning
from discode.stats.correlation import pearson, ranks, spearman, tie_rate
from discode.stats.effects import MeansPlan, paired_effect
from discode.stats.multiple import holm, significance_clusters
from discode.stats.permutation import (
    Permutation,
    permutation_test_preference,
    permutation_tests,
)
from discode.stats.preference import AccuracyPlan, acc23, credit, tie_calibrated
from discode.stats.resampling import (
    Comparison,
    Interval,
    bootstrap,
    bootstrap_all,
    resample,
    resampled_difference,
)
from discode.stats.shares import wilson
from discode.stats.tau import KendallPlan

__all__ = [
    "AccuracyPlan",
    "Comparison",
    "Interval",
    "KendallPlan",
    "MeansPlan",
    "Permutation",
    "UndefinedWarning",
    "acc23",
    "bootstrap",
    "bootstrap_all",
    "credit",
    "holm",
    "paired_effect",
    "pearson",
    "permutation_test_preference",
    "permutation_tests",
    "ranks",
    "resample",
    "resampled_difference",
    "significance_clusters",
    "spearman",
    "tie_calibrated",
    "tie_rate",
    "wilson",
]
