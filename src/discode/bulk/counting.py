"""How many rows an input has: counted where that is quick, otherwise estimated from a sample."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from discode.bulk.chunks import Share
from discode.bulk.inputs import Inputs
from discode.bulk.tars import JoinedTars, split_name
from discode.errors import InputError
from discode.files import ParquetTable, read_table
from discode.pairs import columns_without_header

COUNTED_BYTES = 16 << 20
"""Tables up to this size are counted."""
SAMPLE_BYTES = 16 << 20
"""Bytes of larger tables whose lines are counted."""
SAMPLE_FILES = 100
"""Parquet files whose metadata are read."""
SAMPLE_MEMBERS = 2000
"""Files in tars whose headers are read."""


@dataclass(frozen=True)
class RowCount:
    """How many rows there are; where that is not ``exact``, about how many."""

    rows: int
    exact: bool = True


def count_rows(inputs: Inputs, share: Share | None = None) -> RowCount | None:
    """Return how many rows a share of an input has, all of it by default; None if not known.

    It takes about a second at most, whatever the size of the input: Parquet says it, small tables
    are read, and large ones and tars are estimated by their bytes.
    """
    share, number = share or Share(), len(inputs.files)
    try:
        count = _count(
            inputs.format, [inputs.files[k] for k in range(number) if share.reads(k, number)]
        )
    except (InputError, OSError):
        return None  # whoever reads it reports what is wrong with it
    if count and number < share.count:  # whose shards go round
        return RowCount(-(-count.rows // share.count), exact=False)
    return count


def _count(form: str, files: Sequence[Path]) -> RowCount | None:
    if form in ("parquet", "tar"):
        return _by_metadata(files) if form == "parquet" else _by_headers(files)
    if sum(file.stat().st_size for file in files) <= COUNTED_BYTES:
        return RowCount(sum(1 for file in files for _ in read_table(file, columns_without_header)))
    return None if form == "json" else _by_lines(files)  # a list has to be read whole


def _by_metadata(files: Sequence[Path]) -> RowCount:
    seen = rows = 0
    for file in files[:SAMPLE_FILES]:
        with closing(ParquetTable(file, file.name)) as table:
            rows += table.rows
        seen += file.stat().st_size
    return _scaled(rows, seen, files)


def _by_lines(files: Sequence[Path]) -> RowCount:
    seen = lines = 0
    for file in files:
        with file.open("rb") as handle:
            data = handle.read(SAMPLE_BYTES - seen)
        seen += len(data)
        lines += data.count(b"\n")
        if seen >= SAMPLE_BYTES:
            break
    return _scaled(lines, seen, files)


def _by_headers(files: Sequence[Path]) -> RowCount | None:
    """Read headers of uncompressed tars; where they are compressed, nothing is known."""
    seen = samples = members = 0
    for file in files:
        key = ""
        try:
            with JoinedTars.open(file, "r:") as tar:
                while members < SAMPLE_MEMBERS and (info := tar.next()) is not None:
                    tar.members = []  # type: ignore[attr-defined]  # it would remember them all
                    members += 1
                    name, extension = ("", "") if info.isdir() else split_name(info.name)
                    if name and extension and name != key:
                        samples, key = samples + 1, name
                seen += tar.offset if members >= SAMPLE_MEMBERS else file.stat().st_size
        except tarfile.TarError:
            return None
        if members >= SAMPLE_MEMBERS:
            break
    return _scaled(samples, seen, files)


def _scaled(rows: int, seen: int, files: Sequence[Path]) -> RowCount:
    """Return the rows in all bytes of the files, given those in the bytes that were seen."""
    size = sum(file.stat().st_size for file in files)
    return RowCount(rows) if seen >= size else RowCount(round(rows * size / seen), exact=False)
