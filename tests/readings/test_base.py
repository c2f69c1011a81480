"""Readings from arrays, mappings of tokens and OpenAI's lists; checks, take and concat."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from discode._scales import FIVE, TEN, UNIT
from discode.errors import InputError
from discode.readings import Readings
from tests.helpers.fake_model import random_logp

RNG = np.random.default_rng(0)


def test_arrays_one_row_or_many() -> None:
    assert len(Readings.of(random_logp(RNG, 1, 10)[0], TEN)) == 1
    assert len(Readings.of(random_logp(RNG, 7, 10).tolist(), TEN)) == 7
    unit = Readings.of(random_logp(RNG, 3, 10), UNIT)
    assert unit.answer_logp.shape == (3, 2, 10)
    assert np.isnan(unit.answer_logp[:, 1]).all()


def test_what_was_checked_stays_as_it_was() -> None:
    mine = random_logp(RNG, 2, 10)
    readings = Readings.of(mine, TEN)
    with pytest.raises(ValueError, match="read-only"):
        readings.answer_logp[0, 0, 0] = 0
    before = mine[0, 0]
    mine[0, 0] = 3.0
    assert readings.answer_logp[0, 0, 0] == before


def test_openai_rows() -> None:
    row = [{"token": str(d), "logprob": -2.4, "bytes": [1]} for d in range(1, 6)]
    assert len(Readings.of(row, FIVE)) == 1
    assert len(Readings.of([row, row], FIVE)) == 2


def test_spellings_of_an_answer_are_added_up() -> None:
    row = {"5": math.log(0.3), " 5": math.log(0.2), "▁5": math.log(0.1), "Ġ4": math.log(0.1)}
    row |= {"3": -9.0, "2": -9.0, "1": -9.0, "55": -1.0}
    listed = [{"token": token, "logprob": value} for token, value in row.items()]
    listed.append({"token": "5", "logprob": math.log(0.05)})  # it may stand there twice
    for given, five in ((row, 0.6), (listed, 0.65)):
        logp = Readings.of(given, FIVE).answer_logp[0, 0]
        assert np.exp(logp[3:]) == pytest.approx([0.1, five])


def test_missing_answers_are_nan_or_spread() -> None:
    row = {"5": math.log(0.5), "4": math.log(0.3)}
    assert "no log-probability for '1', '2', '3'" in Readings.of(row, FIVE).errors[0]
    spread = Readings.of(row, FIVE, missing="spread")
    assert np.exp(spread.answer_logp[0, 0]) == pytest.approx([0.2 / 3] * 3 + [0.3, 0.5])
    assert spread.truncated is not None
    assert spread.truncated.tolist() == [True]
    # Never above the smallest probability given, never above 1 in all.
    tight = Readings.of({"5": math.log(0.5), "x": math.log(0.001)}, FIVE, missing="spread")
    assert np.exp(tight.answer_logp[0, 0, 0]) == pytest.approx(0.001)
    full = Readings.of({"5": 0.0}, FIVE, missing="spread")
    assert np.exp(full.answer_logp[0, 0]).tolist() == [0, 0, 0, 0, 1]
    none = Readings.of([{"x": -1.0}], FIVE, missing="spread")
    assert "none of the answers" in none.errors[0]


@pytest.mark.parametrize(
    "log_probs",
    [
        [0.5] * 10,
        [np.inf] + [-1.0] * 9,
        [-1.0] * 10,
        [-1.0] * 9,
        np.zeros((2, 2, 10)),
        [],
        ["a"] * 10,
        [[-1.0] * 10, [-1.0]],
        None,
        {"1": "x"},
        [{"1": -1.0}, 3],
        {"1": -1.0, "x": 0.5},
        {"1": -(10**400)},
        [-(10**400)] * 10,
    ],
)
def test_bad_log_probs(log_probs: Any) -> None:
    with pytest.raises(InputError):
        Readings.of(log_probs, TEN, missing="spread")


def test_bad_rows_are_named() -> None:
    rows = random_logp(RNG, 30, 10)
    rows[17, 3] = 0.5
    with pytest.raises(InputError, match="row 17"):
        Readings.of(rows, TEN)


def test_rounded_log_probs_pass() -> None:
    logp = random_logp(RNG, 100, 10).astype(np.float16)
    assert len(Readings.of(logp, TEN)) == 100


def test_wrong_shapes_say_so() -> None:
    good = np.zeros((2, 1, 10)) - 9
    with pytest.raises(InputError, match="stem_logp"):
        Readings(TEN, good, np.zeros((2, 2)))
    with pytest.raises(InputError, match="answer_logp"):
        Readings(FIVE, good, np.zeros((2, 1)))
    with pytest.raises(InputError, match="stems' probabilities add up"):
        Readings(UNIT, np.full((1, 2, 10), -9.0), np.log([[0.9, 0.9]]))
    with pytest.raises(InputError, match="head"):
        Readings(TEN, good, np.zeros((2, 1)), hidden=np.zeros((2, 4), np.float32))


def test_take_and_concat_keep_errors_in_place() -> None:
    good = Readings.of(random_logp(RNG, 2, 10), TEN)
    joined = Readings.concat(TEN, [good, Readings.failed(TEN, ["a", "b"]), good])
    assert len(joined) == 6
    assert joined.errors == {2: "a", 3: "b"}
    assert joined.take([3, 0, 2]).errors == {0: "b", 2: "a"}
    assert len(Readings.concat(TEN, [])) == 0


def test_masked_values_are_nan() -> None:
    logp = np.ma.masked_less(random_logp(RNG, 2, 10), -1e9)
    logp[0, 3] = np.ma.masked
    assert np.isnan(Readings.of(logp, TEN).answer_logp).sum() == 1


@pytest.mark.parametrize(
    "given",
    [
        np.full(10, -3 + 1j),
        [-3 + 1j] * 10,
        np.ma.masked_array(np.full(10, -3 + 1j)),
        {str(digit): np.complex64(-3 + 1j) for digit in range(10)},
    ],
)
def test_complex_numbers_are_refused(given: Any) -> None:
    with pytest.raises(InputError, match=r"must be numbers|not a log-probability"):
        Readings.of(given, TEN)
