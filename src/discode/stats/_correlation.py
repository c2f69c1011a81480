"""How well a metric's scores agree with people's: Spearman's ρ, Pearson's r, ties.

Nothing is dropped here. A row that is not finite makes the result NaN, with an
``UndefinedWarning``: the caller drops and counts such rows.

Report ``tie_rate`` with τ: τ_b forgives a metric its ties, τ_c does not, unless its m is scipy's
and the metric has fewer values than people. FLEUR's raw digits on Flickr8k-Expert beat its smoothed
scores on τ_b (56.1 to 52.7) and lose on τ_c (34.9 to 53.0).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from discode.stats._base import Floats, columns, undefined


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
