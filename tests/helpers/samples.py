"""Small images, tar files and score files, made and read in one line."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    """The bytes of an image file."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def png(colour: str = "red") -> bytes:
    """The bytes of a small image of one colour."""
    return encoded(Image.new("RGB", (8, 8), colour))


def write_tar(
    path: Path, files: Mapping[str, bytes] | Sequence[tuple[str, bytes]], mode: str = "w"
) -> Path:
    """A tar with these files in this order; in a list, a name may occur twice."""
    members = files.items() if isinstance(files, Mapping) else files
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1_700_000_000
            tar.addfile(info, io.BytesIO(data))
    return path


def write_table(path: Path, table: Sequence[Mapping[str, Any]], row_group_size: int = 70) -> Path:
    """Rows in the format of the file's suffix."""
    if path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(table[0]), delimiter=_separator(path))
            writer.writeheader()
            writer.writerows(table)
    elif path.suffix == ".parquet":
        from pyarrow import Table, parquet

        parquet.write_table(Table.from_pylist(table), path, row_group_size=row_group_size)
    elif path.suffix == ".json":
        path.write_text(json.dumps(table))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table))
    return path


def read_any(path: Path) -> list[dict[str, Any]]:
    """The rows of a table in the format of the file's suffix; cells of CSV are texts."""
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return list(parquet.read_table(path).to_pylist())
    if path.suffix == ".jsonl":
        return read_jsonl(path)
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=_separator(path)))


def _separator(path: Path) -> str:
    return "\t" if path.suffix == ".tsv" else ","


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_parts(folder: Path) -> list[dict[str, object]]:
    """All score rows of a folder, in the order of its shards."""
    return [row for file in sorted(folder.glob("part-*.jsonl")) for row in read_jsonl(file)]
