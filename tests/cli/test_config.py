"""A run of discode bench kept as a TOML file."""

from __future__ import annotations

import json
import string
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discode._cli.config import to_toml
from tests.helpers.command_line import call, refused

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
WORDS = TEXTS | NUMBERS | st.booleans()
KEYS = st.text(string.ascii_lowercase + "-", min_size=1)


@given(st.dictionaries(KEYS, WORDS | st.lists(WORDS)))
def test_what_is_written_is_read(values: dict[str, Any]) -> None:
    read = tomllib.loads(to_toml(values))
    assert read == values
    assert repr(read) == repr(values)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [
        {"image": f"{i}.jpg", "caption": f"a dog {i}", "references": ["a dog"], "rating": i % 5}
        for i in range(8)
    ]
    (tmp_path / "ratings.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lines = [f"{row['image']},{row['caption']},{i * i % 7}" for i, row in enumerate(rows)]
    (tmp_path / "s.csv").write_text("\n".join(["image,caption,score", *lines]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


RUN = ("bench", "run", "-b", "custom:raters=average", "--data", ".", "-m", "s=scorefile:s.csv",
       "--resamples", "100", "--seed", "3", "--measure", "spearman", "-o", "log.json")  # fmt: skip


def log_of(path: Path) -> dict[str, Any]:
    """Read a log without the time that the run took."""
    log: dict[str, Any] = json.loads(path.read_text())
    for result in log["results"].values():
        del result["seconds"]
    return log


def test_a_saved_run_gives_the_same_log(folder: Path) -> None:
    first = call(*RUN, "--save-config", "run.toml")
    assert first.returncode == 0, first.stderr
    log = log_of(folder / "log.json")
    (folder / "log.json").unlink()
    again = call("bench", "run", "run.toml", "--save-config", "again.toml")
    assert again.returncode == 0, again.stderr
    assert again.stdout == first.stdout
    assert log_of(folder / "log.json") == log
    assert (folder / "again.toml").read_text() == (folder / "run.toml").read_text()


def test_typed_flags_replace_those_of_the_file(folder: Path) -> None:
    call(*RUN, "--save-config", "run.toml")
    done = call(
        "bench", "run", "run.toml", "-m", "t=scorefile:s.csv", "--seed", "5", "-o", "b.json"
    )
    assert done.returncode == 0, done.stderr
    log = log_of(folder / "b.json")
    assert list(log["results"]) == ["t"]
    assert (log["protocol"]["seed"], log["protocol"]["resamples"]) == (5, 100)


def test_a_dry_run_is_not_kept(folder: Path) -> None:
    done = call("bench", "run", "-b", "custom", "--data", folder, "-m", "discode", "--dry-run",
                "--model", "openai:m", "--save-config", "run.toml")  # fmt: skip
    assert done.returncode == 0, done.stderr
    kept = tomllib.loads((folder / "run.toml").read_text())
    assert "dry-run" not in kept
    assert kept["model"] == "openai:m"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('metrics = ["cider"]', ("metrics", "metric", "benchmark")),
        ("save-config = 'x'", ("save-config",)),
        ('metric = "cider"', ("metric", "list")),
        ("metric = [[]]", ("metric", "list")),
        ('seed = "x"', ("--seed", "integer")),
        ("seed = true", ("seed", "number")),
        ("seed = {a = 1}", ("seed", "number")),
        ("limit = 1.5", ("--limit", "integer")),
        ("skip-missing = 1", ("skip-missing", "true", "false")),
        ('ties = "no"', ("ties", "wrong", "half")),
        ("seed =", ("run.toml",)),
        ("data = 2024-01-01", ("data", "text")),
    ],
)
@pytest.mark.usefixtures("folder")
def test_wrong_files_are_refused(line: str, words: tuple[str, ...]) -> None:
    config = {"benchmark": ["custom"], "data": ".", "metric": ["s=scorefile:s.csv"]}
    config.pop(line.partition(" ")[0], None)
    text = to_toml(config)
    Path("run.toml").write_text(text + line)
    refused(call("bench", "run", "run.toml"), *words)


@pytest.mark.usefixtures("folder")
def test_a_file_that_cannot_be_read_or_written() -> None:
    refused(call("bench", "run", "none.toml"), "none.toml")
    Path("latin.toml").write_bytes(b'data = "\xe9"')
    refused(call("bench", "run", "latin.toml"), "latin.toml")
    refused(call(*RUN, "--save-config", "no/run.toml"), "no/run.toml")
    assert not Path("log.json").exists()
