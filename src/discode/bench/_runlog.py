"""The log of a run: every score of every metric on a benchmark, and how each was made.

It is versioned JSON. Tables, figures and comparisons are made from it alone; a run that is repeated
reuses scores that were made the same way. Version 2 has the text and the fields of every
signature; version 1, with the text alone, can still be read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode._files import parse_json, replacing
from discode._pairs import NO_REFERENCES
from discode._scores import or_none
from discode._signature import Signature
from discode.bench._agreement import AgreementProtocol, sides_of
from discode.benchmarks import BENCHMARKS, Benchmark, Preferences, Ratings
from discode.errors import InputError
from discode.metrics._base import NO_IMAGE
from discode.options import option_text
from discode.stats import Interval

FORMAT, VERSION = "discode-run", 2


@dataclass(frozen=True, eq=False)
class MetricResult:
    """A metric on a benchmark.

    ``metric_signature`` is the metric's before it scored, which a repeated run compares,
    ``signature`` the scores', with the benchmark's options, ties and m of τ_c. ``value`` (P,) is
    NaN where ``errors`` has the reason by the pair's number, ``counts`` says how many pairs have
    each flag, and ``measures`` are shares, not percent.

    ``preference`` (M,) is the probability that the left caption of each choice is better, of a
    metric that compares two captions; ``value`` is then a caption's mean over its comparisons.
    """

    metric_signature: Signature
    signature: Signature
    value: NDArray[np.float64]
    errors: Mapping[int, str]
    counts: Mapping[str, int]
    seconds: float
    measures: Mapping[str, Interval]
    preference: NDArray[np.float64] | None = None

    @property
    def failures(self) -> dict[int, str]:
        """The errors, except for missing references of some pairs, which no second run changes."""
        if len(self.errors) == len(self.value):
            return dict(self.errors)
        return {row: why for row, why in self.errors.items() if why != NO_REFERENCES}


@dataclass(frozen=True, eq=False)
class RunLog:
    """The results of metrics on one benchmark."""

    benchmark: str
    options: Mapping[str, str]
    protocol: AgreementProtocol
    checksums: Mapping[str, str]
    notes: tuple[str, ...]
    ids: tuple[str, ...]
    image: NDArray[np.int64]
    judgments: Ratings | Preferences
    versions: Mapping[str, str]
    results: Mapping[str, MetricResult] = field(default_factory=dict)

    @classmethod
    def begin(
        cls, benchmark: Benchmark, protocol: AgreementProtocol, versions: Mapping[str, str]
    ) -> RunLog:
        """Create the log of a run without any scores."""
        return cls(
            benchmark.name,
            {name: option_text(value) for name, value in benchmark.options.items()},
            protocol, benchmark.checksums, benchmark.notes,
            tuple(pair.id for pair in benchmark.pairs), benchmark.image, benchmark.judgments,
            versions,
        )  # fmt: skip

    def same_questions(self, other: RunLog) -> bool:
        """Whether both are about the same pairs and judgments, whatever was scored.

        An option that is newer than a log has its default.
        """
        facts = [(log.benchmark, dict(log.checksums), log.ids) for log in (self, other)]
        if facts[0] != facts[1] or self.options == other.options:
            return facts[0] == facts[1]
        row = BENCHMARKS.get(self.benchmark)
        defaults = {} if row is None else row.option_texts({})
        return {**defaults, **self.options} == {**defaults, **other.options}

    def judged(self, errors: Mapping[int, str]) -> NDArray[np.bool_]:
        """Mark the judgments (M,) whose images are present.

        ``errors`` are the result's.
        """
        pairs = np.ones(len(self.ids), bool)
        pairs[[row for row, why in errors.items() if why == NO_IMAGE]] = False
        return np.asarray(np.all([pairs[side] for side in self.judgments.sides.values()], axis=0))

    @property
    def judged_image(self) -> NDArray[np.int64]:
        """The image of each judgment, (M,)."""
        return self.image[next(iter(self.judgments.sides.values()))]

    def sides(self, label: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return a metric's scores of the left and the right caption of each choice, both (M,)."""
        if isinstance(self.judgments, Ratings):
            raise InputError(f"{self.benchmark} has ratings, not preferences")
        result = self.results[label]
        return sides_of(self.judgments, result.value, result.preference)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the log, completely or not at all."""
        data = {
            "format": FORMAT, "version": VERSION, "benchmark": self.benchmark,
            "options": dict(self.options), "protocol": asdict(self.protocol),
            "checksums": dict(self.checksums), "notes": list(self.notes),
            "versions": dict(self.versions), "ids": list(self.ids), "image": self.image.tolist(),
            "judgments": {
                name: list(column) if isinstance(column, tuple) else column.tolist()
                for name, column in vars(self.judgments).items()
                if column is not None
            },
            "results": {name: _to_json(result) for name, result in self.results.items()},
        }  # fmt: skip
        with replacing(Path(path)) as temp:
            temp.write_text(json.dumps(data, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RunLog:
        """Read a log; the error gives the reason if it cannot be read."""
        path = Path(path)
        if not path.is_file():
            raise InputError(f"no such run: {path}; discode bench run ... -o FILE makes one")
        try:
            data: Any = parse_json(path.read_text(encoding="utf-8"), path.name)
        except (InputError, OSError, ValueError) as error:
            data = {"format": error}
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            why = f" ({data['format']})" if isinstance(data, dict) and "format" in data else ""
            raise InputError(
                f"{path.name} is not a run{why}; give what discode bench run -o wrote, and scores "
                "to discode compare"
            )
        if data.get("version") not in (1, VERSION):
            raise InputError(
                f"{path.name} has version {data.get('version')}; this discode reads 1 to {VERSION}"
            )
        try:
            log = cls(
                data["benchmark"], data["options"], AgreementProtocol.read(data["protocol"]),
                data["checksums"], tuple(data["notes"]), tuple(data["ids"]),
                np.array(data["image"], np.int64), _judgments(data["judgments"]),
                data["versions"],
                {
                    name: _from_json(row, len(data["ids"]), data["protocol"]["level"])
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
        pairs, judged = len(self.ids), self.judgments
        if len(self.image) != pairs:
            raise ValueError(f"{len(self.image)} images for {pairs} pairs")
        sides = judged.sides.values()
        if any(len(side) and not 0 <= side.min() <= side.max() < pairs for side in sides):
            raise ValueError("judgments of pairs that are not there")
        names = (
            {"tau_b", "tau_c"} if isinstance(judged, Ratings) else {*judged.category, "mean"}
        ) | {"ties", "failed"}
        for label, result in self.results.items():
            if result.preference is not None and len(result.preference) != len(judged):
                raise ValueError(f"{len(result.preference)} preferences for {len(judged)} choices")
            if lost := names - result.measures.keys():
                raise ValueError(f"{label} has no {', '.join(sorted(lost))}")


def _to_json(result: MetricResult) -> dict[str, Any]:
    reasons: dict[str, list[int]] = {}  # a reason often holds for many pairs
    for row, reason in result.errors.items():
        reasons.setdefault(reason, []).append(row)
    return {
        "made": str(result.metric_signature), "signature": str(result.signature),
        "fields": dict(result.signature), "counts": dict(result.counts),
        "seconds": round(result.seconds, 3), "errors": reasons,
        "measures": {
            name: or_none(np.array([interval.value, interval.low, interval.high]))
            for name, interval in result.measures.items()
        },
        "value": or_none(result.value),
        **({} if result.preference is None else {"preference": or_none(result.preference)}),
    }  # fmt: skip


def _from_json(row: Mapping[str, Any], pairs: int, level: float) -> MetricResult:
    value = np.array(row["value"], np.float64)  # null is NaN
    if len(value) != pairs:
        raise ValueError(f"{len(value)} scores for {pairs} pairs")
    written = row.get("fields", row["signature"])  # version 1 has the text alone
    return MetricResult(
        Signature.read(row["made"]), Signature.read(written), value,
        {number: reason for reason, rows in row["errors"].items() for number in rows},
        row["counts"], row["seconds"],
        {name: _interval(numbers, level) for name, numbers in row["measures"].items()},
        np.array(row["preference"], np.float64) if "preference" in row else None,
    )  # fmt: skip


def _judgments(columns: Mapping[str, Any]) -> Ratings | Preferences:
    def rows(*names: str) -> list[Any]:
        return list(zip(*(columns[name] for name in names), strict=True))

    if "value" in columns:
        return Ratings.of(rows("pair", "value", "rater"))
    return Preferences.of(rows("left", "right", "chosen", "category"), columns.get("group"))


def _interval(numbers: Any, level: float) -> Interval:
    value, low, high = np.array(numbers, np.float64).tolist()
    return Interval(value, low, high, level)


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """List the files of logs, each once; a folder means every log in it."""
    files: list[Path] = []
    for path in paths:
        logs = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not logs:
            raise InputError(f"no runs in {path}; make some with discode bench run -o {path}/")
        files += [file for file in logs if file not in files]
    return files


def read_runs(paths: Sequence[Path]) -> dict[str, RunLog]:
    """Read logs by name, in the order of :func:`find_runs`."""
    files = find_runs(paths)
    stems = [path.stem for path in files]
    return {
        path.stem if stems.count(path.stem) == 1 else str(path): RunLog.load(path) for path in files
    }
