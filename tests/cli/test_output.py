"""The one rule for -o: a file or a folder, whichever verb it is given to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from discode._cli.output import MaxFailed, ProgressLog, is_folder, output_file, output_folder
from discode.errors import InputError
from discode.images import demo_path
from tests.helpers import mini_benchmarks as mini
from tests.helpers.command_line import call, refused

CAT = demo_path() / "cat.jpg"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder.v2").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("new", True), ("new.v2/", True), ("folder.v2", True), ("file/", True),
        ("new.csv", False), ("file", False),
    ],
)  # fmt: skip
def test_a_folder_has_no_suffix_or_ends_in_a_slash_or_exists(
    kept: Path, name: str, folder: bool
) -> None:
    typed = os.path.join(kept, name)  # noqa: PTH118  # a Path would drop the slash
    assert is_folder(typed) == folder
    if folder:
        assert output_folder(typed) == Path(typed)
    else:
        assert output_file(typed, "x.csv") == Path(typed)
        with pytest.raises(InputError, match="folder"):
            output_folder(typed)


def test_a_file_in_a_folder_has_a_name(kept: Path) -> None:
    assert output_file(f"{kept}/a/b", "x.csv") == kept / "a" / "b" / "x.csv"
    assert output_file(f"{kept}/folder.v2", "x.csv") == kept / "folder.v2" / "x.csv"
    for bad in (f"{kept}/file/", f"{kept}/file/x.csv", "-"):
        with pytest.raises(InputError, match="cannot write"):
            output_file(bad, "x.csv")
    assert (kept / "file").read_text() == "kept"


def test_every_verb_has_the_rule(tmp_path: Path) -> None:
    mini.flickr8k(tmp_path / "data")
    data = ("--data", tmp_path / "data", "-b", "flickr8k-expert")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"log_probs": [-3.0] * 10}))

    def made(*arguments: object) -> list[str]:
        done = call(*arguments, "-o", tmp_path / "new")
        assert done.returncode == 0, done.stderr
        names = sorted(path.name for path in (tmp_path / "new").iterdir())
        for path in (tmp_path / "new").iterdir():
            path.unlink()
        (tmp_path / "new").rmdir()
        return names

    assert made("decode", rows) == ["scores.jsonl"]
    rows.write_text("".join(
        json.dumps({"id": str(n), "image": f"{n}.png", "log_probs": [-3.0] * 10}) + "\n"
        for n in range(3)
    ))  # fmt: skip
    assert call("decode", rows, "-o", tmp_path / "decoded").returncode == 0
    compared = call("compare", tmp_path / "decoded", tmp_path / "decoded" / "scores.jsonl")
    assert "no difference" in compared.stdout
    assert call("report", tmp_path / "decoded", "-o", tmp_path / "page.html").returncode == 0
    assert made("score", CAT, "a cat") == ["scores.jsonl", "scores.jsonl.readings.db"]
    runs = ("bench", "run", *data, "-m", "rouge-l")
    assert made(*runs) == ["flickr8k-expert.json"]
    assert call(*runs, "-o", tmp_path / "runs").returncode == 0
    assert made("bench", "plot", tmp_path / "runs") == ["plot.png"]
    assert made("report", tmp_path / "runs") == ["report.html"]
    compared = call("compare", tmp_path / "runs", "rouge-l", "rouge-l")
    refused(compared, "rouge-l")  # it is read, and one metric is not two
    for verb in (("probe", *data), ("paper", *data), ("choose", *data)):
        refused(call(*verb, "-o", tmp_path / "card.md"), "folder", tmp_path / "card.md")


def test_a_long_run_says_how_fast_it_was() -> None:
    log = ProgressLog(None)
    assert log.summary(0.0) is None
    log.advance(1000, 0.0)  # of an earlier run
    log.advance(60, 20.0)
    assert log.summary(20.0) is None
    assert log.summary(40.0) == "60 pairs in 40 s, 1.5 pairs/s"


@pytest.mark.parametrize(
    ("typed", "failed", "items", "allowed"),
    [("0", 0, 9, True), ("0", 1, 9, False), ("29%", 29, 100, True), ("29%", 30, 100, False),
     ("3", 3, 9, True), ("3", 4, 999, False)],
)  # fmt: skip
def test_max_failed(typed: str, failed: int, items: int, allowed: bool) -> None:
    assert MaxFailed.parse(typed).allows(failed, items) == allowed
