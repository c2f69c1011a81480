"""The interval of a share."""

from __future__ import annotations

import math
from statistics import NormalDist

from discode.errors import InputError
from discode.stats._resampling import Interval


def wilson(successes: float, total: float, level: float = 0.95) -> Interval:
    """Compute a share with Wilson's score interval; NaN if the total is 0.

    Both may be fractions: of observations that are not independent, as many as they are worth.

    >>> share = wilson(942, 1000)
    >>> f"{share.value:.3f} [{share.low:.3f}, {share.high:.3f}]"
    '0.942 [0.926, 0.955]'
    """
    if not 0 <= successes <= total:
        raise InputError(f"{successes} of {total} is not a share")
    if total == 0:
        return Interval.point(math.nan, level)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = successes / total
    scale = 1 + z * z / total
    middle = (share + z * z / (2 * total)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    low = 0.0 if successes == 0 else middle - half
    high = 1.0 if successes == total else middle + half
    return Interval(share, low, high, level)
