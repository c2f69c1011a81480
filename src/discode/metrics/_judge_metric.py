"""A judge as one of several metrics: the model is read once, and decoded by each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from discode._judge import Judge
from discode._pairs import Pair
from discode._scores import Progress, Scores
from discode._signature import Signature
from discode.metrics._base import NO_REFERENCES, report_progress
from discode.readings import Readings


@dataclass
class SharedReadings:
    """The last set of pairs that was read, with references and without, for every decoder.

    ``hidden`` says that a decoder will come that needs hidden states: they are read with the rest.
    """

    hidden: bool = False
    _last: dict[bool, tuple[list[Pair], bool, Readings]] = field(default_factory=dict)

    def read(
        self, judge: Judge, pairs: Sequence[Pair], references: bool, progress: Progress | None
    ) -> Readings:
        """Return the readings of ``pairs``; the model is asked unless they were the last ones."""
        hidden = self.hidden and "hidden" in judge.backend.capabilities
        if references in self._last:
            before, had_hidden, readings = self._last[references]
            if before == list(pairs) and had_hidden >= hidden:
                report_progress(progress, len(pairs))
                return readings
        readings = judge.read(pairs, progress, hidden=hidden)
        self._last[references] = (list(pairs), hidden, readings)
        return readings


@dataclass(frozen=True)
class JudgeMetric:
    """A judge that always sees references (``references``) or never; metrics share ``readings``.

    With ``references`` a pair that has none is NaN, as it is for every metric that needs them.
    """

    judge: Judge
    references: bool = False
    readings: SharedReadings = field(default_factory=SharedReadings, compare=False)

    def __post_init__(self) -> None:
        self.readings.hidden |= "hidden" in self.judge.decoder.requires

    @property
    def needs(self) -> frozenset[str]:
        """Images, and references if the judge is to see them."""
        return frozenset({"image", "references"} if self.references else {"image"})

    @property
    def signature(self) -> Signature:
        """How the judge's numbers are made."""
        return self.judge.signature

    def score_pairs(
        self,
        pairs: Sequence[Pair],
        *,
        repeats: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> Scores:
        """Score N pairs, in order."""
        if not self.references:
            bare = [replace(pair, references=()) if pair.references else pair for pair in pairs]
            return self.judge.decode(bare, self.readings.read(self.judge, bare, False, progress))
        if not self.judge.backend.takes_references:  # it would be another metric under this name
            reasons = [f"{self.judge.backend.identity.model} takes no references"] * len(pairs)
            report_progress(progress, len(pairs))
            return self.judge.decode(pairs, Readings.failed(self.judge.scale, reasons))
        have = [number for number, pair in enumerate(pairs) if pair.references]
        lack = [number for number, pair in enumerate(pairs) if not pair.references]
        report_progress(progress, len(lack))
        read = self.readings.read(self.judge, [pairs[number] for number in have], True, progress)
        none = Readings.failed(read.scale, [NO_REFERENCES] * len(lack))
        parts = [part for part in (read, none) if len(part)]
        joined = Readings.concat(read.scale, parts).take(np.argsort([*have, *lack]))
        return self.judge.decode(pairs, joined)
