"""Bradley-Terry strengths against a general optimiser, and where they do not exist."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from discode.errors import InputError
from discode.stats import BradleyTerryPlan, UndefinedWarning, bootstrap_all, bradley_terry


def likeliest(wins: np.ndarray) -> np.ndarray:
    """The maximum of the log-likelihood by BFGS, with mean 0."""

    def loss(strength: np.ndarray) -> float:
        return float((wins * np.logaddexp(0, strength - strength[:, None])).sum())

    found = minimize(loss, np.zeros(len(wins)), method="BFGS", options={"gtol": 1e-9}).x
    return np.asarray(found - found.mean())


@given(st.integers(2, 6), st.integers(0, 2**31))
def test_strengths_maximise_the_likelihood(size: int, seed: int) -> None:
    wins = np.random.default_rng(seed).gamma(1.0, 3.0, (size, size)) + 0.05
    np.fill_diagonal(wins, 0)
    assert bradley_terry(wins) == pytest.approx(likeliest(wins), abs=1e-4)


def test_two_players_have_a_closed_form() -> None:
    for share in (0.5, 0.75, 0.999999):
        strength = bradley_terry([[0, share], [1 - share, 0]])
        assert strength[0] - strength[1] == pytest.approx(np.log(share / (1 - share)))


def test_preferences_become_shares_of_wins() -> None:
    plan = BradleyTerryPlan(["a", "b", "a"], ["b", "a", "c"], [0.7, 0.4, 0.5])
    wins = np.array([[0, 1.3, 1.0], [0.7, 0, 0], [1.0, 0, 0]])
    assert plan(np.array([1, 1, 2])) == pytest.approx(likeliest(wins), abs=1e-5)


def test_the_interval_covers_the_true_strengths() -> None:
    rng = np.random.default_rng(0)
    truth = np.array([0.5, 0.0, -0.5])
    first, second = np.array([0, 0, 1] * 80), np.array([1, 2, 2] * 80)
    images = np.repeat(np.arange(80), 3)
    odds = 1 / (1 + np.exp(truth[second] - truth[first]))
    covered = 0
    for _ in range(60):
        won = (rng.random(240) < odds).astype(float)
        plan = BradleyTerryPlan(first, second, won)
        intervals = bootstrap_all(plan, images, resamples=200)
        covered += sum(i.low <= t <= i.high for i, t in zip(intervals, truth, strict=True))
    assert 0.88 <= covered / 180 <= 0.99


@pytest.mark.parametrize("wins", [[[0, 1], [0, 0]], [[0, 1, 0], [1, 0, 0], [0, 0, 0]]])
def test_players_without_a_loss_have_no_finite_strength(wins: list[list[int]]) -> None:
    with pytest.warns(UndefinedWarning):
        assert np.isnan(bradley_terry(wins)).all()


@pytest.mark.parametrize("wins", [[1, 2], [[0, -1], [1, 0]], [[0, np.nan], [1, 0]]])
def test_tables_that_are_no_wins_are_refused(wins: Any) -> None:
    with pytest.raises(InputError, match="wins"):
        bradley_terry(wins)


def test_comparisons_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="itself"):
        BradleyTerryPlan(["a"], ["a"], [0.5])
    with pytest.raises(InputError, match="preference"):
        BradleyTerryPlan(["a"], ["b"], [1.5])
