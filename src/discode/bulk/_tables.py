"""Tables of any size, a chunk at a time: CSV, TSV, JSON lines, Parquet, COCO's JSON.

The pair of a broken row has a ``problem``; it never ends a run. A file that is not a
table at all raises :class:`~discode.errors.InputError`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from discode._columns import (
    CAPTION_COLUMNS,
    IMAGE_COLUMNS,
    PairColumns,
    columns_without_header,
    first_filled,
    image_name,
    lacking,
    row_id,
)
from discode._files import ParquetTable, TableRow, json_lines, parse_line, read_table
from discode._pairs import Pair, PairParser
from discode.bulk._chunks import ChunkPlace, ChunkPlan, PairChunk
from discode.errors import InputError

LINES_TO_TRUST = 100
"""A file of JSON lines must have an object among this many first lines."""


class Row(NamedTuple):
    """A row of an input: where it is, its fields, and what else is known of it.

    Attributes:
        where: Where it is, for messages.
        fields: Its fields, or the error in it.
        sample: The original row, to be written again.
        key: Its name where it has no id; None for its number.
        weight: The bytes of its images, where they are in memory.
    """

    where: str
    fields: TableRow
    sample: Any = None
    key: str | None = None
    weight: int = 0


RowReader = Callable[[Path, str, ChunkPlan, bool], Iterator[Row]]
"""``read(path, name, plan, keep)``: all rows in order; those of unwanted shards may be empty.

Messages call the file ``name``. With ``keep``, rows have samples.
"""


def make_chunk(
    place: ChunkPlace, rows: Sequence[Row], source: str, prefix: str, parser: PairParser
) -> PairChunk:
    """Turn rows into a chunk; a name that is not an id has a prefix."""
    images: list[str | None] = []
    captions: list[str | None] = []
    pairs: list[Pair] = []
    for number, row in enumerate(rows):
        name = prefix + (row.key or str(place.start + number))
        image = caption = None
        try:
            if isinstance(row.fields, InputError):
                raise row.fields
            columns = PairColumns.among(row.fields, row.where)
            name = row_id(row.fields, columns, name, prefix)
            image = image_name(row.fields, columns)
            caption = first_filled(row.fields, columns.caption)
            pair = parser.parse(row.fields, row.where, name)
        except InputError as error:
            pair = Pair("", "", (), name, str(error))
        images.append(image)
        captions.append(caption if isinstance(caption, str) else None)
        pairs.append(pair)
    samples = [row.sample for row in rows]
    return PairChunk(place, source, pairs, images, captions, samples)


def jsonl_rows(path: Path, name: str, plan: ChunkPlan, keep: bool) -> Iterator[Row]:
    """Read JSON lines; a file without an object among its first lines is refused."""
    lines = json_lines(path, name)
    first = list(itertools.islice(lines, LINES_TO_TRUST))
    parsed = [parse_line(where, line)[1] for where, line in first]
    if first and all(isinstance(fields, InputError) for fields in parsed):
        raise InputError(f"{path} holds no JSON lines: {parsed[0]}")
    for number, (where, line) in enumerate(itertools.chain(first, lines)):
        fields = parse_line(where, line)[1] if plan.wanted(number // plan.shard_rows) else {}
        yield Row(where, fields, fields if keep else None)


def table_rows(path: Path, name: str, plan: ChunkPlan, keep: bool) -> Iterator[Row]:
    """Read CSV, TSV, or JSON (COCO results, annotations, another list), which is loaded whole."""
    for where, fields in read_table(path, partial(check_header, path), name):
        yield Row(where, fields, fields if keep else None)


def parquet_rows(path: Path, name: str, plan: ChunkPlan, keep: bool) -> Iterator[Row]:
    """Read Parquet; row groups without a wanted shard are not touched.

    Images may be in the table as bytes, or as the struct that `datasets` writes. Samples are Arrow
    batches of one row, so that they can be written again with their types.
    """
    with closing(ParquetTable(path, name)) as table:
        roles = check_columns(path, table.columns)
        used = {*roles.image, *roles.caption, *roles.references, *roles.id}
        columns = None if keep else [column for column in table.columns if column in used]
        for span, batch in table.batches(columns, plan.wants):
            if not plan.wants(span):
                yield from itertools.repeat(Row("", {}), len(span))
                continue
            for number, (where, fields) in enumerate(table.parse(span, batch)):
                sample = batch.slice(number, 1) if keep and isinstance(fields, dict) else None
                yield Row(where, fields, sample, None, 0 if table.light else _weight(fields))


def _weight(value: Any) -> int:
    if isinstance(value, dict | list):
        return sum(map(_weight, value.values() if isinstance(value, dict) else value))
    return len(value) if isinstance(value, bytes) else 0


def check_columns(path: Path, names: Sequence[str]) -> PairColumns:
    """Return which columns of a table hold what; raise where it has no image or no caption."""
    roles = PairColumns.among(names, path)
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
