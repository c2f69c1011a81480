"""Bring scores to the people's scale: isotonic regression, with its error on held-out images.

Of all maps that never fall, isotonic regression is the one with the least squared error. It is a
staircase, on whose steps scores tie. Its steps' centres joined by straight lines (centred isotonic
regression, Oron & Flournoy 2017) rise wherever the next step is higher, so that scores tie only
beyond the first and the last centre, where there are no data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from discode.decoders._preset import Calibration
from discode.errors import InputError
from discode.stats._base import Floats, Ints

DIGITS = 6
"""Knots are kept with as many significant digits: a file that one can read."""


@dataclass(frozen=True)
class CalibrationError:
    """Root mean squared errors on held-out ratings, in points of the people's scale.

    Of the calibrated scores, of the straight line by least squares, and of the mean rating.
    """

    calibrated: float
    line: float
    constant: float


def isotonic(y: Floats, weights: Floats) -> Floats:
    """Fit the non-decreasing ŷ (n,) nearest to ``y``: argmin Σ w_i (ŷ_i - y_i)².

    Pool adjacent violators: O(n). Ayer et al. (1955).

    >>> isotonic(np.array([1.0, 3.0, 2.0, 4.0]), np.ones(4)).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    blocks: list[tuple[float, float, int]] = []  # mean, weight, rows
    for value, weight in zip(y.tolist(), weights.tolist(), strict=True):
        mean, mass, rows = value, weight, 1
        while blocks and blocks[-1][0] >= mean:
            before, other, more = blocks.pop()
            mean = (mean * mass + before * other) / (mass + other)
            mass, rows = mass + other, rows + more
        blocks.append((mean, mass, rows))
    return np.repeat([mean for mean, _, _ in blocks], [rows for _, _, rows in blocks])


def fit_calibration(score: Floats, rating: Floats) -> Calibration:
    """Fit a map from scores (n,) to ratings (n,): the centres of isotonic regression's steps.

    >>> fit_calibration(np.array([0.1, 0.2, 0.3, 0.9]), np.array([1.0, 3.0, 2.0, 4.0]))
    Calibration(score=(0.1, 0.25, 0.9), rating=(1.0, 2.5, 4.0))
    """
    if not len(score):
        raise InputError("there are no ratings to calibrate with")
    values, row = np.unique(score, return_inverse=True)
    count = np.bincount(row).astype(np.float64)
    fitted = isotonic(np.bincount(row, weights=rating) / count, count)
    step = np.cumsum(np.diff(fitted, prepend=fitted[0]) > 0)
    mass = np.bincount(step, weights=count)
    centre = _rounded(np.bincount(step, weights=count * values) / mass)
    height = _rounded(np.bincount(step, weights=count * fitted) / mass)
    keep = np.diff(centre, prepend=-np.inf) > 0  # rounding may have joined two
    return Calibration(tuple(centre[keep].tolist()), tuple(height[keep].tolist()))


def calibration_error(scores: Sequence[Floats], rating: Floats, folds: Ints) -> CalibrationError:
    """Measure calibrations inside each fold that are fitted outside it.

    ``scores`` has, for each fold, the scores (n,) of all ratings by the decoder chosen without it;
    ``folds`` (n,) is the fold of each rating's image.
    """
    squares = np.zeros(3)
    for k, score in enumerate(scores):
        train, test = folds != k, folds == k
        truth = rating[test]
        slope, offset = _line(score[train], rating[train])
        guesses = (
            fit_calibration(score[train], rating[train]).apply(score[test]),
            slope * score[test] + offset,
            np.full(len(truth), rating[train].mean()),
        )
        squares += [float(((guess - truth) ** 2).sum()) for guess in guesses]
    return CalibrationError(*np.sqrt(squares / len(rating)).tolist())


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread if spread else 0.0
    return slope, float(y.mean() - slope * x.mean())


def _rounded(values: Floats) -> Floats:
    return np.array([float(f"{value:.{DIGITS}g}") for value in values.tolist()])
