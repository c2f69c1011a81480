"""discode bench check: which files are present, and whether they are complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from discode._files import sha256
from discode.benchmarks import BENCHMARKS
from discode.benchmarks._base import DataFile
from discode.benchmarks._check import check_data
from discode.benchmarks._declared import ROWS
from discode.decoders import METHODS
from discode.errors import InputError
from discode.metrics import METRICS
from tests.helpers import mini_benchmarks as mini
from tests.helpers.command_line import refused, run


def states(folder: Path, name: str) -> dict[str, str]:
    return {row.file: row.state for row in check_data(folder) if row.benchmark == name}


def test_versions_damage_and_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = mini.flickr8k(tmp_path / "flickr8k")
    assert states(tmp_path, "flickr8k-expert") == {
        "ExpertAnnotations.txt": "unknown version",
        "Flickr8k.token.txt": "unknown version",
        "images": "missing",
    }
    assert states(folder, "flickr8k-expert") == states(tmp_path, "flickr8k-expert")
    for name in ("b.jpg", "c.jpg"):
        (folder / "Flicker8k_Dataset" / name).touch()
    assert states(tmp_path, "flickr8k-cf")["images"] == "ok"
    path = folder / "ExpertAnnotations.txt"
    files = BENCHMARKS["flickr8k-expert"].files
    known = DataFile(sha256(path), "the test")
    monkeypatch.setitem(files, path.name, known)
    (row,) = (row for row in check_data(tmp_path) if row.file == path.name)
    assert (row.state, row.detail) == ("ok", "as distributed by the test")
    whole = path.read_text()
    path.write_text(whole[:-3])  # cut in the middle of a row
    (row,) = (row for row in check_data(tmp_path) if row.state == "damaged")
    assert "ExpertAnnotations.txt line 4" in row.detail
    path.write_text(whole[: whole.rindex("\n")])  # cut between rows
    assert states(tmp_path, "flickr8k-expert")[path.name] == "unknown version"
    (folder / "Flickr8k.token.txt").unlink()
    (row,) = (r for r in check_data(tmp_path) if r.file == "Flickr8k.token.txt"
              and r.benchmark == "flickr8k-expert")  # fmt: skip
    assert row.state == "missing"
    assert "Hodosh" in row.detail


def test_all_benchmarks(tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="MATLAB files want discode-eval[bench]")
    (tmp_path / "pascal50s").mkdir()
    mini.pascal50s(tmp_path / "pascal50s")
    mini.flickr8k(tmp_path / "flickr8k")
    mini.write(tmp_path / "composite" / "composite.json", mini.COMPOSITE)
    mini.write(tmp_path / "foil" / "foil-it.json", mini.VALSE)
    mini.write(tmp_path / "foil" / "captions_val2014.json", mini.COCO)
    mini.write(tmp_path / "mceval" / "mceval.jsonl", mini.MCEVAL)
    mini.write(tmp_path / "custom" / "ratings.jsonl", [{"image": "a", "caption": "b", "rating": 1}])
    rows = check_data(tmp_path)
    assert {row.benchmark for row in rows} == set(BENCHMARKS)
    assert {row.state for row in rows} == {"ok", "unknown version", "missing"}
    declared = {row.name for row in ROWS}
    missing = {(row.benchmark in declared, row.file) for row in rows if row.state == "missing"}
    assert missing >= {(False, "images")}
    assert {file for here, file in missing if not here} == {"images"}
    (row,) = (row for row in rows if row.file == "mceval.jsonl")
    assert (row.state, row.detail) == ("ok", "no checksum is known")


def test_nothing_there(tmp_path: Path) -> None:
    rows = check_data(tmp_path)
    assert {row.state for row in rows} == {"missing"}
    assert {row.benchmark for row in rows} == set(BENCHMARKS) - {"custom"}
    with pytest.raises(InputError, match="no such folder"):
        check_data(tmp_path / "none")


def test_command_line(tmp_path: Path) -> None:
    for name, row in BENCHMARKS.items():
        done = run("bench", "list", name)
        assert done.returncode == 0
        assert row.title in done.stdout
        assert row.citation in done.stdout
        for option in row.options:
            assert option.name in done.stdout
            assert option.allowed_text.split(", ")[-1].split()[0] in done.stdout
    for command, names in (
        (("bench", "list"), BENCHMARKS), (("bench", "metrics"), METRICS), (("methods",), METHODS)
    ):  # fmt: skip
        _, *lines = run(*command, COLUMNS="80").stdout.splitlines()
        assert {line.split()[0] for line in lines[: len(names)]} == {*names}, "a line per row"
        refused(run(*command, "no-such"), "unknown", "no-such")
    done = run("bench", "check", "--data", tmp_path)
    assert done.returncode == 0
    assert done.stdout.count("missing") >= 6
    folder = mini.flickr8k(tmp_path)
    (folder / "Flickr8k.token.txt").write_text("no tabs")
    done = run("bench", "check", "--data", tmp_path)
    assert done.returncode == 1
    assert "damaged" in done.stdout
    refused(run("bench", "check", "--data", tmp_path / "none"), "no such folder")
    refused(run("bench", "check"), "data")
