"""discode filter: what passes is what the run itself would have written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.command_line import CAT, call, refused


@pytest.fixture
def table(tmp_path: Path) -> Path:
    captions = ("a cat", "a dog on a bike", "a white cat", "a car", "two cats")
    path = tmp_path / "pairs.csv"
    rows = "".join(f"{CAT},{text}\n" for text in captions)
    path.write_text(f"image,caption\n{rows}missing.jpg,a cat\n")
    return path


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_another_threshold(table: Path, tmp_path: Path, form: str) -> None:
    command = ("score", "-i", table, "--shard-size", 2, "-o")
    assert call(*command, f"{tmp_path}/all.{form}/").returncode == 1  # a row failed
    call(*command, f"{tmp_path}/run.{form}/", "--min-score", 0.5)
    wanted = {f.name: f.read_bytes() for f in (tmp_path / f"run.{form}/passed").iterdir()}
    assert {f.suffix for f in (tmp_path / f"all.{form}").glob("[!_]*.*")} >= {f".{form}"}
    done = call("filter", tmp_path / f"all.{form}", "--min-score", 0.5, "-o", tmp_path / "passed/")
    assert done.returncode == 0, done
    found = {f.name: f.read_bytes() for f in (tmp_path / "passed").iterdir()}
    assert found == wanted
    assert wanted


def test_refusals(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused(call("filter", tmp_path, "--min-score", 0.5, "-o", out), "_run.json")
    call("score", "-i", table, "-o", tmp_path / "run/")
    again = ("filter", tmp_path / "run", "-o")
    refused(call(*again, out, "--min-score", "nan"), "nan")
    refused(call(*again, tmp_path / "run", "--min-score", 0.5), "not empty")
    other = ("score", "-i", table, "-o", tmp_path / "run/", "--min-score", 0.5)
    refused(call(*other), "min_score", "discode filter")
    done = call(*again, out, "--min-score", 9)
    assert done.returncode == 0, done
    assert str(out) not in done.stderr  # nothing is there
    table.write_text(table.read_text() + f"{CAT},a bird\n")
    refused(call(*again, out, "--min-score", 0.5), "changed")
    table.rename(tmp_path / "elsewhere.csv")
    refused(call(*again, out, "--min-score", 0.5), "no such file", "begun")
    next((tmp_path / "run/_done").iterdir()).unlink()
    refused(call(*again, out, "--min-score", 0.5), "not finished")
