"""Files: tables read row by row, results written whole or not at all."""

from __future__ import annotations

import csv
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from discode.errors import InputError, require


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a file beside ``path`` to write to, renamed to it at the end.

    A bad path fails before the work begins, and an interrupted run leaves the old file whole.
    """
    path = path.resolve()  # through a link, to the file it names
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    os.close(handle)
    temp = Path(name)
    try:
        yield temp
        mask = os.umask(0)
        os.umask(mask)
        temp.chmod(0o666 & ~mask)  # mkstemp's files are private
        temp.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temp.unlink(missing_ok=True)


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where, row) from any table format, naming the place of what is broken."""
    readers = {
        ".csv": _csv_rows,
        ".tsv": _csv_rows,
        ".jsonl": _jsonl_rows,
        ".ndjson": _jsonl_rows,
        ".json": _json_rows,
        ".parquet": _parquet_rows,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path.name}: unknown format; allowed are {', '.join(readers)}")
    try:
        for where, row in reader(path):
            if not isinstance(row, dict):
                raise InputError(f"{where} is no object with fields but {type(row).__name__}")
            yield where, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def _csv_rows(path: Path) -> Iterator[tuple[str, Any]]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    with path.open(encoding="utf-8-sig", newline="") as file:
        # strict: a quote that is never closed would swallow all later rows
        reader = csv.DictReader(file, delimiter=delimiter, strict=True)
        for row in reader:
            if None in row or None in row.values():
                raise InputError(
                    f"{path.name} line {reader.line_num} does not have the "
                    f"{len(reader.fieldnames or ())} columns of the header"
                )
            yield f"{path.name} line {reader.line_num}", row


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path.name} line {number}"
                yield where, parse_json(line, where)


def _json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    rows = parse_json(path.read_text(encoding="utf-8-sig"), path.name)
    if not isinstance(rows, list):
        raise InputError(f"{path.name} is no list of rows; COCO results are a list of objects")
    for number, row in enumerate(rows):
        yield f"{path.name} entry {number}", row


def parse_json(text: str, where: str) -> Any:
    """Parse JSON, or name the place where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {error}") from None


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    parquet = require("pyarrow.parquet", "parquet")
    try:
        file = parquet.ParquetFile(path)
    except Exception as error:  # pyarrow's errors share no base that can be named without it
        raise InputError(f"cannot read {path}: {error}") from error
    number = 0
    for batch in file.iter_batches():
        for row in batch.to_pylist():
            yield f"{path.name} row {number}", row
            number += 1
