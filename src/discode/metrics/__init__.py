"""Metrics: other people's, and judges, as rows of one table.

``METRICS`` has the names; a :class:`MetricFactory` makes them, and those it makes share what they
can.

>>> METRICS["bleu-4"].needs
frozenset({'references'})
"""

from __future__ import annotations

from discode.metrics.base import PairMetric, RowScores
from discode.metrics.judge_metric import JudgeMetric
from discode.metrics.ngram import TextMetric, TokenisedTexts
from discode.metrics.registry import METRICS, MetricFactory, MetricRow
from discode.metrics.scorefile import ScoreFile

__all__ = [
    "METRICS",
    "JudgeMetric",
    "MetricFactory",
    "MetricRow",
    "PairMetric",
    "RowScores",
    "ScoreFile",
    "TextMetric",
    "TokenisedTexts",
]
