"""Metric ``prefer``: accuracies of comparisons in both orders, beside those of scores."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from discode.bench import RunLog, compare_metrics, label_metrics, render_table, run_metrics
from discode.benchmarks import Benchmark, Preferences
from discode.metrics import MetricFactory
from discode.metrics._base import NO_IMAGE
from tests.helpers.chat_servers import compared, comparer, expected, served, serving
from tests.helpers.command_line import CAT, call, refused
from tests.helpers.fake_model import FakeModel, OneByOne
from tests.helpers.fake_runs import QUICK, preferred, rated
from tests.helpers.mini_benchmarks import pascal50s


def on_cat(choices: int) -> Benchmark:
    """Choices whose images can be opened."""
    made = preferred(choices)
    return replace(made, pairs=tuple(replace(pair, image=CAT) for pair in made.pairs))


def test_it_is_measured_by_the_comparisons(tmp_path: Path) -> None:
    bench = on_cat(30)
    judged = bench.judgments
    assert isinstance(judged, Preferences)
    # The first choice again, by another person and the other way round: the same question.
    again = Preferences(
        np.append(judged.left, 1), np.append(judged.right, 0), np.append(judged.chosen, 0),
        (*judged.category, "HC"),
    )  # fmt: skip
    bench = replace(bench, judgments=again)
    distinct = {frozenset((bench.pairs[2 * i].caption, bench.pairs[2 * i + 1].caption))
                for i in range(30)}  # fmt: skip
    with serving(answers=comparer) as server:
        factory = MetricFactory(served(server))
        log, problems = run_metrics(bench, label_metrics(["raw", "prefer"]), factory, QUICK)
        asked = sum(compared(body) is not None for body in server.asked)
    assert not problems
    assert asked == sum(len(captions) for captions in distinct)  # one, where they are alike
    result = log.results["prefer"]
    truth = [expected(bench.pairs[left].caption, bench.pairs[right].caption)[0]
             for left, right in zip(again.left, again.right, strict=True)]  # fmt: skip
    assert result.preference == pytest.approx(truth)
    right = np.where(again.chosen == 0, np.array(truth) > 0.5, np.array(truth) < 0.5)
    for name in ("HC", "MM"):
        rows = np.array(again.category) == name
        assert result.measures[name].value == pytest.approx(right[rows].mean())
    assert result.value[2:4] == pytest.approx([truth[1], 1 - truth[1]])
    assert result.signature["preference"] == "orders"
    log.save(tmp_path / "run.json")
    read = RunLog.load(tmp_path / "run.json")
    assert read.results["prefer"].preference is not None
    assert read.results["prefer"].preference.tolist() == pytest.approx(truth)
    assert "prefer" in render_table({"run": read})
    (pair,) = compare_metrics(read, ["prefer", "raw"], resamples=100).pairs
    assert pair.value_a == pytest.approx(100 * result.measures["mean"].value)
    more, _ = run_metrics(bench, {"prefer": "prefer"}, factory, QUICK, earlier=read)
    assert len(server.asked) == sum(server.seen.values())  # nothing was asked again
    assert more.results["prefer"].measures == read.results["prefer"].measures


def test_comparisons_of_missing_images_do_not_count() -> None:
    bench = on_cat(20)
    lost = [replace(pair, problem="gone") for pair in bench.pairs[:10]]
    bench = replace(bench, pairs=(*lost, *bench.pairs[10:]), missing=frozenset(range(5)))
    log, _ = run_metrics(bench, {"prefer": "prefer"}, MetricFactory(FakeModel()), QUICK)
    some, _ = run_metrics(
        replace(bench, judgments=bench.judgments.take(np.arange(20) > 4)), {"prefer": "prefer"},
        MetricFactory(FakeModel()), QUICK,
    )  # fmt: skip
    result = log.results["prefer"]
    assert {*result.errors.values()} == {NO_IMAGE}
    assert sorted(result.errors) == [*range(10)]
    assert result.measures["failed"].value == 0.25
    assert result.measures["mean"].value == some.results["prefer"].measures["mean"].value


def test_a_judge_of_single_captions_compares_its_scores() -> None:
    bench, factory = on_cat(40), MetricFactory(OneByOne(), scale="ten")
    log, _ = run_metrics(bench, label_metrics(["discode", "prefer"]), factory, QUICK)
    scored, compared = log.results.values()
    assert compared.signature["preference"] == "scores"
    assert compared.measures["mean"].value == scored.measures["mean"].value


def test_ratings_are_not_compared() -> None:
    labels = label_metrics(["raw", "prefer"])
    log, problems = run_metrics(rated(4), labels, MetricFactory(FakeModel()), QUICK)
    assert [*log.results] == ["raw"]
    assert "preferences" in str(problems["prefer"])


def test_a_question_of_its_own_is_no_part_of_a_judges_group() -> None:
    """All methods of a judge are decoded from one reading; vqascore has another question."""
    model = FakeModel()
    bench = rated(2)
    run_metrics(bench, label_metrics(["raw", "vqascore", "discode"]), MetricFactory(model), QUICK)
    assert len(model.asked) == 2 * len(bench.pairs) // 2


def test_the_command_prices_and_runs_it(tmp_path: Path) -> None:
    pascal50s(tmp_path)
    (tmp_path / "images").mkdir()
    for name in "ab":
        shutil.copy(CAT, tmp_path / "images" / f"{name}.jpg")
    command = ("bench", "run", "-b", "pascal50s", "--data", tmp_path, "-m", "prefer",
               "-m", "vqascore", "--model", "endpoint:tiny")  # fmt: skip
    with serving(answers=comparer) as server:
        here = ("--base-url", server.url)
        priced = call(*command, *here, "--dry-run")
        assert priced.returncode == 0, priced.stderr
        assert "11 requests" in priced.stdout  # two orders of three choices, five captions
        assert not server.asked
        done = call(*command[:-4], *command[-2:], *here)
        assert done.returncode == 0, done.stderr
    assert "prefer" in done.stdout
    assert "3 comparisons flipped" in done.stderr  # captions of almost one length
    refused(call("bench", "run", "-b", "pascal50s", "--data", tmp_path, "-m", "prefer",
                 "--dry-run"), "--dry-run")  # fmt: skip
