"""How many rows an input has, against those that were written."""

from __future__ import annotations

from pathlib import Path

import pytest

from discode.bulk import Share, find_inputs
from discode.bulk import _counting as counting
from discode.bulk._counting import RowCount, count_rows
from tests.helpers.samples import write_table, write_tar


def write_lines(path: Path, n: int) -> Path:
    rows = [{"image": f"{i}.jpg", "caption": "a dog " * (1 + i % 7)} for i in range(n)]
    return write_table(path, rows)


def write_samples(path: Path, n: int, mode: str = "w") -> Path:
    files = {f"{i}.{end}": b"a" for i in range(n) for end in ("png", "txt", "json")}
    return write_tar(path, files, mode)


def test_small_tables_and_tars_are_counted(tmp_path: Path) -> None:
    assert count_rows(find_inputs(write_lines(tmp_path / "a.jsonl", 30))) == RowCount(30)
    (tmp_path / "a.csv").write_text('image,caption\n1.jpg,"two\nlines"\n2.jpg,one\n')
    assert count_rows(find_inputs(tmp_path / "a.csv")) == RowCount(3, exact=False)  # lines
    assert count_rows(find_inputs(write_samples(tmp_path / "a.tar", 20))) == RowCount(20)


def test_large_ones_are_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "SAMPLES", {"jsonl": 2000, "tar": 30})
    write_lines(tmp_path / "a.jsonl", 500)
    write_lines(tmp_path / "b.jsonl", 300)
    for name in ("a.tar", "b.tar"):
        write_samples(tmp_path / name, 40)
    for pattern, rows in (("*.jsonl", 800), ("*.tar", 80)):
        count = count_rows(find_inputs(str(tmp_path / pattern)))
        assert count == RowCount(pytest.approx(rows, rel=0.2), exact=False)  # type: ignore[arg-type]


def test_parquet_says_it_at_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow", reason="Parquet is tested with discode-eval[parquet]")
    table = [{"image": "1.jpg", "caption": "a"}] * 70
    assert count_rows(find_inputs(write_table(tmp_path / "a.parquet", table))) == RowCount(70)
    write_table(tmp_path / "b.parquet", table)
    assert count_rows(find_inputs(tmp_path)) == RowCount(140)
    monkeypatch.setitem(counting.SAMPLES, "parquet", 1)
    assert count_rows(find_inputs(tmp_path)) == RowCount(140, exact=False)


def test_rows_of_unknown_number(tmp_path: Path) -> None:
    assert count_rows(find_inputs(write_samples(tmp_path / "a.tar.gz", 9, "w:gz"))) is None
    (tmp_path / "bad.parquet").write_bytes(b"no table")
    assert count_rows(find_inputs(tmp_path / "bad.parquet")) is None
    (tmp_path / "coco.json").write_text('[{"image_id": 1, "caption": "a"}]')
    assert count_rows(find_inputs(tmp_path / "coco.json")) is None


def test_a_share_has_its_own_rows(tmp_path: Path) -> None:
    for number, rows in enumerate((10, 20, 30)):
        write_lines(tmp_path / f"{number}.jsonl", rows)
    inputs = find_inputs(tmp_path)
    assert [count_rows(inputs, Share(i, 2)) for i in (0, 1)] == [RowCount(40), RowCount(20)]
    assert count_rows(find_inputs(inputs.files[2]), Share(0, 4)) == RowCount(8, exact=False)
