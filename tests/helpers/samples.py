"""Small images, tar files and score files, made and read in one line."""

from __future__ import annotations

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


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_parts(folder: Path) -> list[dict[str, object]]:
    """All score rows of a folder, in the order of its shards."""
    return [row for file in sorted(folder.glob("part-*.jsonl")) for row in read_jsonl(file)]
