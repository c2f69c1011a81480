"""Tables written some rows at a time: JSON lines, CSV, TSV, Parquet, tars.

Scores are such rows, and so are the samples that reach a threshold, written again as they came:
tables with one more column, tars with the original files, byte for byte.
"""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from discode._files import csv_cell, csv_writer
from discode._scores import COLUMNS, Scores
from discode.bulk._tars import Sample
from discode.errors import InputError, lookup, require

VERSION = 7
"""Version of the columns of scores: in the manifest of a run, and in the metadata of Parquet."""

encode = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps makes an encoder per call


class JsonLinesWriter:
    """One JSON object per line; rows may be such lines already."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, rows: Iterable[Mapping[str, Any] | str]) -> None:
        self._file.writelines(row if isinstance(row, str) else f"{encode(row)}\n" for row in rows)


class CsvWriter:
    """Separated values; the columns are those of the first row."""

    def __init__(self, file: TextIO, **form: Any) -> None:
        self._writer, self._begun = csv_writer(file, **form), False

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            if not self._begun:
                self._writer.writerow(row)
                self._begun = True
            self._writer.writerow(row.values())


class ParquetWriter:
    """Parquet; the schema is that of the first Arrow table."""

    def __init__(self, path: Path) -> None:
        self._path, self._stack = path, ExitStack()
        self._writer: Any = None
        self.close = self._stack.close

    def write(self, rows: Any) -> None:
        if self._writer is None:
            open_file = require("pyarrow.parquet", "parquet").ParquetWriter
            self._writer = self._stack.enter_context(open_file(self._path, rows.schema))
        self._writer.write_table(rows)


class TarWriter:
    """A WebDataset tar with the original files under their original names."""

    def __init__(self, path: Path) -> None:
        self._tar = tarfile.open(path, "w")  # noqa: SIM115  # closed by close()
        self.close = self._tar.close

    def write(self, rows: Iterable[Any]) -> None:
        for sample in rows:
            for member in sample.members.values():
                info = tarfile.TarInfo(member.name)
                info.size, info.mtime, info.mode = len(member.data), member.mtime, member.mode
                self._tar.addfile(info, io.BytesIO(member.data))
        self._tar.members = []  # type: ignore[attr-defined]  # it remembers every member


_TSV: dict[str, Any] = {
    "delimiter": "\t",
    "quoting": csv.QUOTE_NONE,
    "quotechar": None,
}
TEXT_WRITERS: dict[str, Callable[[TextIO], Any]] = {
    "jsonl": JsonLinesWriter,
    "csv": CsvWriter,
    "tsv": partial(CsvWriter, **_TSV),  # quotes are not special
}
FILE_WRITERS: dict[str, Callable[[Path], Any]] = {"parquet": ParquetWriter, "tar": TarWriter}
"""Each has ``write``, which takes rows in order: mappings, for Parquet an Arrow table, for a tar
samples."""


@contextmanager
def open_table(path: Path, form: str) -> Iterator[Any]:
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

    def __init__(self, table: Any, form: str) -> None:
        self._table, self._rows = table, SCORE_FORMATS[form]

    def write(self, rows: Mapping[str, Scores]) -> None:
        self._table.write(self._rows(file_columns(rows)))


def file_columns(scores: Mapping[str, Scores]) -> dict[str, list[Any]]:
    """Return the columns of a score file, a row per item and method, None for nothing."""
    by_method = []
    for method, each in scores.items():
        none = [None] * len(each)
        columns = {name: column.take(each) or none for name, column in COLUMNS.items()}
        by_method.append(columns | {"method": [method] * len(each)})
    return {
        name: list(chain.from_iterable(zip(*(each[name] for each in by_method), strict=True)))
        for name in COLUMNS
    }


def _as_lines(columns: Mapping[str, list[Any]]) -> Iterator[str]:
    """Return rows as lines of JSON; a column at a time is half the work of a row at a time."""
    cells, varying = [], []
    for name, values in columns.items():
        texts = _encoded(name, values)
        cell = "%s"
        if len(texts) > 1 and texts.count(texts[0]) == len(texts):
            cell = texts[0].replace("%", "%%")  # the same in all of these rows
        else:
            varying.append(texts)
        cells.append(f"{encode(name)}: {cell}")
    line = ", ".join(cells)
    return map(f"{{{line}}}\n".__mod__, zip(*varying, strict=True))


def _encoded(name: str, values: list[Any]) -> list[str]:
    kind = COLUMNS[name].kind
    if kind in ("number", "whole") and values:
        return encode(values)[1:-1].split(", ")
    if kind == "numbers" and values:  # lists of numbers; None is no list
        lists = encode([value or () for value in values])[2:-2].split("], [")
        return [
            "null" if value is None else f"[{text}]"
            for value, text in zip(values, lists, strict=True)
        ]
    if kind in ("text", "word"):
        known = {value: encode(value) for value in {*values}}
        return [known[value] for value in values]
    return [encode(value) if value else "[]" for value in values]


def _as_rows(columns: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _as_cells(columns: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Return rows of CSV: a missing score is "nan", lists are JSON, nothing is empty.

    Texts that a spreadsheet would compute have an apostrophe before them.
    """
    for name in ("score", "raw", "smoothing"):
        columns[name] = ["nan" if value is None else value for value in columns[name]]
    for name in ("distribution", "flags"):
        texts = _encoded(name, columns[name])
        columns[name] = [None if text == "null" else text for text in texts]
    for name, column in COLUMNS.items():
        if column.kind in ("text", "word"):
            columns[name] = [value if value is None else csv_cell(value) for value in columns[name]]
    return _as_rows(columns)


@cache
def _schema() -> Any:
    """Return the types of Parquet; its metadata has the version of the columns."""
    pa = require("pyarrow", "parquet")
    text, number = pa.string(), pa.float64()
    types = {
        "text": text, "word": pa.dictionary(pa.int32(), text), "whole": pa.int64(),
        "number": number, "texts": pa.list_(text), "numbers": pa.list_(number),
    }  # fmt: skip
    fields = [(name, types[column.kind]) for name, column in COLUMNS.items()]
    return pa.schema(fields, {"discode_columns": str(VERSION)})


def _as_arrow(columns: Mapping[str, list[Any]]) -> Any:
    pa, schema = require("pyarrow", "parquet"), _schema()

    def escaped(value: Any) -> Any:
        return value.encode(errors="backslashreplace").decode() if value else value

    def array(values: list[Any], kind: Any) -> Any:
        try:
            return pa.array(values, kind)
        except UnicodeEncodeError:  # half a character: Parquet's text is UTF-8
            return pa.array(map(escaped, values), kind)

    arrays = [array(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


SCORE_FORMATS: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "jsonl": _as_lines,
    "csv": _as_cells,
    "parquet": _as_arrow,
}
"""Formats of scores, which are also the suffixes of their files, to what makes rows of them."""


@contextmanager
def open_writer(path: Path, form: str) -> Iterator[ScoreWriter]:
    with open_table(path, form) as table:
        yield ScoreWriter(table, form)


def check_score_format(name: str) -> None:
    """Raise unless scores can be written in a format."""
    lookup(SCORE_FORMATS, name, "output format")
    if name == "parquet":
        require("pyarrow", "parquet")


def score_format(path: Path) -> str:
    form = path.suffix.lower().removeprefix(".")
    if form not in SCORE_FORMATS:
        raise InputError(f"{path.name}: scores are written to .jsonl, .csv or .parquet")
    check_score_format(form)
    return form


SCORE = "discode_score"
"""Name of the column with the score."""


def select(samples: Sequence[Any], rows: Sequence[int], scores: NDArray[np.float64]) -> Any:
    """Return some rows of a chunk's samples, with their scores where they are rows of a table.

    Samples are rows of a table, files of a tar, or Arrow batches; ``scores`` are of those rows.
    """
    chosen = [samples[row] for row in rows]
    if isinstance(chosen[0], dict):
        return [{**row, SCORE: score} for row, score in zip(chosen, scores.tolist(), strict=True)]
    return chosen if isinstance(chosen[0], Sample) else _add_column(chosen, scores)


def _add_column(batches: Sequence[Any], scores: NDArray[np.float64]) -> Any:
    pa = require("pyarrow", "parquet")
    table = pa.Table.from_batches(batches).combine_chunks()
    if SCORE in table.column_names:  # filtered before: the new score replaces the old
        table = table.drop_columns([SCORE])
    table = table.append_column(SCORE, pa.array(scores, pa.float64()))
    return table.replace_schema_metadata(_with_score(table.schema.metadata))


def _with_score(metadata: dict[bytes, bytes] | None) -> dict[bytes, bytes] | None:
    """Add the new column to the notes of `datasets`, which refuses a table with any other."""
    notes = dict(metadata or {})
    try:
        info = json.loads(notes[b"huggingface"])
        info["info"]["features"][SCORE] = {"dtype": "float64", "_type": "Value"}
    except (KeyError, ValueError, TypeError):  # no notes, or not written by `datasets`
        return metadata
    return notes | {b"huggingface": json.dumps(info).encode()}
