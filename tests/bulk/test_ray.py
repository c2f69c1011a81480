"""The same judge over a real Ray on this machine: the same bytes, also when workers are killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import discode
from discode.bulk import Totals, plan_run
from discode.bulk._ray import _probe, score_with_ray
from discode.errors import InputError
from discode.images import demo_path
from tests.helpers.instant import make_judge, maker, rows, to_folder
from tests.helpers.samples import write_table

ray = pytest.importorskip("ray", reason="Ray is tested with discode-eval[ray]")
pytest.importorskip("ray.data", reason="Ray is tested with discode-eval[ray]")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("cluster"),
    # Ray leaves sockets and files to the collector, and warns of its own coming changes.
    pytest.mark.filterwarnings("ignore"),
]


def with_ray(make: Any, source: Path, out: Path, workers: int, **options: Any) -> Totals:
    progress = options.pop("progress", None)
    return score_with_ray(
        make, plan_run(source, out, **options), workers=workers, progress=progress
    )


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


def test_a_real_cluster_is_known_by_its_answer() -> None:
    _probe(ray.get_runtime_context().gcs_address)


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
def test_mistakes_are_told_in_a_line(tmp_path: Path, five_thousand: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"no table")
    (tmp_path / "none.jsonl").write_text("")
    broken = partial(discode.load, "embedded:none.onnx")
    for number, (make, path, workers, place) in enumerate((
        (maker(), tmp_path / "bad.parquet", 1, "bad.parquet"),
        (broken, five_thousand, 1, "none.onnx"),
        (maker(), five_thousand, 0, "workers=0"),
        (maker(), tmp_path / "none.jsonl", 1, "none.jsonl"),
    )):  # fmt: skip
        with pytest.raises(InputError, match=place):
            with_ray(make, path, tmp_path / f"out{number}", workers=workers)


@pytest.mark.full
def test_the_command_line_joins_the_cluster(
    tmp_path: Path, shipped: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = [{"image": "cat.jpg", "caption": f"a cat {i}"} for i in range(6)]
    path = write_table(tmp_path / "set.jsonl", table)
    import typer.testing

    from discode._cli import app

    done = typer.testing.CliRunner().invoke(
        app,
        ["score", "-i", str(path), "--images", str(demo_path()), "-o", str(tmp_path / "out"),
         "--engine", "ray", "--workers", "1", "--threads", "1", "--shard-size", "4"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    judge = discode.load("embedded", threads=1)
    to_folder(judge, path, tmp_path / "want", images=demo_path(), shard_size=4)
    assert parts(tmp_path / "out") == parts(tmp_path / "want")
