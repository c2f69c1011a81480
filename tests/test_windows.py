"""What Windows refuses: to rename or remove a file that is open. There are no locks of fcntl."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discode import _files as files
from discode._files import remove_abandoned, replacing
from discode.errors import InputError
from discode.readings._exchange import export_readings
from discode.readings._store import ReadingStore
from tests.helpers.instant import make_judge, rows, to_file, to_folder
from tests.helpers.samples import png, read_any, write_table, write_tar

OPEN_FILES = Path("/proc/self/fd")
pytestmark = pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="needs Linux's list of open files")


def is_open(path: Any) -> bool:
    links = []
    for entry in OPEN_FILES.iterdir():
        try:
            links.append(entry.readlink())
        except OSError:  # the listing's own
            continue
    return Path(path).resolve() in links


@pytest.fixture(autouse=True)
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*paths: Any, **options: Any) -> Any:
            for path in paths:
                if is_open(path):
                    raise PermissionError(13, "it is being used by another process", str(path))
            return call(*paths, **options)

        return wrapped

    monkeypatch.setattr(files, "fcntl", None)
    for name in ("replace", "rename", "unlink", "remove"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))


def test_the_stand_in_refuses_open_files(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("w"), pytest.raises(PermissionError):
        path.replace(tmp_path / "b")
    path.replace(tmp_path / "b")


@pytest.mark.parametrize("unless_exists", [False, True])
def test_a_file_is_replaced(tmp_path: Path, unless_exists: bool) -> None:
    path = tmp_path / "out.txt"
    for text in ("first", "second"):
        with replacing(path, unless_exists=unless_exists) as temp:
            temp.write_text(text)
    assert path.read_text() == ("first" if unless_exists else "second")
    with pytest.raises(InputError), replacing(path) as temp:  # what is not finished is removed
        temp.rename(temp / "x")
    remove_abandoned(path)
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_scores_are_written(tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="Parquet wants discode-eval[parquet]")
    source, out = write_table(tmp_path / f"in.{form}", rows(60)), tmp_path / f"scores.{form}"
    for _ in range(2):  # the second replaces the first
        to_file(make_judge(), source, out)
    assert len(read_any(out)) == 60
    to_folder(make_judge(), source, tmp_path / "out", shard_size=20, format=form, min_score=0.0)
    assert len([*(tmp_path / "out").glob(f"part-*.{form}")]) == 3
    assert len([*(tmp_path / "out" / "passed").glob(f"part-*.{form}")]) == 3
    assert not [*tmp_path.rglob("*.part")]


def test_tars_and_readings_are_written(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "in.tar", {"a.png": png(), "a.txt": b"a cat"})
    with ReadingStore(tmp_path / "readings.db") as store:
        judge = make_judge(store=tmp_path / "readings.db")
        to_folder(judge, tar, tmp_path / "out", min_score=0.0)
        assert export_readings(store, tmp_path / "readings.jsonl") == 1
    assert [*(tmp_path / "out" / "passed").glob("*.tar")]
