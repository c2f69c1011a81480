"""Comparisons of metrics: better, worse, or no difference shown."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from discode._scores import Floats
from discode.bench import (
    AgreementProtocol,
    MetricResult,
    RunLog,
    compare_metrics,
    measure_agreement,
    run_metrics,
)
from discode.bench._compare import agreement_difference
from discode.errors import InputError, UnknownNameError
from tests.helpers.fake_runs import QUICK, FakeFactory, FakeMetric, coarse_run, rated


def test_comparisons(runs: dict[str, RunLog]) -> None:
    for log in runs.values():
        done = compare_metrics(log, ["cider", "bleu-4"], resamples=200)
        (one,) = done.pairs
        assert one.difference > 0
        assert one.low > 0
        assert one.p < 0.05
        assert one.verdict() == "cider is better than bleu-4"
        assert done.groups == (("cider",), ("bleu-4",))
        back = compare_metrics(log, ["bleu-4", "cider"], resamples=200).pairs[0]
        assert math.isclose(back.difference, -one.difference)
        assert back.verdict() == "cider is better than bleu-4"
        equal = compare_metrics(log, ["cider", "other"], resamples=200).pairs[0]
        assert "no difference" in equal.verdict()
        three = compare_metrics(log, [], resamples=200)
        assert len(three.pairs) == 3
        assert all(pair.adjusted >= pair.p for pair in three.pairs)
        assert three.groups[-1] == ("bleu-4",)
        both = compare_metrics(log, ["cider", "bleu-4"], swap="captions", resamples=200).pairs[0]
        assert both.p < 0.05


def test_the_benchmark_says_which_tau(runs: dict[str, RunLog]) -> None:
    crowd = replace(runs["ratings"], benchmark="flickr8k-cf")
    for log, measure in ((runs["ratings"], "tau_c"), (crowd, "tau_b")):
        (one,) = compare_metrics(log, ["cider", "bleu-4"], resamples=100).pairs
        assert one.measure == measure
        expected = log.results["cider"].measures[measure].value
        assert math.isclose(one.value_a, 100 * expected)


@pytest.mark.parametrize("measure", ["spearman", "pearson"])
def test_metrics_are_compared_by_spearman_and_pearson(
    runs: dict[str, RunLog], measure: str
) -> None:
    log = runs["ratings"]
    (one,) = compare_metrics(log, ["cider", "bleu-4"], measure=measure, resamples=200).pairs
    expected = [100 * log.results[name].measures[measure].value for name in ("cider", "bleu-4")]
    assert [one.value_a, one.value_b] == pytest.approx(expected)
    assert one.difference == pytest.approx(expected[0] - expected[1])
    assert one.low < one.difference < one.high
    assert one.low > 0
    assert one.p < 0.05
    with pytest.raises(UnknownNameError, match="acc23"):
        compare_metrics(log, ["cider", "bleu-4"], measure="acc23")


def test_metrics_are_compared_with_one_m() -> None:
    """With scipy's m two values would beat many, also where the log was measured with it."""
    by_scipy = coarse_run(replace(QUICK, tau_m="scipy"))
    scipys = [100 * by_scipy.results[name].measures["tau_c"].value for name in ("coarse", "fine")]
    assert scipys[0] > scipys[1]
    done = [compare_metrics(log, [], resamples=100) for log in (coarse_run(), by_scipy)]
    assert done[0] == done[1]
    (pair,) = done[0].pairs
    expected = [
        100 * coarse_run().results[name].measures["tau_c"].value for name in (pair.a, pair.b)
    ]
    assert [pair.value_a, pair.value_b] == pytest.approx(expected)
    assert pair.difference < 0
    assert pair.verdict() == "fine is better than coarse"
    assert done[0].ties["coarse"] == pytest.approx(50, abs=3)
    assert done[0].ties["fine"] < 1


def test_what_cannot_be_compared(runs: dict[str, RunLog]) -> None:
    with pytest.raises(InputError, match="two metrics or more"):
        compare_metrics(runs["ratings"], ["cider"])
    with pytest.raises(UnknownNameError, match="unknown metric"):
        compare_metrics(runs["ratings"], ["cider", "cidre"])
    with pytest.raises(InputError, match="measure"):
        compare_metrics(runs["choices"], [], measure="tau_c")
    with pytest.raises(InputError, match="swap"):
        compare_metrics(runs["choices"], [], swap="rows")


def test_metrics_that_miss_different_pairs_are_compared_on_the_same() -> None:
    bench = rated()
    truth = np.array([len(pair.caption) for pair in bench.pairs], float)
    rng = np.random.default_rng(0)
    good, half = truth + rng.normal(0, 1, len(truth)), truth.copy()
    half[: len(half) // 2] = np.nan
    wild = rng.random(len(truth))
    log, _ = run_metrics(bench, {"x": "x"}, FakeFactory(x=FakeMetric(0, 1.0)), QUICK)
    base = log.results["x"]

    def result(value: Floats) -> MetricResult:
        found = measure_agreement(log.judgments, log.image, value, QUICK)
        return replace(base, value=value, measures=found)

    silent = result(np.full(len(truth), np.nan))
    log = replace(log, results={"good": result(good), "half": result(half),
                                "wild": result(wild), "silent": silent})  # fmt: skip
    done = compare_metrics(log, [], resamples=100)
    assert done.silent == ("silent",)
    assert done.left_out == len(log.judgments) // 2
    values: dict[str, set[float]] = {}
    for pair in done.pairs:
        values.setdefault(pair.a, set()).add(pair.value_a)
        values.setdefault(pair.b, set()).add(pair.value_b)
    assert all(len(one) == 1 for one in values.values())
    assert done.groups[-1] == ("wild",)
    with pytest.raises(InputError, match="silent has no scores"):
        compare_metrics(log, ["good", "silent"])


@pytest.mark.parametrize("kind", ["ratings", "choices"])
def test_each_pair_of_many_is_what_it_is_alone(runs: dict[str, RunLog], kind: str) -> None:
    log = runs[kind]
    for pair in compare_metrics(log, [], resamples=150).pairs:
        [alone] = compare_metrics(log, [pair.a, pair.b], resamples=150).pairs
        assert replace(alone, adjusted=pair.adjusted) == pair
        drawn = agreement_difference(log, pair.a, pair.b, AgreementProtocol(resamples=150))
        assert (pair.difference, pair.low, pair.high) == (
            drawn.value, drawn.low, drawn.high
        )  # fmt: skip
