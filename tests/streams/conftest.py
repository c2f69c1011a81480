from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from PIL import Image


def png(colour: str = "red") -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(data, "PNG")
    return data.getvalue()


def write_tar(path: Path, files: Mapping[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1_700_000_000
            tar.addfile(info, io.BytesIO(data))
    return path


def read_parts(folder: Path) -> list[dict[str, object]]:
    """All score rows of a folder, in the order of its shards."""
    rows = []
    for file in sorted(folder.glob("part-*.jsonl")):
        rows += [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return rows


@pytest.fixture
def lines(tmp_path: Path) -> Callable[[int], Path]:
    def make(n: int, name: str = "set.jsonl") -> Path:
        from tests.streams.instant import rows

        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows(n)))
        return path

    return make
