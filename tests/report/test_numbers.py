"""The numbers of a report, against scipy and plain loops."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from discode._report.assemble import script_json
from discode._report.charts import BINS, chart_metric, rating_levels
from discode._report.disagreement import disagreement, percentile_ranks
from discode.bench import RunLog, run_metrics
from discode.benchmarks import Preferences, Ratings
from tests.helpers.fake_runs import QUICK, FakeFactory, FakeMetric, preferred, rated


@pytest.fixture(scope="module")
def ratings() -> RunLog:
    factory = FakeFactory(a=FakeMetric(0, 3.0, ["id"]))
    return _with_nan(run_metrics(rated(), {"a": "a"}, factory, QUICK)[0])


@pytest.fixture(scope="module")
def choices() -> RunLog:
    factory = FakeFactory(a=FakeMetric(0, 9.0, ["id"]))
    return _with_nan(run_metrics(preferred(), {"a": "a"}, factory, QUICK)[0])


def _with_nan(log: RunLog) -> RunLog:
    """The same log with some scores lost, and some tied."""
    value = log.results["a"].value.round(0)
    value[::17] = np.nan
    return replace(log, results={"a": replace(log.results["a"], value=value)})


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, np.nan]), max_size=20))
def test_percentile_ranks_are_midranks(values: list[float]) -> None:
    found = percentile_ranks(np.array(values, float))
    seen = ~np.isnan(np.array(values, float))
    assert (np.isnan(found) == ~seen).all()
    if seen.any():
        ranks = scipy.stats.rankdata(np.array(values)[seen])
        np.testing.assert_allclose(found[seen], 100 * (ranks - 0.5) / seen.sum())


def test_ratings_disagree_by_percentile_ranks(ratings: RunLog) -> None:
    judged, value = ratings.judgments, ratings.results["a"].value
    assert isinstance(judged, Ratings)
    people = np.array([judged.value[judged.pair == i].mean() for i in range(len(value))])
    seen = np.isfinite(value)
    ranks = 100 * (scipy.stats.rankdata(value[seen]) - 0.5) / seen.sum()
    theirs = 100 * (scipy.stats.rankdata(people) - 0.5) / len(people)
    found = disagreement(ratings, "a")
    np.testing.assert_allclose(found[seen], ranks - theirs[seen])
    assert np.isnan(found[~seen]).all()


def test_choices_disagree_by_the_margin(choices: RunLog) -> None:
    judged, value = choices.judgments, choices.results["a"].value
    assert isinstance(judged, Preferences)
    found = disagreement(choices, "a")
    for i in range(len(judged)):
        better, worse = value[[judged.left[i], judged.right[i]][:: 1 - 2 * judged.chosen[i]]]
        if np.isnan(better + worse):
            assert np.isnan(found[i])
        else:
            assert np.sign(found[i]) == np.sign(worse - better)
    assert np.nanmax(np.abs(found)) <= 100


def test_histograms_and_curves_count_every_judgment(ratings: RunLog, choices: RunLog) -> None:
    for log in (ratings, choices):
        judged, value = log.judgments, log.results["a"].value
        charts = chart_metric(log, "a")
        if isinstance(judged, Ratings):
            score, said, owner = value[judged.pair], judged.value, judged.pair
            names, level = rating_levels(judged.value)
            assert names == ["1", "2", "3", "4"]
            for number, row in enumerate(charts["rows"]):
                mine = score[(level == number) & np.isfinite(score)]
                assert (len(row), sum(row)) == (BINS, len(mine))
                assert np.isclose(charts["means"][number], mine.mean())
        else:
            ahead = np.where(judged.chosen == 0, 1, -1) * (value[judged.left] - value[judged.right])
            score, said, owner = np.abs(ahead), (ahead > 0).astype(float), judged.left
        seen = np.isfinite(score)
        assert sum(point["count"] for point in charts["curve"]) == seen.sum()
        for point in charts["curve"]:
            mine = np.flatnonzero(seen & (score >= point["low"]) & (score <= point["high"]))
            assert len(mine) == point["count"]  # equal scores stand together
            assert np.isclose(point["mean"], said[mine].mean())
            images = log.image[owner[mine]]
            squares = 0.0
            for image in set(images.tolist()):
                squares += (said[mine][images == image] - point["mean"]).sum() ** 2
            assert np.isclose(point["error"], 1.96 * np.sqrt(squares) / len(mine))


def test_charts_of_a_metric_without_scores(ratings: RunLog, choices: RunLog) -> None:
    for log in (ratings, choices):
        lost = replace(log.results["a"], value=np.full(len(log.ids), np.nan))
        charts = chart_metric(replace(log, results={"a": lost}), "a")
        assert charts["curve"] == []
        assert sum(map(sum, charts["rows"])) == 0


def test_many_ratings_become_ranges() -> None:
    values = np.linspace(0, 1, 31)
    names, level = rating_levels(values)
    assert len(names) == 5
    assert (np.diff(level) >= 0).all()
    assert np.bincount(level, minlength=5).min() > 0


@given(st.recursive(st.text(alphabet=st.characters()) | st.floats(allow_nan=False,
       allow_infinity=False), lambda inner: st.lists(inner, max_size=4)))  # fmt: skip
def test_json_in_a_script_is_inert_and_says_the_same(value: object) -> None:
    text = script_json(value)
    assert not set("<>&\u2028\u2029") & set(text)
    text.encode()  # half a character is escaped
    assert json.loads(text) == value
