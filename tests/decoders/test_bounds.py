"""How wrong a truncated score may be, against the scores of what was left out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import discode
from discode.decoders import get_decoder
from discode.decoders.bounds import truncation_bound
from discode.readings import Readings
from discode.scales import TEN


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    top=st.integers(2, 12),
    method=st.sampled_from(["smoothing", "discode", "raw"]),
)
def test_the_truth_lies_within(seed: int, top: int, method: str) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=14) * rng.uniform(0.5, 4)
    p = np.exp(logits) / np.exp(logits).sum()
    p[:10] += 1e-12
    tokens = dict(zip([*"0123456789", "the", "a", "I", "\n"], np.log(p).tolist(), strict=True))
    best = max("0123456789", key=lambda digit: tokens[digit])
    listed = sorted(tokens, key=lambda token: -tokens[token])[:top]
    if best not in listed:
        return
    sent = {token: min(tokens[token], 0.0) for token in listed}
    readings = Readings.of(sent, TEN, missing="spread")
    decoder = get_decoder(method)
    true = float(decoder.decode(Readings.of(np.log(p[:10]).clip(max=0), TEN)).score[0])
    bound = truncation_bound(decoder, readings)
    if bound is None:
        assert all(digit in listed for digit in "0123456789")
        return
    assert abs(float(decoder.decode(readings).score[0]) - true) <= bound[0] + 1e-6


def test_only_truncated_rows() -> None:
    whole = {str(n): math.log(0.1) for n in range(10)}
    part = {"7": math.log(0.6), "8": math.log(0.3), "the": math.log(0.05)}
    scores = discode.decode([whole, part], missing="spread")
    assert scores.bound is not None
    assert scores.bound[0] == 0
    assert scores.bound[1] > 0
    assert [row["bound"] for row in scores.rows()] == scores.bound.tolist()
    assert discode.decode([whole]).bound is None
    assert "bound" not in next(discode.decode([whole]).rows())


def test_the_second_decimal_counts_for_fleur() -> None:
    from discode.scales import UNIT

    answers = np.full((1, 2, 10), np.nan)
    answers[0, 0] = np.log([0.01] * 7 + [0.9, 0.01, 0.01])
    second = np.log([[0.5] + [0.05] * 9])
    readings = Readings(
        UNIT, answers, np.array([[-0.1, np.nan]]), second_logp=second, truncated=np.array([True])
    )
    more = truncation_bound(get_decoder("fleur"), readings)
    less = truncation_bound(get_decoder("smoothing"), readings)
    assert more is not None
    assert less is not None
    # smoothing does not look at it: only FLEUR's sum of 0.01·d·p can change, by nine times 0.45
    assert more[0] > 0.01 * sum(range(1, 10)) * 0.4
    assert less[0] == pytest.approx(truncation_bound(get_decoder("smoothing"), readings), abs=0)
