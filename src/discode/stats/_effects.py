"""Scores of the same images by two systems: means that are resampled together, effect sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from discode.stats._base import Floats, Ints, counts, finite_columns


class MeansPlan:
    """Means of K columns as a function of how often each row counts, for ``bootstrap_all``.

    ``values`` is (n, K). All columns see the same resamples, so that a column of differences gives
    the paired bootstrap's interval.

    >>> plan = MeansPlan([[1.0, 0.0], [3.0, 0.5]])
    >>> plan(np.array([1, 1])).tolist(), plan(np.array([0, 2])).tolist()
    ([2.0, 0.25], [3.0, 0.5])
    """

    def __init__(self, values: ArrayLike) -> None:
        self.values = np.asarray(values, np.float64)

    def __call__(self, weights: ArrayLike) -> Floats:
        """Compute the means, (K,)."""
        w = counts(weights, len(self.values))
        return np.asarray(w @ self.values / w.sum())

    def clustered(self, codes: Ints) -> Callable[[Ints], Floats]:
        """Make the function from multiplicities (R, C) to means (R, K): a matrix product."""
        rows = np.bincount(codes)
        sums = np.stack([np.bincount(codes, column) for column in self.values.T], axis=1)

        def means(multiplicities: Ints) -> Floats:
            return np.asarray((multiplicities @ sums) / (multiplicities @ rows)[:, None])

        return means


def paired_effect(a: ArrayLike, b: ArrayLike) -> tuple[float, float, float]:
    """Compute the size of the difference between ``a`` and ``b`` (n,).

    Three numbers: the shares of rows in which a is above b and below it, and the mean of a - b by
    its standard deviation (Cohen's d of paired values): 0 where a and b are equal, NaN where they
    differ by the same in every row.

    >>> paired_effect([0.5, 0.75, 0.25], [0.25, 0.25, 0.25])
    (0.6666666666666666, 0.0, 1.0)
    """
    x, y = finite_columns(a=a, b=b)
    apart = x - y
    # x, y and their differences are rounded: less than this is no spread.
    rounding = 2 * np.finfo(np.float64).eps * (np.abs(x) + np.abs(y)).max()
    size = np.nan if apart.any() else 0.0
    if np.ptp(apart) > rounding:
        size = float(apart.mean() / apart.std(ddof=1))
    return float((apart > 0).mean()), float((apart < 0).mean()), size
