"""A chunk judged: the same few steps in this process and on a cluster's workers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from discode.backends import SupportsStop
from discode.bulk.chunks import Chunk, Piece
from discode.bulk.passing import select
from discode.errors import StoppedError
from discode.judge import Judge
from discode.pairs import Pair
from discode.readings import Readings
from discode.scores import Progress, Scores

EXAMPLES = 5
"""Failures that are told with their reasons; the shards have them all."""


@dataclass(frozen=True)
class Judged:
    """Some rows with their scores, and those of them that pass as they came."""

    piece: Piece
    ids: Sequence[str]
    scores: Scores
    passed: int = 0
    kept: Any = None
    kept_values: Sequence[float] = ()


@dataclass(frozen=True)
class Totals:
    """What became of many rows; adds up. ``bound`` is the worst; None where nothing is truncated.

    >>> (Totals(rows=2, judged_sum=1.5) + Totals(rows=1, failed=1)).mean
    0.75
    """

    rows: int = 0
    failed: int = 0
    passed: int = 0
    judged_sum: float = 0.0
    flags: Mapping[str, int] = field(default_factory=dict)
    errors: tuple[tuple[str, str], ...] = ()
    bound: float | None = None

    @property
    def mean(self) -> float:
        """The mean over the rows that could be judged; NaN if none could."""
        judged = self.rows - self.failed
        return self.judged_sum / judged if judged else math.nan

    def __add__(self, other: Totals) -> Totals:
        names = dict.fromkeys([*self.flags, *other.flags])
        return Totals(
            self.rows + other.rows,
            self.failed + other.failed,
            self.passed + other.passed,
            self.judged_sum + other.judged_sum,
            {name: self.flags.get(name, 0) + other.flags.get(name, 0) for name in names},
            (*self.errors, *other.errors)[:EXAMPLES],
            max((b for b in (self.bound, other.bound) if b is not None), default=None),
        )

    @classmethod
    def of(cls, judged: Judged) -> Totals:
        """Count one chunk."""
        scores = judged.scores
        counts = scores.counts()
        return cls(
            len(scores),
            counts["failed"],
            judged.passed,
            math.fsum(scores.value[~np.isnan(scores.value)].tolist()),
            {name: count for name, count in counts.items() if count},
            tuple(
                (judged.ids[row], scores.errors[row]) for row in sorted(scores.errors)[:EXAMPLES]
            ),
            None if scores.bound is None else float(np.nanmax(scores.bound, initial=0.0)),
        )


def judge_chunk(
    judge: Judge,
    chunk: Chunk,
    min_score: float | None = None,
    progress: Progress | None = None,
) -> Judged:
    """Judge a chunk; rows without a pair are NaN with the reader's reason.

    The captions of a picture go to the model together, wherever they stand in the chunk.
    """
    order = _by_picture(chunk.pairs)
    pairs = [pair for row in order if (pair := chunk.pairs[row]) is not None]
    parts = [judge.read(batch, progress) for batch in _batches(pairs, judge.batch_size)]
    if progress and len(pairs) < len(chunk):
        progress(len(chunk) - len(pairs))
    read = judge.decode(pairs, Readings.concat(judge.scale, parts))
    n, places = len(chunk), np.asarray(order, np.intp)

    def spread(column: Any, empty: Any) -> Any:
        whole = np.full(n, empty)
        whole[places] = column
        return whole

    scores = Scores(
        spread(read.value, math.nan),
        judge.signature,  # the same for every chunk, whether or not its pairs had references
        None if read.raw is None else spread(read.raw, math.nan),
        flags={name: spread(marks, name == "failed") for name, marks in read.flags.items()},
        errors={**chunk.errors, **{order[row]: reason for row, reason in read.errors.items()}},
        bound=None if read.bound is None else spread(read.bound, math.nan),
    )
    if min_score is None:
        return Judged(chunk.piece, chunk.ids, scores)
    rows = np.flatnonzero(scores.value >= min_score)  # NaN passes no threshold
    kept = select(chunk.raw, rows) if len(rows) and chunk.raw is not None else None
    return Judged(chunk.piece, chunk.ids, scores, len(rows), kept, scores.value[rows].tolist())


def check_going(judge: Judge) -> None:
    """Raise :class:`~discode.errors.StoppedError` where the model reads nothing more.

    A chunk that it stopped in is not to be kept: its rows were not asked, which is no result.
    """
    if isinstance(judge.backend, SupportsStop) and judge.backend.stopped:
        raise StoppedError(judge.backend.stopped)


def _by_picture(pairs: Sequence[Pair | None]) -> list[int]:
    """Return the rows that have a pair, those of a picture together, in order of appearance."""
    groups: dict[Any, list[int]] = {}
    for row, pair in enumerate(pairs):
        if pair is not None:
            groups.setdefault(pair.image, []).append(row)
    return [row for rows in groups.values() for row in rows]


def _batches(pairs: Sequence[Pair], size: int) -> list[Sequence[Pair]]:
    """Cut pairs into batches of at most ``size``, between two pictures where that can be."""
    batches, start, end = [], 0, 0
    for number in range(1, len(pairs) + 1):
        if number < len(pairs) and pairs[number].image == pairs[number - 1].image:
            continue  # inside a picture
        if number - start > size and end > start:
            batches.append(pairs[start:end])
            start = end
        while number - start > size:  # a picture with more captions than a batch holds
            batches.append(pairs[start : start + size])
            start += size
        end = number
    return [*batches, pairs[start:]] if start < len(pairs) else batches
