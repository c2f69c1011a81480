"""Kendall's τ of rows that count several times: sorted once, then cheap to resample.

With w_i copies of row i and N = Σ w_i rows in all,

    S   = Σ_{i<j} w_i w_j sign(x_i - x_j) sign(y_i - y_j)        concordant minus discordant
    τ_b = S / sqrt((P - T_x)(P - T_y)),    P = N(N-1)/2          T: pairs tied in x, in y
    τ_c = 2S / (N² (m-1)/m)                                      m: a number of distinct values

Whole numbers throughout: equal to τ of the repeated rows. In ``scipy.stats.kendalltau`` m is the
number of distinct values of x or of y, whichever is lower, so that a metric with five values is
divided by less than one with thousands. Here m is that of y, people's scores, for every metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discode.errors import InputError, lookup
from discode.stats._base import Floats, Ints, columns, counts, undefined

M_RULES = ("people", "scipy")
"""Rules for m in τ_c: the distinct values of y, or of the side with fewer, as in scipy."""
MATRIX_CLUSTERS = 4096
"""With more clusters than this, their matrix (128 MiB of doubles here) is not worth its memory."""
MATRIX_LEVELS = 64
"""With more levels than this on both sides, filling the matrix costs more than it saves."""


@dataclass(frozen=True)
class DigitSplit:
    """One binary digit of the levels: rows that share the higher digits, in order of x.

    Of two rows in a block that differ in this digit, the one with digit 1 has the higher level, so
    that each pair of levels is settled at exactly one digit. Bounds are the first position and one
    past the last.
    """

    order: Ints  # (n,) rows sorted by block, then x
    bit: NDArray[np.bool_]  # (n,) the digit of each position
    tied: Ints  # (2, n) bounds of what has the same x
    block: Ints  # (2, n) bounds of the block


def digit_splits(runs: Ints, levels: Ints, groups: Ints) -> Iterator[DigitSplit]:
    """Yield the splits of rows with x numbered by ``runs`` and y by ``levels``, (n,) from 0.

    Rows of different ``groups`` (n,) are in different blocks.
    """
    first = np.argsort(runs, kind="stable")
    top = int(levels.max(initial=0))
    for digit in range(top.bit_length()):
        block = groups * ((top >> (digit + 1)) + 1) + (levels >> (digit + 1))
        order = first[np.argsort(block[first], kind="stable")]
        opens = np.diff(block[order], prepend=-1) != 0
        changes = opens | (np.diff(runs[order], prepend=-1) != 0)
        bit = ((levels[order] >> digit) & 1).astype(bool)
        yield DigitSplit(order, bit, _bounds(changes), _bounds(opens))


def by_levels(x: NDArray[np.generic], y: NDArray[np.generic]) -> tuple[Ints, Ints, bool]:
    """Number the distinct values of both sides from 0; the side with fewer is second.

    The third result is whether that is x.
    """
    runs, levels = (np.unique(side, return_inverse=True)[1].astype(np.int64) for side in (x, y))
    swapped = bool(runs.max(initial=-1) < levels.max(initial=-1))
    return (levels, runs, swapped) if swapped else (runs, levels, swapped)


def _bounds(opens: NDArray[np.bool_]) -> Ints:
    """Find the start and the end (2, n) of the stretch around each position."""
    starts = np.flatnonzero(opens)
    stretch = np.cumsum(opens) - 1
    return np.stack([starts[stretch], np.append(starts[1:], len(opens))[stretch]])


def concordances(
    x: NDArray[np.generic], y: NDArray[np.generic], weights: Floats, groups: Ints | None = None
) -> Floats:
    """Compute Σ_j sign(x_i - x_j)·sign(y_i - y_j)·weights[j] for each row i, (n, K).

    ``weights`` is (n, K): K sums at once. With ``groups`` (n,) only rows j of the group of i count.

    >>> ones = np.ones((3, 1))
    >>> concordances(np.array([1.0, 2, 3]), np.array([1.0, 3, 2]), ones)[:, 0].tolist()
    [2.0, 0.0, 0.0]
    """
    groups = np.zeros(len(x), np.int64) if groups is None else groups
    result = np.zeros(weights.shape)
    runs, levels, _ = by_levels(x, y)
    for split in digit_splits(runs, levels, groups):
        w, bit = weights[split.order], split.bit[:, None]
        sums = np.zeros((2, len(x) + 1, weights.shape[1]))  # of the zeros, of the ones
        np.cumsum(np.where(bit, 0.0, w), axis=0, out=sums[0, 1:])
        np.cumsum(np.where(bit, w, 0.0), axis=0, out=sums[1, 1:])
        other = np.where(split.bit, 0, 1)  # a one looks at zeros, a zero at ones
        left = sums[other, split.tied[0]] - sums[other, split.block[0]]
        right = sums[other, split.block[1]] - sums[other, split.tied[1]]
        result[split.order] += np.where(bit, left - right, right - left)
    return result


class SortedRows(NamedTuple):
    """Rows in order of one side, (n,) each: the numbers of the other side and the clusters."""

    x: NDArray[np.generic]
    levels: Ints
    clusters: Ints

    def table(self, start: int, stop: int, levels: int, size: int) -> Floats:
        """Count the rows of each cluster at each level, (C, L)."""
        cell = self.clusters[start:stop] * levels + self.levels[start:stop]
        counts = np.bincount(cell, minlength=size * levels)
        return counts.reshape(size, levels).astype(np.float64)


def bounds_of(ranks: NDArray[np.generic], *sides: SortedRows) -> list[list[int]]:
    """Find where the rows of each rank begin and end on each side."""
    ends = [np.searchsorted(rows.x, ranks, end) for rows in sides for end in ("left", "right")]
    return np.stack(ends, axis=1).tolist()  # type: ignore[no-any-return]  # of whole numbers


def signs_below(a: SortedRows, b: SortedRows, levels: int, size: int) -> Floats:
    """A (C, C): sign(level_i - level_j) summed over rows i of a in c and j of b in d, b_j < a_i."""
    numbers = np.arange(levels)
    step = np.sign(numbers[None, :] - numbers[:, None]).astype(np.float64)
    matrix = np.zeros((size, size))
    below = np.zeros((levels, size))  # what a row of each level finds below it
    a_rows, b_rows = (
        list(zip(rows.clusters.tolist(), rows.levels.tolist(), strict=True)) for rows in (a, b)
    )
    for i, i_end, j, j_end in bounds_of(np.union1d(a.x, b.x), a, b):
        if i_end - i < size:
            for cluster, level in a_rows[i:i_end]:
                matrix[cluster] += below[level]
        else:  # many rows tied in x: one matrix product instead
            matrix += a.table(i, i_end, levels, size) @ below
        if j_end - j < size:
            for cluster, level in b_rows[j:j_end]:
                below[:, cluster] += step[level]
        else:
            below += (b.table(j, j_end, levels, size) @ step).T
    return matrix


def kendall(x: ArrayLike, y: ArrayLike, *, variant: str = "b", m: int | str | None = None) -> float:
    """Kendall's τ_b or τ_c of a metric's ``x`` and people's ``y`` (n,), in [-1, 1].

    With C concordant and D discordant of P = n(n-1)/2 pairs of rows, and T pairs tied on a side,

        τ_b = (C - D) / sqrt((P - T_x)(P - T_y)),    τ_c = 2 (C - D) / (n² (m - 1) / m).

    ``m`` matters to τ_c alone: the number of distinct values of y (None or "people"), of the side
    with fewer ("scipy"), or a number, such as the levels of the scale that people rated on.
    NaN, with an ``UndefinedWarning``, if a side is constant or a row is not finite. O(n log n):
    Knight (1966); Stuart (1953) for τ_c.

    >>> round(kendall([1, 2, 3, 4], [1, 1, 2, 1]), 4)
    0.2357
    >>> kendall([1, 2, 3, 4], [1, 1, 2, 1], variant="c"), kendall([1, 2], [1, 2], variant="c", m=5)
    (0.25, 0.625)
    """
    plan = KendallPlan(x, y, variant=variant, m="people" if m is None else m)
    tau = plan(np.ones(plan.rows, np.int64))
    if np.isnan(tau):
        return undefined("correlation undefined: a row is not finite, or a side is constant")
    return tau


class KendallPlan:
    """τ of a metric's ``x`` and people's ``y`` (n,) as a function of how often each row counts.

    ``m`` is one of ``M_RULES``, or a number, and matters to τ_c alone; only rows that count have
    values. τ is NaN where a side is constant.

    The side with fewer levels (L distinct values; the human one as a rule) is split by binary
    digits: a call costs O(n log L), nothing is sorted again. ``clustered`` is for whole clusters
    of rows that count alike: S is then a quadratic form mᵀ A m in the clusters' multiplicities.

    Knight (1966) for S in O(n log n); Stuart (1953) for τ_c.

    >>> plan = KendallPlan([1, 2, 3, 4], [1, 1, 2, 1], variant="b")
    >>> round(plan([1, 1, 1, 1]), 4), round(plan([1, 1, 1, 0]), 4)
    (0.2357, 0.8165)
    """

    def __init__(
        self, x: ArrayLike, y: ArrayLike, *, variant: str = "b", m: int | str = "people"
    ) -> None:
        lookup(dict.fromkeys("bc"), variant, "variant")
        if isinstance(m, str):
            lookup(dict.fromkeys(M_RULES), m, "m")
        elif m < 2:
            raise InputError(f"m={m} is not allowed; give 2 or more, or {' or '.join(M_RULES)}")
        a, b = columns(x=x, y=y)
        self.variant, self.m = variant, m
        self.rows = len(a)
        self.finite = bool(np.isfinite(a).all() and np.isfinite(b).all())
        runs, levels, self._swapped = by_levels(a, b)
        self._order = np.argsort(runs, kind="stable")
        self._runs, self._levels = runs[self._order], levels[self._order]
        self._starts = np.flatnonzero(np.diff(self._runs, prepend=-1))
        self._level_count = int(levels.max(initial=-1)) + 1
        self._splits = [
            (split.order, ~split.bit, ones, split.tied[:, ones], split.block[:, ones])
            for split in digit_splits(runs, levels, np.zeros(self.rows, np.int64))
            for ones in [np.flatnonzero(split.bit)]
        ]

    def __call__(self, weights: ArrayLike) -> float:
        """Compute τ where row i counts ``weights[i]`` times; NaN if undefined."""
        w = counts(weights, self.rows)
        if not self.finite or not self.rows:
            return float("nan")
        s = np.array([self.concordance(w)], dtype=np.float64)
        return float(tau_of(self.variant, s, *self._ties(w[self._order])[:, None])[0])

    def as_variant(self, variant: str) -> KendallPlan:
        """Make the plan of another variant of τ for the same rows without sorting again."""
        plan = copy(self)
        plan.variant = variant
        return plan

    def concordance(self, weights: Ints) -> int:
        """Compute S, the concordant minus the discordant pairs, of finite columns.

        >>> KendallPlan([1, 2, 3], [1, 3, 2]).concordance(np.array([1, 1, 1]))
        1
        """
        total = 0
        for order, zero, ones, tied, block in self._splits:
            w = weights[order]
            below = np.zeros(len(w) + 1, dtype=np.int64)
            np.cumsum(w * zero, out=below[1:])
            # Zeros left of a one (lower x) minus zeros right of it (higher x).
            left, right = below[tied[0]] - below[block[0]], below[block[1]] - below[tied[1]]
            total += int(w[ones] @ (left - right))
        return total

    def clustered(self, codes: Ints) -> Callable[[Ints], Floats]:
        """Make the function from multiplicities (R, C) of the clusters to τ (R,).

        ``codes`` (n,) are the numbers 0 ... C-1 of the rows' clusters.

        >>> plan = KendallPlan([1, 2, 3, 4], [1, 1, 2, 1], variant="c")
        >>> plan.clustered(np.array([0, 0, 1, 1]))(np.array([[1, 1], [2, 1]])).tolist()
        [0.25, 0.3333333333333333]
        """
        if codes.shape != (self.rows,):
            raise InputError(f"clusters must have {self.rows} rows, not {len(codes)}")
        size = int(codes.max(initial=-1)) + 1
        if not self.finite:
            return lambda multiplicities: np.full(len(multiplicities), np.nan)
        if size > MATRIX_CLUSTERS or self._level_count > MATRIX_LEVELS:
            return lambda multiplicities: np.array([self(m[codes]) for m in multiplicities])
        codes = codes[self._order]
        rows = SortedRows(self._runs, self._levels, codes)
        matrix = signs_below(rows, rows, self._level_count, size)

        def taus(multiplicities: Ints) -> Floats:
            m = multiplicities.astype(np.float64)
            s = np.einsum("rc,rc->r", m @ matrix, m)  # whole numbers below 2^53: exact
            ties = np.array([self._ties(row[codes]) for row in multiplicities])
            return tau_of(self.variant, s, *ties.T)

        return taus

    def _ties(self, weights: Ints) -> Ints:
        """Rows, m, or 1 where a side is constant, ordered tied pairs on each side: (4,)."""
        runs = np.add.reduceat(weights, self._starts)
        levels = np.bincount(self._levels, weights=weights, minlength=self._level_count)
        total = int(levels.sum())
        present = np.count_nonzero(runs), np.count_nonzero(levels)
        distinct = int(min(present))
        if self.m != "scipy" and distinct > 1:
            people = int(present[0 if self._swapped else 1])
            distinct = people if isinstance(self.m, str) else self.m
        return np.array([total, distinct, runs @ runs - total, int(levels @ levels) - total])


def tau_of(
    variant: str, s: Floats, rows: ArrayLike, distinct: ArrayLike, x_ties: ArrayLike,
    y_ties: ArrayLike,
) -> Floats:  # fmt: skip
    """Compute τ (R,) from S (R,) and its normalisation; tied pairs are counted as ordered pairs.

    >>> tau_of("b", np.array([2.0]), 3, 3, 0, 2).tolist()
    [0.8164965809277261]
    """
    n, m, x, y = (np.asarray(count, np.float64) for count in (rows, distinct, x_ties, y_ties))
    if variant == "c":
        most = n**2 * (m - 1) / (2 * np.maximum(m, 1))
    else:
        most = np.sqrt(n * (n - 1) - x) * np.sqrt(n * (n - 1) - y) / 2
    tau = np.full(len(s), np.nan)
    np.divide(s, most, out=tau, where=most > 0)
    return np.asarray(np.clip(tau, -1.0, 1.0))
