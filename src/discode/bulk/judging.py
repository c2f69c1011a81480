"""A chunk judged: the same few steps in this process and on a cluster's workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from discode.bulk.chunks import ChunkPlace, PairChunk
from discode.bulk.columns import ScoredRows
from discode.bulk.samples import select
from discode.decoders import Decoder
from discode.errors import InputError, StoppedError
from discode.judge import Judge
from discode.pairs import Pair
from discode.scores import Progress, Scores

EXAMPLES = 5
"""Failures that are reported with their reasons; the output has all of them."""

Methods = Mapping[str, Decoder]
"""Name to decoder; readings are made once and decoded by each."""


@dataclass(frozen=True)
class MethodTotals:
    """What one method made of many rows; adds up.

    Attributes:
        failed: Rows without a score.
        score_sum: The sum of the others' scores.
        flags: Flag to the number of rows that carry it.
        bound: How far off a truncated row may be at the worst; None where none is truncated.
    """

    failed: int = 0
    score_sum: float = 0.0
    flags: Mapping[str, int] = field(default_factory=dict)
    bound: float | None = None

    def __add__(self, other: MethodTotals) -> MethodTotals:
        names = dict.fromkeys([*self.flags, *other.flags])
        return MethodTotals(
            self.failed + other.failed,
            self.score_sum + other.score_sum,
            {name: self.flags.get(name, 0) + other.flags.get(name, 0) for name in names},
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
    """What became of many rows; adds up.

    Attributes:
        rows: How many there are.
        failed: Those that a method could not score.
        passed: Those that reach the threshold, where there is one.
        errors: The first ids and reasons of those that failed.
        methods: Counts by method.

    >>> totals = Totals(rows=2, methods={"raw": MethodTotals(score_sum=1.5)})
    >>> (totals + Totals(rows=1, failed=1, methods={"raw": MethodTotals(failed=1)})).mean()
    0.75
    """

    rows: int = 0
    failed: int = 0
    passed: int = 0
    errors: tuple[tuple[str, str], ...] = ()
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
    def of(cls, rows: ScoredRows, passed: int = 0) -> Totals:
        """Count some rows."""
        reasons = {
            i: reason for scores in rows.scores.values() for i, reason in scores.errors.items()
        }
        return cls(
            len(rows.ids),
            len(reasons),
            passed,
            tuple((rows.ids[i], reasons[i]) for i in sorted(reasons)[:EXAMPLES]),
            {name: MethodTotals.of(scores) for name, scores in rows.scores.items()},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Totals:
        """Read what :meth:`to_json` made; anything else raises."""
        methods = {name: MethodTotals(**counts) for name, counts in data["methods"].items()}
        totals = cls(**{**data, "errors": tuple(map(tuple, data["errors"])), "methods": methods})
        whole = cls() + totals  # counts that do not add up are not counts
        if whole.to_json() != {**data, "errors": whole.errors}:
            raise ValueError("counts are missing")
        return totals


@dataclass(frozen=True)
class ScoredChunk:
    """The scores of a chunk.

    Attributes:
        place: Where its rows are.
        rows: The rows with their scores.
        signatures: Method to the judge's signature, the same for every chunk.
        passed: How many reach the threshold.
        samples: Those that reach it, to be written again; None if there are none.
        before: Method to scores without the decoder's prior, where they were asked for.
    """

    place: ChunkPlace
    rows: ScoredRows
    signatures: Mapping[str, str]
    passed: int = 0
    samples: Any = None
    before: Mapping[str, Scores] = field(default_factory=dict)


def by_method(judge: Judge, methods: Methods | None = None) -> dict[str, Judge]:
    """Return a judge for each method, with one model and one store; its own method by default."""
    if methods is None:
        return {judge.decoder.name: judge}
    return {name: judge.with_method(decoder) for name, decoder in methods.items()}


def judge_chunk(
    judges: Mapping[str, Judge],
    chunk: PairChunk,
    *,
    min_score: float | None = None,
    progress: Progress | None = None,
    before: Mapping[str, Judge] | None = None,
) -> ScoredChunk:
    """Read a chunk once and decode it by each method; rows without a pair are NaN, with a reason.

    ``before`` are judges whose scores are to be compared with, not written.
    """
    numbers = [number for number, pair in enumerate(chunk.pairs) if pair is not None]
    pairs = [pair for pair in chunk.pairs if pair is not None]
    # The decoder that needs the most of a reading decides what is read.
    reader = max(judges.values(), key=lambda judge: len(judge.decoder.requires))
    readings = reader.read(pairs, progress)
    if progress and len(pairs) < len(chunk.pairs):
        progress(len(chunk.pairs) - len(pairs))

    def decoded(judges: Mapping[str, Judge]) -> dict[str, Scores]:
        return {
            name: _with_failures(judge.decode(pairs, readings), chunk, numbers)
            for name, judge in judges.items()
        }

    scores = decoded(judges)
    rows = ScoredRows(
        chunk.source,
        chunk.place.start,
        chunk.ids,
        chunk.images,
        chunk.captions,
        scores,
        {name: row_signatures(judge, chunk.pairs) for name, judge in judges.items()},
    )
    signatures = {name: str(judge.signature) for name, judge in judges.items()}
    scored = ScoredChunk(chunk.place, rows, signatures, before=decoded(before or {}))
    if min_score is None:
        return scored
    (values,) = (each.value for each in scores.values())
    passed = np.flatnonzero(values >= min_score)  # NaN passes no threshold
    if not len(passed) or chunk.samples is None:
        return replace(scored, passed=len(passed))
    samples = select(chunk.samples, passed, values[passed])
    return replace(scored, passed=len(passed), samples=samples)


def score_chunks(
    judges: Mapping[str, Judge],
    chunks: Iterable[PairChunk],
    write: Callable[[ScoredChunk], None],
    *,
    progress: Progress | None = None,
    before: Mapping[str, Judge] | None = None,
) -> Totals:
    """Judge chunks in this process, and hand each to ``write``; see :func:`judge_chunk`."""
    totals = Totals()
    for chunk in chunks:
        scored = judge_chunk(judges, chunk, progress=progress, before=before)
        write(scored)
        totals += Totals.of(scored.rows)
    if not totals.rows:
        raise InputError("the input holds no pairs")
    return totals


def row_signatures(judge: Judge, pairs: Sequence[Pair | None]) -> list[str]:
    """Return how each pair's own number is made: with references or without."""
    having = "all" if judge.takes_references else "ignored"
    kinds = [str(judge.signature.with_fields(references=kind)) for kind in ("none", having)]
    return [kinds[pair is not None and bool(pair.references)] for pair in pairs]


def _with_failures(read: Scores, chunk: PairChunk, numbers: Sequence[int]) -> Scores:
    """Return the scores of a chunk's pairs with a NaN row for each row that has no pair."""
    if len(numbers) == len(chunk.pairs):
        return read
    return read.spread(numbers, len(chunk.pairs), chunk.errors)


def raise_if_stopped(judge: Judge) -> None:
    """Raise :class:`~discode.errors.StoppedError` where the model reads nothing more.

    A chunk that it stopped in is not to be kept: its rows were not asked, which is not a result.
    """
    if judge.backend.stopped:
        raise StoppedError(judge.backend.stopped)
