"""τ of two metrics whose ranks are swapped at random, cell by cell: a quadratic form each.

Let s_c be 1 where cell c is swapped. The first side then has the ranks of metric a in the cells
with s_c = 0 and those of b in the others, the second side the rest. With B_ab (C, C), the sum of
sign(a_i - b_j)·sign(h_i - h_j) over the rows i of a cell and j of another, and u = 1 - s,

    S = ½ uᵀB_aa u + uᵀB_ab s + ½ sᵀB_bb s

on the first side, and with u and s exchanged on the second. Whole numbers throughout. m in τ_c is
the number of distinct human ratings, for every metric and every swap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from discode.stats._base import Floats, Ints
from discode.stats._tau import (
    MATRIX_CLUSTERS,
    MATRIX_LEVELS,
    SortedRows,
    bounds_of,
    signs_below,
    tau_of,
)


def is_small(ranked: Sequence[Floats], human: Floats, size: int) -> bool:
    """Whether :class:`SwappedRanks` is the quick way: finite, few human levels, not many cells."""
    finite = all(np.isfinite(column).all() for column in (*ranked, human))
    return finite and size <= MATRIX_CLUSTERS and len(np.unique(human)) <= MATRIX_LEVELS


class SwappedRanks:
    """The ranks of metrics (n,), human ratings, and blocks of ``swaps`` (R, C) of cells."""

    def __init__(
        self,
        ranked: Sequence[Floats],
        human: Floats,
        cells: Ints,
        variant: str,
        swaps: Sequence[NDArray[np.int8]],
    ) -> None:
        self._swaps, self._size = swaps, swaps[0].shape[1]
        self._variant, self._rows = variant, len(human)
        levels, counts = np.unique(human, return_inverse=True, return_counts=True)[1:]
        self._levels, self._human_ties = len(counts), int(counts @ counts) - len(human)
        orders = [np.argsort(rank, kind="stable") for rank in ranked]
        self._sorted = [
            SortedRows(rank[order], levels[order], cells[order])
            for rank, order in zip(ranked, orders, strict=True)
        ]
        self._ends = np.empty((len(ranked), 2, self._size))  # lowest and highest rank by cell
        self._ends[:, 0], self._ends[:, 1] = np.inf, -np.inf
        for number, rank in enumerate(ranked):
            np.minimum.at(self._ends[number, 0], cells, rank)
            np.maximum.at(self._ends[number, 1], cells, rank)
        self._own = cache(lambda i: self._forms(i, i))

    def differences(self, i: int, j: int) -> Iterator[Floats]:
        """Yield τ of the first side minus that of the second, (R,) for each block of swaps."""
        blocks = zip(self._swaps, self._own(i), self._forms(i, j), self._own(j), strict=True)
        for s, own, cross, other in blocks:
            # S, and half the sum of squares of how often each rank occurs.
            first = (own[:, 0, 0] + other[:, 1, 1]) / 2 + cross[:, 0, 1]
            second = (own[:, 1, 1] + other[:, 0, 0]) / 2 + cross[:, 1, 0]
            yield self._tau(first, i, j, 1 - s) - self._tau(second, i, j, s)

    def _tau(self, sums: Floats, i: int, j: int, s: NDArray[np.int8]) -> Floats:
        distinct = self._distinct(i, j, s) if self._variant == "c" else self._levels
        ties = 2 * sums[-1] - self._rows if self._variant == "b" else 0
        return tau_of(self._variant, sums[0], self._rows, distinct, ties, self._human_ties)

    def _forms(self, i: int, j: int) -> list[Floats]:
        """Compute xᵀBy, and for τ_b xᵀTy, for x and y u or s: (1 or 2, 2, 2, R) per block."""
        a, b = self._sorted[i], self._sorted[j]
        half = signs_below(a, b, self._levels, self._size)
        other = half if i == j else signs_below(b, a, self._levels, self._size)
        matrices = [half + other.T, *([_ties(a, b, self._size)] if self._variant == "b" else ())]
        return [np.array([_form(matrix, s) for matrix in matrices]) for s in self._swaps]

    def _distinct(self, i: int, j: int, s: NDArray[np.int8]) -> Ints:
        """The human levels (R,), or 1 where cells with i's ranks (s = 1) and j's share one rank."""
        low, high = (np.where(s, self._ends[i, end], self._ends[j, end]) for end in (0, 1))
        constant = low.min(axis=1) == high.max(axis=1)
        return np.where(constant, 1, self._levels)


def _form(matrix: Floats, swapped: NDArray[np.int8]) -> Floats:
    """Compute xᵀMy (2, 2, R) for x and y 1 - s or s; whole numbers below 2^53, so exact."""
    s = swapped.astype(np.float64)
    sm = s @ matrix
    um = matrix.sum(axis=0) - sm
    return np.array([[np.einsum("rc,rc->r", xm, y) for y in (1 - s, s)] for xm in (um, sm)])


def _ties(a: SortedRows, b: SortedRows, size: int) -> Floats:
    """Compute T_ab (C, C): how many rows i of a and j of b share a rank."""
    tied = np.zeros((size, size))
    for i, i_end, j, j_end in bounds_of(np.intersect1d(a.x, b.x), a, b):
        if i_end - i == j_end - j == 1:
            tied[a.clusters[i], b.clusters[j]] += 1
        else:
            cells, counts = np.unique(a.clusters[i:i_end], return_counts=True)
            others, of_others = np.unique(b.clusters[j:j_end], return_counts=True)
            tied[np.ix_(cells, others)] += np.outer(counts, of_others)
    return tied
