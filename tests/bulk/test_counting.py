"""How many rows an input has, against those that were written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from discode.bulk import Share, counting, find_inputs
from discode.bulk.counting import RowCount, count_rows
from discode.cli import output
from tests.helpers.samples import png, write_tar


def write_lines(path: Path, n: int) -> Path:
    rows = [{"image": f"{i}.jpg", "caption": "a dog " * (1 + i % 7)} for i in range(n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_samples(path: Path, n: int, mode: str = "w") -> Path:
    files = {f"{i}.{end}": png() if end == "png" else b"a" for i in range(n) for end in OF_A_SAMPLE}
    return write_tar(path, files, mode)


OF_A_SAMPLE = ("png", "txt", "json")


def test_small_tables_and_tars_are_counted(tmp_path: Path) -> None:
    assert count_rows(find_inputs(write_lines(tmp_path / "a.jsonl", 30))) == RowCount(30)
    (tmp_path / "a.csv").write_text('image,caption\n1.jpg,"two\nlines"\n2.jpg,one\n')
    assert count_rows(find_inputs(tmp_path / "a.csv")) == RowCount(2)
    (tmp_path / "a.json").write_text(json.dumps([{"image_id": 1, "caption": "a"}] * 3))
    assert count_rows(find_inputs(tmp_path / "a.json")) == RowCount(3)
    assert count_rows(find_inputs(write_samples(tmp_path / "a.tar", 20))) == RowCount(20)


def test_large_ones_are_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "COUNTED_BYTES", 100)
    monkeypatch.setattr(counting, "SAMPLE_BYTES", 2000)
    monkeypatch.setattr(counting, "SAMPLE_MEMBERS", 30)
    write_lines(tmp_path / "a.jsonl", 500)
    write_lines(tmp_path / "b.jsonl", 300)
    for name in ("a.tar", "b.tar"):
        write_samples(tmp_path / name, 40)
    for pattern, rows in (("*.jsonl", 800), ("*.tar", 80)):
        found = count_rows(find_inputs(str(tmp_path / pattern)))
        assert found is not None
        assert found == RowCount(pytest.approx(rows, rel=0.2), exact=False)  # type: ignore[arg-type]


def test_parquet_says_it_at_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow", reason="Parquet is tested with discode-eval[parquet]")
    from pyarrow import parquet

    monkeypatch.setattr(counting, "COUNTED_BYTES", 0)
    table = pa.table({"image": ["1.jpg"] * 70, "caption": ["a"] * 70})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert count_rows(find_inputs(tmp_path / "a.parquet")) == RowCount(70)
    parquet.write_table(table, tmp_path / "b.parquet")
    assert count_rows(find_inputs(tmp_path)) == RowCount(140)
    monkeypatch.setattr(counting, "SAMPLE_FILES", 1)
    assert count_rows(find_inputs(tmp_path)) == RowCount(140, exact=False)


def test_what_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_rows(find_inputs(write_samples(tmp_path / "a.tar.gz", 9, "w:gz"))) is None
    (tmp_path / "bad.parquet").write_bytes(b"no table")
    assert count_rows(find_inputs(tmp_path / "bad.parquet")) is None
    monkeypatch.setattr(counting, "COUNTED_BYTES", 0)
    (tmp_path / "coco.json").write_text('[{"image_id": 1, "caption": "a"}]')
    assert count_rows(find_inputs(tmp_path / "coco.json")) is None


def test_a_share_has_its_own_rows(tmp_path: Path) -> None:
    for number, rows in enumerate((10, 20, 30)):
        write_lines(tmp_path / f"{number}.jsonl", rows)
    found = find_inputs(tmp_path)
    assert [count_rows(found, Share(i, 2)) for i in (0, 1)] == [RowCount(40), RowCount(20)]
    one = replace(found, files=found.files[2:], names=found.names[2:])
    assert count_rows(one, Share(0, 4)) == RowCount(8, exact=False)


def test_a_log_gets_lines_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("discode.cli.output.time.monotonic", lambda: now[0])
    with output.row_progress(RowCount(1000)) as advance:
        for seconds in range(0, 65, 5):
            now[0] = float(seconds)
            advance(10)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[2] for line in lines] == [
        "70 of 1,000 pairs, 2.0 pairs/s, about 8 min left",
        "130 of 1,000 pairs, 2.0 pairs/s, about 7 min left",
    ]
