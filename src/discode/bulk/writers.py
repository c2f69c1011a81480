"""Tables written some rows at a time: JSON lines, CSV, TSV, Parquet, tars; and scores as such."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol, TextIO

from discode.bulk.columns import COLUMNS, VERSION, ScoredRows
from discode.errors import InputError, lookup, require
from discode.files import csv_cell

encode = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps makes an encoder per call
_TEXTS = ("id", "source", "image", "caption", "method", "error", "signature")


class TableWriter(Protocol):
    """A file that takes rows in order: mappings, for Parquet an Arrow table, for a tar samples."""

    def write(self, rows: Any) -> None:
        """Write some rows."""


class JsonLinesWriter:
    """One JSON object per line."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write some rows."""
        self._file.writelines(f"{encode(row)}\n" for row in rows)


class CsvWriter:
    """Separated values; the columns are those of the first row."""

    def __init__(self, file: TextIO, **form: Any) -> None:
        self._writer, self._begun = csv.writer(file, **form), False

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write some rows."""
        for row in rows:
            if not self._begun:
                self._writer.writerow(row)
                self._begun = True
            self._writer.writerow(row.values())


class ParquetWriter:
    """Parquet; the schema is that of the first Arrow table."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None

    def write(self, rows: Any) -> None:
        """Write an Arrow table."""
        if self._writer is None:
            parquet = require("pyarrow.parquet", "parquet")
            self._writer = parquet.ParquetWriter(self._path, rows.schema)
        self._writer.write_table(rows)

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()


class TarWriter:
    """A WebDataset tar with the original files under their original names."""

    def __init__(self, path: Path) -> None:
        self._tar = tarfile.open(path, "w")  # noqa: SIM115  # closed by close()
        self.close = self._tar.close

    def write(self, rows: Iterable[Any]) -> None:
        """Write samples."""
        for sample in rows:
            for member in sample.members:
                info = tarfile.TarInfo(member.name)
                info.size, info.mtime, info.mode = len(member.data), member.mtime, member.mode
                self._tar.addfile(info, io.BytesIO(member.data))
        self._tar.members = []  # type: ignore[attr-defined]  # it remembers every member


_TSV: dict[str, Any] = {
    "delimiter": "\t",
    "quoting": csv.QUOTE_NONE,
    "quotechar": None,
    "lineterminator": "\n",
}
TEXT_WRITERS: dict[str, Callable[[TextIO], TableWriter]] = {
    "jsonl": JsonLinesWriter,
    "csv": CsvWriter,
    "tsv": partial(CsvWriter, **_TSV),  # quotes are not special
}
FILE_WRITERS: dict[str, Callable[[Path], Any]] = {"parquet": ParquetWriter, "tar": TarWriter}


@contextmanager
def open_table(path: Path, form: str) -> Iterator[TableWriter]:
    """Write a table to a file; it is complete when the context ends."""
    if form in FILE_WRITERS:
        with closing(FILE_WRITERS[form](path)) as writer:
            yield writer
    else:
        # Lone surrogates are written as escapes: the file stays UTF-8.
        with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            yield TEXT_WRITERS[form](file)


class ScoreWriter:
    """Takes scores in order, and writes them to a table of a format."""

    def __init__(self, table: TableWriter, form: str) -> None:
        self._table, self._rows = table, SCORE_FORMATS[form]

    def write(self, rows: ScoredRows) -> None:
        """Write some rows."""
        self._table.write(self._rows(rows.columns()))


def _as_rows(columns: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _as_cells(columns: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Return rows of CSV: a missing score or raw is "nan", lists are JSON, nothing is empty.

    Texts that a spreadsheet would compute have an apostrophe before them.
    """
    for name in ("score", "raw"):
        columns[name] = ["nan" if value is None else value for value in columns[name]]
    for names, convert in ((("distribution", "flags"), encode), (_TEXTS, csv_cell)):
        for name in names:
            columns[name] = [value if value is None else convert(value) for value in columns[name]]
    return _as_rows(columns)


@cache
def _schema() -> Any:
    """Return the types of Parquet; its metadata has the version of the columns."""
    pa = require("pyarrow", "parquet")
    text, number = pa.string(), pa.float64()
    word = pa.dictionary(pa.int32(), text)  # few different ones: next to nothing per row
    types = {
        "source": word, "row": pa.int64(), "method": word, "score": number, "raw": number,
        "bound": number, "distribution": pa.list_(number), "flags": pa.list_(text),
        "signature": word,
    }  # fmt: skip
    fields = [(name, types.get(name, text)) for name in COLUMNS]
    return pa.schema(fields, {"discode_columns": str(VERSION)})


def _as_arrow(columns: Mapping[str, list[Any]]) -> Any:
    pa, schema = require("pyarrow", "parquet"), _schema()

    def array(values: list[Any], kind: Any) -> Any:
        try:
            return pa.array(values, kind)
        except UnicodeEncodeError:  # half a character: Parquet's text is UTF-8
            return pa.array([value and _escaped(value) for value in values], kind)

    arrays = [array(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _escaped(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


SCORE_FORMATS: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "jsonl": _as_rows,
    "csv": _as_cells,
    "parquet": _as_arrow,
}
"""Formats of scores, which are also the suffixes of their files, to what makes rows of them."""


@contextmanager
def open_writer(path: Path, form: str) -> Iterator[ScoreWriter]:
    """Write scores to a file; it is complete when the context ends."""
    with open_table(path, form) as table:
        yield ScoreWriter(table, form)


def check_score_format(name: str) -> None:
    """Raise unless scores can be written in a format."""
    lookup(SCORE_FORMATS, name, "output format")
    if name == "parquet":
        require("pyarrow", "parquet")


def score_format(path: Path) -> str:
    """Return the format of a file of scores by its suffix, or raise where it cannot be written."""
    form = path.suffix.lower().removeprefix(".")
    if form not in SCORE_FORMATS:
        raise InputError(f"{path.name}: scores are written to .jsonl, .csv or .parquet")
    check_score_format(form)
    return form
