"""Benchmarks on the Hugging Face hub, of which a stand-in is served on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from discode.benchmarks import load_benchmark
from discode.errors import InputError
from discode.images import demo_path
from tests.helpers.command_line import refused, run
from tests.helpers.stand_in_hub import COMMIT, REPO, stand_in_hub

pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.slow
ADDRESS = f"hf://datasets/{REPO}"
CAT = (demo_path() / "cat.jpg").read_bytes()
ROWS = [
    {"image": f"{i}.jpg", "caption": f"a cat {i}", "references": ["a cat"], "rating": 1 + i % 5}
    for i in range(4)
]
TABLE = "\n".join(map(json.dumps, ROWS)).encode()
FILES = {
    "custom/ratings.jsonl": TABLE,
    **{f"custom/images/{i}.jpg": CAT + bytes([i]) for i in range(3)},
    "custom/images/other.jpg": CAT,
    "odd [1]/table.jsonl": TABLE + b"\n",
    "unrelated.bin": b"x",
}
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[Command, list[str]]]:
    with stand_in_hub(FILES) as (address, fetched):

        def command(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
            settings = {
                "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "http_proxy": "",
                "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1",
            }  # fmt: skip
            return run(*arguments, cwd=tmp_path, **settings | env)

        yield command, fetched


def rows_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_files_and_their_images_are_downloaded(
    hub: tuple[Command, list[str]], tmp_path: Path
) -> None:
    command, fetched = hub
    pairs = ("bench", "pairs", "-b", "custom", "--data")
    rows = rows_of(command(*pairs, ADDRESS))
    assert [row["caption"] for row in rows] == [row["caption"] for row in ROWS]
    assert [Path(row["image"]).is_file() for row in rows] == [True, True, True, False]
    assert sorted(fetched) == ["custom/images/0.jpg", "custom/images/1.jpg", "custom/images/2.jpg",
                               "custom/ratings.jsonl"]  # fmt: skip
    # Nothing is downloaded twice, and without a connection the cache is read.
    for env in ({}, {"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}):
        assert rows_of(command(*pairs, f"{ADDRESS}/custom", **env)) == rows
    assert len(fetched) == 4
    scores = tmp_path / "s.jsonl"
    scores.write_text("\n".join(json.dumps(row | {"score": i}) for i, row in enumerate(ROWS)))
    done = command("bench", "run", "-b", "custom", "--data", ADDRESS, "-o", "log.json",
                   "-m", f"s=scorefile:{scores}", "--resamples", "0")  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    assert COMMIT in " ".join(json.loads((tmp_path / "log.json").read_text())["notes"])


def test_a_limit_downloads_only_its_images(hub: tuple[Command, list[str]]) -> None:
    command, fetched = hub
    for limit, images in ((1, 1), (3, 3)):
        spec = f"custom:limit={limit}"
        rows = rows_of(command("bench", "pairs", "-b", spec, "--data", f"{ADDRESS}@main"))
        assert len(rows) == limit
        assert all(Path(row["image"]).is_file() for row in rows)
        assert sum(name.endswith(".jpg") for name in fetched) == images


def test_one_file_can_be_named(hub: tuple[Command, list[str]]) -> None:
    command, fetched = hub
    rows = rows_of(command("bench", "pairs", "-b", "custom", "--data",
                           f"{ADDRESS}/odd [1]/table.jsonl"))  # fmt: skip
    assert len(rows) == len(ROWS)
    assert fetched == ["odd [1]/table.jsonl"]


def test_what_cannot_be_had_is_one_line(hub: tuple[Command, list[str]]) -> None:
    command, fetched = hub
    pairs = ("bench", "pairs", "-b", "polaris", "--data")
    file = "polaris_test.json"
    refused(command(*pairs, ADDRESS), file, ADDRESS)
    refused(command(*pairs, "hf://datasets/no/such"), file, "no/such")
    refused(command(*pairs, f"{ADDRESS}@none"), file, ADDRESS)
    refused(command(*pairs, ADDRESS, HF_ENDPOINT="http://127.0.0.1:9"), file, "127.0.0.1:9")
    refused(command(*pairs, ADDRESS, HF_HUB_OFFLINE="1"), file, "HF_HUB_OFFLINE")
    refused(command(*pairs, "hf://datasets/alone"), "OWNER/NAME")
    assert fetched == []
    some = ("bench", "run", "-b", "polaris", "-b", "custom", "--data", ADDRESS, "-m", "discode")
    refused(command(*some), "polaris", "--skip-missing")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        InputError, match=r"huggingface_hub.* polaris_test\.json .*people/judgments"
    ):
        load_benchmark("polaris", ADDRESS)
