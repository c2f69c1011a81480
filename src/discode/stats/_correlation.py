"""How well a metric's scores agree with people's: Spearman's ρ, Pearson's r, ties.

Nothing is dropped here. A row that is not finite makes the result NaN, with an
``UndefinedWarning``: the caller drops and counts such rows.

Report ``tie_rate`` with τ: τ_b forgives a metric its ties, τ_c does not, unless its m is scipy's
and the metric has fewer values than people. FLEUR's raw digits on Flickr8k-Expert beat its smoothed
scores on τ_b (56.1 to 52.7) and lose on τ_c (34.9 to 53.0).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from discode.stats._base import Floats, Ints, columns, counts, undefined

ROUNDED = 1e-12
"""A side whose variance is below this share of its mean square is taken to be constant."""


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Pearson's r = cov(x, y) / (sd x · sd y) of columns (n,), in [-1, 1].

    NaN, with an ``UndefinedWarning``, where a side is constant or a row is not finite.

    >>> round(pearson([1, 2, 3, 4], [1, 3, 2, 4]), 6)
    0.8
    """
    a, b = columns(x=x, y=y)
    # A constant column must not get a correlation out of rounding.
    if not len(a) or not np.isfinite([a, b]).all() or np.ptp(a) == 0 or np.ptp(b) == 0:
        return undefined("correlation undefined: a row is not finite, or a side is constant")
    a, b = a - a.mean(), b - b.mean()
    a, b = a / np.abs(a).max(), b / np.abs(b).max()  # squares that neither over- nor underflow
    return float(np.clip(a @ b / np.sqrt((a @ a) * (b @ b)), -1, 1))


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's ρ of columns (n,): Pearson's r of their ranks; ties get their mean rank.

    NaN as for ``pearson``. Spearman (1904).

    >>> round(spearman([1, 2, 3, 4], [1, 9, 4, 16]), 6)
    0.8
    """
    return pearson(*(np.where(np.isfinite(s), ranks(s), s) for s in columns(x=x, y=y)))


class PearsonPlan:
    """Pearson's r of ``x`` and ``y`` (n,) as a function of how often each row counts.

    With ``ranked`` it is Spearman's ρ: a side's values are replaced by their ranks among the rows
    that count, each as often as it counts. NaN where a side is constant or a row is not finite.

    >>> plan = PearsonPlan([1, 2, 3, 4], [1, 3, 2, 4])
    >>> round(plan([1, 1, 1, 1]), 6), round(plan([2, 1, 0, 1]), 6)
    (0.8, 0.942809)
    """

    def __init__(self, x: ArrayLike, y: ArrayLike, *, ranked: bool = False) -> None:
        sides = columns(x=x, y=y)
        self.ranked, self.rows = ranked, len(sides[0])
        self.finite = bool(np.isfinite(sides).all())
        self._codes = [np.unique(side, return_inverse=True)[1] for side in sides if ranked]
        self._sides = [standardised(side) if self.finite else side for side in sides]

    def __call__(self, weights: ArrayLike) -> float:
        """Compute r where row i counts ``weights[i]`` times; NaN if undefined."""
        w = counts(weights, self.rows)
        used = w > 0
        if not self.finite or not used.any():
            return float("nan")
        if self.ranked:
            sides = [_weighted_ranks(codes, w)[used] for codes in self._codes]
        else:
            sides = [side[used] for side in self._sides]
        if min(map(np.ptp, sides)) == 0:
            return float("nan")
        w = w[used]
        a, b = (side - np.average(side, weights=w) for side in sides)
        return float(np.clip((w * a) @ b / np.sqrt(((w * a) @ a) * ((w * b) @ b)), -1, 1))

    def clustered(self, codes: Ints) -> Callable[[Ints], Floats]:
        """Make the function from multiplicities (R, C) of the clusters to r (R,).

        ``codes`` (n,) are the numbers 0 ... C-1 of the rows' clusters.
        """
        if self.ranked or not self.finite:
            return lambda drawn: np.array([self(multiplicity[codes]) for multiplicity in drawn])
        x, y = self._sides
        moments = np.stack([
            np.bincount(codes, weights=term)
            for term in (np.ones_like(x), x, y, x * x, y * y, x * y)
        ])  # fmt: skip

        def correlations(multiplicities: Ints) -> Floats:
            n, sx, sy, xx, yy, xy = moments @ multiplicities.T.astype(np.float64)
            with np.errstate(invalid="ignore", divide="ignore"):
                apart = np.stack([1 - sx * sx / (n * xx), 1 - sy * sy / (n * yy)])
                r = (n * xy - sx * sy) / np.sqrt(apart.prod(axis=0) * n * xx * n * yy)
            return np.where((apart > ROUNDED).all(axis=0), np.clip(r, -1, 1), np.nan)

        return correlations


def standardised(side: Floats) -> Floats:
    """Shift and scale a finite column to mean 0 and standard deviation 1; a constant one to 0."""
    if not len(side) or np.ptp(side) == 0:
        return np.zeros_like(side)
    side = side / np.abs(side).max()
    side = side - side.mean()
    return np.asarray(side / side.std())


def _weighted_ranks(codes: Ints, weights: Ints) -> Floats:
    """Rank rows (n,) by their ``codes``, each counted ``weights`` times; ties get the mean rank."""
    sizes = np.bincount(codes, weights=weights)
    return np.asarray((np.cumsum(sizes) - (sizes - 1) / 2)[codes])


def tie_rate(x: ArrayLike) -> float:
    """Compute the share of the n(n-1)/2 pairs of rows that are tied in ``x`` (n,).

    NaN, with an ``UndefinedWarning``, for fewer than two rows or a row that is not finite.

    >>> tie_rate([0.0, 0.0, 0.0, 0.7])
    0.5
    """
    (a,) = columns(x=x)
    n = len(a)
    if n < 2 or not np.isfinite(a).all():
        return undefined("tie rate undefined: a row is not finite, or there are fewer than two")
    sizes = np.unique(a, return_counts=True)[1].astype(np.int64)
    return float((sizes * (sizes - 1)).sum() / (n * (n - 1)))


def ranks(x: ArrayLike) -> Floats:
    """Rank the rows (n,) from 1; ties get their mean rank.

    >>> ranks([10, 30, 10, 20]).tolist()
    [1.5, 4.0, 1.5, 3.0]
    """
    codes, sizes = np.unique(x, return_inverse=True, return_counts=True)[1:]
    return np.asarray((np.cumsum(sizes) - (sizes - 1) / 2)[codes], dtype=np.float64)
