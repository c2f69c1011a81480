"""One list of columns: the same rows by every route, in every format, with a version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from discode._cli import app
from discode._pairs import Pair
from discode._scores import COLUMNS
from discode.bulk._writers import VERSION
from discode.decoders import get_decoder
from discode.images import demo_path
from discode.metrics._scorefile import ScoreFile
from tests.helpers.instant import make_judge, to_file, to_folder
from tests.helpers.samples import png, read_any, read_parts, write_table, write_tar

pa = pytest.importorskip("pyarrow", reason="Parquet is tested with discode-eval[parquet]")
pq = pytest.importorskip("pyarrow.parquet")

METHODS = {name: get_decoder(name) for name in ("discode", "raw", "paper")}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A good pair, one with references, one that the model rejects, a broken row, a lost image."""
    rows = [
        {"id": "a", "image": "a.png", "caption": 'naïve 猫, "quoted"\nin two lines'},
        {"id": "b", "image": "a.png", "caption": "fine", "references": ["one", "two"]},
        {"id": "c", "image": "a.png", "caption": "x!"},
        {"id": "d", "image": "a.png"},
        {"image": "gone.png", "caption": "fine"},
    ]
    (tmp_path / "a.png").write_bytes(png())
    path = tmp_path / "in" / "set.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n")
    return path


def read_scores(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of scores, with the types that JSON lines have."""
    rows = read_any(path)
    if path.suffix != ".csv":
        return rows
    return [{name: _typed(name, text) for name, text in row.items()} for row in rows]


def _typed(name: str, text: str) -> Any:
    if name in ("distribution", "flags"):
        return json.loads(text) if text else None
    if name in ("score", "raw", "smoothing", "bound"):
        return None if text in ("", "nan") else float(text)
    return int(text) if name == "row" else text or None


def test_every_route_writes_the_same_rows(tmp_path: Path, table: Path) -> None:
    judge = make_judge(store=tmp_path / "s.db")  # a store opens the images
    options: Any = {"images": tmp_path, "methods": METHODS}
    to_file(judge, table, tmp_path / "one.jsonl", **options)
    want = read_scores(tmp_path / "one.jsonl")
    assert [(row["id"], row["method"]) for row in want] == [
        (name, method) for name in ("a", "b", "c", "d", "4", "5") for method in METHODS
    ]
    assert all(list(row) == list(COLUMNS) for row in want)
    lines = [json.dumps(row, ensure_ascii=False) for row in want]
    assert (tmp_path / "one.jsonl").read_text() == "\n".join([*lines, ""])
    for suffix in ("csv", "parquet"):
        to_file(judge, table, tmp_path / f"one.{suffix}", **options)
        assert read_scores(tmp_path / f"one.{suffix}") == want
    for form in ("jsonl", "csv", "parquet"):
        out = tmp_path / form
        to_folder(judge, table, out, format=form, shard_size=4, **options)
        parts = sorted(out.glob("part-*"))
        assert len(parts) == 2
        assert [row for part in parts for row in read_scores(part)] == want
        assert json.loads((out / "_run.json").read_text())["columns"] == VERSION
    for part in (tmp_path / "one.parquet", *(tmp_path / "parquet").glob("part-*")):
        assert pq.read_schema(part).metadata[b"discode_columns"] == str(VERSION).encode()


def test_a_row_says_how_its_own_number_was_made(tmp_path: Path, table: Path) -> None:
    judge = make_judge()
    to_file(judge, table, tmp_path / "one.jsonl", images=tmp_path)
    rows = {row["id"]: row for row in read_scores(tmp_path / "one.jsonl")}
    for name, references in {"a": "none", "b": "all", "d": "none", "5": "none"}.items():
        assert rows[name]["signature"] == str(judge.signature.with_fields(references=references))
    alone = judge.score(tmp_path / "a.png", "fine", ["one", "two"])
    assert rows["b"]["signature"] == str(alone.signature)
    assert alone.distribution is not None
    assert rows["b"]["distribution"] == alone.distribution[0].tolist()
    assert rows["a"]["image"] == rows["d"]["image"] == "a.png"
    assert rows["d"]["caption"] is rows["d"]["distribution"] is None
    assert all(f"set.jsonl line {rows[name]['row'] + 1}" in rows[name]["error"] for name in "d5")
    assert rows["5"]["flags"] == ["failed"]


def test_cells_that_a_spreadsheet_would_compute(tmp_path: Path) -> None:
    captions = ["=1+1", "+a", "-0.5", "@b", "\tc", "'=d", "plain\r-e"]
    rows = [{"id": f"-{i}", "image": "=a.png", "caption": c} for i, c in enumerate(captions)]
    path = write_table(tmp_path / "in.jsonl", [*rows, {"id": "=z"}])
    to_file(make_judge(), path, tmp_path / "out.csv")
    table = read_scores(tmp_path / "out.csv")
    marked = ["'=1+1", "'+a", "'-0.5", "'@b", "'\tc", "'=d", "plain\r-e", None]
    assert b"\r\n" not in (tmp_path / "out.csv").read_bytes()
    assert [row["caption"] for row in table] == marked
    assert [row["id"] for row in table[:2]] == ["'-0", "'-1"]
    # Read again as scores, the texts are what they were.
    scores = ScoreFile(tmp_path / "out.csv")
    pairs = [Pair("=a.png", c, (), f"-{i}") for i, c in enumerate(captions)]
    # "'=d" and the escaped "=d" cannot be told apart.
    again = scores.score_pairs(pairs[:5] + pairs[6:]).value.tolist()
    assert again == [row["score"] for row in table[:5] + table[6:7]]


def test_images_without_a_name(tmp_path: Path) -> None:
    table = pa.table({"image": [png()], "caption": ["a"]})
    pq.write_table(table, tmp_path / "set.parquet")
    write_tar(tmp_path / "set.tar", {"k.png": png(), "k.txt": b"a"})
    for name in ("set.parquet", "set.tar"):
        to_file(make_judge(), tmp_path / name, tmp_path / "out.jsonl")
        (row,) = read_scores(tmp_path / "out.jsonl")
        assert row["image"] is None
        assert row["source"] == name


def command(*arguments: object) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["score", *map(str, arguments)])
    assert done.exit_code == 1, done.output
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_the_command_line_writes_the_same_rows(tmp_path: Path, shipped: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("image,caption\ncat.jpg,a cat\ncat.jpg\ncat.jpg,a dog\ngone.jpg,a cat\n")
    common = ("-i", path, "--images", demo_path(), "--model", "embedded",
              "--threads", 1, "-m", "discode", "-m", "smoothing")  # fmt: skip
    printed = command(*common, "--json")
    assert [row["row"] for row in printed if row["score"] is None] == [1, 1, 3, 3]
    for suffix in ("jsonl", "csv", "parquet"):
        command(*common, "-o", tmp_path / f"out.{suffix}")
        assert read_scores(tmp_path / f"out.{suffix}") == printed
    command(*common, "-o", tmp_path / "out", "--shard-size", 3)
    assert read_parts(tmp_path / "out") == printed
    # An image on the command line differs in where it came from, and in nothing else.
    done = CliRunner().invoke(app, ["score", "cat.jpg", "a cat", *map(str, common[2:]), "--json"])
    typed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert typed == [{**row, "source": None} for row in printed[:2]]
