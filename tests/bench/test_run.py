"""Runs: each pair scored once, results reused where nothing changed."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discode import load
from discode._pairs import NO_REFERENCES, Pair
from discode._scores import Scores
from discode.bench import RunLog, compare_metrics, label_metrics, run_metrics
from discode.bench._run import measure_by, measure_result, questions_of
from discode.benchmarks import Benchmark
from discode.benchmarks._base import keep_images
from discode.errors import InputError
from discode.metrics._base import NO_IMAGE
from tests.helpers.fake_model import FakeModel
from tests.helpers.fake_runs import (
    QUICK,
    FakeFactory,
    FakeMetric,
    coarse_run,
    preferred,
    rated,
)


def test_a_pair_is_scored_once_and_a_run_is_resumed(tmp_path: Path) -> None:
    bench = rated()
    free, bound = FakeMetric(0, 3.0), FakeMetric(1, 9.0, ["references"])
    path = tmp_path / "run.json"
    log, problems = run_metrics(
        bench, {"free": "free", "lost": "lost", "bound": "bound"},
        FakeFactory(free=free, bound=bound), QUICK, save=lambda log: log.save(path),
    )  # fmt: skip
    assert {label: str(error) for label, error in problems.items()} == {"lost": "no lost here"}
    assert (free.asked, bound.asked) == (len(bench.pairs) // 2, len(bench.pairs))
    assert np.isclose(log.results["free"].value[0], log.results["free"].value[1])
    again = RunLog.load(path)
    assert list(again.results) == ["free", "bound"]
    factory = FakeFactory(free=free, more=FakeMetric(2, 1.0))
    log, _ = run_metrics(bench, {"free": "free", "more": "more"}, factory, QUICK, earlier=again)
    assert free.asked == len(bench.pairs) // 2  # its scores are in the log
    assert list(log.results) == ["free", "bound", "more"]
    other = FakeMetric(5, 3.0)  # the same name, made in another way
    log, _ = run_metrics(bench, {"free": "free"}, FakeFactory(free=other), QUICK, earlier=again)
    assert other.asked
    seeded = replace(QUICK, seed=3)
    new, _ = run_metrics(bench, {"free": "free"}, FakeFactory(free=free), seeded, earlier=again)
    assert new.results["free"].measures["tau_c"].low != log.results["free"].measures["tau_c"].low


class LacksReferences(FakeMetric):
    """Leaves out pairs without references, as metrics that need them do; others may fail, too."""

    def __init__(self, broken: int = -1) -> None:
        super().__init__(0, 2.0, ["references"])
        self.broken = broken

    def score_pairs(self, pairs: Sequence[Pair], **options: Any) -> Scores:
        scores = super().score_pairs(pairs, **options)
        errors = {row: NO_REFERENCES for row, pair in enumerate(pairs) if not pair.references}
        if self.broken >= 0:
            errors[self.broken] = "broken"
        scores.value[list(errors)] = np.nan
        return replace(scores, errors=errors)


def test_pairs_without_references_are_left_out_for_good() -> None:
    """They are counted, but nothing failed: a second run does not ask for them again."""
    bench = rated()
    pairs = (replace(bench.pairs[0], references=()), *bench.pairs[1:])
    bench = replace(bench, pairs=pairs)
    metric = LacksReferences()
    log, _ = run_metrics(bench, {"a": "a"}, FakeFactory(a=metric), QUICK)
    result = log.results["a"]
    assert (list(result.errors), result.failures) == ([0], {})
    assert result.measures["failed"].value == 1 / len(pairs)
    asked = metric.asked
    run_metrics(bench, {"a": "a"}, FakeFactory(a=metric), QUICK, earlier=log)
    assert metric.asked == asked
    log, _ = run_metrics(bench, {"a": "a"}, FakeFactory(a=LacksReferences(5)), QUICK)
    assert log.results["a"].failures == {5: "broken"}
    none = replace(bench, pairs=tuple(replace(pair, references=()) for pair in pairs))
    log, _ = run_metrics(none, {"a": "a"}, FakeFactory(a=metric), QUICK)
    assert len(log.results["a"].failures) == len(pairs)  # nothing was scored at all


class LacksImages(FakeMetric):
    """Scores a caption by its length alone, and cannot open some of the images."""

    def __init__(self, lost: Container[str]) -> None:
        super().__init__(0, 0.0, ["image"])
        self.lost = lost

    def score_pairs(self, pairs: Sequence[Pair], **options: Any) -> Scores:
        scores = super().score_pairs(pairs, **options)
        errors = {row: "gone" for row, pair in enumerate(pairs) if pair.image in self.lost}
        scores.value[list(errors)] = np.nan
        return replace(scores, errors=errors)


@pytest.mark.parametrize("bench", [rated(), preferred()], ids=["ratings", "choices"])
def test_judgments_of_missing_images_do_not_count(bench: Benchmark) -> None:
    """A metric that looks at images is measured as on a benchmark of the other images alone."""
    here = [number for number in np.unique(bench.image).tolist() if number % 4 == 1]
    missing = frozenset(bench.image.tolist()).difference(here)
    bench = replace(bench, missing=missing)
    lost = {str(pair.image) for pair in bench.pairs if int(pair.id.partition("#")[0]) in missing}
    factory = FakeFactory(a=LacksImages(lost), text=FakeMetric(0, 0.0))
    log, _ = run_metrics(bench, {"a": "a", "text": "text"}, factory, QUICK)
    alone, _ = run_metrics(keep_images(bench, 999), {"a": "a"}, factory, QUICK)
    ours, result, text = alone.results["a"].measures, log.results["a"], log.results["text"]
    for name, measure in ours.items():
        if name != "failed":
            assert result.measures[name] == measure
    assert set(result.errors.values()) == {NO_IMAGE}
    assert result.measures["failed"].value == pytest.approx(0.75)
    assert (ours["failed"].value, text.measures["failed"].value, text.errors) == (0, 0, {})
    assert np.unique(log.judged_image[log.judged(result.errors)]).tolist() == here
    assert log.judged(text.errors).all()
    finer = measure_result(result, replace(log, protocol=replace(QUICK, seed=3)))
    assert finer.measures["failed"] == result.measures["failed"]
    # Both have the same scores of the images that are present.
    (one,) = compare_metrics(log, ["a", "text"], resamples=100).pairs
    assert (one.difference, one.p) == (0, 1)
    broken = FakeFactory(a=LacksImages({"1.jpg"}))  # present, but it cannot be opened
    log, _ = run_metrics(replace(bench, missing=frozenset()), {"a": "a"}, broken, QUICK)
    assert set(log.results["a"].failures.values()) == {"gone"}


def test_a_category_without_images_has_no_accuracy() -> None:
    bench = preferred()
    lost = {f"{number}.jpg" for number in range(0, 200, 2)}  # those of HC
    bench = replace(bench, missing=frozenset(range(0, 200, 2)))
    log, _ = run_metrics(bench, {"a": "a"}, FakeFactory(a=LacksImages(lost)), QUICK)
    found = log.results["a"].measures
    assert np.isnan(found["HC"].value)
    assert found["mean"] == found["MM"]
    assert found["MM"].value > 0.8


def test_progress_has_the_label_and_the_number_of_pairs() -> None:
    bench, told = preferred(20), []
    factory = FakeFactory(a=FakeMetric(0, 2.0, ["id"]))
    run_metrics(bench, {"x": "a"}, factory, QUICK, progress=lambda *step: told.append(step))
    assert told == [("x", len(bench.pairs), len(bench.pairs))]


def test_measuring_again_signs_again() -> None:
    bench, factory = preferred(), FakeFactory(a=FakeMetric(0, 2.0))
    first, _ = run_metrics(bench, {"a": "a"}, factory, QUICK)
    half = replace(QUICK, ties="half")
    again, _ = run_metrics(bench, {"a": "a"}, factory, half, earlier=first)
    assert "|benchmark:pascal50s(draws=1)|ties:wrong" in str(first.results["a"].signature)
    assert "|benchmark:pascal50s(draws=1)|ties:half" in str(again.results["a"].signature)


def test_another_m_is_measured_again_and_signed() -> None:
    first = coarse_run()
    again = measure_by(replace(QUICK, tau_m="scipy"), first)
    new = coarse_run(replace(QUICK, tau_m="scipy"))
    for label, result in again.results.items():
        assert result.measures == new.results[label].measures
        assert result.signature == new.results[label].signature
    signatures = [log.results["coarse"].signature for log in (first, again)]
    assert [signature["tau_m"] for signature in signatures] == ["people", "scipy"]
    before, after = (log.results["coarse"].measures for log in (first, again))
    assert before["tau_b"] == after["tau_b"]
    assert before["tau_c"].value < after["tau_c"].value
    assert measure_by(QUICK, first) is first
    choices, _ = run_metrics(preferred(), {"a": "a"}, FakeFactory(a=FakeMetric(0, 2.0)), QUICK)
    assert "tau_m" not in str(choices.results["a"].signature)


def test_the_pairs_that_a_judge_is_asked_about() -> None:
    bench, judge = rated(4), load(FakeModel())
    free, both = len(bench.pairs) // 2, len(bench.pairs)
    for names, count in (
        (["cider"], 0),
        (["raw", "discode:sigma2=0.05", "cider"], free),
        (["ref-raw"], both),
        (["x=fleur", "ref-discode"], free + both),
        (["vqascore"], free),
        (["prefer"], 0),  # these are ratings
    ):
        found = questions_of(judge, [bench], label_metrics(names))
        asked = [pair for _, pairs in found for pair in pairs]
        assert len(asked) == count
        assert sum(not pair.references for pair in asked) == count % both
    choices = preferred(50)
    scored, compared = questions_of(judge, [choices], label_metrics(["raw", "prefer"]))
    assert (scored[0].scale.name, compared[0].scale.name) == ("unit", "prefer")
    assert len(scored[1]) <= len(compared[1]) == 100


def test_labels_of_metrics() -> None:
    own = "discode:sigma2=0.05"
    assert label_metrics([own]) == {own: own}
    assert label_metrics(["a", "a"]) == {"a": "a"}
    with pytest.raises(InputError, match="two metrics are called"):
        label_metrics(["x=cider", "x=meteor"])
    with pytest.raises(InputError, match="at least one"):
        label_metrics([])
