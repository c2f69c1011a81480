"""Intervals of ratings: the quantile by counting, coverage by simulation with known truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from discode.decoders._preset import Calibration, RatingIntervals
from discode.errors import InputError
from discode.stats import (
    conformal_quantile,
    fit_intervals,
    held_out_intervals,
    measure_coverage,
)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_the_quantile_of_one_rating_per_image_is_an_order_statistic(level: float) -> None:
    error = np.random.default_rng(0).random(57)
    rank = math.ceil(round(58 * level, 9))
    assert conformal_quantile(error, np.arange(57), level) == np.sort(error)[rank - 1]


def test_the_quantile_by_counting() -> None:
    """Ties and images of several ratings: the smallest error whose share reaches the level."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        images = rng.integers(0, 25, size=80)
        images = np.unique(images, return_inverse=True)[1]
        error = rng.integers(0, 12, size=80) / 4
        count = int(images.max()) + 1
        reached = [
            q for q in sorted({*error.tolist()})
            if sum(np.mean(error[images == i] <= q) for i in range(count)) / (count + 1)
            >= 0.75 - 1e-9
        ]  # fmt: skip
        assert conformal_quantile(error, images, 0.75) == reached[0]


@pytest.mark.parametrize("captions", [1, 4])
def test_a_new_rating_is_covered_as_often_as_promised(captions: int) -> None:
    """Of 39 images, at level 0.9: ⌈36⌉/40 = 0.9 exactly, where errors have no ties."""
    rng = np.random.default_rng(2)
    runs, inside = 4000, 0
    images = np.repeat(np.arange(39), captions)
    for _ in range(runs):
        image = rng.exponential(size=40)
        error = np.repeat(image[:39], captions) * rng.random(39 * captions)
        inside += image[39] * rng.random() <= conformal_quantile(error, images, 0.9)
    off = 3 * math.sqrt(0.09 / runs)
    assert 0.9 - off <= inside / runs
    assert inside / runs <= 0.9 + off + (captions > 1) * 0.02


def test_too_few_images_are_refused() -> None:
    errors = np.arange(8.0)
    with pytest.raises(InputError):
        conformal_quantile(errors, np.arange(8), 0.9)
    assert conformal_quantile(np.arange(9.0), np.arange(9), 0.9) == 8.0
    with pytest.raises(InputError):  # ratings of one image do not make up for others
        conformal_quantile(np.arange(90.0), np.arange(90) // 15, 0.9)
    with pytest.raises(InputError):
        conformal_quantile(errors, np.arange(8), 1.0)


def test_fitted_intervals_cover_and_adapt() -> None:
    rng = np.random.default_rng(3)
    images = np.repeat(np.arange(1500), 2)
    score, width = rng.random(3000), rng.choice([0.1, 0.5], size=3000)
    rating = 1 + 4 * score + width * rng.normal(size=3000)
    bounds = {
        adaptive: held_out_intervals(score, width, rating, images, adaptive=adaptive)
        for adaptive in (True, False)
    }
    done = {key: measure_coverage(*each, rating, images) for key, each in bounds.items()}
    for each in done.values():
        assert each.coverage.low - 0.01 <= 0.9 <= each.coverage.high + 0.01
    assert done[True].width.value < done[False].width.value
    low, high = bounds[True]
    for doubt in (0.1, 0.5):  # either kind of reading is covered, and not on average alone
        inside = (low <= rating) & (rating <= high)
        assert inside[width == doubt].mean() == pytest.approx(0.9, abs=0.03)
    inside = (bounds[False][0] <= rating) & (rating <= bounds[False][1])
    assert inside[width == 0.5].mean() < 0.86


def test_bounds_move_inward_to_levels_without_losing_a_rating() -> None:
    rng = np.random.default_rng(4)
    score = rng.random(1000)
    rating = np.clip(np.round(1 + 4 * score + rng.normal(size=1000)), 1, 5)
    fitted = fit_intervals(score, score, rating, np.arange(1000))
    assert fitted.levels == (1, 2, 3, 4, 5)
    free = RatingIntervals(fitted.people, fitted.spread, fitted.quantile, 1, 5)
    _, low, high = fitted.apply(score, score)
    _, wide_low, wide_high = free.apply(score, score)
    held = (wide_low <= rating) & (rating <= wide_high)
    np.testing.assert_array_equal(held <= ((low <= rating) & (rating <= high)), True)
    assert (high - low).mean() < (wide_high - wide_low).mean() - 0.3
    assert {*np.unique([low, high])} <= {1, 2, 3, 4, 5}


def test_an_interval_between_two_levels_is_the_nearest() -> None:
    line = Calibration((0.0, 1.0), (1.0, 5.0))
    narrow = RatingIntervals(line, Calibration((0.0,), (0.1,)), 1.0, 1, 5, (1, 2, 3, 4, 5))
    people, low, high = narrow.apply(np.array([0.1, 0.2, np.nan]), np.zeros(3))
    np.testing.assert_allclose(people, [1.4, 1.8, np.nan])
    np.testing.assert_array_equal([low, high], [[1, 2, np.nan]] * 2)
