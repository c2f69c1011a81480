"""Agreement between people: Fleiss' κ and Krippendorff's α."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discode.errors import InputError


def fleiss_kappa(counts: ArrayLike) -> float:
    """Fleiss' κ of the number of times each item (row) was put in each category (column).

    κ = (P̄ − P_e) / (1 − P_e) with P̄ the mean share of pairs of people who agree on an item and
    P_e = Σ_k p_k², the agreement by chance. Every item must have the same number of people, two or
    more. NaN without items, or if only one category was ever chosen.

    >>> round(fleiss_kappa([[3, 0], [2, 1], [0, 3], [1, 2]]), 4)
    0.3333
    """
    table = _table(counts)
    if not table.size:
        return math.nan
    people = table.sum(axis=1)
    n = people[0]
    if (people != n).any() or n < 2:
        raise InputError("Fleiss' kappa needs the same number of people on each item, at least two")
    observed = ((table**2).sum(axis=1) - n).mean() / (n * (n - 1))
    expected = ((table.sum(axis=0) / table.sum()) ** 2).sum()
    return math.nan if expected == 1 else float((observed - expected) / (1 - expected))


def krippendorff_alpha(counts: ArrayLike) -> float:
    """Krippendorff's α for nominal data, from the same table as :func:`fleiss_kappa`.

    α = 1 − D_o / D_e: the observed disagreement over that by chance. Items may have different
    numbers of people; those with fewer than two are ignored.

    >>> round(krippendorff_alpha([[3, 0], [2, 1], [0, 3], [1, 2]]), 4)
    0.3889
    """
    table = _table(counts)
    table = table[table.sum(axis=1) >= 2] if table.size else table
    if not table.size:
        return math.nan
    people = table.sum(axis=1)
    totals, values = table.sum(axis=0), table.sum()
    observed = ((people**2 - (table**2).sum(axis=1)) / (people - 1)).sum() / values
    expected = (values**2 - (totals**2).sum()) / (values * (values - 1))
    return math.nan if expected == 0 else float(1 - observed / expected)


def _table(counts: ArrayLike) -> NDArray[np.float64]:
    table = np.asarray(counts, float)
    if table.ndim != 2 or (table < 0).any():
        raise InputError("counts must be a table of non-negative numbers, items by categories")
    return table
