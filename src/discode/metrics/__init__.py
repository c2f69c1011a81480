"""Metrics: other people's, and judges, as rows of one table.

``METRICS`` has the names; a :class:`MetricFactory` makes them, and those it makes share what they
can.

>>> METRICS["bleu-4"].needs
frozenset({'references'})
"""

from __future__ import annotations

from discode.metrics._base import PairMetric, RowScores
from discode.metrics._ngram import TextMetric, TokenisedTexts
from discode.metrics._registry import METRICS, MetricFactory, MetricRow
from discode.metrics._scorefile import ScoreFile

__all__ = [
    "METRICS",
    "MetricFactory",
    "MetricRow",
    "PairMetric",
    "RowScores",
    "ScoreFile",
    "TextMetric",
    "TokenisedTexts",
]
