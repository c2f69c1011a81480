"""Writers of scores: JSON lines, CSV or Parquet, some rows at a time, all with the same columns."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol, TextIO

from discode.bulk.columns import COLUMNS, VERSION, ScoredRows
from discode.errors import InputError, lookup, require
from discode.files import csv_cell


class ScoreWriter(Protocol):
    """Takes scores in order."""

    def write(self, rows: ScoredRows) -> None:
        """Write some rows."""


class JsonLinesWriter:
    """One JSON object per line; null where there is nothing."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, rows: ScoredRows) -> None:
        """Write some rows."""
        columns = rows.columns()
        for name, values in columns.items():
            if name in _REPEATED:
                known = {value: _encode(value) for value in set(values)}
                columns[name] = [known[value] for value in values]
            else:
                columns[name] = list(map(_json, values))
        self._file.writelines(map(_LINE.__mod__, zip(*columns.values(), strict=True)))


_encode = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps makes an encoder per call
_LINE = "{" + ", ".join(f'"{name}": %s' for name in COLUMNS) + "}\n"
_REPEATED = ("source", "method", "signature")
_TEXTS = ("id", "source", "image", "caption", "method", "error", "signature")


def _json(value: Any) -> str:
    """Return a value as JSON; Python writes finite numbers in the same way, and faster."""
    if value is None:
        return "null"
    kinds = set(map(type, value)) if type(value) is list else {type(value)}
    return repr(value) if kinds <= {float, int} else _encode(value)


class CsvWriter:
    """Comma-separated values: a missing score or raw is "nan", lists are JSON, nothing is empty.

    Texts that a spreadsheet would compute have an apostrophe before them.
    """

    def __init__(self, file: TextIO) -> None:
        self._writer = csv.writer(file)
        self._writer.writerow(COLUMNS)

    def write(self, rows: ScoredRows) -> None:
        """Write some rows."""
        columns = rows.columns()
        for name in ("score", "raw"):
            columns[name] = ["nan" if value is None else value for value in columns[name]]
        for name in ("distribution", "flags"):
            columns[name] = [value if value is None else _encode(value) for value in columns[name]]
        for name in _TEXTS:
            columns[name] = [value if value is None else csv_cell(value) for value in columns[name]]
        self._writer.writerows(zip(*columns.values(), strict=True))


class ParquetScores:
    """Parquet; the file's metadata has the version of the columns as ``discode_columns``."""

    def __init__(self, path: Path) -> None:
        self._pa = pa = require("pyarrow", "parquet")
        text, number = pa.string(), pa.float64()
        word = pa.dictionary(pa.int32(), text)  # few different ones: next to nothing per row
        types = {
            "id": text, "source": word, "row": pa.int64(), "image": text, "caption": text,
            "method": word, "score": number, "raw": number, "bound": number,
            "distribution": pa.list_(number), "flags": pa.list_(text), "error": text,
            "signature": word,
        }  # fmt: skip
        self._schema = pa.schema(
            [(name, types[name]) for name in COLUMNS], {"discode_columns": str(VERSION)}
        )
        self._writer = require("pyarrow.parquet", "parquet").ParquetWriter(path, self._schema)

    def write(self, rows: ScoredRows) -> None:
        """Write some rows."""
        columns = rows.columns()
        arrays = [self._array(columns[field.name], field.type) for field in self._schema]
        self._writer.write_batch(self._pa.record_batch(arrays, schema=self._schema))

    def _array(self, values: list[Any], kind: Any) -> Any:
        try:
            return self._pa.array(values, kind)
        except UnicodeEncodeError:  # half a character: Parquet's text is UTF-8
            return self._pa.array([v if v is None else _escaped(v) for v in values], kind)

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


def _escaped(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


TEXT_WRITERS: dict[str, Callable[[TextIO], ScoreWriter]] = {
    "jsonl": JsonLinesWriter,
    "csv": CsvWriter,
}
SCORE_FORMATS = ("jsonl", "csv", "parquet")
"""Formats of scores, which are also the suffixes of their files."""


@contextmanager
def open_writer(path: Path, form: str) -> Iterator[ScoreWriter]:
    """Write scores to a file; it is complete when the context ends."""
    if form == "parquet":
        with closing(ParquetScores(path)) as writer:
            yield writer
    else:
        # Lone surrogates are written as escapes: the file stays UTF-8.
        with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            yield TEXT_WRITERS[form](file)


def check_score_format(name: str) -> None:
    """Raise unless scores can be written in a format."""
    lookup(dict.fromkeys(SCORE_FORMATS), name, "output format")
    if name == "parquet":
        require("pyarrow", "parquet")


def score_format(path: Path) -> str:
    """Return the format of a file of scores by its suffix, or raise where it cannot be written."""
    form = path.suffix.lower().removeprefix(".")
    if form not in SCORE_FORMATS:
        raise InputError(f"{path.name}: scores are written to .jsonl, .csv or .parquet")
    check_score_format(form)
    return form
