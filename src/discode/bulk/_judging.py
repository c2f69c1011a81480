"""A chunk judged: the same few steps in this process and on a cluster's workers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode._judge import Judge
from discode._pairs import Pair
from discode._scores import Progress, Scores
from discode.bulk._chunks import ChunkPlace, PairChunk
from discode.bulk._writers import select
from discode.decoders import Decoder
from discode.errors import StoppedError

EXAMPLES = 5
"""Failures that are reported with their reasons; the output has all of them."""

Methods = Mapping[str, Decoder]
"""Name to decoder; readings are made once and decoded by each."""


@dataclass(frozen=True)
class MethodTotals:
    """Counts of many rows by one method, which add up."""

    failed: int = 0  # rows without a score
    score_sum: float = 0.0  # of the others
    flags: Mapping[str, int] = field(default_factory=dict)  # to the rows that carry them
    bound: float | None = None  # of the worst truncated row; None where none is

    def __add__(self, other: MethodTotals) -> MethodTotals:
        return MethodTotals(
            self.failed + other.failed,
            self.score_sum + other.score_sum,
            dict(Counter(self.flags) + Counter(other.flags)),
            max((b for b in (self.bound, other.bound) if b is not None), default=None),
        )

    @classmethod
    def of(cls, scores: Scores) -> MethodTotals:
        """Count some rows."""
        counts = scores.counts()
        return cls(
            counts["failed"],
            math.fsum(scores.value[~np.isnan(scores.value)].tolist()),
            {name: count for name, count in counts.items() if count},
            None if scores.bound is None else float(np.nanmax(scores.bound, initial=0.0)),
        )


@dataclass(frozen=True)
class Totals:
    """Counts of many rows, which add up.

    >>> totals = Totals(rows=2, methods={"raw": MethodTotals(score_sum=1.5)})
    >>> (totals + Totals(rows=1, failed=1, methods={"raw": MethodTotals(failed=1)})).mean()
    0.75
    """

    rows: int = 0
    failed: int = 0  # rows that a method could not score
    passed: int = 0  # rows that reach the threshold, where there is one
    errors: tuple[tuple[str, str], ...] = ()  # the first ids and reasons of those that failed
    methods: Mapping[str, MethodTotals] = field(default_factory=dict)

    def mean(self, method: str | None = None) -> float:
        """Return a method's mean over the rows it could score, the first's by default; or NaN."""
        name = next(iter(self.methods), None) if method is None else method
        counts = self.methods[name] if name is not None else MethodTotals()
        scored = self.rows - counts.failed
        return counts.score_sum / scored if scored else math.nan

    def __add__(self, other: Totals) -> Totals:
        names = dict.fromkeys([*self.methods, *other.methods])
        none = MethodTotals()
        return Totals(
            self.rows + other.rows,
            self.failed + other.failed,
            self.passed + other.passed,
            (*self.errors, *other.errors)[:EXAMPLES],
            {n: self.methods.get(n, none) + other.methods.get(n, none) for n in names},
        )

    @classmethod
    def of(cls, rows: Mapping[str, Scores], passed: int = 0) -> Totals:
        """Count some rows."""
        reasons = {i: reason for scores in rows.values() for i, reason in scores.errors.items()}
        ids = next(iter(rows.values())).ids or ()
        return cls(
            len(ids),
            len(reasons),
            passed,
            tuple((ids[i], reasons[i]) for i in sorted(reasons)[:EXAMPLES]),
            {name: MethodTotals.of(scores) for name, scores in rows.items()},
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Totals:
        """Read what ``dataclasses.asdict`` made; anything else raises."""
        methods = {name: MethodTotals(**counts) for name, counts in data["methods"].items()}
        totals = cls(**{**data, "errors": tuple(map(tuple, data["errors"])), "methods": methods})
        whole = cls() + totals  # counts that do not add up are not counts
        if asdict(whole) != {**data, "errors": whole.errors}:
            raise ValueError("counts are missing")
        return totals


@dataclass(frozen=True)
class ScoredChunk:
    """The scores of a chunk."""

    place: ChunkPlace
    rows: Mapping[str, Scores]
    signatures: Mapping[str, str]  # the judge's by method, the same for every chunk
    passed: int = 0  # rows that reach the threshold
    samples: Any = None  # those rows, to be written again; None if there are none

    def __len__(self) -> int:
        return len(next(iter(self.rows.values())))

    def passing(self, min_score: float) -> list[int]:
        (scores,) = self.rows.values()
        return np.flatnonzero(scores.value >= min_score).tolist()  # NaN passes no threshold

    def with_passed(self, samples: Sequence[Any], min_score: float) -> ScoredChunk:
        if not (passed := self.passing(min_score)):
            return self
        (scores,) = self.rows.values()
        chosen = select(samples, passed, scores.value[passed])
        return replace(self, passed=len(passed), samples=chosen)

    @staticmethod
    def join(parts: Sequence[ScoredChunk], places: Sequence[int]) -> ScoredChunk:
        """Return parts of a chunk as one; ``places`` are those of their rows, part after part."""
        rows = join_rows([part.rows for part in parts], np.argsort(places))
        start = parts[0].place.start
        numbers = tuple(range(start, start + len(places)))
        rows = {name: replace(scores, numbers=numbers) for name, scores in rows.items()}
        return replace(parts[0], rows=rows)


def join_rows(parts: Sequence[Mapping[str, Scores]], order: NDArray[np.intp]) -> dict[str, Scores]:
    """Return some rows of several parts; ``order`` has their numbers, part after part."""
    return {name: Scores.join([part[name] for part in parts])[order] for name in parts[0]}


def by_method(judge: Judge, methods: Methods | None = None) -> dict[str, Judge]:
    """Return a judge for each method, with one model and one store; its own method by default."""
    if methods is None:
        return {judge.decoder.name: judge}
    return {
        name: judge if decoder is judge.decoder else judge.with_method(decoder)
        for name, decoder in methods.items()
    }


def judge_chunk(
    judges: Mapping[str, Judge],
    chunk: PairChunk,
    *,
    min_score: float | None = None,
    progress: Progress | None = None,
) -> ScoredChunk:
    """Read a chunk once and decode it by each method."""
    reader = next(iter(judges.values()))
    decoders = {name: judge.decoder for name, judge in judges.items()}
    rows = at_rows(
        reader.decode_all(chunk.pairs, decoders, progress),
        chunk.source, chunk.place.start, [pair.id for pair in chunk.pairs],
        names=tuple(chunk.images), captions=tuple(chunk.captions),
    )  # fmt: skip
    for name, judge in judges.items():
        rows[name] = replace(rows[name], signatures=row_signatures(judge, chunk.pairs))
    signatures = {name: str(judge.signature) for name, judge in judges.items()}
    scored = ScoredChunk(chunk.place, rows, signatures)
    return scored if min_score is None else scored.with_passed(chunk.samples, min_score)


def at_rows(
    scores: Mapping[str, Scores],
    source: str | None,
    start: int,
    ids: Sequence[str],
    **more: Any,
) -> dict[str, Scores]:
    """Add which rows of a file scores belong to: those from ``start``, with their ids."""
    numbers = tuple(range(start, start + len(ids)))
    known = {"ids": tuple(ids), "sources": (source,) * len(ids), "numbers": numbers, **more}
    return {name: replace(each, **known) for name, each in scores.items()}


def row_signatures(judge: Judge, pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Return how each pair's own number is made: with references or without."""
    having = "all" if judge.backend.takes_references else "ignored"
    kinds = [having if pair.references else "none" for pair in pairs]
    texts = {kind: str(judge.signature.with_fields(references=kind)) for kind in {*kinds}}
    return tuple(texts[kind] for kind in kinds)


def raise_if_stopped(judge: Judge) -> None:
    """Raise :class:`~discode.errors.StoppedError` where the model reads nothing more.

    The chunk that it stopped in is discarded: rows that were not asked have no result.
    """
    if judge.backend.stopped:
        raise StoppedError(judge.backend.stopped)
