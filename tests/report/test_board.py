"""The leaderboard: judges across runs, in order, as a page, as Markdown and as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from discode._probe import Card, Figure
from discode._report import write_report
from discode._report.board import name_judges, rank_judges
from discode._signature import Signature
from discode.bench import AgreementProtocol, RunLog, run_metrics
from discode.stats import Interval
from tests.helpers.command_line import call, refused
from tests.helpers.fake_runs import QUICK, FakeFactory, FakeMetric, preferred, rated


@pytest.fixture(scope="module")
def logs() -> dict[str, RunLog]:
    """Two models as the judge "mine" on ratings, in two runs, and one of them on choices."""
    made = {}
    for name, benchmark, noise in (
        ("a", rated(), 1.0), ("b", rated(), 60.0), ("c", preferred(), 1.0)
    ):  # fmt: skip
        factory = FakeFactory(mine=FakeMetric(0, noise, ["id"]), flat=FakeMetric(1, 9.0, ["id"]))
        metrics = ("mine", "flat") if name != "b" else ("mine",)
        log = run_metrics(benchmark, dict(zip(metrics, metrics, strict=True)), factory, QUICK)[0]
        model = Signature.of(model="org/large" if name != "b" else "org/small", revision="1")
        results = {
            label: replace(each, signature=model, seconds=2.0) if label == "mine" else each
            for label, each in log.results.items()
        }
        made[name] = replace(log, results=results)
    return made


def card() -> Card:
    figure = Figure("Sight, %", "colours", Interval(90.0, 80.0, 95.0, 0.95), 20, 0)
    return Card(
        "org/large", "model:org/large", "custom", AgreementProtocol(resamples=0), {}, "0", 20, 40,
        {}, (figure,),
    )  # fmt: skip


def data_of(page: Path) -> Any:
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.S
    )
    assert found is not None
    return json.loads(found[1])


def test_labels_name_the_model_where_several_have_them(logs: dict[str, RunLog]) -> None:
    named = name_judges(logs)
    assert [[*log.results] for log in named.values()] == [
        ["mine, large", "flat"], ["mine, small"], ["mine, large", "flat"]
    ]  # fmt: skip
    assert name_judges({"a": logs["a"]})["a"].results.keys() == logs["a"].results.keys()
    signature = Signature.of(model="org/large", revision="2")
    newer = {"mine": replace(logs["b"].results["mine"], signature=signature)}
    again = name_judges({**logs, "b": replace(logs["b"], results=newer)})
    assert [*again["b"].results] == ["mine, large@2"]
    assert "mine, large@1" in again["a"].results
    signature = Signature.of(model="other/large", revision="1")
    other = {"mine": replace(logs["b"].results["mine"], signature=signature)}
    again = name_judges({**logs, "b": replace(logs["b"], results=other)})
    assert [*again["b"].results] == ["mine, other/large"]


def test_judges_are_in_the_order_of_their_places() -> None:
    def entry(name: str, **values: float | None) -> dict[str, Any]:
        return {
            "name": name, "main": "tau_c", "pairs": 10,
            "metrics": [
                {"label": label, "cells": {"tau_c": [value, value, value]}, "group": 1,
                 "seconds": 2.0, "signature": ""}
                for label, value in values.items()
            ],
        }  # fmt: skip

    rows = rank_judges(
        [entry("x", a=10.0, b=30.0, c=20.0, d=99.0), entry("y", a=1.0, b=2.0, c=3.0, e=None)]
    )
    assert [row["label"] for row in rows] == ["c", "b", "a", "d", "e"]
    by_label = {row["label"]: row for row in rows}
    assert by_label["c"]["place"] == pytest.approx((2 / 3 + 0) / 2)
    assert by_label["b"]["place"] == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert by_label["a"]["pairs_per_second"] == 5


def test_a_page_markdown_and_json(logs: dict[str, RunLog], tmp_path: Path) -> None:
    cards = {"large": card()}
    page = tmp_path / "r.html"
    write_report(page, logs, resamples=100, cards=cards)
    board, shown = data_of(page)["board"]
    assert [row[0] for row in board["rows"]] == ["mine, large", "flat", "mine, small"]
    assert board["rows"][0][-1] != ""
    assert any("colours" in row[0] for row in shown["rows"])
    assert sum(columns for _, columns in board["above"]) == len(board["titles"])
    write_report(tmp_path / "r.json", logs, resamples=100, cards=cards)
    data = json.loads((tmp_path / "r.json").read_text())
    first = data["judges"][0]
    assert first["label"] == "mine, large"
    assert len(first["cells"]) == len(data["benchmarks"]) == 2
    (rated_cell,) = (cell for name, cell in first["cells"].items() if name == logs["a"].benchmark)
    measured = logs["a"].results["mine"].measures["tau_c"].times(100)
    assert rated_cell["value"] == pytest.approx(measured.value, rel=1e-3)
    assert rated_cell["low"] == pytest.approx(measured.low, rel=1e-3)
    assert rated_cell["group"] == 1
    assert first["seconds"] == 4
    assert data["cards"]["large"]["figures"][0]["value"]["value"] == 90
    write_report(tmp_path / "r.md", logs, resamples=100, cards=cards)
    text = (tmp_path / "r.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| mine, large")]
    assert f"{measured.value:.2f}" in lines[0]
    assert "colours" in text


def test_one_metric_has_no_leaderboard(logs: dict[str, RunLog], tmp_path: Path) -> None:
    write_report(tmp_path / "r.html", {"b": logs["b"]}, resamples=100)
    assert "board" not in data_of(tmp_path / "r.html")


def test_the_command(logs: dict[str, RunLog], tmp_path: Path) -> None:
    for name, log in logs.items():
        log.save(tmp_path / f"{name}.json")
    (tmp_path / "card").mkdir()
    card().save(tmp_path / "card" / "card.json")
    runs = [tmp_path / f"{name}.json" for name in logs]
    out = tmp_path / "board.md"
    options = ("--card", tmp_path / "card", "--resamples", 100)
    done = call("report", *runs, "-o", out, *options)
    assert done.returncode == 0, done.stderr
    assert "mine, small" in out.read_text()
    (tmp_path / "s.csv").write_text("image,caption,score\na.jpg,a,0.5\nb.jpg,b,0.7\n")
    refused(call("report", tmp_path / "s.csv", "-o", out), "board.md")
    refused(call("report", *runs, "-o", tmp_path / "board.txt"), ".html", ".md", ".json")
    page = tmp_path / "p.html"
    refused(call("report", tmp_path / "s.csv", "-o", page, "--card", tmp_path / "card"), "--card")
    refused(call("report", *runs, "-o", page, "--card", tmp_path), "card")
