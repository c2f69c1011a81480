"""How many rows an input has: counted where that is quick, otherwise estimated from a sample."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from discode.bulk.chunks import Share
from discode.bulk.inputs import Inputs
from discode.bulk.tars import JoinedTars, split_name
from discode.errors import InputError
from discode.files import ParquetTable

SAMPLE_BYTES = 16 << 20
"""Of tables whose lines are counted."""
SAMPLE_FILES = 100
"""Of Parquet whose metadata are read."""
SAMPLE_MEMBERS = 2000
"""Of tars whose headers are read; files inside are passed over."""


@dataclass(frozen=True)
class RowCount:
    """How many rows there are; where that is not ``exact``, about how many."""

    rows: int
    exact: bool = True


def count_rows(inputs: Inputs, share: Share | None = None) -> RowCount | None:
    """Return how many rows a share of an input has, all of it by default; None if nobody knows.

    It takes about a second at most, whatever the size of the input: Parquet says it, small tables
    are read, and large ones and tars are estimated by their bytes.
    """
    share, number = share or Share(), len(inputs.files)
    mine = [k for k in range(number) if share.reads(k, number)]
    if not mine:
        return RowCount(0)
    part = replace(
        inputs,
        files=tuple(inputs.files[k] for k in mine),
        names=tuple(inputs.names[k] for k in mine),
    )
    try:
        exact = None if inputs.format == "parquet" else part.count_rows()
        estimate = _ESTIMATES.get(inputs.format)
        found = RowCount(exact) if exact is not None else estimate and estimate(part.files)
    except (InputError, OSError):
        return None  # whoever reads it reports what is wrong with it
    if found and number < share.count:  # whose shards go round
        return RowCount(-(-found.rows // share.count), exact=False)
    return found


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
                    found, extension = ("", "") if info.isdir() else split_name(info.name)
                    if found and extension and found != key:
                        samples, key = samples + 1, found
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


_ESTIMATES: dict[str, Callable[[Sequence[Path]], RowCount | None]] = {
    "csv": _by_lines,
    "tsv": _by_lines,
    "jsonl": _by_lines,
    "parquet": _by_metadata,
    "tar": _by_headers,
}
"""By format; COCO's JSON has none, since a list has to be read whole."""
