"""Good or bad: how well scores tell two classes apart (AUC), and how certain a share is."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from discode.errors import InputError
from discode.stats.base import columns, undefined
from discode.stats.correlation import ranks
from discode.stats.resampling import Interval


def auc(scores: ArrayLike, good: ArrayLike) -> float:
    """Return the area under the ROC curve: how often a good row scores higher than a bad one.

    AUC = Σ over pairs of (1 if s_good > s_bad, ½ if they are equal) / (n_good · n_bad), which is
    1 if a threshold separates them and ½ by chance. ``good`` (n,) is 1 or True for good rows, 0 for
    bad ones. A failed score (NaN) wins against nothing. NaN where there are no pairs.

    >>> auc([0.9, 0.4, 0.4, 0.1], [True, True, False, False])
    0.875
    """
    score, label = columns({"scores": scores, "good": good})
    if not np.isin(label, (0, 1)).all():
        raise InputError("good must be 0 (bad) or 1 (good) in every row")
    positive = label == 1
    pairs = int(positive.sum()) * int((~positive).sum())
    if not pairs:
        return undefined("an area under the ROC curve needs good rows and bad ones")
    known = ~np.isnan(score)
    good_rows = int((positive & known).sum())
    above = ranks(score[known])[positive[known]].sum() - good_rows * (good_rows + 1) / 2
    return float(above / pairs)


def wilson(successes: float, total: float, level: float = 0.95) -> Interval:
    """Return a share with Wilson's score interval; NaN where there is nothing to count.

    Both may be fractions: of observations that are not independent, as many as they are worth.

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
