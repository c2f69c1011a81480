"""How many rows an input has, for the progress bar: from its metadata, headers or lines."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from discode._columns import columns_without_header
from discode._files import ParquetTable
from discode.bulk._chunks import Share
from discode.bulk._inputs import Inputs
from discode.bulk._tars import JoinedTars, split_name
from discode.errors import InputError

SAMPLES = {"parquet": 100, "tar": 2000, **dict.fromkeys(("csv", "tsv", "jsonl"), 16 << 20)}
"""How much of an input is looked at: files of Parquet, headers of tars, bytes of text.

A list in JSON would have to be read whole.
"""


@dataclass(frozen=True)
class RowCount:
    """How many rows there are; where that is not ``exact``, about how many."""

    rows: int
    exact: bool = True


def count_rows(inputs: Inputs, share: Share | None = None) -> RowCount | None:
    """Return how many rows a share of an input has, all of it by default; None if not known.

    It takes about a second at most for any input.
    """
    share, number = share or Share(), len(inputs.files)
    files = [file for k, file in enumerate(inputs.files) if share.reads(k, number)]
    try:
        count = _count(inputs.format, files)
    except (InputError, OSError, tarfile.TarError):  # a compressed tar is one without headers
        return None  # reading it reports the problem
    if count and number < share.count:  # shards are dealt in turn
        return RowCount(-(-count.rows // share.count), exact=False)
    return count


def _count(form: str, files: Sequence[Path]) -> RowCount | None:
    size = sum(file.stat().st_size for file in files)
    look = {"parquet": _look_at_metadata, "tar": _look_at_headers}.get(form, _look_at_lines)
    rows = seen = 0
    left = SAMPLES.get(form, 0)
    for file in files:
        if left > 0:
            more_rows, more_seen, used = look(file, left)
            rows, seen, left = rows + more_rows, seen + more_seen, left - used
    if seen >= size > 0:
        return RowCount(rows, exact=form != "csv")  # whose rows may have line breaks
    return RowCount(round(rows * size / seen), exact=False) if seen else None


# Each returns the rows in some bytes of a file, those bytes, and how much of the sample they are.
def _look_at_metadata(file: Path, most: int) -> tuple[int, int, int]:
    with closing(ParquetTable(file, file.name)) as table:
        return table.rows, file.stat().st_size, 1


def _look_at_lines(file: Path, most: int) -> tuple[int, int, int]:
    with file.open("rb") as handle:
        data = handle.read(most)
        unended = data[-1:] not in (b"", b"\n") and not handle.read(1)
    mark = {".csv": ",", ".tsv": "\t"}.get(file.suffix.lower())
    cells = data.partition(b"\n")[0].decode(errors="replace").rstrip("\r").split(mark)
    header = mark is not None and columns_without_header(cells) is None
    return max(0, data.count(b"\n") + unended - header), len(data), len(data)


def _look_at_headers(file: Path, most: int) -> tuple[int, int, int]:
    keys: list[str] = []
    members = 0
    with JoinedTars.open(file, "r:") as tar:
        while members < most and (info := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # it would remember them all
            members += 1
            key, extension = ("", "") if info.isdir() else split_name(info.name)
            if key and extension and keys[-1:] != [key]:
                keys.append(key)
        return len(keys), tar.offset if members == most else file.stat().st_size, members
