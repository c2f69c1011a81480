"""How well a metric agrees with people: correlations or accuracies, with intervals."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode._scores import Floats
from discode.benchmarks import BENCHMARKS, Preferences, Ratings
from discode.options import COUNT, Configurable, Numbers, option, with_options_documented
from discode.stats import (
    AccuracyPlan,
    Interval,
    KendallPlan,
    UndefinedWarning,
    bootstrap_all,
    pearson,
    spearman,
    tie_rate,
)
from discode.stats._correlation import PearsonPlan
from discode.stats._preference import accuracies_with_ties
from discode.stats._tau import M_RULES

TAU_C_NOTES = {
    "people": "τ_c: m is the number of people's distinct scores, for every metric",
    "scipy": "τ_c: m is scipy's, the distinct scores of metric or people, whichever are fewer",
}
"""The note on m below a table with τ_c, by ``AgreementProtocol.tau_m``."""
COMPARED = ("tau_c", "tau_b", "spearman", "pearson")
"""Measures of ratings by which metrics can be compared."""
TIE_GAP = 10.0
"""Metrics whose tie rates are further apart, in percentage points, are named with them."""
_LEVELS = 64
"""Ratings with more distinct values are taken to be continuous."""
# Fewer resamples do not give a useful interval.
_RESAMPLES = Numbers("a whole number from 100, or 0", lambda x: x == 0 or x >= 100, whole=True)
_SHARE = Numbers("a number between 0 and 1", lambda x: 0 < x < 1)
_Ints = NDArray[np.int64]


@with_options_documented
@dataclass(frozen=True)
class AgreementProtocol(Configurable):
    """How agreement is measured: ties of preferences, m of τ_c, the bootstrap of the intervals."""

    ties: str = option("wrong", "how ties of preferences count", "wrong", "half")
    resamples: int = option(1000, "resamples of the intervals; 0: no intervals", _RESAMPLES)
    seed: int = option(0, "random seed of the bootstrap", COUNT)
    level: float = option(0.95, "coverage of the intervals", _SHARE)
    tau_m: str = option(
        "people",
        "rule for m in τ_c: people's distinct scores, or as in scipy, the metric's if fewer",
        *M_RULES,
    )

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> AgreementProtocol:
        """Return the protocol of a file; one without ``tau_m`` was measured with scipy's m."""
        return cls(**{"tau_m": "scipy", **saved})

    @property
    def bootstrap(self) -> dict[str, Any]:
        """The options of the bootstrap."""
        return {"resamples": self.resamples, "seed": self.seed, "level": self.level}


def measure_agreement(
    judgments: Ratings | Preferences, image: _Ints, value: Floats, protocol: AgreementProtocol,
    preference: Floats | None = None,
) -> dict[str, Interval]:  # fmt: skip
    """Return every measure of a metric's scores (P,) by name; intervals are over images (P,).

    ``preference`` (M,) are the probabilities that left captions are better, of a metric that
    compares two captions; they count instead of scores.

    Ratings: "tau_b", "tau_c", "spearman", "pearson"; "acc23" and "acc_tied", the pairwise accuracy
    with ties within images, the latter with the threshold that suits the metric best; "ties", the
    share of tied pairs of scores; "failed", the share of judgments without a score, which are left
    out. Preferences: every category's accuracy, their "mean", "ties", "failed"; a preference
    without a score counts as wrong. The bounds of what has no interval are NaN.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)  # the result is NaN
        if isinstance(judgments, Ratings):
            return _of_ratings(judgments, image, value, protocol)
        return _of_preferences(judgments, image, sides_of(judgments, value, preference), protocol)


def sides_of(
    judgments: Preferences, value: Floats, preference: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return the scores of the left and the right caption of each choice, both (M,)."""
    if preference is None:
        return value[judgments.left], value[judgments.right]
    return preference, 1 - preference


def main_measure(benchmark: str, judgments: Ratings | Preferences) -> str:
    """Return the measure that metrics are compared by: the benchmark's τ, or accuracy.

    A benchmark redrawn in another style ("flickr8k-cf@sketch") keeps its own.
    """
    if not isinstance(judgments, Ratings):
        return "mean"
    row = BENCHMARKS.get(benchmark.partition("@")[0])
    return "tau_c" if row is None else row.main_tau


def note_ties(rates: Mapping[str, float], where: str = "") -> list[str]:
    """Return a line about the tie rates that differ most, in percent, if by more than ``TIE_GAP``.

    Metrics with one score for everything have no τ, and are not compared.

    >>> note_ties({"raw": 49.2, "smoothing": 0.01, "constant": 100.0})[0].partition(";")[0]
    'tie rates: raw 49.2 %, smoothing 0.0 %'
    """
    known = {name: rate for name, rate in rates.items() if rate < 100}
    if not known or max(known.values()) - min(known.values()) <= TIE_GAP:
        return []
    most, least = max(known, key=lambda name: known[name]), min(known, key=lambda name: known[name])
    return [
        f"tie rates{where}: {most} {known[most]:.1f} %, {least} {known[least]:.1f} %; τ_b, and "
        "τ_c with scipy's m, reward ties"
    ]


def agreement_statistic(
    judgments: Ratings | Preferences, value: Floats, name: str, ties: str, keep: NDArray[np.bool_],
    preference: Floats | None = None,
) -> Callable[[_Ints], float]:  # fmt: skip
    """Return a measure as a function of how often each of the kept judgments counts.

    m in τ_c is always people's: metrics are compared with it.
    """
    if isinstance(judgments, Ratings):
        x, y = value[judgments.pair][keep], judgments.value[keep]
        if name in ("spearman", "pearson"):
            return PearsonPlan(x, y, ranked=name == "spearman")
        return KendallPlan(x, y, variant=name.removeprefix("tau_"))
    earned = judgments.earned(*sides_of(judgments, value, preference), ties)
    return AccuracyPlan(earned[keep], categories=np.array(judgments.category)[keep])


def _of_ratings(
    judgments: Ratings, image: _Ints, value: Floats, protocol: AgreementProtocol
) -> dict[str, Interval]:
    x, y = value[judgments.pair], judgments.value
    keep = np.isfinite(x) & np.isfinite(y)
    x, y, clusters = x[keep], y[keep], image[judgments.pair][keep]
    plan = KendallPlan(x, y, m=protocol.tau_m)
    taus = _Both(plan, plan.as_variant("c"))
    tau_b, tau_c = bootstrap_all(taus, clusters, **protocol.bootstrap)
    scored = value[np.unique(judgments.pair)]
    # The cost of calibrating grows with the number of distinct ratings; people give few.
    few = len(np.unique(y)) <= _LEVELS
    acc23, acc_tied, _ = accuracies_with_ties(y, x, clusters, calibrate=few)
    points = {
        "spearman": spearman(x, y),
        "pearson": pearson(x, y),
        "ties": tie_rate(scored[np.isfinite(scored)]),
        "acc23": acc23,
        "acc_tied": acc_tied,
        "failed": (~keep).sum() / max(1, len(keep)),
    }
    return {"tau_b": tau_b, "tau_c": tau_c, **_points(points, protocol)}


@dataclass(frozen=True)
class _Both:
    """Two variants of τ on the same resamples."""

    first: KendallPlan
    second: KendallPlan

    def __call__(self, weights: _Ints) -> list[float]:
        return [self.first(weights), self.second(weights)]

    def clustered(self, codes: _Ints) -> Callable[[_Ints], NDArray[np.float64]]:
        first, second = self.first.clustered(codes), self.second.clustered(codes)
        return lambda drawn: np.stack([first(drawn), second(drawn)], axis=-1)


def _of_preferences(
    judgments: Preferences, image: _Ints, sides: tuple[Floats, Floats], protocol: AgreementProtocol
) -> dict[str, Interval]:
    left, right = sides
    categories = np.array(judgments.category)
    names = [*np.unique(categories).tolist(), "mean"]
    scored = np.isfinite(left) & np.isfinite(right)
    if not scored.any():  # the metric gave no answer, rather than wrong ones
        return _points(dict.fromkeys([*names, "ties"], np.nan) | {"failed": 1.0}, protocol)
    earned = judgments.earned(left, right, protocol.ties)
    plan, clusters = AccuracyPlan(earned, categories=categories), image[judgments.left]
    points = {"ties": (left == right)[scored].mean(), "failed": (~scored).mean()}
    several = bootstrap_all(plan.by_category, clusters, **protocol.bootstrap)
    return dict(zip(names, several, strict=True)) | _points(points, protocol)


def _points(values: Mapping[str, float], protocol: AgreementProtocol) -> dict[str, Interval]:
    return {name: Interval.point(float(value), protocol.level) for name, value in values.items()}
