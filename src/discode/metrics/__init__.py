"""Baselines: other people's metrics, and judges, as rows of one table.

``METRICS`` has the names; a :class:`Workshop` makes them, and those it made share what they can.

>>> METRICS["bleu-4"].needs
frozenset({'references'})
"""

from __future__ import annotations

from discode.metrics.judged import Judged
from discode.metrics.ngram import Cider, TextMetric, Texts
from discode.metrics.registry import METRICS, MetricRow, Workshop, score
from discode.metrics.scorefile import ScoreFile

__all__ = [
    "METRICS",
    "Cider",
    "Judged",
    "MetricRow",
    "ScoreFile",
    "TextMetric",
    "Texts",
    "Workshop",
    "score",
]
