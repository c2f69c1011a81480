"""The formats that large runs read, as rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from discode.bulk.passing import (
    PassingCsv,
    PassingLines,
    PassingMaker,
    PassingParquet,
    PassingTar,
    passing_tsv,
)
from discode.bulk.tables import Reader, read_csv, read_json, read_jsonl, read_parquet
from discode.bulk.tars import read_tar
from discode.errors import InputError


@dataclass(frozen=True)
class Format:
    """A format: how its files end, who reads it, who writes what passes a threshold."""

    suffixes: tuple[str, ...]
    read: Reader
    passing: PassingMaker | None


FORMATS: dict[str, Format] = {
    "csv": Format((".csv",), read_csv, PassingCsv),
    "tsv": Format((".tsv",), read_csv, passing_tsv),
    "jsonl": Format((".jsonl", ".ndjson"), read_jsonl, PassingLines),
    "json": Format((".json",), read_json, None),
    "parquet": Format((".parquet",), read_parquet, PassingParquet),
    "tar": Format((".tar", ".tar.gz", ".tgz"), read_tar, PassingTar),
}
"""Name, which is also the suffix of what passes, to format."""


def kind_of(path: Path, *, strict: bool = True) -> str:
    """Return the format of a file by its name; "" or an error where it has none.

    >>> kind_of(Path("train-00000.tar.gz"))
    'tar'
    """
    name = path.name.lower()
    for kind, row in FORMATS.items():
        if name.endswith(row.suffixes):
            return kind
    if strict:
        allowed = ", ".join(suffix for row in FORMATS.values() for suffix in row.suffixes)
        raise InputError(f"{path.name}: unknown format; allowed are {allowed}")
    return ""
