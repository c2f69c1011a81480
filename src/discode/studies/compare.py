"""Is one metric better than another? Differences with intervals and p-values, from a run's log."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

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
from discode.studies.measures import main_measure, statistic
from discode.studies.runlog import RunLog


@dataclass(frozen=True)
class Versus:
    """Metric ``a`` against ``b``: values, difference and interval in percent, p-values.

    ``p`` is the permutation test's, ``adjusted`` Holm's over all pairs compared, ``p_bootstrap``
    that of the paired bootstrap; ``left_out`` counts judgments that one of them has no score for.
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
    left_out: int

    def verdict(self, alpha: float = 0.05) -> str:
        """Return what may be said."""
        if np.isnan(self.p):
            return "undefined"
        if self.adjusted >= alpha:
            return f"no difference between {self.a} and {self.b} was shown"
        better, worse = (self.a, self.b) if self.difference > 0 else (self.b, self.a)
        return f"{better} is better than {worse}"


@dataclass(frozen=True)
class Comparison:
    """All pairs of metrics, and groups from best to worst that differ."""

    pairs: tuple[Versus, ...]
    groups: tuple[tuple[str, ...], ...]


def compare(
    log: RunLog,
    names: Sequence[str],
    *,
    measure: str | None = None,
    swap: str = "images",
    resamples: int = 1000,
    seed: int = 0,
    alpha: float = 0.05,
) -> Comparison:
    """Compare metrics of a run, two or more; without names, all of them.

    ``measure`` is "tau_b" or "tau_c" of ratings; preferences have their mean accuracy. ``swap`` is
    what the permutation test exchanges: all captions of an "images" (safe), or "captions" one by
    one (PERM-BOTH: more power where a metric's errors on captions of an image are independent).
    """
    names = list(dict.fromkeys(names or log.results))
    if len(names) < 2:
        known = ", ".join(log.results) or "none"
        raise InputError(f"two metrics or more are compared; this run has {known}")
    for name in names:
        lookup(log.results, name, "metric")
    judged = log.judgments
    allowed = ("tau_c", "tau_b") if isinstance(judged, Ratings) else ("mean",)
    measure = measure or main_measure(judged)
    if measure not in allowed:
        raise InputError(f"measure={measure!r} is not allowed here; give {' or '.join(allowed)}")
    if swap not in ("images", "captions"):
        raise InputError(f"swap={swap!r} is not allowed; give 'images' or 'captions'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)  # NaN says it
        rows = [
            _versus(log, a, b, measure, swap, resamples, seed) for a, b in combinations(names, 2)
        ]
    adjusted = holm([row.p for row in rows]).tolist()
    pairs = tuple(replace(row, adjusted=p) for row, p in zip(rows, adjusted, strict=True))
    matrix = np.ones((len(names), len(names)))
    for one in pairs:
        i, j = names.index(one.a), names.index(one.b)
        matrix[i, j] = matrix[j, i] = one.adjusted
    values = [log.results[name].measures[measure].value for name in names]
    groups = significance_clusters(names, values, matrix, alpha=alpha)
    return Comparison(pairs, tuple(map(tuple, groups)))


def _versus(
    log: RunLog, a: str, b: str, measure: str, swap: str, resamples: int, seed: int
) -> Versus:
    judged, x, y = log.judgments, log.results[a].value, log.results[b].value
    ties = log.protocol.ties
    if isinstance(judged, Ratings):
        keep = np.isfinite(x[judged.pair]) & np.isfinite(y[judged.pair])
        pair = judged.pair[keep]
        done = permutation_test(
            x[pair], y[pair], judged.value[keep], correlation=measure, clusters=log.image[pair],
            sources=pair if swap == "captions" else None, resamples=resamples, seed=seed,
        )  # fmt: skip
    else:  # without a score a preference is wrong, so none is left out
        keep = np.ones(len(judged), bool)
        pair = judged.left
        earned = [credit(v[judged.left], v[judged.right], judged.chosen, ties=ties) for v in (x, y)]
        done = permutation_test_preference(
            *earned, categories=judged.category, clusters=log.image[pair],
            sources=np.arange(len(judged)) if swap == "captions" else None,
            resamples=resamples, seed=seed,
        )  # fmt: skip
    ours, theirs = (statistic(judged, value, measure, ties, keep) for value in (x, y))
    drawn = paired_bootstrap(ours, theirs, log.image[pair], resamples=resamples, seed=seed)
    ones, apart = np.ones(int(keep.sum()), np.int64), drawn.difference
    return Versus(
        a, b, measure, 100 * ours(ones), 100 * theirs(ones), 100 * apart.value, 100 * apart.low,
        100 * apart.high, done.p, done.p, drawn.p, int((~keep).sum()),
    )  # fmt: skip
