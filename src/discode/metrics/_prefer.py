"""A judge's comparisons of two captions as a metric of preferences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from discode._judge import Judge
from discode._pairs import Pair
from discode._scores import Metric, Progress, Scores
from discode._signature import Signature


@dataclass(frozen=True, eq=False)
class PreferenceMetric(Metric):
    """The probability that a caption is better than the other one, its only reference."""

    judge: Judge
    needs = frozenset({"image", "preferences"})

    @property
    def signature(self) -> Signature:
        """How the judge compares: in both orders, or by its scores."""
        if not self.judge.backend.takes_references:
            return self.judge.signature.with_fields(preference="scores")
        return self.judge.comparing().signature.with_fields(preference="orders")

    def score_pairs(
        self,
        pairs: Sequence[Pair],
        *,
        repeats: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> Scores:
        """Compare N pairs of captions; :meth:`~discode.Judge.prefer_pairs` describes them."""
        done = self.judge.prefer_pairs(pairs, progress=progress)
        return Scores(done.value, done.signature, flags=done.flags, errors=done.errors)
