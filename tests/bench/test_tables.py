"""Tables: ours beside the paper's numbers, in every format."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import numpy as np
import pytest

from discode.bench import AgreementProtocol, RunLog, measure_agreement, render_table, table_cells
from discode.bench.tables import table_measures
from discode.benchmarks import BENCHMARKS, Preferences
from discode.errors import UnknownNameError
from discode.signature import Signature
from tests.helpers.fake_runs import QUICK


@pytest.fixture(autouse=True)
def _published_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runs that tests make have the published number of images and judgments."""
    for name in ("composite", "pascal50s"):
        row = replace(BENCHMARKS[name], published_sizes=lambda options: ((40, 1200), (200, 200)))
        monkeypatch.setitem(BENCHMARKS, name, row)


def test_cells_and_formats(runs: dict[str, RunLog]) -> None:
    every = {(c.metric, c.benchmark, c.measure): c for c in table_cells(runs)}
    assert table_measures(runs["choices"]) == ["HC", "MM", "mean"]
    one = every["cider", "composite", "tau_c"]
    assert (one.paper, one.difference) == (37.7, one.value - 37.7)
    assert math.isnan(every["other", "composite", "tau_c"].paper)
    text = render_table(runs)
    assert text.splitlines()[0].split() == ["Composite", "Pascal-50S"]
    assert text.splitlines()[1].split() == ["metric", "τ_b", "τ_c", "HC", "MM", "Mean"]
    assert sum(line.startswith("  paper") for line in text.splitlines()) == 2
    assert "from" in render_table(runs, intervals=True)
    rows = list(csv.DictReader(io.StringIO(render_table(runs, "csv"))))
    assert len(rows) == 15
    assert float(rows[0]["low"]) < float(rows[0]["value"]) < float(rows[0]["high"])
    markdown = [line for line in render_table(runs, "markdown").splitlines() if "|" in line]
    assert len({line.count("|") for line in markdown}) == 1
    log = runs["ratings"]
    latex = render_table({"a": replace(log, results={"a_b&c": log.results["cider"]})}, "latex")
    assert r"a\_b\&c & " in latex
    assert r"$\tau_c$" in latex
    with pytest.raises(UnknownNameError):
        render_table(runs, "html")


def test_categories_have_the_order_of_their_benchmark(runs: dict[str, RunLog]) -> None:
    log = runs["choices"]
    for name, expected in (
        ("mceval", ["real", "infograph", "MM", "mean"]),
        ("custom", ["MM", "infograph", "real", "mean"]),
        ("not-in-the-table", ["MM", "infograph", "real", "mean"]),
    ):
        rows = [(0, 1, 0, category) for category in ("infograph", "MM", "real")]
        changed = replace(log, benchmark=name, judgments=Preferences.of(rows))
        assert table_measures(changed) == expected


def test_two_runs_that_disagree_are_told_apart(runs: dict[str, RunLog]) -> None:
    log = runs["ratings"]
    changed = replace(log.results["cider"], signature=Signature.of(metric="another"))
    other = replace(log, results={"cider": changed})
    names = {cell.metric for cell in table_cells({"a": log, "b": other})}
    assert {"cider (a)", "cider (b)", "bleu-4"} <= names


def test_the_same_benchmark_with_other_data_is_another_column(runs: dict[str, RunLog]) -> None:
    log = runs["ratings"]
    other = replace(log, checksums={"a.json": "01"})
    found = {cell.benchmark for cell in table_cells({"a": log, "b": other})}
    assert found == {"composite (a)", "composite (b)"}
    assert "composite (a)" in render_table({"a": log, "b": other})


def test_another_protocol_is_not_compared(runs: dict[str, RunLog]) -> None:
    for changed in (
        replace(runs["ratings"], options={"references": "all"}),
        replace(runs["choices"], protocol=AgreementProtocol("half", 100)),
    ):
        (*_, one) = (cell for cell in table_cells({"a": changed}) if cell.metric == "cider")
        assert not math.isnan(one.paper)
        assert math.isnan(one.difference)
        assert "  difference" not in render_table({"a": changed})


def test_notes_say_why_there_is_no_number(runs: dict[str, RunLog]) -> None:
    text = render_table(runs)
    assert "no number of the paper: other (not in the paper's tables)" in text
    log = replace(runs["ratings"], options={"references": "all"})
    both = "beside the paper's number, not compared: cider, bleu-4 (another protocol"
    assert both in render_table({"a": log}, "markdown")
    assert f"\n% {both}" in render_table({"a": log}, "latex")
    mixed = {"a": runs["ratings"], "b": replace(runs["choices"], benchmark="mceval")}
    told = render_table(mixed)
    assert "cider on mceval, bleu-4 on mceval, other on mceval (other data: 200 images" in told
    (row, *_) = csv.DictReader(io.StringIO(render_table({"a": log}, "csv")))
    assert row["paper_note"] == "another protocol (references=all)"


def test_metrics_without_some_scores_are_marked(runs: dict[str, RunLog]) -> None:
    log = runs["choices"]
    value = log.results["cider"].value.copy()
    value[0] = np.nan
    some = measure_agreement(log.judgments, log.image, value, QUICK)
    log = replace(log, results={"cider": replace(log.results["cider"], measures=some)})
    assert "cider *" in render_table({"a": log})
    assert "* without a score: cider 0.50 % of pascal50s" in render_table({"a": log}, "markdown")
