"""Intervals and comparisons of plain statistics: a function, its columns, and the clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from discode.errors import InputError
from discode.stats._base import Floats, Ints, columns
from discode.stats._preference import AccuracyPlan, accuracy, credit
from discode.stats._resampling import (
    Comparison,
    Interval,
    Statistic,
    bootstrap,
    resample,
    resampled_difference,
)
from discode.stats._tau import KendallPlan, kendall


def interval(
    statistic: Callable[..., float],
    *data: ArrayLike,
    clusters: ArrayLike | None = None,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    **options: Any,
) -> Interval:
    """Compute a statistic of columns (n,) with its bootstrap interval over ``clusters`` (n,).

    ``statistic`` is any function of columns, such as ``kendall``, ``spearman`` or ``np.mean``;
    ``options`` are passed to it. Rows of one cluster (an image) are resampled together; without
    clusters, rows are. See :func:`bootstrap` for the method.

    >>> x, y, images = [1, 2, 3, 4, 5, 6], [1, 2, 1, 3, 2, 3], [1, 1, 2, 2, 3, 3]
    >>> found = interval(kendall, x, y, clusters=images, variant="b")
    >>> round(found.value, 3), found.low <= found.value <= found.high
    (0.596, True)
    """
    function, rows = _by_weights(statistic, data, options)
    groups = np.arange(rows) if clusters is None else clusters
    return bootstrap(function, groups, resamples=resamples, seed=seed, level=level)


def compare(
    statistic: Callable[..., float],
    a: ArrayLike,
    b: ArrayLike,
    people: ArrayLike,
    *,
    clusters: ArrayLike | None = None,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    **options: Any,
) -> Comparison:
    """Compare metrics ``a`` and ``b`` (n,) by a statistic of each and ``people`` (n,).

    The difference statistic(a, people) - statistic(b, people) has the paired bootstrap's interval
    and p (:func:`resampled_difference`); see ``permutation_tests`` for the test of many metrics.

    >>> human = [1, 2, 3, 4] * 5
    >>> found = compare(kendall, human, [1, 2, 4, 3] * 5, human, clusters=np.arange(20) // 4)
    >>> round(found.difference.value, 3), found.p < 0.05
    (0.333, True)
    """

    def draws(metric: ArrayLike) -> Floats:
        function, rows = _by_weights(statistic, (metric, people), options)
        groups = np.arange(rows) if clusters is None else clusters
        return resample(function, groups, resamples, seed)

    return resampled_difference(draws(a), draws(b), level)


def _by_weights(
    statistic: Callable[..., float], data: tuple[ArrayLike, ...], options: dict[str, Any]
) -> tuple[Statistic, int]:
    if not data:
        raise InputError("no columns given; pass the statistic's columns after it")
    if statistic is kendall:
        given = {name: value for name, value in options.items() if value is not None}  # m=None
        plan = KendallPlan(*data, **given)
        return plan, plan.rows
    if statistic is accuracy:
        categories, others = options.get("categories"), {**options}
        others.pop("categories", None)
        earned = credit(*data, **others)
        return AccuracyPlan(earned, categories=categories), len(earned)
    arrays = columns(**{f"column {number}": column for number, column in enumerate(data, 1)})

    def weighted(weights: Ints) -> float:
        return float(statistic(*(np.repeat(column, weights) for column in arrays), **options))

    return weighted, len(arrays[0])
