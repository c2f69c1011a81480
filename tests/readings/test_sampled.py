"""Readings of sampled answers: counts that come back, unbiased means, and what more draws add."""

from __future__ import annotations

from itertools import product
from math import factorial, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discode._scales import FIVE, UNIT, get_scale
from discode.decoders import METHODS, get_decoder
from discode.decoders._sampling import standard_error
from discode.errors import InputError
from discode.readings import Readings
from discode.readings._sampled import counts_of, draw_answers, draws_of, from_counts, merge_draws

SCALES = ["unit", "five", "ten", "letters", "0-20"]


@given(st.sampled_from(SCALES), st.integers(0, 2**31), st.integers(1, 60))
def test_counts_come_back(name: str, seed: int, most: int) -> None:
    scale = get_scale(name)
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, most, (4, len(scale.stems), len(scale.answers)))
    draws = counts.sum(axis=(1, 2)) + rng.integers(0, 5, 4)
    draws += draws == 0
    readings = from_counts(scale, counts, draws)
    assert np.array_equal(counts_of(readings), counts)
    assert np.array_equal(draws_of(readings), draws)
    assert np.array_equal(counts_of(merge_draws(readings, readings)), 2 * counts)
    assert np.array_equal(draws_of(merge_draws(readings, readings)), 2 * draws)


def test_smoothing_is_unbiased() -> None:
    """The mean over all samples of three answers, each with its probability, is the exact mean."""
    p = np.array([0.1, 0.2, 0.4, 0.25, 0.05])
    smoothing = get_decoder("smoothing")
    exact = smoothing.decode(Readings.of(np.log(p), FIVE)).score[0]
    expected = 0.0
    for counts in product(range(4), repeat=5):
        if sum(counts) == 3:
            ways = factorial(3) / prod(map(factorial, counts))
            chance = ways * float(np.prod(p ** np.array(counts)))
            row = from_counts(FIVE, np.array([[counts]]), np.array([3]))
            expected += chance * float(smoothing.decode(row).score[0])
    assert expected == pytest.approx(exact, abs=1e-6)  # scores keep their order at this distance


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_decoder_works_on_counts(name: str) -> None:
    decoder = get_decoder(name)
    if decoder.requires:
        pytest.skip("needs hidden states")
    rng = np.random.default_rng(0)
    own = {"fleur": (UNIT,), "p-yes": (get_scale("yes-no"),)}
    for scale in own.get(name, (UNIT, FIVE)):
        counts = rng.integers(0, 3, (20, len(scale.stems), len(scale.answers)))
        counts[:, 0, 0] += 1
        readings = from_counts(scale, counts, counts.sum(axis=(1, 2)))
        score = decoder.decode(readings).score
        assert np.isfinite(score).all()
        assert (score >= scale.minimum).all()


def test_the_standard_error_is_that_of_repeated_sampling() -> None:
    """Of 400 samples of 20 answers: the scores' deviation, and the mean of the estimated ones."""
    exact = Readings.of(np.log(np.array([0.05, 0.15, 0.3, 0.35, 0.15])), FIVE)
    for name in ("smoothing", "discode"):
        decoder, rng = get_decoder(name), np.random.default_rng(1)
        drawn = Readings.concat(FIVE, [draw_answers(exact, 20, rng) for _ in range(400)])
        scores = decoder.decode(drawn).score
        estimated = standard_error(decoder, drawn)
        assert estimated is not None
        assert estimated.mean() == pytest.approx(scores.std(), rel=0.15)


def test_errors_do_not_depend_on_the_rows_beside() -> None:
    counts = np.random.default_rng(2).integers(0, 4, (5, 1, 5))
    readings = from_counts(FIVE, counts, counts.sum(axis=(1, 2)))
    decoder = get_decoder("discode")
    whole, last = (standard_error(decoder, part) for part in (readings, readings.take([4])))
    assert whole is not None
    assert last is not None
    assert whole[4] == last[0]
    assert standard_error(decoder, Readings.of(np.log(np.full(5, 0.2)), FIVE)) is None


def test_draws_without_a_rating() -> None:
    readings = from_counts(FIVE, np.array([[[0, 0, 0, 0, 0]], [[0, 1, 0, 0, 0]]]), np.array([4, 4]))
    assert readings.errors.keys() == {0}
    assert np.isnan(get_decoder("discode").decode(readings).score).tolist() == [True, False]
    assert np.exp(readings.answer_logp[1, 0, 1]) == pytest.approx(0.25)


@pytest.mark.parametrize(("count", "draws"), [(-1, 3), (4, 3)])
def test_impossible_counts_are_refused(count: int, draws: int) -> None:
    with pytest.raises(InputError, match="counts"):
        from_counts(FIVE, np.array([[[count, 0, 0, 0, 0]]]), np.array([draws]))
