"""A served model as the judge of discode bench run: --dry-run, caps, and going on after one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discode.bench.runlog import RunLog
from tests.helpers import mini_benchmarks as mini
from tests.helpers.chat_servers import Server, serving
from tests.helpers.command_line import refused, run


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving() as made:
        yield made


def test_dry_run_caps_and_going_on(server: Server, tmp_path: Path) -> None:
    data, runs = mini.several(tmp_path / "data"), tmp_path / "runs"
    command = (
        "bench", "run", "-b", "flickr8k-expert", "-b", "flickr8k-cf", "--data", data,
        "-m", "raw", "-m", "fleur", "-m", "discode", "-o", f"{runs}/", "--model",
        "endpoint:tiny", "--base-url", server.url, "-M", "prices=2.5,10",
    )  # fmt: skip

    done = run(*command, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "5 requests to 127.0.0.1" in done.stdout  # two pairs are in both benchmarks
    assert "3 images" in done.stdout
    assert "cost: about 0.0" in done.stdout
    assert not server.paths
    assert not runs.exists()

    done = run(*command, "-M", "max_requests=6")  # /tokenize, the trial, four pairs
    assert done.returncode == 1, done.stderr
    assert "stopped at flickr8k-cf: max_requests=6 is reached; readings are kept in" in done.stderr
    assert "run again to go on" in done.stderr
    assert done.stdout.splitlines()[0].split() == ["Flickr8k-Expert"]
    assert not (runs / "flickr8k-cf.json").exists()
    assert "1 requests to 127.0.0.1" in run(*command, "--dry-run").stdout

    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert set(server.succeeded.values()) == {1, 2}  # 2: the trial of either run
    assert sum(server.succeeded.values()) == 5 + 2
    for name in ("flickr8k-expert", "flickr8k-cf"):
        results = RunLog.load(runs / f"{name}.json").results
        assert list(results) == ["raw", "fleur", "discode"]
        assert all(np.isfinite(result.value).all() for result in results.values())
        assert dict(results["raw"].signature)["model"].startswith("tiny@127.0.0.1")
    assert "\n  paper" not in done.stdout


def test_a_cap_on_the_cost_without_a_place_to_keep(server: Server, tmp_path: Path) -> None:
    command = (
        "bench", "run", "-b", "flickr8k-cf", "--data", mini.several(tmp_path), "-m", "raw",
        "--model", "endpoint:tiny", "--base-url", server.url, "-M", "prices=1000,0",
    )  # fmt: skip
    done = run(*command, "-M", "max_cost=3.5")  # an answer costs 1, and so does the trial
    assert done.returncode == 1, done.stderr
    assert "max_cost=3.5 is reached (3 spent); nothing was kept" in done.stderr
    assert done.stdout == ""


def test_dry_runs_that_are_refused(tmp_path: Path) -> None:
    data = mini.several(tmp_path)
    command: tuple[Any, ...] = ("bench", "run", "-b", "composite", "--data", data, "--dry-run")
    refused(run(*command, "-m", "raw"), "--dry-run is for models behind an address")
    served = ("--model", "endpoint:tiny", "--base-url", "http://127.0.0.1:9/v1")
    done = run(*command, "-m", "cider", *served)
    assert done.returncode == 2
    assert "none of these metrics asks it" in done.stderr
    done = run(*command, "-m", "cider", "-m", "raw", *served)
    assert done.returncode == 0, done.stderr
    assert "3 pairs cannot be sent and would be NaN" in done.stdout
