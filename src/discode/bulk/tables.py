"""Tables of any size, a chunk at a time: CSV, TSV, JSON lines, Parquet, COCO's JSON.

A broken row is a row without a pair and with a reason; it never ends a run. A file that is not a
table at all raises :class:`~discode.errors.InputError`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from discode.bulk.chunks import ChunkPlace, ChunkPlan, PairChunk, Shard, split
from discode.errors import InputError
from discode.files import ParquetTable, PlacedRow, csv_rows, json_lines, json_rows, parse_line
from discode.pairs import (
    CAPTION_COLUMNS,
    IMAGE_COLUMNS,
    Pair,
    PairColumns,
    PairParser,
    columns_without_header,
    first_filled,
    image_name,
    lacking,
    row_id,
)

LINES_TO_TRUST = 100
"""A file of JSON lines must hold an object among its first so many."""


@dataclass(frozen=True)
class InputFile:
    """One file of an input.

    Attributes:
        path: Where it is.
        number: Its place among the files.
        name: What the output calls it.
        prefix: What precedes a row's number where the row has no id.
    """

    path: Path
    number: int = 0
    name: str = ""
    prefix: str = ""


def make_chunk(
    place: ChunkPlace,
    rows: Sequence[PlacedRow],
    file: InputFile,
    parser: PairParser,
    *,
    keep: bool,
) -> PairChunk:
    """Turn rows into a chunk; with ``keep`` it holds the rows, too."""
    ids: list[str] = []
    images: list[str | None] = []
    pairs: list[Pair | None] = []
    errors: dict[int, str] = {}
    captions: dict[int, str] = {}
    for number, (where, row) in enumerate(rows):
        default = f"{file.prefix}{place.start + number}"
        try:
            if isinstance(row, InputError):
                raise row
            columns = parser.columns(row, where)
        except InputError as error:
            errors[number] = str(error)
            ids.append(default)
            images.append(None)
            pairs.append(None)
            continue
        ids.append(row_id(row, columns, default, file.prefix))
        images.append(image_name(row, columns))
        try:
            pairs.append(parser.parse(row, where, ids[-1]))
        except InputError as error:
            errors[number] = str(error)
            pairs.append(None)
            if isinstance(caption := first_filled(row, columns.caption), str):
                captions[number] = caption
    samples = [row for _, row in rows] if keep else None
    return PairChunk(place, file.name, ids, images, pairs, errors, samples, captions)


def jsonl_chunks(
    file: InputFile, plan: ChunkPlan, parser: PairParser, *, keep: bool
) -> Iterator[PairChunk]:
    """Read JSON lines; only the lines of wanted shards are parsed."""
    lines = json_lines(file.path, file.name)
    first = list(itertools.islice(lines, LINES_TO_TRUST))
    rows = list(itertools.starmap(parse_line, first))
    if first and all(isinstance(row, InputError) for _, row in rows):
        raise InputError(f"{file.path} holds no JSON lines: {rows[0][1]}")
    for place, chunk in split(itertools.chain(first, lines), file.number, plan):
        rows = list(itertools.starmap(parse_line, chunk))
        yield make_chunk(place, rows, file, parser, keep=keep)


def csv_chunks(
    file: InputFile, plan: ChunkPlan, parser: PairParser, *, keep: bool
) -> Iterator[PairChunk]:
    """Read a CSV file, or TSV by its suffix."""
    rows = csv_rows(file.path, file.name, partial(check_header, file.path))
    for place, chunk in split(rows, file.number, plan):
        yield make_chunk(place, chunk, file, parser, keep=keep)


def json_chunks(
    file: InputFile, plan: ChunkPlan, parser: PairParser, *, keep: bool
) -> Iterator[PairChunk]:
    """Read COCO results, annotations or another JSON list of rows, which has to be loaded whole."""
    for place, chunk in split(json_rows(file.path, file.name), file.number, plan):
        yield make_chunk(place, chunk, file, parser, keep=keep)


def parquet_chunks(
    file: InputFile, plan: ChunkPlan, parser: PairParser, *, keep: bool
) -> Iterator[PairChunk]:
    """Read Parquet; row groups without a wanted shard are not touched.

    Images may be in the table as bytes, or as the struct that `datasets` writes. Kept samples are
    Arrow batches, so that they can be written again with their types.
    """
    with closing(ParquetTable(file.path, file.name)) as table:
        roles = check_columns(file.path, table.columns)
        used = {*roles.image, *roles.caption, *roles.references, *roles.id}
        columns = None if keep else [name for name in table.columns if name in used]
        for span, batch in table.batches(columns, plan.wants_any, plan.max_rows, plan.max_bytes):
            for place, numbers in _by_shard(span, file.number, plan, table.rows):
                lost = isinstance(batch, InputError)
                piece = batch if lost else batch.slice(numbers.start - span.start, len(numbers))
                chunk = make_chunk(place, table.parse(numbers, piece), file, parser, keep=False)
                yield replace(chunk, samples=piece if keep and not lost else None)


def _by_shard(
    span: range, file: int, plan: ChunkPlan, total: int
) -> Iterator[tuple[ChunkPlace, range]]:
    """Divide the rows of a batch where shards end, and where a chunk would be too large."""
    start = span.start
    while start < span.stop:
        number = start // plan.shard_rows
        end = min(span.stop, (number + 1) * plan.shard_rows, start + plan.max_rows)
        if plan.wanted(number):
            ends_shard = end % plan.shard_rows == 0 or end == total
            place = ChunkPlace(Shard(file, number), start, ends_shard, end == total)
            yield place, range(start, end)
        start = end


def check_columns(path: Path, names: Sequence[str]) -> PairColumns:
    """Return which columns of a table hold what; raise where it has no image or no caption."""
    try:
        roles = PairColumns.among(names)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    for columns, allowed in ((roles.image, IMAGE_COLUMNS), (roles.caption, CAPTION_COLUMNS)):
        if not columns:
            raise InputError(f"{path} {lacking(allowed, names, 'column ')}")
    return roles


def check_header(path: Path, cells: Sequence[str]) -> Sequence[str] | None:
    """Check the first line of CSV; return the columns where it is a row already."""
    columns = columns_without_header(cells)
    if columns is None:
        check_columns(path, cells)
    return columns


ChunkReader = Callable[..., Iterator[PairChunk]]
"""``read(file, plan, parser, keep=...)``: the chunks of the wanted shards, in order."""
