"""How well a metric's scores agree with people's: τ_b, τ_c, Spearman's ρ, Pearson's r, ties.

Nothing is dropped here. A row that is not finite makes the result NaN, with an
``UndefinedWarning``; ``paired`` says which rows can be compared, so that the caller drops and
counts the others.

Report ``tie_rate`` with τ: τ_b forgives a metric its ties, τ_c does not. FLEUR's raw digits on
Flickr8k-Expert beat its smoothed scores on τ_b (56.1 to 52.7) and lose on τ_c (34.9 to 53.0).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discode.errors import lookup
from discode.stats.base import Floats, Ints, check_choice, columns, counts, undefined
from discode.stats.tau import KendallPlan


def paired(x: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.bool_], int]:
    """Return the mask (n,) of rows where both are finite, and how many rows are not.

    >>> mask, left_out = paired([1.0, float("nan"), 3.0], [1, 2, 3])
    >>> mask.tolist(), left_out
    ([True, False, True], 1)
    """
    a, b = columns({"x": x, "y": y})
    mask = np.isfinite(a) & np.isfinite(b)
    return mask, int((~mask).sum())


def kendall(x: ArrayLike, y: ArrayLike, *, variant: str = "b") -> float:
    """Kendall's τ of ``x`` and ``y``, both (n,): ``variant`` "b" or "c", in [-1, 1].

    τ_b = (C - D) / sqrt((P - T_x)(P - T_y)) and τ_c = 2(C - D) / (n² (m-1)/m), where C and D count
    the concordant and discordant of P = n(n-1)/2 pairs, T those tied in x or y, and m is the
    number of distinct values of x or of y, whichever has fewer. As ``scipy.stats.kendalltau``.

    NaN, with an ``UndefinedWarning``, where a side has fewer than two values or a row is not
    finite. Kendall (1945); Stuart (1953).

    >>> kendall([1, 2, 3, 4], [1, 1, 2, 2], variant="c")
    1.0
    >>> round(kendall([1, 2, 3, 4], [1, 1, 2, 2], variant="b"), 4)
    0.8165
    """
    check_choice("variant", variant, ("b", "c"))
    a, b = columns({"x": x, "y": y})
    return _defined(KendallPlan(a, b, variant=variant)(np.ones(len(a), dtype=np.int64)), a, b)


def pearson(x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """Pearson's r = cov(x, y) / (sd x · sd y) of columns (n,), in [-1, 1].

    With ``weights`` (n,), whole numbers from 0, that of the repeated rows. NaN, with an
    ``UndefinedWarning``, where a side is constant or a row is not finite.

    >>> round(pearson([1, 2, 3, 4], [1, 3, 2, 4]), 6)
    0.8
    """
    a, b = columns({"x": x, "y": y})
    return _defined(_pearson(a, b, _whole(weights, len(a))), a, b)


def spearman(x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """Spearman's ρ of columns (n,): Pearson's r of their ranks, ties at their mean rank.

    With ``weights`` (n,), whole numbers from 0, that of the repeated rows. NaN as for ``pearson``.

    >>> round(spearman([1, 2, 3, 4], [1, 9, 4, 16]), 6)
    0.8
    """
    a, b = columns({"x": x, "y": y})
    return _defined(_spearman(a, b, _whole(weights, len(a))), a, b)


def tie_rate(x: ArrayLike) -> float:
    """Return the share of the n(n-1)/2 pairs of rows that are tied in ``x`` (n,).

    NaN, with an ``UndefinedWarning``, for fewer than two rows or a row that is not finite.

    >>> tie_rate([0.0, 0.0, 0.0, 0.7])
    0.5
    """
    (a,) = columns({"x": x})
    n = len(a)
    if n < 2:
        return undefined(f"no pairs among {n} rows: the tie rate is undefined")
    if not np.isfinite(a).all():
        return undefined("rows that are not finite: mask them with paired() and count them")
    sizes = np.unique(a, return_counts=True)[1].astype(np.int64)
    return float((sizes * (sizes - 1)).sum() / (n * (n - 1)))


def ranks(x: ArrayLike, *, weights: ArrayLike | None = None) -> Floats:
    """Return the rank of each row (n,), from 1; ties get their mean rank.

    >>> ranks([10, 30, 10, 20]).tolist()
    [1.5, 4.0, 1.5, 3.0]
    """
    (a,) = columns({"x": x})
    codes = np.unique(a, return_inverse=True)[1]
    sizes = np.bincount(codes, weights=_whole(weights, len(a)))
    mean = np.cumsum(sizes) - (sizes - 1) / 2
    return np.asarray(mean[codes], dtype=np.float64)


def _whole(weights: ArrayLike | None, rows: int) -> Floats:
    if weights is None:
        return np.ones(rows)
    return counts(weights, rows).astype(np.float64)


def _pearson(x: Floats, y: Floats, weights: Floats) -> float:
    used = weights > 0
    x, y, w = x[used], y[used], weights[used]
    # A constant column must not get a correlation out of rounding.
    if not len(w) or not np.isfinite([x, y]).all() or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    x, y = x - np.average(x, weights=w), y - np.average(y, weights=w)
    x, y = x / np.abs(x).max(), y / np.abs(y).max()  # squares that neither over- nor underflow
    return float(np.clip((w * x) @ y / np.sqrt(((w * x) @ x) * ((w * y) @ y)), -1, 1))


def _spearman(x: Floats, y: Floats, weights: Floats) -> float:
    if not np.isfinite([x, y]).all():
        return float("nan")
    w = weights.astype(np.int64)
    return _pearson(ranks(x, weights=w), ranks(y, weights=w), weights)


def _defined(value: float, x: Floats, y: Floats) -> float:
    if not np.isnan(value):
        return value
    bad = int((~(np.isfinite(x) & np.isfinite(y))).sum())
    if bad:
        return undefined(
            f"{bad} of {len(x)} rows are not finite: mask them with paired() and count them"
        )
    return undefined(f"{len(x)} rows with no two values on one side: the correlation is undefined")


Weighted = Callable[[Ints], float]
"""A correlation as a function of how often each row counts."""

CORRELATIONS: dict[str, Callable[[Floats, Floats], Weighted]] = {
    "tau_b": lambda x, y: KendallPlan(x, y, variant="b"),
    "tau_c": lambda x, y: KendallPlan(x, y, variant="c"),
    "spearman": lambda x, y: lambda w: _spearman(x, y, w.astype(np.float64)),
    "pearson": lambda x, y: lambda w: _pearson(x, y, w.astype(np.float64)),
}
"""By name: from the columns to what ``bootstrap`` resamples."""


def weighted(name: str, x: ArrayLike, y: ArrayLike) -> Weighted:
    """Return a correlation of ``CORRELATIONS`` as a function of the rows' weights.

    Where it is undefined it is NaN, without a warning: ``bootstrap`` counts those resamples.

    >>> weighted("tau_b", [1, 2, 3], [1, 3, 2])(np.array([2, 1, 0]))
    1.0
    """
    a, b = columns({"x": x, "y": y})
    return lookup(CORRELATIONS, name, "correlation")(a, b)
