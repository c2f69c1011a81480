"""How certain a number is: intervals, and differences of two metrics, by bootstrap.

Captions of one image are not independent observations, so whole images (*clusters*) are
resampled. Every function takes a ``seed`` and gives the same numbers for it, whatever the number
of threads.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from discode.errors import InputError
from discode.stats.base import (
    Floats,
    Ints,
    UndefinedWarning,
    check_choice,
    check_resamples,
    generator,
    label_codes,
    warn,
)

Seed = int | np.random.Generator
Statistic = Callable[[Ints], Any]
"""From how often each row counts (n,) to a number, or an array of them."""

BLOCK = 1 << 21
"""Multiplicities are drawn about this many at a time (16 MiB)."""
FEWEST = 3
"""Clusters that an interval needs: resamples of one are all alike, and of two mostly."""
ALTERNATIVES = ("two-sided", "greater", "less")


@runtime_checkable
class Clustered(Protocol):
    """A statistic with a faster way to weight whole clusters, such as ``KendallPlan``."""

    def clustered(self, codes: Ints) -> Callable[[Ints], Floats]:
        """Return the function from multiplicities (R, C) to values (R,)."""


@dataclass(frozen=True)
class Interval:
    """A value and the interval around it; ``undefined`` counts the resamples without a value.

    Bounds are NaN where there is no interval: no resample has a value, or clusters are too few.
    """

    value: float
    low: float
    high: float
    level: float
    undefined: int = 0

    def times(self, factor: float) -> Interval:
        """Return the interval in another unit: ``times(100)`` of a share is in percent."""
        value, low, high = (factor * number for number in (self.value, self.low, self.high))
        return Interval(value, low, high, self.level, self.undefined)


@dataclass(frozen=True)
class Comparison:
    """A difference a - b with its interval, and the p-value of "there is none"."""

    difference: Interval
    p: float


def resample(
    statistic: Statistic, clusters: ArrayLike, *, resamples: int = 1000, seed: Seed = 0
) -> Floats:
    """Return the statistic of each bootstrap resample, (resamples,) or (resamples, ...).

    As many clusters as there are (the distinct values of ``clusters`` (n,)) are drawn with
    replacement; all rows of a cluster come and go together, so row i gets the weight m[c_i].

    >>> mean = lambda weights: np.average([1.0, 2.0, 6.0], weights=weights)
    >>> resample(mean, ["a", "a", "b"], resamples=4).shape
    (4,)
    """
    return _resample([statistic], clusters, resamples, seed)[0]


def bootstrap(
    statistic: Callable[[Ints], float],
    clusters: ArrayLike,
    *,
    resamples: int = 1000,
    seed: Seed = 0,
    level: float = 0.95,
) -> Interval:
    """Return the statistic of all rows and its percentile interval over resampled clusters.

    ``statistic`` takes whole weights (n,): a ``KendallPlan``, an ``AccuracyPlan``, what
    ``weighted(name, x, y)`` returns, or any function of your own. A plan that is ``Clustered`` is
    resampled by a quadratic form, 1,000 times per second for 47,830 rows of 1,000 images.

    Percentiles, since they stay within [-1, 1], need no standard error of τ under clustering, and
    commute with any rescaling (accuracy and τ = 2·acc - 1 agree). They need some dozens of
    clusters: with ten images no interval is worth much, and with one or two there is none. A
    cluster drawn twice is tied with its copy, which shrinks a resampled τ by about 1/n: nothing
    compared with the interval's width.

    Resamples where the statistic is undefined are counted, with an ``UndefinedWarning``, and the
    interval is that of the others. Efron & Tibshirani (1993), chapters 13 and 8 (clusters).

    >>> from discode.stats import KendallPlan
    >>> plan = KendallPlan([1, 2, 3, 4, 5, 6], [1, 2, 1, 3, 2, 3], variant="b")
    >>> interval = bootstrap(plan, [1, 1, 2, 2, 3, 3], resamples=200)
    >>> round(interval.value, 3), interval.low <= interval.value <= interval.high
    (0.596, True)
    """
    (draws,) = _resample([statistic], clusters, resamples, seed)
    if draws.ndim != 1:
        raise InputError(
            f"the statistic has the shape {draws.shape[1:]}, not one number; use bootstrap_all"
        )
    value = float(_quiet(statistic, np.ones(len(np.asarray(clusters)), dtype=np.int64)))
    return _interval(value, draws, level, few=_are_few(clusters))


def bootstrap_all(
    statistic: Callable[[Ints], ArrayLike],
    clusters: ArrayLike,
    *,
    resamples: int = 1000,
    seed: Seed = 0,
    level: float = 0.95,
) -> list[Interval]:
    """Return an interval for each of the K numbers that ``statistic`` returns, as ``bootstrap``.

    All of them see the same resamples.

    >>> moments = lambda weights: [weights.sum(), (weights > 0).sum()]
    >>> [interval.value for interval in bootstrap_all(moments, [1, 2, 3], resamples=10)]
    [3.0, 3.0]
    """
    (draws,) = _resample([statistic], clusters, resamples, seed)
    if draws.ndim != 2:
        raise InputError(f"the statistic has {draws.ndim - 1} axes, not one; use bootstrap")
    rows = len(np.asarray(clusters))
    values = np.asarray(_quiet(statistic, np.ones(rows, dtype=np.int64)), dtype=np.float64)
    few = _are_few(clusters)
    return [
        _interval(value, draws[:, k], level, few=few) for k, value in enumerate(values.tolist())
    ]


def paired_bootstrap(
    stat_a: Callable[[Ints], float],
    stat_b: Callable[[Ints], float],
    clusters: ArrayLike,
    *,
    resamples: int = 1000,
    seed: Seed = 0,
    level: float = 0.95,
    alternative: str = "two-sided",
) -> Comparison:
    """Return a - b with its percentile interval, and p; both see the same resamples.

    p inverts the interval: "greater" (a is better) has (1 + #{d* <= 0}) / (1 + resamples), "less"
    the other tail, "two-sided" twice the smaller of them, at most 1. So p < 1 - level and an
    interval without 0 say the same. Undefined resamples count against both alternatives.
    Koehn (EMNLP 2004); Berg-Kirkpatrick et al. (EMNLP 2012).

    >>> mean_of = lambda x: lambda weights: float(np.average(x, weights=weights))
    >>> done = paired_bootstrap(mean_of([1, 1, 1, 1]), mean_of([0, 0, 1, 0]), range(4))
    >>> done.difference.value, done.p < 0.05
    (0.75, True)
    """
    check_choice("alternative", alternative, ALTERNATIVES)
    draws = _resample([stat_a, stat_b], clusters, resamples, seed)
    ones = np.ones(len(np.asarray(clusters)), dtype=np.int64)
    difference = draws[0] - draws[1]
    if difference.ndim != 1:
        raise InputError("a paired bootstrap compares two numbers, not arrays")
    value = float(_quiet(stat_a, ones)) - float(_quiet(stat_b, ones))
    # Not "<= 0": a NaN must count against the difference.
    greater = (1 + int((~(difference > 0)).sum())) / (1 + resamples)
    less = (1 + int((~(difference < 0)).sum())) / (1 + resamples)
    p = {"greater": greater, "less": less, "two-sided": min(1.0, 2 * min(greater, less))}
    few = _are_few(clusters)
    return Comparison(
        _interval(value, difference, level, few=few),
        float("nan") if few or np.isnan(value) else p[alternative],
    )


def _resample(
    statistics: Sequence[Statistic], clusters: ArrayLike, resamples: int, seed: Seed
) -> list[Floats]:
    check_resamples(resamples)
    codes = label_codes(clusters, "clusters")
    if not len(codes):
        raise InputError("there are no rows to resample")
    functions = [by_multiplicity(statistic, codes) for statistic in statistics]
    parts: list[list[Floats]] = [[] for _ in statistics]
    rng, size = generator(seed), int(codes.max()) + 1
    for count in block_sizes(resamples, size):
        multiplicities = rng.multinomial(size, np.full(size, 1 / size), size=count)
        for part, function in zip(parts, functions, strict=True):
            part.append(function(multiplicities))
    return [np.concatenate(part) for part in parts]


def by_multiplicity(statistic: Statistic, codes: Ints) -> Callable[[Ints], Floats]:
    """Return the function from the clusters' multiplicities (R, C) to values (R, ...)."""
    if isinstance(statistic, Clustered):
        return statistic.clustered(codes)

    def values(multiplicities: Ints) -> Floats:
        rows = [_quiet(statistic, m[codes]) for m in multiplicities]
        return np.asarray(rows, dtype=np.float64)

    return values


def _quiet(statistic: Statistic, weights: Ints) -> Any:
    with warnings.catch_warnings():  # undefined resamples are counted, not announced one by one
        warnings.simplefilter("ignore", UndefinedWarning)
        return statistic(weights)


def block_sizes(resamples: int, size: int) -> Iterator[int]:
    """Yield how many resamples of ``size`` clusters to draw at a time."""
    step = max(1, BLOCK // size)
    for start in range(0, resamples, step):
        yield min(step, resamples - start)


def _are_few(clusters: ArrayLike) -> bool:
    return len(np.unique(np.asarray(clusters))) < FEWEST


def _interval(value: float, draws: Floats, level: float, *, few: bool) -> Interval:
    if not 0 < level < 1:
        raise InputError(f"level={level} must lie between 0 and 1, such as 0.95")
    if few:
        return Interval(value, float("nan"), float("nan"), level)
    defined = draws[~np.isnan(draws)]
    missing = len(draws) - len(defined)
    if missing:
        warn(f"the statistic is undefined in {missing} of {len(draws)} resamples")
    if not len(defined):
        return Interval(value, float("nan"), float("nan"), level, missing)
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return Interval(value, low, high, level, missing)
