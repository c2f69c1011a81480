"""Tables of any size, a chunk at a time: CSV, TSV, JSON lines, Parquet, COCO results.

A row that is broken is a row without a pair and with a reason; it never ends a run. A file that is
no table at all raises :class:`~discode.errors.InputError`.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from discode.bulk.chunks import Block, Chunk, Cut, Piece, cut
from discode.errors import InputError, require
from discode.files import parse_json
from discode.pairs import CAPTION_COLUMNS, IMAGE_COLUMNS, REFERENCE_COLUMNS, Pair, PairRows

LINES_TO_TRUST = 100
"""A file of JSON lines must hold an object among its first so many."""


@dataclass(frozen=True)
class SourceFile:
    """One file of an input.

    Attributes:
        path: Where it is.
        number: Its place among the files.
        name: What the output calls it.
        prefix: What stands before a row's number where the row has no id.
    """

    path: Path
    number: int = 0
    name: str = ""
    prefix: str = ""


Row = Mapping[str, Any] | InputError
"""A row, or what is wrong with it."""


def make_chunk(
    piece: Piece,
    rows: Sequence[tuple[str, Row]],
    file: SourceFile,
    maker: PairRows,
    *,
    keep: bool,
) -> Chunk:
    """Turn rows, each with the place it stands at, into a chunk."""
    ids: list[str] = []
    pairs: list[Pair | None] = []
    errors: dict[int, str] = {}
    for place, (where, row) in enumerate(rows):
        name = f"{file.prefix}{piece.start + place}"
        try:
            if isinstance(row, InputError):
                raise row
            pair = maker.pair(row, where, name)
        except InputError as error:
            errors[place] = str(error)
            given = row.get("id") if isinstance(row, Mapping) else None
            ids.append(name if given is None else str(given))
            pairs.append(None)
        else:
            ids.append(pair.id)
            pairs.append(pair)
    return Chunk(piece, ids, pairs, errors, [row for _, row in rows] if keep else None)


def read_jsonl(file: SourceFile, how: Cut, maker: PairRows, *, keep: bool) -> Iterator[Chunk]:
    """Read JSON lines; only the lines of wanted blocks are parsed."""
    with _opened(file.path) as handle:
        lines = _lines(handle)
        first = list(itertools.islice(lines, LINES_TO_TRUST))
        rows = [_json_row(number, line, file.name) for number, line in first]
        if first and all(isinstance(row, InputError) for _, row in rows):
            raise InputError(f"{file.path} holds no JSON lines: {rows[0][1]}")
        for piece, part in cut(itertools.chain(first, lines), file.number, how):
            rows = [_json_row(number, line, file.name) for number, line in part]
            yield make_chunk(piece, rows, file, maker, keep=keep)


def _lines(handle: Any) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(handle, start=1):
        if not line.isspace():
            yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def _json_row(number: int, line: bytes, name: str) -> tuple[str, Row]:
    where = f"{name} line {number}"
    try:
        row = parse_json(line.decode(), where)
    except UnicodeDecodeError as error:
        return where, InputError(f"{where} is not UTF-8: {error}")
    except InputError as error:
        return where, error
    return where, _object(row, where)


def _object(row: Any, where: str) -> Row:
    if isinstance(row, dict):
        return row
    return InputError(f"{where} is no object with fields but {type(row).__name__}")


def read_csv(file: SourceFile, how: Cut, maker: PairRows, *, keep: bool) -> Iterator[Chunk]:
    """Read CSV, or TSV by its suffix."""
    delimiter = "\t" if file.path.suffix.lower() == ".tsv" else ","
    try:
        # What is no UTF-8 is kept as lone surrogates, so that it costs its row and no other.
        with file.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as handle:
            reader = csv.reader(handle, delimiter=delimiter, strict=True)
            try:
                header = next(reader, [])
            except csv.Error as error:
                raise InputError(f"cannot read {file.path}: {error}") from error
            check_columns(header, file.path)
            for piece, part in cut(_csv_rows(reader, header, file.name), file.number, how):
                yield make_chunk(piece, part, file, maker, keep=keep)
    except OSError as error:
        raise InputError(f"cannot read {file.path}: {error}") from error


def _csv_rows(reader: Any, header: list[str], name: str) -> Iterator[tuple[str, Row]]:
    while True:
        begun = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:  # the reader goes on behind what it could not make out
            yield from _lost(name, range(begun, reader.line_num + 1), f"is no CSV: {error}")
            continue
        if not cells:
            continue
        where = f"{name} line {reader.line_num}"
        if len(cells) != len(header):
            why = f"does not have the {len(header)} columns of the header"
            yield from _lost(name, range(begun, reader.line_num + 1), why)
        elif not all(map(str.isascii, cells)) and any(map(_broken, cells)):
            yield where, InputError(f"{where} is not UTF-8")
        else:
            yield where, dict(zip(header, cells, strict=True))


def _lost(name: str, lines: range, why: str) -> Iterator[tuple[str, Row]]:
    """Yield a row for every line that is lost: a quote that is not closed swallows many."""
    for line in lines:
        where = f"{name} line {line}"
        if len(lines) == 1:
            yield where, InputError(f"{where} {why}")
        else:
            span = f"{name} lines {lines[0]} to {lines[-1]}, read as one row"
            yield where, InputError(f"{where} is lost: {span}, {why}; see the quotes of {lines[0]}")


def _broken(text: str) -> bool:
    return text.encode(errors="replace").decode() != text


def read_json(file: SourceFile, how: Cut, maker: PairRows, *, keep: bool) -> Iterator[Chunk]:
    """Read COCO results or another JSON list of rows, which has to be loaded whole."""
    with _opened(file.path) as handle:
        entries = parse_json(handle.read().decode("utf-8-sig", "replace"), file.name)
    if not isinstance(entries, list):
        raise InputError(f"{file.name} is no list of rows; COCO results are a list of objects")
    rows = (
        (where := f"{file.name} entry {number}", _object(row, where))
        for number, row in enumerate(entries)
    )
    for piece, part in cut(rows, file.number, how):
        yield make_chunk(piece, part, file, maker, keep=keep)


def read_parquet(file: SourceFile, how: Cut, maker: PairRows, *, keep: bool) -> Iterator[Chunk]:
    """Read Parquet; row groups without a wanted block are not touched.

    Pictures may stand in the table as bytes, or as the struct that `datasets` writes.
    """
    parquet = require("pyarrow.parquet", "parquet")
    try:
        table = parquet.ParquetFile(file.path)
    except Exception as error:  # pyarrow's errors share no base that can be named without it
        raise InputError(f"cannot read {file.path}: {error}") from error
    with table:
        names = table.schema_arrow.names
        check_columns(names, file.path)
        used = (*IMAGE_COLUMNS, *CAPTION_COLUMNS, *REFERENCE_COLUMNS, "id")
        columns = None if keep else [name for name in names if name in used]
        first = 0
        for group in range(table.metadata.num_row_groups):
            facts = table.metadata.row_group(group)
            span = range(first, first + facts.num_rows)
            first = span.stop
            if not span or not any(map(how.wanted, {row // how.size for row in span[:: how.size]}
                                       | {span[-1] // how.size})):  # fmt: skip
                continue
            # Pictures inside make a row large: batches are made by bytes, too.
            weight = max(1, facts.total_byte_size // facts.num_rows)
            rows = max(1, min(how.rows, how.bytes // weight))
            batches = table.iter_batches(rows, row_groups=[group], columns=columns)
            for piece, batch in _pieces(batches, span, file, how, table.metadata.num_rows):
                yield _parquet_chunk(piece, batch, file, maker, keep=keep)


def _pieces(
    batches: Iterator[Any], span: range, file: SourceFile, how: Cut, total: int
) -> Iterator[tuple[Piece, Any]]:
    """Yield the wanted pieces of a row group; where it cannot be read, how many rows are lost."""
    at = span.start
    while at < span.stop:
        try:
            batch: Any = next(batches)
            stop = at + batch.num_rows
        except Exception as error:  # a damaged page: the rest of the row group is gone
            batch, stop = (
                f"{file.name}: rows {at} to {span.stop - 1} cannot be read: {error}",
                span.stop,
            )
        begin = at
        while at < stop:
            end = min(stop, (at // how.size + 1) * how.size)
            if isinstance(batch, str):
                end = min(end, at + how.rows)
            number = at // how.size
            if how.wanted(number):
                closed = end % how.size == 0 or end == total
                piece = Piece(Block(file.number, number), at, closed, end == total)
                lost = [batch] * (end - at) if isinstance(batch, str) else None
                yield piece, lost or batch.slice(at - begin, end - at)
            at = end


def _parquet_chunk(
    piece: Piece, batch: Any, file: SourceFile, maker: PairRows, *, keep: bool
) -> Chunk:
    if isinstance(batch, list):
        rows: list[tuple[str, Row]] = [("", InputError(reason)) for reason in batch]
        return make_chunk(piece, rows, file, maker, keep=False)
    where = f"{file.name} row "
    rows = [(f"{where}{number}", row) for number, row in enumerate(batch.to_pylist(), piece.start)]
    chunk = make_chunk(piece, rows, file, maker, keep=False)
    return Chunk(piece, chunk.ids, chunk.pairs, chunk.errors, batch if keep else None)


def check_columns(names: Sequence[str], path: Path) -> None:
    """Raise unless a table has a picture and a caption among its columns."""
    for wanted in (IMAGE_COLUMNS, CAPTION_COLUMNS):
        if not set(wanted) & set(names):
            raise InputError(
                f"{path} has no column {wanted[0]!r} (nor {', '.join(wanted[1:])}); it has: "
                f"{', '.join(map(str, names)) or 'nothing'}"
            )


def _opened(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error}") from error


Reader = Callable[..., Iterator[Chunk]]
"""``read(file, how, maker, keep=...)``: the chunks of the wanted blocks, in order."""
