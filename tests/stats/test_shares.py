"""AUC and Wilson's interval, against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discode.errors import InputError
from discode.stats import UndefinedWarning, auc, wilson


@given(st.integers(0, 300), st.integers(1, 300), st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_as_scipy_has_it(k: int, n: int, level: float) -> None:
    k = min(k, n)
    found = wilson(k, n, level)
    expected = stats.binomtest(k, n).proportion_ci(level, method="wilson")
    assert found.low == pytest.approx(expected.low, abs=1e-12)
    assert found.high == pytest.approx(expected.high, abs=1e-12)
    assert found.low <= found.value <= found.high


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_auc_is_the_share_of_pairs_in_order(rows: list[tuple[int, bool]]) -> None:
    good = [score for score, label in rows if label]
    bad = [score for score, label in rows if not label]
    if not good or not bad:
        with pytest.warns(UndefinedWarning):
            assert math.isnan(auc(*zip(*rows, strict=True)))
        return
    expected = stats.mannwhitneyu(good, bad).statistic / (len(good) * len(bad))
    assert auc(*zip(*rows, strict=True)) == pytest.approx(expected)


def test_a_failed_score_wins_against_nothing() -> None:
    good, bad = [0.9, math.nan, 0.4], [0.1, 0.5, math.nan]
    labels = [1, 1, 1, 0, 0, 0]
    wins = sum((g > b) + 0.5 * (g == b) for g in good for b in bad)
    assert auc(good + bad, labels) == pytest.approx(wins / 9)
    assert auc(np.full(6, np.nan), labels) == 0.0


def test_what_has_no_value() -> None:
    assert math.isnan(wilson(0, 0).value)
    with pytest.raises(InputError, match="not a share"):
        wilson(3, 2)
    with pytest.raises(InputError, match="level"):
        wilson(1, 2, 1.0)
    with pytest.raises(InputError, match="must be numbers"):
        auc(np.array([1j, 2]), [0, 1])
    with pytest.raises(InputError, match="0 \\(bad\\) or 1"):
        auc([1, 2], [0, 2])
