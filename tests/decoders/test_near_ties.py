"""Scores that a small error of the log-probabilities would move far are flagged, with the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import discode
from discode._scales import UNIT, get_scale
from discode.decoders import get_decoder
from discode.decoders._base import JUMP, MARGIN
from discode.readings import Readings

TORN = np.array([0.086, 0.168, 0.136, 0.057, 0.071, 0.080, 0.052, 0.103, 0.081, 0.166])


def test_a_near_tie_is_flagged_with_the_other_score() -> None:
    before, after = (np.log(p / p.sum()) for p in (TORN, TORN + 0.003 * np.eye(10)[9]))
    one, two = (discode.decode(logp, scale="unit") for logp in (before, after))
    assert float(two) - float(one) > 0.7
    for scores, other in ((one, two), (two, one)):
        assert scores.counts()["bimodal"] == 1
        assert scores.other is not None
        assert scores.other[0] == pytest.approx(float(other), abs=0.01)
        (row,) = scores.rows()
        assert row["flags"] == ["bimodal"]
        assert row["other_score"] == scores.other[0]
    assert discode.decode(before, "raw", scale="unit").counts()["bimodal"] == 1
    assert discode.decode(before, "smoothing", scale="unit").counts()["bimodal"] == 0
    sure = discode.decode(np.log(np.eye(10)[3] * 0.8 + 0.02), scale="unit")
    assert sure.counts()["bimodal"] == 0
    assert "other_score" not in sure.columns()


def test_nearly_equal_stems_are_flagged() -> None:
    """Below "0." the rating is 0.2, after "1." it is 1.0."""
    answers = np.log(np.tile(np.eye(10)[2] * 0.8 + 0.02, (3, 2, 1)))
    readings = Readings(UNIT, answers, np.log([[0.5, 0.46], [0.46, 0.5], [0.6, 0.3]]))
    for method in ("smoothing", "discode", "paper", "raw"):
        scores = discode.decode(readings, method)
        assert scores.flags["bimodal"].tolist() == [True, True, False]
        assert scores.other is not None
        assert scores.other[:2] == pytest.approx(scores.value[1::-1], abs=0.01)
    assert discode.decode(readings, "smoothing:stem=joint").counts()["bimodal"] == 0


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    gap=st.sampled_from([0.05, 0.3, 2.0]),
    name=st.sampled_from(["ten", "five", "1-7"]),
    method=st.sampled_from(["discode", "paper", "raw", "discode:trust=9", "smoothing"]),
)
def test_no_small_error_moves_an_unflagged_score_far(
    seed: int, gap: float, name: str, method: str
) -> None:
    """Random errors of up to MARGIN per log-probability, as the flag's definition has them."""
    scale, rng = get_scale(name), np.random.default_rng(seed)
    logits = -gap * rng.random((8, len(scale.answers)))
    logp = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True) - 0.2
    decoder = get_decoder(method)
    decoded = decoder.decode(Readings.of(logp, scale))
    assert decoded.other is not None
    jump = JUMP * (scale.maximum - scale.minimum)
    for _ in range(20):
        moved = logp + rng.uniform(-MARGIN, MARGIN, logp.shape)
        score = decoder.decode(Readings.of(moved, scale)).score
        # An error also moves the mean a little, and not only the peak.
        far = np.abs(score - decoded.score) > jump + 2 * MARGIN * (len(scale.answers) - 1)
        assert not (far & np.isnan(decoded.other)).any()
