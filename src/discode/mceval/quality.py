"""How far people agree: Fleiss' κ, Krippendorff's α, and intervals of shares."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from discode.errors import InputError
from discode.stats.resampling import Interval


def fleiss_kappa(counts: ArrayLike) -> float:
    """Return Fleiss' κ of how often each item (row) was put in each category (column).

    κ = (P̄ − P_e) / (1 − P_e) with P̄ the mean share of pairs of people who agree on an item and
    P_e = Σ_k p_k², what chance would give. Every item must have the same number of people, two or
    more. NaN where there is no item, or only one category was ever chosen.

    >>> round(fleiss_kappa([[3, 0], [2, 1], [0, 3], [1, 2]]), 4)
    0.3333
    """
    table = np.asarray(counts, float)
    if table.ndim != 2 or (table < 0).any():
        raise InputError("counts must be a table, items down and categories across")
    if not table.size:
        return math.nan
    people = table.sum(axis=1)
    n = people[0]
    if (people != n).any() or n < 2:
        raise InputError("Fleiss' kappa needs the same number of people, two or more, on each item")
    observed = ((table**2).sum(axis=1) - n).mean() / (n * (n - 1))
    expected = ((table.sum(axis=0) / table.sum()) ** 2).sum()
    return math.nan if expected == 1 else float((observed - expected) / (1 - expected))


def krippendorff_alpha(counts: ArrayLike) -> float:
    """Return Krippendorff's α for names (nominal) from the same table as :func:`fleiss_kappa`.

    α = 1 − D_o / D_e: the disagreement that was observed over the one by chance. Items may have
    different numbers of people; those with fewer than two say nothing and are left out.

    >>> round(krippendorff_alpha([[3, 0], [2, 1], [0, 3], [1, 2]]), 4)
    0.3889
    """
    table = np.asarray(counts, float)
    if table.ndim != 2 or (table < 0).any():
        raise InputError("counts must be a table, items down and categories across")
    table = table[table.sum(axis=1) >= 2] if table.size else table
    if not table.size:
        return math.nan
    people = table.sum(axis=1)
    totals, values = table.sum(axis=0), table.sum()
    observed = ((people**2 - (table**2).sum(axis=1)) / (people - 1)).sum() / values
    expected = (values**2 - (totals**2).sum()) / (values * (values - 1))
    return math.nan if expected == 0 else float(1 - observed / expected)


def wilson(successes: int, total: int, level: float = 0.95) -> Interval:
    """Return a share with Wilson's score interval; NaN where there is nothing to count.

    >>> found = wilson(942, 1000)
    >>> f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
    '0.942 [0.926, 0.955]'
    """
    if not 0 <= successes <= total:
        raise InputError(f"{successes} of {total} is not a share")
    if not 0 < level < 1:
        raise InputError(f"level={level} must be between 0 and 1")
    if total == 0:
        return Interval(math.nan, math.nan, math.nan, level)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = successes / total
    scale = 1 + z * z / total
    middle = (share + z * z / (2 * total)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    low = 0.0 if successes == 0 else middle - half
    high = 1.0 if successes == total else middle + half
    return Interval(share, low, high, level)
