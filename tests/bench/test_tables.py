"""Tables: ours beside the paper's numbers, in every format."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from discode.bench import AgreementProtocol, RunLog, measure_agreement, render_table, table_cells
from discode.bench.tables import published_value, table_measures
from discode.benchmarks import Preferences
from discode.errors import UnknownNameError
from discode.signature import Signature
from tests.helpers.fake_runs import QUICK


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
    markdown = render_table(runs, "markdown").splitlines()
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


def test_foil_is_compared_by_its_number_of_references(runs: dict[str, RunLog]) -> None:
    log = replace(runs["choices"], benchmark="foil")
    for references, paper in (("1", 93.7), ("4", 94.9)):
        changed = replace(
            log,
            options={"references": references, "pairs": "all"},
            results={"ref-pac-s": log.results["cider"]},
        )
        assert published_value("ref-pac-s", changed, "mean") == (paper, "", True)


def test_a_judge_has_the_numbers_of_its_own_model_only(runs: dict[str, RunLog]) -> None:
    log = runs["ratings"]

    def cell(label: str, **signature: str) -> Any:
        made = replace(log.results["cider"], signature=Signature.of(**signature))
        every = table_cells({"a": replace(log, results={label: made})})
        return next(c for c in every if c.measure == "tau_c")

    for model, paper in {
        "Qwen/Qwen2-VL-7B-Instruct": "Qwen2-VL-7B-Instruct",
        "Qwen2-VL-7B-Instruct": "Qwen2-VL-7B-Instruct",  # a folder
        "llava-hf/llava-next-72b-hf@localhost:8000": "LLaVA-NeXT-72B",  # a server
        "llava-v1.6-34b-hf": "LLaVA-NeXT-34B",
    }.items():
        named = cell("raw" if "34b" in model else "discode", model=model)
        assert named.paper_model == paper
        assert math.isclose(named.difference, named.value - named.paper)
    strangers = [
        {"model": "discode-embedded"},
        {"model": "internvl-converted"},  # a folder with a name of its own
        {"model": "openai:gpt-4o"},
        {"metric": "scorefile", "file": "scores.jsonl"},  # of a model that the file does not tell
    ]
    for signature in strangers:
        for label in ("discode", "raw", "fleur", "ref-discode"):
            unknown = cell(label, **signature)
            assert math.isnan(unknown.paper)
            assert (unknown.paper_model, unknown.comparable) == ("", False)
    assert cell("g-veval", metric="g-veval", model="gpt-4o").paper_model == "GPT-4o"
    assert math.isnan(cell("g-veval", metric="g-veval", model="tiny").paper)
    assert cell("polos", metric="scorefile", file="polos.csv").paper > 0


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
        replace(runs["ratings"], protocol=AgreementProtocol("half", 100)),
    ):
        (one, *_) = table_cells({"a": changed})
        assert not math.isnan(one.paper)
        assert math.isnan(one.difference)


def test_metrics_without_some_scores_are_marked(runs: dict[str, RunLog]) -> None:
    log = runs["choices"]
    value = log.results["cider"].value.copy()
    value[0] = np.nan
    some = measure_agreement(log.judgments, log.image, value, QUICK)
    log = replace(log, results={"cider": replace(log.results["cider"], measures=some)})
    assert "cider *" in render_table({"a": log})
    assert "* without a score: cider 0.50 % of pascal50s" in render_table({"a": log}, "markdown")
