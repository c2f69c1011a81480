"""A run's log: every score of every metric on a benchmark, and how each was made.

Versioned JSON. Tables, figures and comparisons are rendered from it alone; a run that is repeated
takes from it what was made the same way.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode.benchmarks import Benchmark, Preferences, Ratings
from discode.errors import InputError
from discode.files import parse_json, replacing
from discode.stats import Interval

FORMAT, VERSION = "discode-run", 1
LEAST = 100
"""Fewer resamples give no interval worth the name."""


@dataclass(frozen=True)
class Protocol:
    """How agreement is measured: ties of preferences, and the bootstrap of the intervals."""

    ties: str = "wrong"
    resamples: int = 1000
    seed: int = 0
    level: float = 0.95

    def __post_init__(self) -> None:
        if self.ties not in ("wrong", "half"):
            raise InputError(f"ties={self.ties!r} is not allowed; give 'wrong' or 'half'")
        if self.resamples and self.resamples < LEAST:
            raise InputError(
                f"resamples={self.resamples} is not allowed; give {LEAST} or more, or 0 for no "
                "intervals"
            )
        if self.seed < 0:
            raise InputError(f"seed={self.seed} is not allowed; give 0 or more")
        if not 0 < self.level < 1:
            raise InputError(f"level={self.level} is not allowed; give a number like 0.95")


@dataclass(frozen=True, eq=False)
class Result:
    """A metric on a benchmark.

    Attributes:
        made: The metric's signature before it scored: what a repeated run compares.
        signature: The scores' signature, with the benchmark's protocol and the statistics'.
        value: (P,) a score a pair, NaN where there is none.
        errors: Pair to the reason of its NaN.
        counts: How many pairs carry each flag.
        seconds: How long scoring took.
        measures: Name to value and interval, shares and not percent.
    """

    made: str
    signature: str
    value: NDArray[np.float64]
    errors: Mapping[int, str]
    counts: Mapping[str, int]
    seconds: float
    measures: Mapping[str, Interval]


@dataclass(frozen=True, eq=False)
class RunLog:
    """Metrics on one benchmark."""

    benchmark: str
    options: Mapping[str, str]
    protocol: Protocol
    checksums: Mapping[str, str]
    notes: tuple[str, ...]
    ids: tuple[str, ...]
    image: NDArray[np.int64]
    judgments: Ratings | Preferences
    versions: Mapping[str, str]
    results: Mapping[str, Result] = field(default_factory=dict)

    @classmethod
    def begin(cls, benchmark: Benchmark, protocol: Protocol, versions: Mapping[str, str]) -> RunLog:
        """Return the log of a run that has not scored anything yet."""
        return cls(
            benchmark.name, benchmark.protocol, protocol, benchmark.checksums, benchmark.notes,
            tuple(pair.id for pair in benchmark.pairs), benchmark.image, benchmark.judgments,
            versions,
        )  # fmt: skip

    def same_questions(self, other: RunLog) -> bool:
        """Whether both are about the same pairs and judgments, whatever was scored."""
        return (self.benchmark, dict(self.options), dict(self.checksums), self.ids) == (
            other.benchmark, dict(other.options), dict(other.checksums), other.ids,
        )  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the log, whole or not at all."""
        data = {
            "format": FORMAT, "version": VERSION, "benchmark": self.benchmark,
            "options": dict(self.options), "protocol": asdict(self.protocol),
            "checksums": dict(self.checksums), "notes": list(self.notes),
            "versions": dict(self.versions), "ids": list(self.ids), "image": self.image.tolist(),
            "judgments": {
                name: list(column) if isinstance(column, tuple) else column.tolist()
                for name, column in vars(self.judgments).items()
            },
            "results": {name: _written(result) for name, result in self.results.items()},
        }  # fmt: skip
        with replacing(Path(path)) as temp:
            temp.write_text(json.dumps(data, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RunLog:
        """Read a log, or say why it is none."""
        path = Path(path)
        if not path.is_file():
            raise InputError(f"no such run: {path}; discode bench run ... --json FILE makes one")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {path}: {error}") from None
        data = parse_json(text, path.name)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise InputError(f"{path.name} is no run of discode bench run")
        if data.get("version") != VERSION:
            raise InputError(
                f"{path.name} has the version {data.get('version')}; this discode reads {VERSION}"
            )
        try:
            log = cls(
                data["benchmark"], data["options"], Protocol(**data["protocol"]),
                data["checksums"], tuple(data["notes"]), tuple(data["ids"]),
                np.array(data["image"], np.int64), _judgments(data["judgments"]),
                data["versions"],
                {
                    name: _read(row, len(data["ids"]), data["protocol"]["level"])
                    for name, row in data["results"].items()
                },
            )  # fmt: skip
            log._check()
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path.name} is damaged: {type(error).__name__} {error}") from None
        return log

    def _check(self) -> None:
        """Raise unless all columns belong together."""
        pairs, judged = len(self.ids), self.judgments
        if len(self.image) != pairs:
            raise ValueError(f"{len(self.image)} images for {pairs} pairs")
        if len({len(column) for column in vars(judged).values()}) != 1:
            raise ValueError("judgments of different lengths")
        pointers = [judged.pair] if isinstance(judged, Ratings) else [judged.left, judged.right]
        if any(len(p) and not 0 <= p.min() <= p.max() < pairs for p in pointers):
            raise ValueError("judgments of pairs that are not there")
        names = (
            {"tau_b", "tau_c"} if isinstance(judged, Ratings) else {*judged.category, "mean"}
        ) | {"ties", "failed"}
        for label, result in self.results.items():
            if lost := names - result.measures.keys():
                raise ValueError(f"{label} lacks {', '.join(sorted(lost))}")


def _written(result: Result) -> dict[str, Any]:
    reasons: dict[str, list[int]] = {}  # a reason often holds for many pairs
    for row, reason in result.errors.items():
        reasons.setdefault(reason, []).append(row)
    return {
        "made": result.made, "signature": result.signature, "counts": dict(result.counts),
        "seconds": round(result.seconds, 3), "errors": reasons,
        "measures": {
            name: [_json(v) for v in (one.value, one.low, one.high)]
            for name, one in result.measures.items()
        },
        "value": [_json(v) for v in result.value.tolist()],
    }  # fmt: skip


def _read(row: Mapping[str, Any], pairs: int, level: float) -> Result:
    value = np.array([_number(v) for v in row["value"]], np.float64)
    if len(value) != pairs:
        raise ValueError(f"{len(value)} scores for {pairs} pairs")
    return Result(
        row["made"], row["signature"], value,
        {number: reason for reason, rows in row["errors"].items() for number in rows},
        row["counts"], row["seconds"],
        {name: _interval(one, level) for name, one in row["measures"].items()},
    )  # fmt: skip


def _judgments(columns: Mapping[str, Any]) -> Ratings | Preferences:
    if "value" in columns:
        return Ratings(
            np.array(columns["pair"], np.int64), np.array(columns["value"], np.float64),
            np.array(columns["rater"], np.int64),
        )  # fmt: skip
    left, right, chosen = (np.array(columns[n], np.int64) for n in ("left", "right", "chosen"))
    return Preferences(left, right, chosen, tuple(columns["category"]))


def _interval(numbers: Sequence[float | None], level: float) -> Interval:
    value, low, high = (_number(number) for number in numbers)
    return Interval(value, low, high, level)


def _json(value: float) -> float | None:
    return None if math.isnan(value) else value


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
