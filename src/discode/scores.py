"""Scores with everything that explains them, and the protocol of whatever makes them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from discode.decoders import Decoded
from discode.errors import InputError
from discode.pairs import Pair
from discode.readings import Readings
from discode.signature import Signature

Floats = NDArray[np.float64]

Progress = Callable[[int], None]
"""Called with the number of pairs just done."""


@dataclass(frozen=True, eq=False)
class Scores:
    """N scores in the order of the input.

    Attributes:
        value: (N,) the scores; NaN where a pair could not be judged.
        signature: How they were made.
        raw: (N,) the model's own answer, where the metric asks a model.
        distribution: (N, K) over ``answers``, likewise.
        answers: K names.
        flags: Name to (N,) booleans: "failed", "truncated", "generated", "degenerate", ...
        errors: Row number to the reason of its NaN.
        bound: (N,) how wrong a score may be because a server left answers out; None where no
            row is truncated.
    """

    value: Floats
    signature: Signature
    raw: Floats | None = None
    distribution: Floats | None = None
    answers: tuple[str, ...] = ()
    flags: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    bound: Floats | None = None

    @classmethod
    def build(
        cls,
        decoded: Decoded,
        readings: Readings,
        signature: Signature,
        flags: Mapping[str, NDArray[np.bool_]] | None = None,
        bound: Floats | None = None,
    ) -> Scores:
        """Join what a decoder made with what the readings tell about each row."""
        failed = np.isnan(decoded.score)
        errors = dict(readings.errors)
        for row in np.flatnonzero(failed).tolist():
            errors.setdefault(row, "the reading holds NaN, or no mass on any answer")
        return cls(
            decoded.score,
            signature,
            decoded.raw,
            decoded.distribution,
            decoded.answers,
            {
                "failed": failed,
                "truncated": np.asarray(readings.truncated),
                "generated": np.asarray(readings.how) == "generated",
                "cut": np.asarray(readings.how) == "cut",
                "degenerate": decoded.degenerate,
                **(flags or {}),
            },
            errors,
            bound,
        )

    def __len__(self) -> int:
        return len(self.value)

    def __float__(self) -> float:
        """Return the score of a single pair."""
        if len(self) != 1:
            raise InputError(f"float() needs one score, these are {len(self)}; use .value")
        return float(self.value[0])

    def __repr__(self) -> str:
        shown = np.array2string(self.value, precision=4, threshold=8)
        return f"Scores({shown}, signature={self.signature.short!r})"

    def mean(self) -> float:
        """Return the mean over the pairs that could be judged; NaN if none could."""
        judged = self.value[~np.isnan(self.value)]
        return float(judged.mean()) if judged.size else math.nan

    def counts(self) -> dict[str, int]:
        """Return how many rows carry each flag."""
        return {name: int(np.count_nonzero(marks)) for name, marks in self.flags.items()}

    def columns(self) -> dict[str, list[Any]]:
        """Return the rows as JSON-ready columns, None where a row has nothing.

        A metric that asks no model has no ``raw`` and no ``distribution``, and ``bound`` is there
        where a row is truncated; ``score``, ``flags`` and ``error`` always are.
        """
        found: dict[str, list[Any]] = {"score": _or_none(self.value)}
        if self.raw is not None:
            found["raw"] = _or_none(self.raw)
        if self.distribution is not None:
            found["distribution"] = _lists_or_none(self.distribution)
        if self.bound is not None:
            found["bound"] = _or_none(self.bound)
        flags: list[list[str]] = [[] for _ in range(len(self))]
        for name, marks in self.flags.items():
            for row in np.flatnonzero(marks).tolist():
                flags[row].append(name)
        return found | {"flags": flags, "error": [self.errors.get(i) for i in range(len(self))]}

    def rows(self, ids: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield one JSON-ready dictionary per row: an id, and :meth:`columns`."""
        columns = {"id": list(map(str, range(len(self)))) if ids is None else ids, **self.columns()}
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        return {
            "signature": str(self.signature),
            "mean": None if math.isnan(self.mean()) else self.mean(),
            "counts": self.counts(),
            "answers": list(self.answers),
            "scores": list(self.rows()),
        }

    def to_jsonl(self, ids: Sequence[str] | None = None) -> Iterator[str]:
        """Yield one JSON line per row, each with the signature: no number without it."""
        for row in self.rows(ids):
            yield json.dumps(row | {"signature": str(self.signature)}, ensure_ascii=False)


def _or_none(values: Floats) -> list[float | None]:
    """Return (N,) numbers as a list, with None for NaN."""
    found: list[float | None] = values.tolist()
    for row in np.flatnonzero(np.isnan(values)).tolist():
        found[row] = None
    return found


def _lists_or_none(values: Floats) -> list[list[float | None] | None]:
    """Return (N, K) numbers as lists, with None for NaN and for a row of nothing else."""
    found: list[list[float | None] | None] = values.tolist()
    missing = np.isnan(values)
    for row in np.flatnonzero(missing.any(axis=1)).tolist():
        found[row] = None if missing[row].all() else _or_none(values[row])
    return found


class Metric(Protocol):
    """Anything that scores pairs: a judge, or another metric."""

    @property
    def signature(self) -> Signature:
        """How its numbers are made."""

    @property
    def needs(self) -> frozenset[str]:
        """What it needs of a pair: "image", "references"."""

    def score_pairs(
        self,
        pairs: Sequence[Pair],
        *,
        repeats: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> Scores:
        """Score N pairs, in order.

        Args:
            pairs: The pairs, each once.
            repeats: (N,) how often each was judged, for a metric that counts words over the whole
                set (CIDEr); once if None.
            progress: Called with the number of pairs just done.
        """
