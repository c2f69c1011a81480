"""A run from data to table: scored once, kept, resumed, rendered, compared."""

from __future__ import annotations

import csv
import io
import json
import math
import runpy
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau

from discode.bench.compare import compare
from discode.bench.figures import plot
from discode.bench.measures import measures
from discode.bench.run import named, run
from discode.bench.runlog import Protocol, RunLog
from discode.bench.tables import cells, columns, render
from discode.benchmarks import Benchmark
from discode.benchmarks.base import preferences, ratings
from discode.errors import InputError, UnknownNameError
from discode.metrics import Workshop
from discode.pairs import Pair
from discode.scores import Scores

QUICK = Protocol(resamples=100)


class Fake:
    """A metric that counts what it is asked."""

    def __init__(self, seed: int, noise: float, needs: Sequence[str] = ()) -> None:
        self.needs, self.asked = frozenset(needs), 0
        self.signature = f"discode:0|metric:fake-{seed}-{noise}"
        self._seed, self._noise = seed, noise

    def score_pairs(self, pairs: Sequence[Pair]) -> Scores:
        self.asked += len(pairs)
        rng = np.random.default_rng(self._seed)
        truth = np.array([len(pair.caption) for pair in pairs], float)
        value = truth + self._noise * rng.standard_normal(len(pairs))
        return Scores(value, self.signature)


class Shop(Workshop):
    """A workshop of fakes."""

    def __init__(self, **metrics: Any) -> None:
        object.__setattr__(self, "metrics", metrics)

    def make(self, name: str) -> Any:
        if name not in self.metrics:  # type: ignore[attr-defined]  # set above
            raise InputError(f"no {name} here")
        return self.metrics[name]  # type: ignore[attr-defined]  # set above


def rated(images: int = 40, captions: int = 5) -> Benchmark:
    """Captions whose length people rate, with three raters who err."""
    rng = np.random.default_rng(0)
    pairs, rows, image = [], [], []
    for i in range(images):
        for j in range(captions):
            length = int(rng.integers(1, 30))
            # two references a caption: without them the pair is the same
            for k in range(2):
                pairs.append(Pair(f"{i}.jpg", "x" * length + f" {j}", (f"r{k}",), f"{i}#{j}#{k}"))
                image.append(i)
                for rater in range(3):
                    rating = np.clip(round(length / 8 + rng.normal(0, 0.7)), 1, 4)
                    rows.append((len(pairs) - 1, float(rating), rater))
    return Benchmark("composite", {"references": "clean"}, tuple(pairs), ratings(rows),
                     np.array(image), {"a.json": "00"})  # fmt: skip


def preferred(choices: int = 200) -> Benchmark:
    rng = np.random.default_rng(1)
    pairs, rows, image = [], [], []
    for i in range(choices):
        lengths = rng.integers(1, 30, 2)
        for side, length in enumerate(lengths):
            pairs.append(Pair(f"{i}.jpg", "x" * int(length), (), f"{i}#{side}"))
            image.append(i)
        better = int(lengths[1] > lengths[0]) if rng.random() < 0.9 else int(rng.integers(2))
        rows.append((2 * i, 2 * i + 1, better, ("HC", "MM")[i % 2]))
    return Benchmark("pascal50s", {"draws": "1"}, tuple(pairs), preferences(rows),
                     np.array(image), {})  # fmt: skip


def test_a_pair_is_scored_once_and_a_run_goes_on(tmp_path: Path) -> None:
    bench = rated()
    free, bound = Fake(0, 3.0), Fake(1, 9.0, ["references"])
    path = tmp_path / "run.json"
    log, problems = run(
        bench, {"free": "free", "lost": "lost", "bound": "bound"}, Shop(free=free, bound=bound),
        QUICK, done=lambda log: log.save(path),
    )  # fmt: skip
    assert problems == {"lost": "no lost here"}
    assert (free.asked, bound.asked) == (len(bench.pairs) // 2, len(bench.pairs))
    assert np.isclose(log.results["free"].value[0], log.results["free"].value[1])
    again = RunLog.load(path)
    assert list(again.results) == ["free", "bound"]
    more = Fake(2, 1.0)
    log, _ = run(
        bench, {"free": "free", "more": "more"}, Shop(free=free, more=more), QUICK, before=again
    )
    assert free.asked == len(bench.pairs) // 2  # taken from the log
    assert list(log.results) == ["free", "bound", "more"]
    other = Fake(5, 3.0)  # the same name, made in another way
    log, _ = run(bench, {"free": "free"}, Shop(free=other), QUICK, before=again)
    assert other.asked
    half, _ = run(bench, {"free": "free"}, Shop(free=free), replace(QUICK, seed=3), before=again)
    assert half.results["free"].measures["tau_c"].low != log.results["free"].measures["tau_c"].low


def test_measures_of_ratings_against_scipy() -> None:
    bench, value = rated(), np.array([len(p.caption) for p in rated().pairs], float)
    value[:7] = np.nan
    found = measures(bench.judgments, bench.image, value, QUICK)
    rows = ~np.isnan(value[bench.judgments.pair])  # type: ignore[union-attr]  # they are ratings
    x, y = value[bench.judgments.pair][rows], bench.judgments.value[rows]  # type: ignore[union-attr]  # likewise
    for variant in ("b", "c"):
        expected = kendalltau(x, y, variant=variant).statistic
        one = found[f"tau_{variant}"]
        assert math.isclose(one.value, expected, abs_tol=1e-12)
        assert one.low < one.value < one.high
    assert math.isclose(found["failed"].value, 7 / len(bench.pairs))
    assert 0 < found["acc23"].value <= found["acc_tied"].value <= 1


def test_measures_of_preferences_by_hand() -> None:
    rows = [(0, 1, 0, "a"), (0, 1, 1, "a"), (2, 3, 0, "b"), (2, 3, 0, "b")]
    value = np.array([2.0, 1.0, 5.0, 5.0])
    image = np.array([0, 0, 1, 1])
    found = measures(preferences(rows), image, value, QUICK)
    assert (found["a"].value, found["b"].value, found["mean"].value) == (0.5, 0.0, 0.25)
    assert found["ties"].value == 0.5
    half = measures(preferences(rows), image, value, replace(QUICK, ties="half"))
    assert half["mean"].value == 0.5
    value[1] = np.nan  # no score is a wrong answer, never a missing one
    found = measures(preferences(rows), image, value, QUICK)
    assert (found["a"].value, found["failed"].value) == (0.0, 0.5)


@pytest.fixture(scope="module")
def runs() -> dict[str, RunLog]:
    shop = Shop(good=Fake(0, 2.0), bad=Fake(1, 30.0), same=Fake(2, 2.0))
    labels = {"cider": "good", "bleu-4": "bad", "other": "same"}
    return {
        "ratings": run(rated(), labels, shop, QUICK)[0],
        "choices": run(preferred(), labels, shop, QUICK)[0],
    }


def test_a_log_comes_back_whole(runs: dict[str, RunLog], tmp_path: Path) -> None:
    for log in runs.values():
        log.save(tmp_path / "a.json")
        back = RunLog.load(tmp_path / "a.json")
        assert back.same_questions(log)
        assert render({"x": back}, "csv") == render({"x": log}, "csv")
        back.save(tmp_path / "b.json")
        assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
        assert back.versions["discode"]
        assert "benchmark:" in back.results["cider"].signature


def test_tables(runs: dict[str, RunLog]) -> None:
    every = {(c.metric, c.benchmark, c.measure): c for c in cells(runs)}
    assert columns(runs["choices"]) == ["HC", "MM", "mean"]
    one = every["cider", "composite", "tau_c"]
    assert (one.paper, one.difference) == (37.7, one.value - 37.7)
    assert math.isnan(every["other", "composite", "tau_c"].paper)
    text = render(runs)
    assert text.splitlines()[0].split() == ["Composite", "Pascal-50S"]
    assert text.splitlines()[1].split() == ["τ_b", "τ_c", "HC", "MM", "Mean"]
    assert sum(line.startswith("  paper") for line in text.splitlines()) == 2
    assert "from" in render(runs, intervals=True)
    rows = list(csv.DictReader(io.StringIO(render(runs, "csv"))))
    assert len(rows) == 15
    assert float(rows[0]["low"]) < float(rows[0]["value"]) < float(rows[0]["high"])
    markdown = render(runs, "markdown").splitlines()
    assert len({line.count("|") for line in markdown}) == 1
    latex = render({"a": replace(runs["ratings"], results={"a_b&c": runs["ratings"].results["cider"]})}, "latex")  # fmt: skip  # noqa: E501  # one line
    assert r"a\_b\&c & " in latex
    assert r"$\tau_c$" in latex
    with pytest.raises(UnknownNameError):
        render(runs, "html")


def test_a_judge_is_compared_with_itself_alone(runs: dict[str, RunLog]) -> None:
    log = runs["ratings"]

    def cell(label: str, model: str) -> Any:
        made = replace(log.results["cider"], signature=f"discode:0|model:{model}|revision:1")
        every = cells({"a": replace(log, results={label: made})})
        return next(c for c in every if c.measure == "tau_c")

    small = cell("discode", "discode-embedded")
    assert small.paper_model == "LLaVA-NeXT-72B"
    assert math.isnan(small.difference)
    named = cell("discode", "Qwen/Qwen2-VL-7B-Instruct")
    assert named.paper_model == "Qwen2-VL-7B-Instruct"
    assert math.isclose(named.difference, named.value - named.paper)
    assert cell("raw", "llava-v1.6-34b-hf").paper_model == "LLaVA-NeXT-34B"


def test_two_runs_that_disagree_are_told_apart(runs: dict[str, RunLog]) -> None:
    log = runs["ratings"]
    changed = replace(log.results["cider"], signature="another")
    other = replace(log, results={"cider": changed})
    names = {cell.metric for cell in cells({"a": log, "b": other})}
    assert {"cider (a)", "cider (b)", "bleu-4"} <= names


def test_the_same_benchmark_with_other_data_is_another_column(runs: dict[str, RunLog]) -> None:
    log = runs["ratings"]
    other = replace(log, checksums={"a.json": "01"})
    found = {cell.benchmark for cell in cells({"a": log, "b": other})}
    assert found == {"composite (a)", "composite (b)"}
    assert "composite (a)" in render({"a": log, "b": other})


def test_other_protocols_are_not_the_papers(runs: dict[str, RunLog]) -> None:
    for changed in (
        replace(runs["ratings"], options={"references": "all"}),
        replace(runs["ratings"], protocol=Protocol("half", 100)),
    ):
        (one, *_) = cells({"a": changed})
        assert not math.isnan(one.paper)
        assert math.isnan(one.difference)


def test_what_failed_is_marked_and_never_zero(runs: dict[str, RunLog]) -> None:
    for bench in (rated(), preferred()):
        found = measures(bench.judgments, bench.image, np.full(len(bench.pairs), np.nan), QUICK)
        assert found["failed"].value == 1
        assert all(np.isnan(found[name].value) for name in found if name != "failed")
    log = runs["choices"]
    value = log.results["cider"].value.copy()
    value[0] = np.nan
    some = measures(log.judgments, log.image, value, QUICK)
    log = replace(log, results={"cider": replace(log.results["cider"], measures=some)})
    assert "cider *" in render({"a": log})
    assert "* without a score: cider 0.50 % of pascal50s" in render({"a": log}, "markdown")


def test_one_image_has_no_interval() -> None:
    bench = rated(images=1, captions=12)
    value = np.arange(len(bench.pairs), dtype=float)
    one = measures(bench.judgments, bench.image, value, QUICK)["tau_c"]
    assert np.isfinite(one.value)
    assert np.isnan([one.low, one.high]).all()
    none = measures(rated().judgments, rated().image, np.arange(400.0), Protocol(resamples=0))
    assert np.isnan(none["tau_c"].low)


def test_metrics_that_miss_different_pairs_are_compared_on_the_same() -> None:
    bench = rated()
    truth = np.array([len(pair.caption) for pair in bench.pairs], float)
    rng = np.random.default_rng(0)
    good, half = truth + rng.normal(0, 1, len(truth)), truth.copy()
    half[: len(half) // 2] = np.nan
    wild = rng.random(len(truth))
    log, _ = run(bench, {"x": "x"}, Shop(x=Fake(0, 1.0)), QUICK)
    base = log.results["x"]

    def result(value: Any) -> Any:
        return replace(base, value=value, measures=measures(log.judgments, log.image, value, QUICK))

    silent = result(np.full(len(truth), np.nan))
    log = replace(log, results={"good": result(good), "half": result(half),
                                "wild": result(wild), "silent": silent})  # fmt: skip
    done = compare(log, [], resamples=100)
    assert done.silent == ("silent",)
    assert done.left_out == len(log.judgments) // 2
    values: dict[str, set[float]] = {}
    for pair in done.pairs:
        values.setdefault(pair.a, set()).add(pair.value_a)
        values.setdefault(pair.b, set()).add(pair.value_b)
    assert all(len(one) == 1 for one in values.values())
    assert done.groups[-1] == ("wild",)
    with pytest.raises(InputError, match="silent has no scores"):
        compare(log, ["good", "silent"])


def test_measuring_again_signs_again(tmp_path: Path) -> None:
    bench, shop = preferred(), Shop(a=Fake(0, 2.0))
    first, _ = run(bench, {"a": "a"}, shop, QUICK)
    again, _ = run(bench, {"a": "a"}, shop, replace(QUICK, ties="half"), before=first)
    assert first.results["a"].signature.endswith("|ties:wrong")
    assert again.results["a"].signature.endswith("|ties:half")


def test_comparisons(runs: dict[str, RunLog]) -> None:
    for log in runs.values():
        done = compare(log, ["cider", "bleu-4"], resamples=200)
        (one,) = done.pairs
        assert one.difference > 0
        assert one.low > 0
        assert one.p < 0.05
        assert one.verdict() == "cider is better than bleu-4"
        assert done.groups == (("cider",), ("bleu-4",))
        back = compare(log, ["bleu-4", "cider"], resamples=200).pairs[0]
        assert math.isclose(back.difference, -one.difference)
        assert back.verdict() == "cider is better than bleu-4"
        equal = compare(log, ["cider", "other"], resamples=200).pairs[0]
        assert "no difference" in equal.verdict()
        three = compare(log, [], resamples=200)
        assert len(three.pairs) == 3
        assert all(pair.adjusted >= pair.p for pair in three.pairs)
        assert three.groups[-1] == ("bleu-4",)
        both = compare(log, ["cider", "bleu-4"], swap="captions", resamples=200).pairs[0]
        assert both.p < 0.05
    with pytest.raises(InputError, match="two metrics or more"):
        compare(runs["ratings"], ["cider"])
    with pytest.raises(UnknownNameError, match="unknown metric"):
        compare(runs["ratings"], ["cider", "cidre"])
    with pytest.raises(InputError, match="measure"):
        compare(runs["choices"], [], measure="tau_c")
    with pytest.raises(InputError, match="swap"):
        compare(runs["choices"], [], swap="rows")


def test_a_plot(runs: dict[str, RunLog], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots want discode[plot]")
    plot(runs, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000
    with pytest.raises(InputError, match="plots are written"):
        plot(runs, tmp_path / "a.txt")


def test_names_of_metrics() -> None:
    assert named(["discode:sigma2=0.05"]) == {"discode:sigma2=0.05": "discode:sigma2=0.05"}
    assert named(["a", "a"]) == {"a": "a"}
    with pytest.raises(InputError, match="two metrics are called"):
        named(["x=cider", "x=meteor"])
    with pytest.raises(InputError, match="at least one"):
        named([])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("format"), "is no run"),
        (lambda d: d.update(version=9), "version 9"),
        (lambda d: d.pop("image"), "damaged: KeyError"),
        (lambda d: d["results"]["cider"]["value"].pop(), "damaged: ValueError"),
        (lambda d: d["protocol"].update(ties="some"), "ties='some'"),
        (lambda d: d["image"].pop(), "images for"),
        (lambda d: d["judgments"]["pair"].pop(), "different lengths"),
        (lambda d: d["judgments"]["pair"].__setitem__(0, 9999), "not there"),
        (lambda d: d["results"]["cider"]["measures"].pop("tau_c"), "cider lacks tau_c"),
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


@pytest.mark.parametrize("given", [{"ties": "x"}, {"resamples": 5}, {"seed": -1}, {"level": 1.0}])
def test_a_protocol_that_cannot_be(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not allowed"):
        Protocol(**given)


@pytest.mark.slow
@pytest.mark.data
def test_the_published_cells(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every cell but METEOR's, which takes minutes: perf/published.py has it."""
    pytest.importorskip("pycocoevalcap", reason="text metrics want discode[bench]")
    if shutil.which("java") is None:
        pytest.skip("text metrics want Java")
    script = Path(__file__).parents[2] / "perf" / "published.py"
    names = runpy.run_path(str(script))
    monkeypatch.setitem(
        names["main"].__globals__, "METRICS", ["bleu-1", "bleu-4", "rouge-l", "cider"]
    )
    monkeypatch.setattr(sys, "argv", [str(script), "--data", str(data)])
    with pytest.raises(SystemExit) as left:
        names["main"]()
    told = capsys.readouterr().out
    assert "48 of 48 cells reproduced" in told, told
    assert not left.value.code


@pytest.mark.slow
def test_a_table_of_a_large_run_is_quick(tmp_path: Path) -> None:
    bench = rated(1000, 24)
    log, _ = run(bench, {"cider": "a"}, Shop(a=Fake(0, 2.0)), QUICK)
    log = replace(log, results={f"m{i}": log.results["cider"] for i in range(7)})
    log.save(tmp_path / "run.json")
    start = time.perf_counter()
    render({"run": RunLog.load(tmp_path / "run.json")})
    assert time.perf_counter() - start < 2
