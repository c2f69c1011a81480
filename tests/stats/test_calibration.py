"""Calibration: isotonic regression against scipy's, and errors where the truth is known."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st

from discode.errors import InputError
from discode.stats._calibration import calibration_error, fit_calibration, isotonic

pytest.importorskip("scipy", minversion="1.12", reason="the oracle, isotonic_regression")
isotonic_regression = scipy.optimize.isotonic_regression
NUMBERS = st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 4)), min_size=1, max_size=40)


@given(NUMBERS)
def test_isotonic_is_scipys(rows: list[tuple[int, int]]) -> None:
    y, w = np.array(rows, float).T
    np.testing.assert_allclose(isotonic(y, w), isotonic_regression(y, weights=w).x, atol=1e-12)


@given(seed=st.integers(0, 1000), rows=st.integers(1, 80), levels=st.integers(1, 30))
def test_the_map_never_falls_and_its_knots_are_the_steps_centres(
    seed: int, rows: int, levels: int
) -> None:
    rng = np.random.default_rng(seed)
    score = rng.integers(0, levels, rows) / levels
    rating = rng.integers(1, 6, rows).astype(float)
    curve = fit_calibration(score, rating)
    out = curve.apply(np.linspace(-1, 2, 200))
    assert (np.diff(out) >= 0).all()
    assert rating.min() <= out.min()
    assert out.max() <= rating.max()
    values, at = np.unique(score, return_inverse=True)
    count = np.bincount(at)
    fitted = isotonic_regression(np.bincount(at, rating) / count, weights=count).x
    heights = np.unique(fitted.round(9))
    np.testing.assert_allclose(curve.rating, heights, rtol=1e-5)
    for centre, height in zip(curve.score, heights, strict=True):
        step = np.isclose(fitted, height)
        assert centre == pytest.approx(np.average(values[step], weights=count[step]), rel=1e-5)


def test_the_held_out_error_is_that_of_fresh_data() -> None:
    """Truth: rating = 5·score² + noise of sd 0.5; a line cannot follow it, the map can."""
    rng = np.random.default_rng(1)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        score = rng.random(n)
        return score, 5 * score**2 + rng.normal(scale=0.5, size=n)

    score, rating = draw(2000)
    error = calibration_error([score] * 5, rating, np.arange(2000) % 5)
    fresh, truth = draw(20_000)
    seen = np.sqrt(((fit_calibration(score, rating).apply(fresh) - truth) ** 2).mean())
    assert error.calibrated == pytest.approx(seen, abs=0.03)
    assert 0.5 < error.calibrated < 0.55 < error.line < error.constant
    assert error.constant == pytest.approx(np.std(rating), rel=0.01)


def test_a_fold_is_measured_by_the_scores_chosen_without_it() -> None:
    rng = np.random.default_rng(2)
    rating, fold = rng.normal(size=300), np.arange(300) % 3
    noise = rng.normal(size=300)
    mixed = calibration_error([rating, noise, noise], rating, fold)
    good = calibration_error([rating] * 3, rating, fold)
    bad = calibration_error([noise] * 3, rating, fold)
    assert good.calibrated < mixed.calibrated < bad.calibrated


def test_constant_scores_and_no_scores() -> None:
    curve = fit_calibration(np.full(4, 0.3), np.array([1.0, 2, 3, 4]))
    assert (curve.score, curve.rating) == ((0.3,), (2.5,))
    with pytest.raises(InputError):
        fit_calibration(np.zeros(0), np.zeros(0))
