"""Death in the middle, and memory: in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.instant import make_judge, to_folder
from tests.helpers.samples import png, read_jsonl, read_parts, write_table

ROOT = Path(__file__).parents[2]

RUN = """
import resource, signal, sys
from pathlib import Path
from tests.helpers.instant import make_judge, to_folder
source, out, images, store, log, wait, size, most = sys.argv[1:]
path = lambda text: Path(text) if text else None
def progress(count):
    if log and len(path(log).read_text().splitlines()) > int(most):
        signal.pause()  # it must not end before it is killed
judge = make_judge(float(wait), path(log), path(store), batch_size=1000 if not log else 10)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
to_folder(judge, source, out, progress, images=path(images), shard_size=int(size))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", RUN, *map(str, arguments)]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}


def test_three_kills_lose_and_repeat_nothing(tmp_path: Path, lines: Callable[..., Path]) -> None:
    n = 600
    source, out, log, store = lines(n), tmp_path / "out", tmp_path / "log", tmp_path / "s.db"
    for i in range(n // 5):
        (tmp_path / f"{i}.png").write_bytes(png() + str(i).encode())
    arguments = (source, out, tmp_path, store, log, 0.01, 100)
    for kill in range(1, 4):
        process = subprocess.Popen(command(*arguments, 140 * kill + 50), env=environment())
        while process.poll() is None:
            if log.exists() and len(log.read_text().splitlines()) > 140 * kill:
                break
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (out / "_done" / "part-00000-00005.json").exists()
    last = command(*arguments, 10 * n)
    subprocess.run(last, env=environment(), check=True, stdout=subprocess.DEVNULL)
    got = read_parts(out)
    to_folder(make_judge(), source, tmp_path / "whole", images=tmp_path, shard_size=100)
    assert got == read_parts(tmp_path / "whole")
    assert [row["id"] for row in got] == [f"r{i}" for i in range(n)]
    asked = [line for line in log.read_text().splitlines() if "x!" not in line]
    # What a killed process asked for in its last batch may not have reached the store.
    assert len(asked) - len({line.split(" ", 1)[1] for line in asked}) <= 3 * 10
    assert not list(out.rglob("*.part"))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.full
def test_memory_does_not_grow_with_the_input(
    tmp_path: Path, lines: Callable[..., Path], suffix: str
) -> None:
    grown = []
    for n in (20_000, 100_000):
        source = lines(n, f"{n}.jsonl")
        if suffix == "parquet":
            pytest.importorskip("pyarrow", reason="Parquet: discode-eval[parquet]")
            source = write_table(source.with_suffix(".parquet"), read_jsonl(source), n)
        done = subprocess.run(
            command(source, tmp_path / f"out{n}", "", "", "", 0.0, 10_000, 0),
            env=environment(), check=True, capture_output=True, text=True,
        )  # fmt: skip
        grown.append(float(done.stdout))
    # Five times the rows; held in memory, their pairs alone would take 60 MB more.
    assert grown[1] - grown[0] < 25, grown
