"""The numbers behind the report's charts: a metric's scores against people's judgments."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode._scores import Floats
from discode.bench._runlog import RunLog
from discode.benchmarks import Ratings

BINS = 36
"""Columns of a histogram of scores."""
_LEVELS = 8
"""Ratings with more distinct values are put into five ranges."""


def rating_levels(values: Floats) -> tuple[list[str], NDArray[np.intp]]:
    """Name the levels of ratings (M,), lowest first, and assign each rating its level.

    >>> names, level = rating_levels(np.array([1.0, 2.0, 1.0]))
    >>> names, level.tolist()
    (['1', '2'], [0, 1, 0])
    """
    distinct, level = np.unique(values, return_inverse=True)
    if len(distinct) <= _LEVELS:
        return [f"{value:.3g}" for value in distinct], np.asarray(level).reshape(-1)
    edges = np.linspace(distinct[0], distinct[-1], 6)
    names = [f"{low:.2g} to {high:.2g}" for low, high in pairwise(edges)]
    return names, np.clip(np.searchsorted(edges, values, "right") - 1, 0, 4)


def chart_metric(log: RunLog, label: str) -> dict[str, Any]:
    """Compute the charts of a metric for JSON; judgments without a score are left out.

    ``rows`` are histograms of scores between the ``edges``, one per level of the ratings, and
    ``means`` the mean of each; of preferences there is one, of margins: the score of the caption
    that people chose minus the other's. ``curve`` has judgments in tenths by score (preferences:
    fifths by the margin's size): from the ``low`` score to the ``high`` one, their ``count``, what
    people said on average (how often the metric was right), and 1.96 standard errors.
    """
    judged, value = log.judgments, log.results[label].value
    if isinstance(judged, Ratings):
        scores, image = value[judged.pair], log.image[judged.pair]
        seen = np.isfinite(scores)
        names, level = rating_levels(judged.value)
        edges = _range(scores[seen])
        rows = [scores[seen & (level == number)] for number in range(len(names))]
        curve = _curve(scores[seen], judged.value[seen], image[seen], 10)
    else:
        left, right = log.sides(label)
        margin = np.where(judged.chosen == 0, left - right, right - left)
        seen = np.isfinite(margin)
        most = max(map(abs, _range(margin[seen])))
        edges = (-most, most)
        rows = [margin[seen]]
        right_or_not = judged.earned(left, right, log.protocol.ties)[seen]
        image = log.image[judged.left]
        curve = _curve(np.abs(margin[seen]), right_or_not, image[seen], 5)
    return {
        "edges": edges,
        "rows": [np.histogram(np.clip(row, *edges), BINS, edges)[0].tolist() for row in rows],
        "means": [float(row.mean()) if len(row) else math.nan for row in rows],
        "curve": curve,
    }


def _range(scores: Floats) -> tuple[float, float]:
    """Find the range of nearly all scores: a few outliers must not flatten the rest."""
    if not len(scores):
        return 0.0, 1.0
    low, high = (float(q) for q in np.quantile(scores, (0.002, 0.998)))
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _curve(
    scores: Floats, said: Floats, image: NDArray[np.int64], parts: int
) -> list[dict[str, float]]:
    """Cut judgments into parts of the same size by score, equal scores together.

    The standard error is that of a mean of clusters: judgments of an image depend on each other.
    """
    if not len(scores):
        return []
    inner = np.unique(np.quantile(scores, np.linspace(0, 1, parts + 1)[1:-1], method="lower"))
    part = np.searchsorted(inner, scores, "left")
    points = []
    for number in np.unique(part).tolist():
        inside = part == number
        mean, count = float(said[inside].mean()), int(inside.sum())
        _, cluster = np.unique(image[inside], return_inverse=True)
        sums = np.bincount(np.asarray(cluster).reshape(-1), said[inside] - mean)
        error = 1.96 * float(np.sqrt((sums**2).sum())) / count
        low, high = float(scores[inside].min()), float(scores[inside].max())
        points.append({"low": low, "high": high, "count": count, "mean": mean, "error": error})
    return points
