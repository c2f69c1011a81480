"""The formats of inputs: one row each, with what reads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from discode.bulk.tables import ChunkReader, csv_chunks, json_chunks, jsonl_chunks, parquet_chunks
from discode.bulk.tars import tar_chunks
from discode.errors import InputError


@dataclass(frozen=True)
class InputFormat:
    """A format: the suffixes of its files, and what reads it."""

    suffixes: tuple[str, ...]
    read: ChunkReader


FORMATS: dict[str, InputFormat] = {
    "csv": InputFormat((".csv",), csv_chunks),
    "tsv": InputFormat((".tsv",), csv_chunks),
    "jsonl": InputFormat((".jsonl", ".ndjson"), jsonl_chunks),
    "json": InputFormat((".json",), json_chunks),
    "parquet": InputFormat((".parquet",), parquet_chunks),
    "tar": InputFormat((".tar", ".tar.gz", ".tgz"), tar_chunks),
}
"""Name, which is also the suffix of the samples that pass, to format."""


def format_of(path: Path) -> str | None:
    """Return the format of a file by its name; None where it has none that is known.

    >>> format_of(Path("train-00000.tar.gz")), format_of(Path("README"))
    ('tar', None)
    """
    name = path.name.lower()
    return next((key for key, row in FORMATS.items() if name.endswith(row.suffixes)), None)


def check_format(path: Path) -> str:
    """Return the format of a file, or raise where it is not known."""
    form = format_of(path)
    if form is None:
        allowed = ", ".join(suffix for row in FORMATS.values() for suffix in row.suffixes)
        raise InputError(f"{path.name}: unknown format; allowed are {allowed}")
    return form
