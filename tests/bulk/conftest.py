from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]


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
        from tests.helpers.instant import rows

        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows(n)))
        return path

    return make


@pytest.fixture(scope="package")
def cluster() -> Iterator[None]:
    """A real Ray on two cores of this machine."""
    ray = pytest.importorskip("ray", reason="Ray is tested with discode[ray]")
    with pytest.MonkeyPatch.context() as patch:
        # Workers import what the driver does.
        patch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns
        ray.init(
            num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False,
            logging_level="ERROR",
        )  # fmt: skip
        yield
        ray.shutdown()
