"""Baselines: other people's metrics, and judges, as rows of one table.

``METRICS`` has the names; a :class:`Workshop` makes them, and those it made share what they can.

>>> METRICS["bleu-4"].needs
frozenset({'references'})
"""

from __future__ import annotations

from discode.baselines.judged import Judged
from discode.baselines.ngram import Cider, TextMetric, Texts
from discode.baselines.scorefile import ScoreFile
from discode.baselines.workshop import METRICS, MetricRow, Workshop, score

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
