"""What a benchmark says of a metric: correlations or accuracies, with intervals."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from discode.benchmarks import Preferences, Ratings
from discode.stats import (
    AccuracyPlan,
    Interval,
    KendallPlan,
    UndefinedWarning,
    acc23,
    bootstrap,
    bootstrap_all,
    credit,
    paired,
    pearson,
    spearman,
    tie_calibrated,
    tie_rate,
)
from discode.studies.runlog import Protocol

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def measures(
    judgments: Ratings | Preferences, image: Ints, value: Floats, protocol: Protocol
) -> dict[str, Interval]:
    """Return every measure of a metric's scores (P,) by name; intervals are over images (P,).

    Ratings: "tau_b", "tau_c", "spearman", "pearson"; "acc23" and "acc_tied", the pairwise accuracy
    with ties inside images, the latter with the threshold that suits the metric best; "ties", the
    share of tied pairs of scores; "failed", the share of judgments without a score, which take no
    part. Preferences: every category's accuracy, their "mean", "ties", "failed"; a preference
    without a score is wrong. What has no interval has NaN there.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)  # NaN says it
        if isinstance(judgments, Ratings):
            return _of_ratings(judgments, image, value, protocol)
        return _of_preferences(judgments, image, value, protocol)


def main_measure(judgments: Ratings | Preferences) -> str:
    """Return the measure that decides: τ_c of ratings, mean accuracy of preferences."""
    return "tau_c" if isinstance(judgments, Ratings) else "mean"


def statistic(
    judgments: Ratings | Preferences, value: Floats, name: str, ties: str, keep: NDArray[np.bool_]
) -> Callable[[Ints], float]:
    """Return a measure as a function of how often each of the kept judgments counts."""
    if isinstance(judgments, Ratings):
        x, y = value[judgments.pair][keep], judgments.value[keep]
        return KendallPlan(x, y, variant=name.removeprefix("tau_"))
    earned = credit(value[judgments.left], value[judgments.right], judgments.chosen, ties=ties)
    return AccuracyPlan(earned[keep], categories=np.array(judgments.category)[keep])


def _of_ratings(
    judgments: Ratings, image: Ints, value: Floats, protocol: Protocol
) -> dict[str, Interval]:
    x, y = value[judgments.pair], judgments.value
    keep, left_out = paired(x, y)
    x, y, clusters = x[keep], y[keep], image[judgments.pair][keep]
    result = {}
    for variant in ("b", "c"):
        result[f"tau_{variant}"] = (
            bootstrap(
                KendallPlan(x, y, variant=variant), clusters, resamples=protocol.resamples,
                seed=protocol.seed, level=protocol.level,
            )
            if len(x) > 1
            else _point(np.nan, protocol)
        )  # fmt: skip
    scored = value[np.unique(judgments.pair)]
    points = {
        "spearman": spearman(x, y),
        "pearson": pearson(x, y),
        "acc23": acc23(y, x, clusters),
        "acc_tied": tie_calibrated(y, x, clusters)[0],
        "ties": tie_rate(scored[np.isfinite(scored)]),
        "failed": left_out / max(1, len(judgments)),
    }
    return result | {name: _point(number, protocol) for name, number in points.items()}


def _of_preferences(
    judgments: Preferences, image: Ints, value: Floats, protocol: Protocol
) -> dict[str, Interval]:
    left, right = value[judgments.left], value[judgments.right]
    earned = credit(left, right, judgments.chosen, ties=protocol.ties)
    names, codes = np.unique(np.array(judgments.category), return_inverse=True)

    def accuracies(weights: Ints) -> Floats:
        rows = np.bincount(codes, weights=weights, minlength=len(names))
        right = np.bincount(codes, weights=weights * earned, minlength=len(names))
        with np.errstate(invalid="ignore"):  # a resample may miss a category
            each = right / rows
        return np.append(each, each.mean())

    several = bootstrap_all(
        accuracies, image[judgments.left], resamples=protocol.resamples, seed=protocol.seed,
        level=protocol.level,
    )  # fmt: skip
    result = dict(zip([*names.tolist(), "mean"], several, strict=True))
    scored = np.isfinite(left) & np.isfinite(right)
    result["ties"] = _point(
        float((left == right)[scored].mean()) if scored.any() else np.nan, protocol
    )
    result["failed"] = _point(float((~scored).mean()), protocol)
    return result


def _point(value: float, protocol: Protocol) -> Interval:
    return Interval(float(value), np.nan, np.nan, protocol.level)
