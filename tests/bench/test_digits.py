"""Digits: the mass above one hump by brute force, and counts of planted readings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discode._scales import FIVE, TEN, UNIT
from discode.bench import AgreementProtocol
from discode.bench._digits import above_one_hump, count_digits
from discode.errors import InputError
from discode.readings import Readings

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


def test_planted_readings() -> None:
    """Half of the pairs say 8 with 0.2 on 0 beside the hump, half say 2 with one hump."""
    biased = [0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.2, 0.4, 0.1]
    plain = [0.1, 0.2, 0.5, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    with np.errstate(divide="ignore"):
        digits = count_digits(Readings.of(np.log([biased, plain] * 30), TEN), np.arange(60))
    assert (digits.pairs, digits.failed, digits.top) == (60, 0, 0)
    assert digits.counts[[2, 8]].tolist() == [30, 30]
    assert digits.frequency[8].value == pytest.approx(0.5)
    assert digits.probability[0].value == pytest.approx(0.15)
    assert digits.bias[0].value == pytest.approx(0.1)  # 0.2 in half of the pairs
    assert digits.bias[0].low < 0.1 < digits.bias[0].high
    assert sum(bias.value for bias in digits.bias) == pytest.approx(digits.total.value)
    assert digits.humps.value == pytest.approx(0.5)
    np.testing.assert_allclose(digits.profile[8], biased)
    assert np.isnan(digits.profile[0]).all()


def test_what_has_no_digit_to_choose_is_counted_and_left_out() -> None:
    digits = np.log(np.full((3, 2, 10), 0.1))
    digits[2] = np.nan
    digits[0, 0, 7] = np.log(0.19)
    digits[0, 0, 6] = np.log(0.01)
    stems = np.log([[0.9, 0.1], [0.1, 0.9], [0.5, 0.5]])
    counts = count_digits(Readings(UNIT, digits, stems), np.arange(3))
    assert (counts.pairs, counts.failed, counts.top) == (1, 1, 1)
    assert counts.counts.tolist() == [0] * 7 + [1, 0, 0]
    with pytest.raises(InputError):
        count_digits(Readings(UNIT, digits[1:], stems[1:]), np.arange(2))


def test_other_scales_and_no_intervals() -> None:
    readings = Readings.of(np.log([[0.4, 0.1, 0.1, 0.1, 0.3]]), FIVE)
    counts = count_digits(readings, np.zeros(1, np.int64), AgreementProtocol(resamples=0))
    assert counts.answers == FIVE.answers
    assert counts.total.value == pytest.approx(0.2)
    assert np.isnan(counts.total.low)
