"""Kendall's τ of rows that count several times: sorted once, then cheap to resample.

With w_i copies of row i and N = Σ w_i rows in all,

    S   = Σ_{i<j} w_i w_j sign(x_i - x_j) sign(y_i - y_j)        concordant minus discordant
    τ_b = S / sqrt((P - T_x)(P - T_y)),    P = N(N-1)/2          T: pairs tied in x, in y
    τ_c = 2S / (N² (m-1)/m)                                      m: distinct values, the fewer

as in ``scipy.stats.kendalltau``. Whole numbers throughout: equal to τ of the repeated rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discode.errors import InputError
from discode.stats.base import Floats, Ints, check_choice, columns, counts

MATRIX_CLUSTERS = 4096
"""With more clusters than this, their matrix (128 MiB of doubles here) is not worth its memory."""
MATRIX_LEVELS = 64
"""With more levels than this on both sides, filling the matrix costs more than it saves."""


@dataclass(frozen=True)
class _Split:
    """One binary digit of the levels: rows that share the higher digits, in order of x.

    Of two rows in a block that differ in this digit, the one with digit 1 has the higher level, so
    that each pair of levels is settled at exactly one digit.
    """

    order: Ints  # (n,) rows sorted by block, then x
    zero: Ints  # (n,) 1 where the digit is 0
    ones: Ints  # (k,) positions where it is 1
    tied: tuple[Ints, Ints]  # (k,) first position, and one past the last, with the same x
    block: tuple[Ints, Ints]  # (k,) first position, and one past the last, of the block

    def concordance(self, weights: Ints) -> int:
        w = weights[self.order]
        below = np.zeros(len(w) + 1, dtype=np.int64)
        np.cumsum(w * self.zero, out=below[1:])
        # Zeros left of a one (lower x) minus zeros right of it (higher x).
        left = below[self.tied[0]] - below[self.block[0]]
        right = below[self.block[1]] - below[self.tied[1]]
        return int(w[self.ones] @ (left - right))


class KendallPlan:
    """τ of ``x`` and ``y`` (n,) as a function of how often each row counts.

    The side with fewer levels (L distinct values; the human one as a rule) is split by binary
    digits: a call costs O(n log L), nothing is sorted again. ``clustered`` is for whole clusters
    of rows that count alike: S is then a quadratic form mᵀ A m in the clusters' multiplicities.

    Knight (1966) for S in O(n log n); Stuart (1953) for τ_c.

    >>> plan = KendallPlan([1, 2, 3, 4], [1, 1, 2, 1], variant="b")
    >>> round(plan([1, 1, 1, 1]), 4), round(plan([1, 1, 1, 0]), 4)
    (0.2357, 0.8165)
    """

    def __init__(self, x: ArrayLike, y: ArrayLike, *, variant: str = "b") -> None:
        check_choice("variant", variant, ("b", "c"))
        a, b = columns({"x": x, "y": y})
        self.variant = variant
        self.rows = len(a)
        self.finite = bool(np.isfinite(a).all() and np.isfinite(b).all())
        runs, levels = (np.unique(side, return_inverse=True)[1].astype(np.int64) for side in (a, b))
        if runs.max(initial=-1) < levels.max(initial=-1):
            runs, levels = levels, runs
        self._order = np.argsort(runs, kind="stable")
        self._runs, self._levels = runs[self._order], levels[self._order]
        self._starts = np.flatnonzero(np.diff(self._runs, prepend=-1))
        self._level_count = int(levels.max(initial=-1)) + 1
        digits = (self._level_count - 1).bit_length() if self.rows else 0
        self._splits = [self._split(digit) for digit in range(digits)]

    def _split(self, digit: int) -> _Split:
        block = self._levels >> (digit + 1)
        order = np.argsort(block, kind="stable")
        block, runs = block[order], self._runs[order]
        bit = (self._levels[order] >> digit) & 1
        ones = np.flatnonzero(bit)
        new_block = np.diff(block, prepend=-1) != 0
        new_run = new_block | (np.diff(runs, prepend=-1) != 0)
        return _Split(order, 1 - bit, ones, _bounds(new_run, ones), _bounds(new_block, ones))

    def __call__(self, weights: ArrayLike) -> float:
        """Return τ where row i counts ``weights[i]`` times; NaN where τ has no value."""
        w = counts(weights, self.rows)[self._order]
        if not self.finite or not self.rows:
            return float("nan")
        s = np.array([self._concordance(w)], dtype=np.float64)
        return float(self._tau(s, self._ties(w)[None])[0])

    def concordance(self, weights: ArrayLike) -> int:
        """Return S, the concordant minus the discordant pairs, of finite columns.

        >>> KendallPlan([1, 2, 3], [1, 3, 2]).concordance([1, 1, 1])
        1
        """
        return self._concordance(counts(weights, self.rows)[self._order])

    def _concordance(self, sorted_weights: Ints) -> int:
        return sum(split.concordance(sorted_weights) for split in self._splits)

    def clustered(self, codes: Ints) -> Callable[[Ints], Floats]:
        """Return the function from multiplicities (R, C) of the clusters to τ (R,).

        ``codes`` (n,) says which of the clusters 0 ... C-1 each row belongs to.

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
        matrix = self._matrix(codes, size)

        def taus(multiplicities: Ints) -> Floats:
            m = multiplicities.astype(np.float64)
            s = np.einsum("rc,rc->r", m @ matrix, m)  # whole numbers below 2^53: exact
            return self._tau(s, np.array([self._ties(row[codes]) for row in multiplicities]))

        return taus

    def _matrix(self, codes: Ints, size: int) -> Floats:
        """A (C, C): sign(level_i - level_j) summed over rows i of c and j of d with x_j < x_i."""
        levels = np.arange(self._level_count)
        step = np.sign(levels[None, :] - levels[:, None]).astype(np.float64)
        matrix = np.zeros((size, size))
        below = np.zeros((self._level_count, size))  # what a row of each level finds below it
        stops = np.append(self._starts[1:], self.rows).tolist()
        clusters, level = codes.tolist(), self._levels.tolist()
        for start, stop in zip(self._starts.tolist(), stops, strict=True):
            if stop - start < size:
                for i in range(start, stop):
                    matrix[clusters[i]] += below[level[i]]
                for i in range(start, stop):
                    below[:, clusters[i]] += step[level[i]]
            else:  # many rows tied in x: one matrix product instead
                cell = codes[start:stop] * self._level_count + self._levels[start:stop]
                counts = np.bincount(cell, minlength=size * self._level_count)
                table = counts.reshape(size, -1).astype(np.float64)
                matrix += table @ below
                below += (table @ step).T
        return matrix

    def _ties(self, weights: Ints) -> Ints:
        """Rows, distinct values on the poorer side, ordered tied pairs on each side: (4,)."""
        runs = np.add.reduceat(weights, self._starts)
        levels = np.bincount(self._levels, weights=weights, minlength=self._level_count)
        total = int(levels.sum())
        distinct = min(np.count_nonzero(runs), np.count_nonzero(levels))
        return np.array([total, distinct, runs @ runs - total, int(levels @ levels) - total])

    def _tau(self, s: Floats, ties: Ints) -> Floats:
        n, m, x_ties, y_ties = ties.T.astype(np.float64)
        if self.variant == "c":
            most = n**2 * (m - 1) / (2 * np.maximum(m, 1))
        else:
            pairs = n * (n - 1)
            most = np.sqrt(pairs - x_ties) * np.sqrt(pairs - y_ties) / 2
        tau = np.full(len(s), np.nan)
        np.divide(s, most, out=tau, where=most > 0)
        return np.asarray(np.clip(tau, -1.0, 1.0))


def _bounds(first: NDArray[np.bool_], positions: Ints) -> tuple[Ints, Ints]:
    """For each position, where its stretch begins and one past where it ends."""
    starts = np.flatnonzero(first)
    stretch = (np.cumsum(first) - 1)[positions]
    return starts[stretch], np.append(starts[1:], len(first))[stretch]
