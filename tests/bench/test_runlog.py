"""The log of a run: written and read without a loss, in both versions; damage is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from discode.bench import RunLog, render_table
from discode.errors import InputError


def test_a_log_is_read_as_it_was_written(runs: dict[str, RunLog], tmp_path: Path) -> None:
    for log in runs.values():
        log.save(tmp_path / "a.json")
        back = RunLog.load(tmp_path / "a.json")
        assert back.same_questions(log)
        assert render_table({"x": back}, "csv") == render_table({"x": log}, "csv")
        back.save(tmp_path / "b.json")
        assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
        assert back.versions["discode"]
        assert "|benchmark:" in str(back.results["cider"].signature)


def test_a_log_of_version_1_is_read(runs: dict[str, RunLog], tmp_path: Path) -> None:
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    runs["ratings"].save(new)
    data = json.loads(new.read_text())
    assert data["version"] == 2
    for result in data["results"].values():
        assert result["fields"]["ties"] == "wrong"
        del result["fields"]
    old.write_text(json.dumps(data | {"version": 1}))
    RunLog.load(old).save(old)
    assert old.read_bytes() == new.read_bytes()


def test_a_log_from_before_m_was_recorded_has_scipys(
    runs: dict[str, RunLog], tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    runs["ratings"].save(path)
    data = json.loads(path.read_text())
    assert data["protocol"].pop("tau_m") == "people"
    path.write_text(json.dumps(data))
    assert RunLog.load(path).protocol.tau_m == "scipy"


def test_an_option_that_is_newer_than_a_log_has_its_default(runs: dict[str, RunLog]) -> None:
    log = runs["ratings"]
    assert "source" not in log.options  # Composite did not have it once
    same, other = (replace(log, options={**log.options, "source": s}) for s in ("all", "8k"))
    assert log.same_questions(same)
    assert same.same_questions(log)
    assert not log.same_questions(other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("format"), "is not a run"),
        (lambda d: d.update(version=9), "version 9"),
        (lambda d: d.pop("image"), "damaged: KeyError"),
        (lambda d: d["results"]["cider"]["value"].pop(), "damaged: ValueError"),
        (lambda d: d["results"]["cider"].update(fields=3), "is damaged"),
        (lambda d: d["protocol"].update(ties="some"), "ties=some"),
        (lambda d: d["image"].pop(), "images for"),
        (lambda d: d["judgments"]["pair"].pop(), "damaged: ValueError"),
        (lambda d: d["judgments"]["pair"].__setitem__(0, 9999), "not there"),
        (lambda d: d["results"]["cider"]["measures"].pop("tau_c"), "cider has no tau_c"),
    ],
)
def test_a_damaged_log(change: Any, message: str, runs: dict[str, RunLog], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    runs["ratings"].save(path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=message):
        RunLog.load(path)
    path.write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        RunLog.load(path)
