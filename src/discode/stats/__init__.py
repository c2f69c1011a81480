"""How well metrics agree with people: correlations, preferences, intervals, tests. Only numpy.

A statistic that is resampled is a function of *how often each row counts*: ``KendallPlan``,
``AccuracyPlan``, or what ``weighted`` returns by name.
"""

from discode.stats.base import UndefinedWarning
from discode.stats.correlation import (
    CORRELATIONS,
    kendall,
    paired,
    pearson,
    ranks,
    spearman,
    tie_rate,
    weighted,
)
from discode.stats.effects import MeansPlan, PairedEffect, paired_effect
from discode.stats.multiple import holm, significance_clusters
from discode.stats.permutation import (
    Permutation,
    permutation_test,
    permutation_test_preference,
)
from discode.stats.preference import (
    AccuracyPlan,
    acc23,
    accuracy,
    credit,
    tie_calibrated,
)
from discode.stats.resampling import (
    Comparison,
    Interval,
    bootstrap,
    bootstrap_all,
    paired_bootstrap,
    resample,
)
from discode.stats.shares import wilson
from discode.stats.tau import KendallPlan

__all__ = [
    "CORRELATIONS",
    "AccuracyPlan",
    "Comparison",
    "Interval",
    "KendallPlan",
    "MeansPlan",
    "PairedEffect",
    "Permutation",
    "UndefinedWarning",
    "acc23",
    "accuracy",
    "bootstrap",
    "bootstrap_all",
    "credit",
    "holm",
    "kendall",
    "paired",
    "paired_bootstrap",
    "paired_effect",
    "pearson",
    "permutation_test",
    "permutation_test_preference",
    "ranks",
    "resample",
    "significance_clusters",
    "spearman",
    "tie_calibrated",
    "tie_rate",
    "weighted",
    "wilson",
]
