"""How well metrics agree with people: correlations, preferences, intervals, tests. Only numpy.

``kendall``, ``spearman``, ``pearson`` and ``accuracy`` are plain functions of columns; ``interval``
and ``compare`` take one of them (or any other) and its columns. For those who resample on their
own, ``KendallPlan`` and ``AccuracyPlan`` are functions of *how often each row counts*.
"""

from discode.stats._base import UndefinedWarning
from discode.stats._conformal import (
    Coverage,
    conformal_quantile,
    fit_intervals,
    held_out_intervals,
    measure_coverage,
)
from discode.stats._correlation import pearson, ranks, spearman, tie_rate
from discode.stats._effects import MeansPlan, paired_effect
from discode.stats._inference import compare, interval
from discode.stats._means import ClusteredMean
from discode.stats._multiple import holm, significance_clusters
from discode.stats._permutation import (
    Permutation,
    permutation_test_preference,
    permutation_tests,
)
from discode.stats._ppi import PoweredMean, ppi_mean
from discode.stats._preference import AccuracyPlan, acc23, accuracy, credit, tie_calibrated
from discode.stats._ranking import BradleyTerryPlan, bradley_terry
from discode.stats._resampling import (
    Comparison,
    Interval,
    bootstrap,
    bootstrap_all,
    resample,
    resampled_difference,
)
from discode.stats._shares import wilson
from discode.stats._tau import KendallPlan, kendall

__all__ = [
    "AccuracyPlan",
    "BradleyTerryPlan",
    "ClusteredMean",
    "Comparison",
    "Coverage",
    "Interval",
    "KendallPlan",
    "MeansPlan",
    "Permutation",
    "PoweredMean",
    "UndefinedWarning",
    "acc23",
    "accuracy",
    "bootstrap",
    "bootstrap_all",
    "bradley_terry",
    "compare",
    "conformal_quantile",
    "credit",
    "fit_intervals",
    "held_out_intervals",
    "holm",
    "interval",
    "kendall",
    "measure_coverage",
    "paired_effect",
    "pearson",
    "permutation_test_preference",
    "permutation_tests",
    "ppi_mean",
    "ranks",
    "resample",
    "resampled_difference",
    "significance_clusters",
    "spearman",
    "tie_calibrated",
    "tie_rate",
    "wilson",
]
