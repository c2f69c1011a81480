"""Comparisons of many metrics: adjusted p-values, and groups that differ significantly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from discode.stats._base import Floats, columns


def holm(p_values: ArrayLike) -> Floats:
    """Adjust p-values (k,) for testing k hypotheses; the order is kept.

    Sorted upwards, p̃_(i) = max_{j<=i} min(1, (k-j+1)·p_(j)); reject where p̃ <= α and the chance of
    any false rejection is at most α, whatever the dependence. NaN stays NaN, but counts as one of
    the k, the least convincing. Holm (1979).

    >>> holm([0.01, 0.04, 0.03]).round(4).tolist()
    [0.03, 0.06, 0.06]
    """
    (p,) = columns(p_values=p_values)
    order = np.argsort(p, kind="stable")  # NaN last
    factors = np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, factors * p[order]))
    return adjusted


def significance_clusters(
    names: Sequence[str], values: ArrayLike, p_matrix: ArrayLike, *, alpha: float = 0.05
) -> list[list[str]]:
    """Group the names into ranks 1, 2, ..., highest values first.

    A metric opens a new group when every metric above it is significantly better, as in the
    tables of WMT: ``p_matrix[i][j] < alpha`` where values[i] > values[j], two-sided p-values
    (symmetric). Adjust them first (``holm``) if many are compared. A metric whose value is NaN
    comes last, alone in a group.

    >>> p = [[1, 0.2, 0.01], [0.2, 1, 0.02], [0.01, 0.02, 1]]
    >>> significance_clusters(["x", "y", "z"], [0.5, 0.4, 0.3], p)
    [['x', 'y'], ['z']]
    """
    (value,) = columns(values=values)
    p = np.asarray(p_matrix, dtype=np.float64)
    order = np.argsort(-value, kind="stable").tolist()  # NaN last
    groups: list[list[str]] = []
    for position, j in enumerate(order):
        above = order[:position]
        if np.isnan(value[j]) or not above or all(p[i, j] < alpha for i in above):
            groups.append([])
        groups[-1].append(names[j])
    return groups
