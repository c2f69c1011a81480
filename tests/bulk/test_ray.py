"""The same judge over a real Ray on this machine: the same bytes, also when workers are killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import discode
from discode.bulk import Totals, plan_run
from discode.bulk.ray import score_with_ray
from discode.errors import InputError
from discode.images import demo_path
from discode.judge import Judge
from discode.scores import Progress
from tests.helpers.instant import make_judge, maker, rows, to_folder
from tests.helpers.samples import png, write_tar

ray = pytest.importorskip("ray", reason="Ray is tested with discode-eval[ray]")
pytest.importorskip("ray.data", reason="Ray is tested with discode-eval[ray]")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("cluster"),
    # Ray leaves sockets and files to the collector, and warns of its own coming changes.
    pytest.mark.filterwarnings("ignore"),
]


def with_ray(
    make: Callable[[], Judge],
    source: Path,
    out: Path,
    *,
    workers: int,
    progress: Progress | None = None,
    **options: Any,
) -> Totals:
    plan = plan_run(source, out, **options)
    return score_with_ray(make, plan, workers=workers, progress=progress)


def parts(folder: Path) -> dict[str, bytes]:
    """Every file of an output folder but the marks, whose order of counting may differ."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("part-*"))
        if file.parent.name != "_done"
    }


@pytest.fixture
def five_thousand(tmp_path: Path) -> Path:
    path = tmp_path / "set.jsonl"
    lines = [json.dumps(row) for row in rows(5000)]
    lines[17] = "{broken"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_same_bytes_as_in_process(tmp_path: Path, five_thousand: Path) -> None:
    log = tmp_path / "log"
    want = to_folder(make_judge(), five_thousand, tmp_path / "a", shard_size=900)
    done: list[int] = []
    got = with_ray(
        maker(wait=0.01, log=log), five_thousand, tmp_path / "b", workers=2, shard_size=900,
        progress=done.append,
    )  # fmt: skip
    assert parts(tmp_path / "a") == parts(tmp_path / "b")
    assert len(parts(tmp_path / "b")) == 6
    assert got == want
    assert sum(done) == 5000
    assert len({line.split()[0] for line in log.read_text().splitlines()}) == 2  # two processes
    # A second run finds all done, and one with another judge is refused.
    asked = log.read_text()
    again = with_ray(maker(log=log), five_thousand, tmp_path / "b", workers=2, shard_size=900)
    assert again == want
    assert log.read_text() == asked
    other = partial(discode.load, "embedded", threads=1)
    with pytest.raises(InputError, match="another judge"):
        with_ray(other, five_thousand, tmp_path / "b", workers=1, shard_size=900)
    # What one process began, Ray finishes, and the other way round.
    for mark in list((tmp_path / "b" / "_done").iterdir())[:2]:
        mark.unlink()
    assert with_ray(maker(), five_thousand, tmp_path / "b", workers=1, shard_size=900) == want
    next((tmp_path / "b" / "_done").iterdir()).unlink()
    assert to_folder(make_judge(), five_thousand, tmp_path / "b", shard_size=900) == want
    assert parts(tmp_path / "a") == parts(tmp_path / "b")


@pytest.mark.full
def test_a_killed_worker_changes_nothing(tmp_path: Path, five_thousand: Path) -> None:
    want = to_folder(make_judge(), five_thousand, tmp_path / "a", shard_size=900)
    log = tmp_path / "log"
    killed: list[int] = []

    def kill() -> None:
        while not killed:
            time.sleep(0.01)
            lines = log.read_text().splitlines() if log.exists() else []
            if len(lines) > 500:
                killed.append(int(lines[-1].split()[0]))
                os.kill(killed[0], signal.SIGKILL)

    side = threading.Thread(target=kill, daemon=True)
    side.start()
    got = with_ray(
        maker(wait=0.05, log=log), five_thousand, tmp_path / "b", workers=2, shard_size=900
    )
    side.join(timeout=5)
    assert killed
    assert killed[0] != os.getpid()
    asked = [line.split()[0] for line in log.read_text().splitlines()]
    assert len(asked) > 5000 - 1  # what was in the dead worker's hands was asked again
    assert set(asked) - {str(killed[0])}
    assert parts(tmp_path / "a") == parts(tmp_path / "b")
    assert got == want


@pytest.mark.full
def test_tars_with_the_embedded_model_and_a_threshold(tmp_path: Path, shipped: Path) -> None:
    (tmp_path / "in").mkdir()
    for k in range(2):
        images = sorted(demo_path().glob("*.jpg"))
        files = {f"{k}{i}.{ext}": data for i, image in enumerate(images) for ext, data in
                 (("jpg", image.read_bytes()), ("txt", b"a cat"))}  # fmt: skip
        write_tar(tmp_path / "in" / f"{k}.tar", files | {f"{k}9.jpg": png()})
    make = partial(discode.load, "embedded", threads=1)
    want = to_folder(make(), tmp_path / "in", tmp_path / "a", min_score=0.3, shard_size=3)
    got = with_ray(make, tmp_path / "in", tmp_path / "b", min_score=0.3, shard_size=3, workers=2)
    assert got == want
    assert 0 < got.passed < got.rows
    assert got.failed == 2
    assert parts(tmp_path / "a") == parts(tmp_path / "b")


@pytest.mark.full
def test_mistakes_are_told_in_a_line(tmp_path: Path, five_thousand: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"no table")
    with pytest.raises(InputError, match="cannot read"):
        with_ray(maker(), tmp_path / "bad.parquet", tmp_path / "out", workers=1)
    broken = partial(discode.load, "embedded:none.onnx")
    with pytest.raises(InputError, match=r"none\.onnx"):
        with_ray(broken, five_thousand, tmp_path / "out2", workers=1)
    with pytest.raises(InputError, match="workers=0"):
        with_ray(maker(), five_thousand, tmp_path / "out3", workers=0)
    (tmp_path / "none.jsonl").write_text("")
    with pytest.raises(InputError, match="no pairs"):
        with_ray(maker(), tmp_path / "none.jsonl", tmp_path / "out4", workers=1)


@pytest.mark.full
def test_the_command_line_joins_the_cluster(
    tmp_path: Path, shipped: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "set.jsonl"
    table = [{"image": "cat.jpg", "caption": f"a cat {i}"} for i in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in table))
    import typer.testing

    from discode.cli import app

    done = typer.testing.CliRunner().invoke(
        app,
        ["score", "-i", str(path), "--images", str(demo_path()), "-o", str(tmp_path / "out"),
         "--engine", "ray", "--workers", "1", "--threads", "1", "--shard-size", "4"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    judge = discode.load("embedded", threads=1)
    to_folder(judge, path, tmp_path / "want", images=demo_path(), shard_size=4)
    assert parts(tmp_path / "out") == parts(tmp_path / "want")
