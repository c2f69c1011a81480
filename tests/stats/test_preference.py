"""Accuracies against a look at every pair."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discode.stats import AccuracyPlan, UndefinedWarning, acc23, credit, tie_calibrated

NAN = float("nan")
# Scores in quarters: differences are exact, and many of them are equal. 13 stands for a failure.
judged = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 13), st.integers(0, 2)), min_size=2, max_size=16
)


def brute(human: list[int], metric: list[float], groups: list[int], epsilon: float) -> float:
    shares = []
    for group in sorted(set(groups)):
        rows = [i for i, g in enumerate(groups) if g == group]
        right = []
        for i, j in itertools.combinations(rows, 2):
            difference = metric[i] - metric[j]
            tied = abs(difference) <= epsilon
            order = 0 if tied else np.sign(difference)
            right.append(bool(order == np.sign(human[i] - human[j])))  # NaN equals nothing
        if right:
            shares.append(np.mean(right))
    return float(np.mean(shares)) if shares else NAN


@given(judged, st.booleans())
@settings(max_examples=150, deadline=None)
def test_acc23_and_calibration_against_brute_force(
    rows: list[tuple[int, int, int]], grouped: bool
) -> None:
    human = [h for h, _, _ in rows]
    metric = [NAN if m == 13 else m / 4 for _, m, _ in rows]
    groups = [g if grouped else 0 for _, _, g in rows]
    labels = groups if grouped else None
    if max(groups.count(group) for group in groups) < 2:
        with pytest.warns(UndefinedWarning):
            assert math.isnan(acc23(human, metric, groups=labels))
        with pytest.warns(UndefinedWarning):
            assert math.isnan(tie_calibrated(human, metric, groups=labels)[0])
        return
    assert acc23(human, metric, groups=labels) == pytest.approx(brute(human, metric, groups, 0))
    inside = [
        abs(metric[i] - metric[j])
        for i, j in itertools.combinations(range(len(rows)), 2)
        if groups[i] == groups[j]
    ]
    candidates = sorted({0.0, *(d for d in inside if not math.isnan(d))})
    best = max(brute(human, metric, groups, d) for d in candidates)
    value, epsilon = tie_calibrated(human, metric, groups=labels)
    assert value == pytest.approx(best)
    assert brute(human, metric, groups, epsilon) == pytest.approx(best)
    assert epsilon in candidates
    if not grouped:  # sums of whole numbers: the smallest of the best, exactly
        assert epsilon == min(d for d in candidates if brute(human, metric, groups, d) >= best)


def test_calibration_of_many_rows() -> None:
    rng = np.random.default_rng(0)
    human = rng.integers(1, 5, 1500)
    metric = human + rng.normal(size=1500)
    value, epsilon = tie_calibrated(human, metric)
    tied = np.abs(metric[:, None] - metric) <= epsilon
    order = np.where(tied, 0, np.sign(metric[:, None] - metric))
    right = (order == np.sign(human[:, None] - human))[np.triu_indices(1500, 1)]
    assert value == pytest.approx(right.mean(), abs=1e-12)
    assert value > acc23(human, metric)


def test_accuracy_and_its_ties() -> None:
    left, right, chosen = [0.9, 0.2, 0.5, NAN, 0.1], [0.1, 0.6, 0.5, 0.3, NAN], [0, 0, 1, 1, 0]
    assert credit(left, right, chosen).tolist() == [1, 0, 0, 0, 0]
    assert credit(left, right, chosen, ties="half").tolist() == [1, 0, 0.5, 0, 0]


def test_accuracy_plan_weighs_rows() -> None:
    earned, kinds = np.array([1, 0, 1, 0.5]), np.array(["a", "a", "b", "b"])
    plan = AccuracyPlan(earned, categories=kinds)
    assert plan(np.ones(4, dtype=int)) == pytest.approx((0.5 + 0.75) / 2)
    assert plan(np.array([3, 1, 1, 0])) == pytest.approx((0.75 + 1) / 2)
    assert AccuracyPlan(earned)(np.array([3, 1, 1, 0])) == pytest.approx(4 / 5)
    assert math.isnan(plan(np.array([1, 1, 0, 0])))
    assert math.isnan(AccuracyPlan([])(np.zeros(0, dtype=int)))


def test_nothing_to_judge_is_nan_with_a_warning() -> None:
    with pytest.warns(UndefinedWarning):
        assert math.isnan(acc23([1], [1]))
    assert acc23([1, 2], [NAN, NAN]) == 0
    assert tie_calibrated([1, 2], [NAN, NAN]) == (0, 0)


def test_too_many_differences_have_no_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discode.stats._preference.MAX_DIFFERENCES", 2)
    with pytest.warns(UndefinedWarning):
        assert math.isnan(tie_calibrated([1, 1, 1], [1, 2, 3])[0])
