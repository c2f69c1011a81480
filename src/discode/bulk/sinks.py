"""Where scores of a large run go: JSON lines, Parquet or CSV, a chunk at a time.

Columns: ``id``; ``source`` and ``row``, the file and the row's number in it, which together name
a row; ``score`` and ``raw``, null where there is none; ``bound``, how wrong a truncated row's
score may be, else null; ``flags``; ``error``; ``signature``. All shards have all columns, so that
a folder of them opens as one table.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from discode.errors import InputError, lookup, require
from discode.scores import Scores

_encode = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps makes one a call

COLUMNS = ("id", "source", "row", "score", "raw", "bound", "flags", "error", "signature")


class Sink(Protocol):
    """A file that takes scores in order."""

    def write(self, source: str, start: int, ids: Sequence[str], scores: Scores) -> None:
        """Take the scores of rows ``start``, ``start + 1``, ... of ``source``."""

    def close(self) -> None:
        """Finish the file."""


def flags_of(scores: Scores) -> list[list[str]]:
    """Return the names of each row's flags; most rows have none."""
    marked: list[list[str]] = [[] for _ in range(len(scores))]
    for name, marks in scores.flags.items():
        for row in np.flatnonzero(marks).tolist():
            marked[row].append(name)
    return marked


def _numbers(values: Any) -> list[float | None]:
    if values is None:
        return []
    column: list[float | None] = values.tolist()
    for row in np.flatnonzero(np.isnan(values)).tolist():
        column[row] = None
    return column


class JsonLines:
    """One JSON object a line."""

    def __init__(self, path: Path) -> None:
        # Lone surrogates of a caption's id are written as escapes: the file stays UTF-8.
        self._file = path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n")

    def write(self, source: str, start: int, ids: Sequence[str], scores: Scores) -> None:
        """Take some rows."""
        raw = _numbers(scores.raw) or [None] * len(ids)
        bound = _numbers(scores.bound) or [None] * len(ids)
        rows = zip(ids, _numbers(scores.value), raw, bound, flags_of(scores), strict=True)
        self._file.writelines(
            _encode(
                {
                    "id": name,
                    "source": source,
                    "row": start + i,
                    "score": value,
                    "raw": answer,
                    "bound": wrong,
                    "flags": flags,
                    "error": scores.errors.get(i),
                    "signature": str(scores.signature),
                }
            )
            + "\n"
            for i, (name, value, answer, wrong, flags) in enumerate(rows)
        )

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


class Csv:
    """Comma-separated values; NaN is written "nan", as `discode score` always does."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", errors="backslashreplace", newline="")
        self._writer = csv.writer(self._file)
        self._writer.writerow(COLUMNS)

    def write(self, source: str, start: int, ids: Sequence[str], scores: Scores) -> None:
        """Take some rows."""
        raw = [""] * len(ids) if scores.raw is None else scores.raw.tolist()
        bound = ["" if number is None else number for number in _numbers(scores.bound)]
        marked = flags_of(scores)
        self._writer.writerows(
            (name, source, start + i, value, raw[i], bound[i] if bound else "",
             " ".join(marked[i]), scores.errors.get(i, ""), str(scores.signature))
            for i, (name, value) in enumerate(zip(ids, scores.value.tolist(), strict=True))
        )  # fmt: skip

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


class Parquet:
    """Parquet; source and signature are kept as dictionaries, which costs nothing a row."""

    def __init__(self, path: Path) -> None:
        self._pa = pa = require("pyarrow", "parquet")
        word = pa.dictionary(pa.int32(), pa.string())
        types = (pa.string(), word, pa.int64(), pa.float64(), pa.float64(), pa.float64(),
                 pa.list_(pa.string()), pa.string(), word)  # fmt: skip
        self._schema = pa.schema(list(zip(COLUMNS, types, strict=True)))
        self._writer = require("pyarrow.parquet", "parquet").ParquetWriter(path, self._schema)

    def write(self, source: str, start: int, ids: Sequence[str], scores: Scores) -> None:
        """Take some rows."""
        pa, n = self._pa, len(ids)

        def same(value: str) -> Any:
            return pa.DictionaryArray.from_arrays(
                pa.array(np.zeros(n, np.int32)), [_escaped(value)]
            )

        def numbers(values: Any) -> Any:
            if values is None:
                return pa.nulls(n, pa.float64())
            return pa.array(values, pa.float64(), from_pandas=True)

        reasons = {row: _escaped(reason) for row, reason in scores.errors.items()}
        columns = [
            pa.array(list(map(_escaped, ids)), pa.string()),
            same(source),
            pa.array(np.arange(start, start + n)),
            numbers(scores.value),
            numbers(scores.raw),
            numbers(scores.bound),
            pa.array(flags_of(scores), pa.list_(pa.string())),
            pa.array([reasons.get(i) for i in range(n)], pa.string()),
            same(str(scores.signature)),
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


def _escaped(text: str) -> str:
    """Return a text with its lone surrogates as escapes; Parquet's text is UTF-8."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


SINKS: dict[str, Callable[[Path], Sink]] = {
    "jsonl": JsonLines,
    "parquet": Parquet,
    "csv": Csv,
}
"""Format to the class that writes it; also the suffix of the file."""


def check_sink(name: str) -> None:
    """Raise unless scores can be written in a format."""
    lookup(SINKS, name, "output format")
    if name == "parquet":
        require("pyarrow", "parquet")


def check_threshold(value: float) -> None:
    """Raise unless scores can be compared with a number."""
    if not np.isfinite(value):
        raise InputError(f"min_score={value} is not allowed; give a number of the scale")
