"""Tables: ours beside the paper's numbers, in every format."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from discode._signature import Signature
from discode.bench import RunLog, measure_agreement, plot_runs, render_table, table_cells
from discode.bench._agreement import TAU_C_NOTES
from discode.bench._compare import compare_metrics
from discode.bench._layout import TABLE_FORMATS, write_table
from discode.bench._published import PAPER_TABLES, published_cells
from discode.bench._tables import published_table, table_measures
from discode.benchmarks import BENCHMARKS, Preferences, Ratings
from discode.errors import InputError, UnknownNameError
from tests.helpers.fake_runs import QUICK, coarse_run, fake_runs


@pytest.fixture
def runs() -> dict[str, RunLog]:
    """A run on ratings and one on choices."""
    return fake_runs()


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
    columns = {cell.benchmark for cell in table_cells({"a": log, "b": other})}
    assert columns == {"composite (a)", "composite (b)"}
    assert "composite (a)" in render_table({"a": log, "b": other})


def test_the_papers_number_stands_beside_the_same_thing_alone(runs: dict[str, RunLog]) -> None:
    assert "  paper" in render_table(runs)
    assert "  difference" in render_table(runs)
    other = replace(runs["ratings"], options={"references": "all"})
    for form in TABLE_FORMATS:
        assert "37.7" not in render_table({"a": other}, form)
    assert "  difference" not in render_table({"a": other})


@pytest.mark.parametrize("name", PAPER_TABLES)
@pytest.mark.parametrize("form", TABLE_FORMATS)
def test_every_table_of_the_paper_is_printed(name: str, form: str) -> None:
    text = write_table(published_table(name), form)
    for cell in published_cells(name):
        assert re.search(rf"\b{re.escape(cell.text)}", text)


def test_a_table_of_the_paper_is_laid_out_as_there() -> None:
    lines = write_table(published_table("sota_main")).splitlines()
    assert lines[1].split() == ["Flickr8k-Expert", "Flickr8k-CF", "Composite", "Pascal-50S"]
    assert lines[2].split() == ["metric", *["τ_b", "τ_c"] * 3, "Mean"]
    assert (lines[3], len(lines)) == ("with references", 3 + 2 + 23)
    assert lines[-1].split()[3:] == ["57.7", "58.1", "40.1", "20.8", "60.5", "64.9", "83.5"]
    assert "all of LLaVA-NeXT-72B" in write_table(published_table("sigma"))
    assert write_table(published_table("foil")).count("the paper's default") == 1
    assert write_table(published_table("dataset_statistics")).splitlines()[1].split() == [
        "benchmark", "captions", "words",
    ]  # fmt: skip


def test_metrics_without_some_scores_are_marked(runs: dict[str, RunLog]) -> None:
    log = runs["choices"]
    value = log.results["cider"].value.copy()
    value[0] = np.nan
    some = measure_agreement(log.judgments, log.image, value, QUICK)
    log = replace(log, results={"cider": replace(log.results["cider"], measures=some)})
    assert "cider *" in render_table({"a": log})
    assert "* without a score: cider 0.50 % of pascal50s" in render_table({"a": log}, "markdown")


def test_a_plot(runs: dict[str, RunLog], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots want discode-eval[plot]")
    plot_runs(runs, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000
    with pytest.raises(InputError, match=r"a\.txt"):
        plot_runs(runs, tmp_path / "a.txt")


def test_tie_rates_stand_beside_tau_b_where_they_differ(runs: dict[str, RunLog]) -> None:
    log = coarse_run()
    for form in ("text", "markdown", "latex"):
        table = render_table({"a": log}, form, intervals=True)
        assert "ties" in table
        assert "with scipy's m, reward ties" in table
    lines = render_table({"a": log}, intervals=True).splitlines()
    assert lines[1].split() == ["metric", "τ_b", "τ_c", "ties", "%"]
    rate = 100 * log.results["coarse"].measures["ties"].value
    assert lines[2].split()[-1] == f"{rate:.2f}"
    assert len(lines[3].split()) == 3  # from: no interval of a tie rate
    assert f"tie rates: coarse {rate:.1f} %, fine" in "\n".join(lines)
    both = render_table({"a": log, "b": runs["choices"]}).splitlines()
    assert both[0].split() == ["Pascal-50S", "custom"]
    assert both[1].split()[-5:] == ["Mean", "τ_b", "τ_c", "ties", "%"]
    assert any(line.startswith("tie rates on custom: coarse") for line in both)
    assert "ties" not in render_table(runs)


def test_measures_are_chosen_and_latex_marks_the_best() -> None:
    log = coarse_run()
    assert isinstance(log.judgments, Ratings)
    names = list(log.results)
    lines = render_table({"a": log}, measures=["spearman", "pearson"]).splitlines()
    assert lines[1].split() == ["metric", "ρ", "r"]
    assert not any("τ_c" in line for line in lines)
    for name, line in zip(names, lines[2:], strict=False):
        value = log.results[name].value[log.judgments.pair]
        people = log.judgments.value
        rho = scipy.stats.spearmanr(value, people).statistic
        r = scipy.stats.pearsonr(value, people).statistic
        assert line.split() == [name, f"{100 * rho:.2f}", f"{100 * r:.2f}"]
    with pytest.raises(UnknownNameError, match="tau"):
        render_table({"a": log}, measures=["kendall"])

    best = max(names, key=lambda name: log.results[name].measures["tau_c"].value)
    measures = ["tau_c", "pearson", "acc23"]
    made = render_table({"a": log}, "latex", measures=measures).splitlines()
    rows = {line.split(" & ")[0]: line.split(" & ")[1:] for line in made if " & " in line}
    assert rows[best][0].startswith(r"\textbf{")
    for place, measure in enumerate(measures[:2]):
        pair = compare_metrics(log, names, measure=measure).pairs[0]
        assert any(r"\dag" in rows[name][place] for name in names) == (pair.adjusted < 0.05)
    assert not any(r"\dag" in rows[name][2] for name in names)
    assert "not tested: custom acc23" in "\n".join(made)
    several = render_table({"a": log, "b": replace(log, results={})}, "latex")
    assert "not tested" in several  # a test needs all metrics in one run
    assert "bold" not in render_table({"a": log})


def test_a_table_has_one_m(runs: dict[str, RunLog]) -> None:
    people, scipy = coarse_run(), coarse_run(replace(QUICK, tau_m="scipy"))
    notes = [
        [line for line in render_table(logs).splitlines() if line.startswith("τ_c: m is")]
        for logs in ({"a": people}, {"a": scipy}, {"a": people, "b": scipy}, {"a": runs["choices"]})
    ]
    assert notes == [[TAU_C_NOTES["people"]], [TAU_C_NOTES["scipy"]], [TAU_C_NOTES["people"]], []]
    # Both runs scored alike: measured by one m they are one.
    assert render_table({"a": people, "b": scipy}) == render_table({"a": people})
    assert render_table({"a": scipy}) != render_table({"a": people})
