"""discode decode in blocks: every row as if it were alone, whatever stands beside it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import discode
from discode.bulk import _log_probs as module
from tests.helpers.command_line import call, refused
from tests.helpers.fake_model import random_logp


@pytest.fixture
def blocks_of_sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_ROWS", 16)


def plain_rows(count: int) -> list[dict[str, Any]]:
    logp = random_logp(np.random.default_rng(0), count, 10)
    return [{"id": f"r{i}", "log_probs": row.tolist()} for i, row in enumerate(logp)]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text(
        "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    )
    return path


@pytest.mark.usefixtures("blocks_of_sixteen")
def test_a_row_is_decoded_as_if_it_were_alone(tmp_path: Path) -> None:
    rows: list[Any] = plain_rows(100)
    tokens = {str(n): value for n, value in enumerate(rows[40]["log_probs"])}
    rows[40] = {"log_probs": tokens}  # no plain list
    rows[41] = {"log_probs": [1.0] * 10}  # no log-probabilities
    rows[42] = "{broken"
    rows[70] = {
        "custom_id": "x",
        "log_probs": [{"token": t, "logprob": p} for t, p in tokens.items()],
    }
    path = write(tmp_path / "rows.jsonl", rows)
    out = tmp_path / "scores.jsonl"
    done = call("decode", path, "-o", out)
    assert done.returncode == 1
    assert "discode: 100 items" in done.stderr
    scores = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["row"] for row in scores] == list(range(100))
    assert [row["id"] for row in scores] == [
        {40: "40", 41: "41", 42: "42", 70: "x"}.get(i, f"r{i}") for i in range(100)
    ]
    assert [i for i, row in enumerate(scores) if row["score"] is None] == [41, 42]
    assert [scores[i]["error"].partition(":")[0] for i in (41, 42)] == ["line 42", "line 43"]
    for row, score in zip(rows, scores, strict=True):
        if score["score"] is not None:
            alone = discode.decode(row["log_probs"])
            assert score["score"] == alone.value[0]
            assert score["distribution"] == alone.columns()["distribution"][0]


def test_an_odd_row_costs_only_itself_and_a_few_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Any] = plain_rows(1000)
    rows[500]["log_probs"] = dict(zip("0123456789", rows[500]["log_probs"], strict=True))
    rows[700]["log_probs"] = [0.5] * 10
    parse, slow = module._parse, []

    def counted(row: Any, *rest: Any) -> Any:
        slow.append(rows.index(row) + 1)
        return parse(row, *rest)

    monkeypatch.setattr(module, "_parse", counted)
    numbered = list(enumerate(rows, start=1))
    [(ids, readings)] = module.read_blocks(numbered, None, "nan", Path("f"), Counter())
    assert len(ids) == len(readings) == 1000
    assert list(readings.errors) == [700]
    assert {501, 701} <= {*slow}
    assert len(slow) <= 1 + 2 * module.FEW_ROWS


def test_blocks_come_before_the_input_ends() -> None:
    endless = zip(itertools.count(1), itertools.cycle(plain_rows(3)))
    ids, readings = next(module.read_blocks(endless, None, "nan", Path("f"), Counter()))
    assert len(ids) == len(readings) == module.BLOCK_ROWS


@pytest.mark.usefixtures("blocks_of_sixteen")
def test_failed_rows_are_on_the_scale_that_a_later_row_names(tmp_path: Path) -> None:
    five = {"scale": "five", "log_probs": [-2.0] * 5}
    out = tmp_path / "scores.jsonl"
    path = write(tmp_path / "late.jsonl", [{}] * 40 + [five])
    assert call("decode", path, "-o", out).returncode == 1
    assert all("|scale:five|" in line for line in out.read_text().splitlines())
    write(path, [{"scale": "1-4", "log_probs": [-2.0] * 4}, *[{}] * 40, five])
    refused(call("decode", path, "-o", out), "1-4, five")
    assert out.read_text().count("\n") == 41  # the old file is whole


def test_a_line_is_open_where_more_lines_could_complete_it() -> None:
    document = {"id": "a", "log_probs": [-1.5, None, {"deep": [True, "x,\\n"]}], "empty": {}}
    lines = json.dumps(document, indent=1).splitlines(keepends=True)
    for end in range(1, len(lines)):
        assert module._is_open("".join(lines[:end]))
    for broken in ('{"id": "no end\n', '{"id": 1} more\n', "{id: 1\n", '{"a": 1, "b": tru\n'):
        assert not module._is_open(broken)
    assert not module._is_open("[" * 100_000)


def test_a_list_over_many_lines_is_rows(tmp_path: Path) -> None:
    rows = plain_rows(150)
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows, indent=1))
    lines = call("decode", path, "--json").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [row["id"] for row in rows]
