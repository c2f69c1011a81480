"""The formats of inputs: the suffixes of their files, and what reads them."""

from __future__ import annotations

from pathlib import Path

from discode.bulk._tables import RowReader, jsonl_rows, parquet_rows, table_rows
from discode.bulk._tars import tar_rows
from discode.errors import InputError

FORMATS: dict[str, tuple[tuple[str, ...], RowReader]] = {
    "csv": ((".csv",), table_rows),
    "tsv": ((".tsv",), table_rows),
    "jsonl": ((".jsonl", ".ndjson"), jsonl_rows),
    "json": ((".json",), table_rows),
    "parquet": ((".parquet",), parquet_rows),
    "tar": ((".tar", ".tar.gz", ".tgz"), tar_rows),
}
"""Name, which is also the suffix of the samples that pass, to suffixes and reader."""


def format_of(path: Path) -> str | None:
    """Return the format of a file by its name; None where it has none that is known.

    >>> format_of(Path("train-00000.tar.gz")), format_of(Path("README"))
    ('tar', None)
    """
    name = path.name.lower()
    return next((form for form, (ends, _) in FORMATS.items() if name.endswith(ends)), None)


def check_format(path: Path) -> str:
    form = format_of(path)
    if form is None:
        allowed = ", ".join(suffix for suffixes, _ in FORMATS.values() for suffix in suffixes)
        raise InputError(f"{path.name}: unknown format; allowed are {allowed}")
    return form
