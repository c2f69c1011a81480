"""Compare the metrics of a run: differences with intervals and p-values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from discode.bench._agreement import (
    COMPARED,
    AgreementProtocol,
    agreement_statistic,
    main_measure,
)
from discode.bench._runlog import RunLog
from discode.benchmarks import Ratings
from discode.errors import InputError, count_of, lookup
from discode.stats import (
    Interval,
    UndefinedWarning,
    holm,
    permutation_test_preference,
    permutation_tests,
    resample,
    resampled_difference,
    significance_clusters,
)
from discode.stats._resampling import FEW_IMAGES, FEWEST

GROUP_RULE = (
    "a group begins where all above are better (Holm's p < 5 %); pairs within one may differ"
)
"""How :func:`adjust_and_group` makes groups, for readers of a table."""
LEVEL = 0.95
"""Coverage of the intervals of differences."""


def note_few_images(images: int) -> list[str]:
    """Warn about intervals from few images; an empty list if there are enough."""
    if images >= FEW_IMAGES:
        return []
    what = "intervals are too narrow" if images >= FEWEST else "there is no interval"
    return [f"with {count_of(images, 'image')} {what}: score some dozens"]


@dataclass(frozen=True)
class Difference:
    """``a`` against ``b``: the difference with its interval, p, and Holm's p over all pairs."""

    a: str
    b: str
    difference: float
    low: float
    high: float
    p: float
    adjusted: float

    wins: ClassVar[str] = "is better than"

    def verdict(self) -> str:
        """State the conclusion in words, at 5 %."""
        if self.adjusted >= 0.05:
            return f"no difference between {self.a} and {self.b} was shown"
        winner, loser = (self.a, self.b) if self.difference > 0 else (self.b, self.a)
        return f"{winner} {self.wins} {loser}"


def worse_than(pairs: Iterable[Difference], best: str) -> set[str]:
    """Find everything that differs from ``best``, the highest value, by Holm's p < 5 %.

    >>> worse_than([Difference("a", "b", 0.2, 0.1, 0.3, 0.01, 0.02)], "a")
    {'b'}
    """
    shown = [pair for pair in pairs if pair.adjusted < 0.05 and best in (pair.a, pair.b)]
    return {name for pair in shown for name in (pair.a, pair.b)} - {best}


D = TypeVar("D", bound=Difference)


def adjust_and_group(
    rows: Sequence[D], values: Mapping[str, float]
) -> tuple[tuple[D, ...], tuple[tuple[str, ...], ...]]:
    """Adjust p-values by Holm's method, and group what does not differ, best first.

    Groups are ordered by ``values``; names whose value is NaN are in no group.
    """
    adjusted = holm([row.p for row in rows]).tolist()
    pairs = tuple(replace(row, adjusted=p) for row, p in zip(rows, adjusted, strict=True))
    names = [name for name, value in values.items() if not np.isnan(value)]
    matrix = np.ones((len(names), len(names)))
    for pair in pairs:
        if pair.a in names and pair.b in names:
            i, j = names.index(pair.a), names.index(pair.b)
            matrix[i, j] = matrix[j, i] = pair.adjusted
    groups = significance_clusters(names, [values[name] for name in names], matrix)
    return pairs, tuple(map(tuple, groups))


@dataclass(frozen=True)
class MetricDifference(Difference):
    """Metric ``a`` against ``b`` by a measure of agreement, in percent; p of a permutation test."""

    measure: str
    value_a: float
    value_b: float

    def verdict(self) -> str:
        if not np.isnan(self.p):
            return super().verdict()
        values = {self.a: self.value_a, self.b: self.value_b}
        names = " and ".join(name for name, value in values.items() if np.isnan(value))
        return f"undefined: {names}, or people, gave everything the same score"


@dataclass(frozen=True)
class MetricComparison:
    """All pairs of metrics, and groups from best to worst that differ, of those with a value.

    All metrics are compared on the judgments for which each of them has a score; ``left_out``
    counts the others. ``silent`` metrics have no score at all and are not compared. The judgments
    are about that number of ``images``. ``ties`` are the metrics' tie rates in percent.
    """

    pairs: tuple[MetricDifference, ...]
    groups: tuple[tuple[str, ...], ...]
    left_out: int
    silent: tuple[str, ...]
    images: int
    ties: Mapping[str, float]


def compare_metrics(
    log: RunLog,
    names: Sequence[str],
    *,
    measure: str | None = None,
    swap: str = "images",
    resamples: int = 1000,
    seed: int = 0,
) -> MetricComparison:
    """Compare metrics of a run, two or more; without names, all of them.

    ``measure`` is "tau_b", "tau_c", "spearman" or "pearson" for ratings, "mean" (accuracy) for
    preferences; m in τ_c is people's for all metrics, also where the log's protocol has scipy's.
    ``swap`` is what the permutation test exchanges: "images", all captions of an image together
    (safe), or "captions", one by one (PERM-BOTH: more power where a metric's errors on the captions
    of an image are independent).
    """
    silent = tuple(name for name, row in log.results.items() if np.isnan(row.value).all())
    for name in names:
        lookup(log.results, name, "metric")
        if name in silent:
            raise InputError(f"{name} has no scores in this run; its pairs failed")
    names = list(dict.fromkeys(names or [name for name in log.results if name not in silent]))
    if len(names) < 2:
        known = ", ".join(log.results) or "none"
        raise InputError(f"a comparison needs two metrics or more; this run has {known}")
    judged = log.judgments
    allowed = COMPARED if isinstance(judged, Ratings) else ("mean",)
    measure = measure or main_measure(log.benchmark, judged)
    lookup(dict.fromkeys(allowed), measure, "measure")
    lookup(dict.fromkeys(("images", "captions")), swap, "swap")
    keep = _shared_judgments(log, names)
    if not keep.any():
        raise InputError("no judgment has a score of every metric; compare fewer of them")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)  # the result is NaN
        ones = np.ones(int(keep.sum()), np.int64)
        statistics = {name: _statistic(log, name, measure, keep) for name in names}
        values = {name: 100 * statistic(ones) for name, statistic in statistics.items()}
        images = log.judged_image[keep]
        draws = {n: resample(s, images, resamples, seed) for n, s in statistics.items()}
        permuted = _permute(log, names, keep, measure, swap, resamples, seed)
        rows = []
        for a, b in combinations(names, 2):
            apart = resampled_difference(draws[a], draws[b], LEVEL).difference.times(100)
            p = permuted[a, b]
            rows.append(
                MetricDifference(
                    a, b, apart.value, apart.low, apart.high, p, p, measure, values[a], values[b]
                )
            )  # fmt: skip
    pairs, groups = adjust_and_group(rows, values)
    ties = {name: 100 * log.results[name].measures["ties"].value for name in names}
    return MetricComparison(pairs, groups, int((~keep).sum()), silent, len(np.unique(images)), ties)


def agreement_difference(log: RunLog, a: str, b: str, protocol: AgreementProtocol) -> Interval:
    """Compute how much better ``a`` agrees with people than ``b``, in percent.

    The interval is of the paired bootstrap over images, NaN without resamples. The measure is the
    benchmark's own, on the judgments for which both have a score; m in τ_c is people's for both.
    """
    measure = main_measure(log.benchmark, log.judgments)
    keep = _shared_judgments(log, (a, b))
    images = log.judged_image[keep]
    ours, theirs = (
        resample(_statistic(log, name, measure, keep), images, protocol.resamples, protocol.seed)
        for name in (a, b)
    )
    return resampled_difference(ours, theirs, protocol.level).difference.times(100)


def _shared_judgments(log: RunLog, names: Sequence[str]) -> NDArray[np.bool_]:
    """Mark the judgments (M,) for which all metrics have a score.

    A preference without a score counts as wrong, so that none is left out whose image is present.
    """
    judged = log.judgments
    if not isinstance(judged, Ratings):
        present = [log.judged(log.results[name].errors) for name in names]
        return np.asarray(np.all(present, axis=0))
    finite = np.all([np.isfinite(log.results[name].value) for name in names], axis=0)
    return np.asarray(finite[judged.pair])


def _statistic(
    log: RunLog, name: str, measure: str, keep: NDArray[np.bool_]
) -> Callable[[NDArray[np.int64]], float]:
    row = log.results[name]
    return agreement_statistic(
        log.judgments, row.value, measure, log.protocol.ties, keep, row.preference
    )


def _permute(
    log: RunLog,
    names: Sequence[str],
    keep: NDArray[np.bool_],
    measure: str,
    swap: str,
    resamples: int,
    seed: int,
) -> dict[tuple[str, str], float]:
    judged = log.judgments
    images = log.judged_image[keep]
    if isinstance(judged, Ratings):
        pair = judged.pair[keep]
        tests = permutation_tests(
            [log.results[name].value[pair] for name in names], judged.value[keep],
            variant=measure.removeprefix("tau_"), clusters=images,
            sources=pair if swap == "captions" else None, resamples=resamples, seed=seed,
        )  # fmt: skip
        return {(names[i], names[j]): test.p for (i, j), test in tests.items()}
    earned = {name: judged.earned(*log.sides(name), log.protocol.ties)[keep] for name in names}
    judged = judged.take(keep)
    sources = np.arange(len(judged)) if swap == "captions" else None
    return {
        (a, b): permutation_test_preference(
            earned[a], earned[b], categories=judged.category, clusters=images, sources=sources,
            resamples=resamples, seed=seed,
        ).p
        for a, b in combinations(names, 2)
    }  # fmt: skip
