"""Wilson's interval, against scipy."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discode.errors import InputError
from discode.stats import wilson


@given(st.integers(0, 300), st.integers(1, 300), st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_as_scipy_has_it(k: int, n: int, level: float) -> None:
    k = min(k, n)
    found = wilson(k, n, level)
    expected = stats.binomtest(k, n).proportion_ci(level, method="wilson")
    assert found.low == pytest.approx(expected.low, abs=1e-12)
    assert found.high == pytest.approx(expected.high, abs=1e-12)
    assert found.low <= found.value <= found.high


def test_what_has_no_value() -> None:
    assert math.isnan(wilson(0, 0).value)
    with pytest.raises(InputError, match="not a share"):
        wilson(3, 2)
    with pytest.raises(InputError, match="level"):
        wilson(1, 2, 1.0)
