"""How far a metric and people are apart on one item, in points from -100 to 100."""

from __future__ import annotations

import numpy as np

from discode._scores import Floats
from discode.bench._runlog import RunLog
from discode.benchmarks import Ratings
from discode.stats import ranks


def percentile_ranks(values: Floats) -> Floats:
    """Share of values below each (N,) plus half of those equal, in percent; NaN stays.

    >>> percentile_ranks(np.array([3.0, 1.0, 3.0, np.nan])).round(1).tolist()
    [66.7, 16.7, 66.7, nan]
    """
    shares = np.full(len(values), np.nan)
    seen = np.isfinite(values)
    if seen.any():
        shares[seen] = 100 * (ranks(values[seen]) - 0.5) / seen.sum()
    return shares


def disagreement(log: RunLog, label: str) -> Floats:
    """Compute how far a metric is from people on every item; NaN without a score.

    Ratings: an item is a pair (P,); the percentile rank of its score minus that of its mean
    rating, so that 40 is a caption that the metric places 40 points higher than people do.

    Preferences: an item is a choice (M,); the percentile rank of the margin's size, positive where
    the metric prefers the caption that people did not choose, negative where it agrees, 0 for ties.
    """
    judged, value = log.judgments, log.results[label].value
    if isinstance(judged, Ratings):
        people = np.full(len(value), np.nan)
        mean = judged.averaged()
        people[mean.pair] = mean.value
        scored = np.where(np.isfinite(people), value, np.nan)
        return percentile_ranks(scored) - percentile_ranks(people)
    left, right = log.sides(label)
    margin = right - left
    against = np.where(judged.chosen == 0, margin, -margin)
    return np.sign(against) * percentile_ranks(np.abs(against))
