"""Wilson's interval, against scipy."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discode.stats import wilson


@given(st.integers(0, 300), st.integers(1, 300), st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_as_scipy_has_it(k: int, n: int, level: float) -> None:
    k = min(k, n)
    share = wilson(k, n, level)
    expected = stats.binomtest(k, n).proportion_ci(level, method="wilson")
    assert share.low == pytest.approx(expected.low, abs=1e-12)
    assert share.high == pytest.approx(expected.high, abs=1e-12)
    assert share.low <= share.value <= share.high


def test_what_has_no_value() -> None:
    assert math.isnan(wilson(0, 0).value)
