"""Digits: the mass above one hump by brute force, and counts of planted readings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discode.bench import AgreementProtocol
from discode.errors import InputError
from discode.paper.digits import above_one_hump, count_digits
from discode.readings import Readings
from discode.scales import FIVE, TEN, UNIT

rows = st.lists(st.integers(1, 50), min_size=2, max_size=10).map(
    lambda weights: np.array(weights) / sum(weights)
)


@given(rows)
def test_the_hump_by_brute_force(p: np.ndarray) -> None:
    raw = int(p.argmax())
    hump = [min(p[min(raw, d) : max(raw, d) + 1]) for d in range(len(p))]
    np.testing.assert_allclose(above_one_hump(p[None])[0], p - hump, atol=1e-15)


@given(rows)
def test_one_hump_has_nothing_above_it(p: np.ndarray) -> None:
    rising = np.sort(p)
    for unimodal in (rising, rising[::-1], np.concatenate([rising, rising[::-1]])):
        assert above_one_hump(unimodal[None] / unimodal.sum()).max() <= 1e-15


def planted(n: int = 60) -> Readings:
    """Half of the pairs say 8 with 0.2 on 0 beside the hump, half say 2 with one hump."""
    biased = np.array([0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.2, 0.4, 0.1])
    plain = np.array([0.1, 0.2, 0.5, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    with np.errstate(divide="ignore"):
        return Readings.of(np.log([biased, plain] * (n // 2)), TEN)


def test_planted_readings() -> None:
    found = count_digits(planted(), np.arange(60))
    assert (found.pairs, found.failed, found.top) == (60, 0, 0)
    assert found.counts[[2, 8]].tolist() == [30, 30]
    assert found.frequency[8].value == pytest.approx(0.5)
    assert found.probability[0].value == pytest.approx(0.15)
    assert found.bias[0].value == pytest.approx(0.1)  # 0.2 in half of the pairs
    assert found.bias[0].low < 0.1 < found.bias[0].high
    assert sum(one.value for one in found.bias) == pytest.approx(found.total.value)
    assert found.humps.value == pytest.approx(0.5)
    np.testing.assert_allclose(found.profile[8], [0.2, 0, 0, 0, 0, 0, 0.1, 0.2, 0.4, 0.1])
    assert np.isnan(found.profile[0]).all()


def test_what_has_no_digit_to_choose_is_counted_and_left_out() -> None:
    digits = np.log(np.full((3, 2, 10), 0.1))
    digits[2] = np.nan
    digits[0, 0, 7] = np.log(0.19)
    digits[0, 0, 6] = np.log(0.01)
    stems = np.log([[0.9, 0.1], [0.1, 0.9], [0.5, 0.5]])
    found = count_digits(Readings(UNIT, digits, stems), np.arange(3))
    assert (found.pairs, found.failed, found.top) == (1, 1, 1)
    assert found.counts.tolist() == [0] * 7 + [1, 0, 0]
    with pytest.raises(InputError, match="nothing can be counted"):
        count_digits(Readings(UNIT, digits[1:], stems[1:]), np.arange(2))


def test_other_scales_and_no_intervals() -> None:
    found = count_digits(
        Readings.of(np.log([[0.4, 0.1, 0.1, 0.1, 0.3]]), FIVE),
        np.zeros(1, np.int64),
        AgreementProtocol(resamples=0),
    )
    assert found.answers == FIVE.answers
    assert found.total.value == pytest.approx(0.2)
    assert np.isnan(found.total.low)
