"""Compare the metrics of a run: differences with intervals and p-values."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from discode.bench.agreement import agreement_statistic, main_measure
from discode.bench.runlog import RunLog
from discode.benchmarks import Ratings
from discode.errors import InputError, lookup
from discode.stats import (
    UndefinedWarning,
    credit,
    holm,
    paired_bootstrap,
    permutation_test,
    permutation_test_preference,
    significance_clusters,
)


@dataclass(frozen=True)
class MetricDifference:
    """Metric ``a`` against ``b``: values, difference and interval in percent, p-values.

    ``p`` is the permutation test's, ``adjusted`` Holm's over all pairs compared, ``p_bootstrap``
    that of the paired bootstrap.
    """

    a: str
    b: str
    measure: str
    value_a: float
    value_b: float
    difference: float
    low: float
    high: float
    p: float
    adjusted: float
    p_bootstrap: float

    def verdict(self, alpha: float = 0.05) -> str:
        """Return the conclusion in words."""
        if np.isnan(self.p):
            values = {self.a: self.value_a, self.b: self.value_b}
            names = " and ".join(name for name, value in values.items() if np.isnan(value))
            return f"undefined: {names}, or people, gave everything the same score"
        if self.adjusted >= alpha:
            return f"no difference between {self.a} and {self.b} was shown"
        better, worse = (self.a, self.b) if self.difference > 0 else (self.b, self.a)
        return f"{better} is better than {worse}"


@dataclass(frozen=True)
class MetricComparison:
    """All pairs of metrics, and groups from best to worst that differ, of those with a value.

    All metrics are compared on the judgments for which each of them has a score; ``left_out``
    counts the others. ``silent`` metrics have no score at all and are not compared.
    """

    pairs: tuple[MetricDifference, ...]
    groups: tuple[tuple[str, ...], ...]
    left_out: int
    silent: tuple[str, ...]


def compare_metrics(
    log: RunLog,
    names: Sequence[str],
    *,
    measure: str | None = None,
    swap: str = "images",
    resamples: int = 1000,
    seed: int = 0,
    alpha: float = 0.05,
) -> MetricComparison:
    """Compare metrics of a run, two or more; without names, all of them.

    ``measure`` is "tau_b" or "tau_c" for ratings, "mean" (accuracy) for preferences. ``swap`` is
    what the permutation test exchanges: "images", all captions of an image together (safe), or
    "captions", one by one (PERM-BOTH: more power where a metric's errors on the captions of an
    image are independent).
    """
    silent = tuple(name for name, one in log.results.items() if np.isnan(one.value).all())
    for name in names:
        lookup(log.results, name, "metric")
        if name in silent:
            raise InputError(f"{name} has no scores in this run; its pairs failed")
    names = list(dict.fromkeys(names or [name for name in log.results if name not in silent]))
    if len(names) < 2:
        known = ", ".join(log.results) or "none"
        raise InputError(f"two metrics or more are compared; this run has {known}")
    judged = log.judgments
    allowed = ("tau_c", "tau_b") if isinstance(judged, Ratings) else ("mean",)
    measure = measure or main_measure(log.benchmark, judged)
    if measure not in allowed:
        raise InputError(f"measure={measure!r} is not allowed here; give {' or '.join(allowed)}")
    if swap not in ("images", "captions"):
        raise InputError(f"swap={swap!r} is not allowed; give 'images' or 'captions'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)  # the result is NaN
        keep = _kept(log, names)
        if not keep.any():
            raise InputError("no judgment has a score of every metric; compare fewer of them")
        rows = [
            _difference(log, a, b, keep, measure, swap, resamples, seed)
            for a, b in combinations(names, 2)
        ]
    adjusted = holm([row.p for row in rows]).tolist()
    pairs = tuple(replace(row, adjusted=p) for row, p in zip(rows, adjusted, strict=True))
    found = {one.a: one.value_a for one in pairs} | {one.b: one.value_b for one in pairs}
    names = [name for name in names if not np.isnan(found[name])]
    matrix = np.ones((len(names), len(names)))
    for one in pairs:
        if one.a in names and one.b in names:
            i, j = names.index(one.a), names.index(one.b)
            matrix[i, j] = matrix[j, i] = one.adjusted
    groups = significance_clusters(names, [found[name] for name in names], matrix, alpha=alpha)
    return MetricComparison(pairs, tuple(map(tuple, groups)), int((~keep).sum()), silent)


def _kept(log: RunLog, names: Sequence[str]) -> NDArray[np.bool_]:
    """Return the judgments for which all metrics have a score, (M,).

    A preference without a score counts as wrong, so that no preference is left out.
    """
    judged = log.judgments
    if not isinstance(judged, Ratings):
        return np.ones(len(judged), bool)
    finite = np.all([np.isfinite(log.results[name].value) for name in names], axis=0)
    return np.asarray(finite[judged.pair])


def _difference(
    log: RunLog,
    a: str,
    b: str,
    keep: NDArray[np.bool_],
    measure: str,
    swap: str,
    resamples: int,
    seed: int,
) -> MetricDifference:
    judged, x, y = log.judgments, log.results[a].value, log.results[b].value
    ties = log.protocol.ties
    if isinstance(judged, Ratings):
        pair = judged.pair[keep]
        done = permutation_test(
            x[pair], y[pair], judged.value[keep], correlation=measure, clusters=log.image[pair],
            sources=pair if swap == "captions" else None, resamples=resamples, seed=seed,
        )  # fmt: skip
    else:
        pair = judged.left
        earned = [credit(v[judged.left], v[judged.right], judged.chosen, ties=ties) for v in (x, y)]
        done = permutation_test_preference(
            *earned, categories=judged.category, clusters=log.image[pair],
            sources=np.arange(len(judged)) if swap == "captions" else None,
            resamples=resamples, seed=seed,
        )  # fmt: skip
    ours, theirs = (agreement_statistic(judged, value, measure, ties, keep) for value in (x, y))
    drawn = paired_bootstrap(ours, theirs, log.image[pair], resamples=resamples, seed=seed)
    ones, apart = np.ones(int(keep.sum()), np.int64), drawn.difference
    return MetricDifference(
        a, b, measure, 100 * ours(ones), 100 * theirs(ones), 100 * apart.value, 100 * apart.low,
        100 * apart.high, done.p, done.p, drawn.p,
    )  # fmt: skip
