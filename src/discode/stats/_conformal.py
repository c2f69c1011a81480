"""Intervals of people's ratings from scores: split conformal prediction over images.

Half of the images fit a map from scores to ratings, and the errors to be expected; the other half
say how many such errors an interval has to extend to cover a rating as often as promised. That
holds for every judge, however poor, if new images are drawn as these were: a poor one has wide
intervals. Vovk et al. (2005); Lei et al. (2018), section 5.2, for errors that vary.
"""

from __future__ import annotations

import math
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from discode.decoders._preset import Calibration, RatingIntervals
from discode.errors import InputError
from discode.stats._base import Floats, Ints, finite_columns, label_codes
from discode.stats._calibration import fit_calibration
from discode.stats._effects import MeansPlan
from discode.stats._resampling import Interval, bootstrap_all
from discode.stats._selection import deal_folds

FEW_LEVELS = 11
"""Up to this many distinct ratings are taken for levels, and bounds are moved to them."""
LEAST_SPREAD = 0.1
"""The smallest expected error, as a share of the mean one: nothing is read without doubt."""


class Coverage(NamedTuple):
    """How many of ``ratings`` lie in their intervals, and how wide these are on average."""

    coverage: Interval
    width: Interval
    ratings: int


def fewest_images(level: float) -> int:
    """Compute the fewest images that can set a quantile: the least n with n/(n + 1) >= level.

    >>> fewest_images(0.9), fewest_images(0.95), fewest_images(0.5)
    (9, 19, 1)
    """
    if not 0 < level < 1:
        raise InputError(f"level={level} must lie between 0 and 1, such as 0.9")
    return math.ceil(round(level / (1 - level), 9))


def conformal_quantile(errors: ArrayLike, images: ArrayLike, level: float = 0.9) -> float:
    """Compute q such that a rating of a new image has an error of at most q as often as ``level``.

    Of n images, image i with N_i of the ``errors`` (rows,), the smallest q with

        Σ_i #{j : e_ij <= q} / (N_i · (n + 1))  >=  level.

    The missing 1/(n + 1) is the new image's. With one rating per image it is the ⌈(n + 1)·level⌉-th
    smallest error. The ratings of an image stay together, since they are not independent (Lee,
    Barber & Willett 2023). ``images`` (rows,) names each row's image.

    >>> conformal_quantile([0.3, 0.1, 0.2, 0.4], ["a", "b", "c", "d"], level=0.6)
    0.3
    """
    (error,) = finite_columns(errors=errors)
    codes = label_codes(images, "images", len(error))
    rows = np.bincount(codes)
    if len(rows) < fewest_images(level):
        raise InputError(
            f"intervals of {100 * level:g} % need ratings of {fewest_images(level)} images or more "
            f"to be set by, and there are {len(rows)}; give more ratings or a lower level"
        )
    order = np.argsort(error, kind="stable")
    share = np.cumsum(1 / rows[codes[order]]) / (len(rows) + 1)
    return float(error[order[np.searchsorted(share, level - 1e-12)]])


def fit_intervals(
    score: ArrayLike,
    width: ArrayLike,
    rating: ArrayLike,
    images: ArrayLike,
    *,
    level: float = 0.9,
    adaptive: bool = True,
    seed: int = 0,
) -> RatingIntervals:
    """Fit intervals of ratings (n,) to scores (n,) whose readings are ``width`` (n,) wide.

    ``adaptive`` intervals are as wide as the errors of readings of that width on half of the
    images; otherwise all are equally wide. ``images`` (n,) names each row's image.

    >>> rng = np.random.default_rng(0)
    >>> score, doubt = rng.random((2, 400))
    >>> rating = 1 + 4 * score + doubt * rng.normal(size=400)
    >>> fitted = fit_intervals(score, doubt, rating, np.arange(400))
    >>> people, low, high = fitted.apply(np.array([0.5, 0.5]), np.array([0.1, 0.9]))
    >>> bool(high[0] - low[0] < high[1] - low[1])
    True
    """
    x, w, y = finite_columns(score=score, width=width, rating=rating)
    codes = label_codes(images, "images", len(x))
    half = np.random.default_rng(seed).permutation(int(codes.max(initial=-1)) + 1) % 2
    first = half[codes] == 0
    _check_images(len(half), fewest_images(level) * 2, level)
    people = fit_calibration(x[first], y[first])
    error = np.abs(y - people.apply(x))
    typical = float(error[first].mean()) or 1.0
    spread = Calibration((0.0,), (1.0,))
    if adaptive:
        fitted = fit_calibration(w[first], error[first])
        least = LEAST_SPREAD * typical
        spread = Calibration(fitted.score, tuple(max(each, least) for each in fitted.rating))
    quantile = conformal_quantile(
        error[~first] / spread.apply(w[~first]), codes[~first], level=level
    )
    levels = np.unique(y)
    few = len(levels) <= FEW_LEVELS
    return RatingIntervals(
        people, spread, quantile, float(y.min()), float(y.max()),
        tuple(levels.tolist()) if few else (), level,
    )  # fmt: skip


def _check_images(given: int, wanted: int, level: float) -> None:
    if given < wanted:
        raise InputError(
            f"intervals of {100 * level:g} % need ratings of {wanted} images or more to be fitted "
            f"and tested on different ones, and there are {given}; give more ratings or a lower "
            "level"
        )


def held_out_intervals(
    score: ArrayLike,
    width: ArrayLike,
    rating: ArrayLike,
    images: ArrayLike,
    *,
    level: float = 0.9,
    adaptive: bool = True,
    folds: int = 5,
    seed: int = 0,
) -> tuple[Floats, Floats]:
    """Compute lower and upper bounds (n,) for ratings by fits on the images of other folds."""
    x, w, y = finite_columns(score=score, width=width, rating=rating)
    codes = label_codes(images, "images", len(x))
    size = int(codes.max(initial=-1)) + 1
    fold = deal_folds(size, folds, seed)[codes]
    half = fewest_images(level)
    _check_images(size, next(n for n in count(2 * half) if n - -(-n // folds) >= 2 * half), level)
    low, high = np.empty(len(x)), np.empty(len(x))
    for k in range(folds):
        rest, here = fold != k, fold == k
        fitted = fit_intervals(
            x[rest], w[rest], y[rest], codes[rest], level=level, adaptive=adaptive, seed=seed
        )
        _, low[here], high[here] = fitted.apply(x[here], w[here])
    return low, high


def measure_coverage(
    low: Floats, high: Floats, rating: Floats, images: Ints, *, resamples: int = 1000, seed: int = 0
) -> Coverage:
    """Measure the share of ratings (n,) within their bounds, and the mean width, over images.

    Both have 95 % intervals of a bootstrap over images.

    >>> ones = np.ones(3)
    >>> done = measure_coverage(0 * ones, 2 * ones, np.array([1.0, 2.0, 5.0]), np.arange(3))
    >>> round(done.coverage.value, 3), done.width.value
    (0.667, 2.0)
    """
    inside = (low <= rating) & (rating <= high)
    plan = MeansPlan(np.stack([inside, high - low], axis=1))
    coverage, width = bootstrap_all(plan, images, resamples=resamples, seed=seed)
    return Coverage(coverage, width, len(rating))
