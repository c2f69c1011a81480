"""Fit a linear decoder to people's judgments, for the whole set and for each fold without it.

Ridge regression on pairs of captions: the difference of their scores should be +1 where people
prefer the first and -1 where they prefer the second. For choices these are the pairs that were
compared; for ratings all pairs, which is least squares on the ratings' mid-ranks.

Where fold A's weights depend on fold B's judgments and B's on A's, the held-out gains of both are
correlated, and a test that flips the signs of images understates how much their sum varies. So of
two folds only one helps to fit the other's weights: fold k is scored by weights fitted on the next
(K - 1) // 2 folds, cyclically. If no weights are better than the baseline, gains of different folds
are then uncorrelated.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from discode.benchmarks import Preferences, Ratings
from discode.decoders._linear import BIAS, Linear, linear_terms
from discode.errors import InputError
from discode.readings import Readings
from discode.stats import ranks
from discode.stats._base import Floats, Ints

RIDGE = 10.0
"""Penalty on the squared weights of standardised terms; the smoothed score has none."""
FEWEST_FOLDS = 5
"""With fewer, a fold has no images left to fit its weights on when another is held out."""


@dataclass(frozen=True, eq=False)
class LearnedDecoder:
    """A linear decoder fitted on all images, and those that score each held-out fold.

    ``by_fold`` has the decoder that scores each of the K folds, ``score`` (P,) those scores;
    ``without`` (K, P) are scores by weights that fold k had no part in, for the choice outside it.
    """

    decoder: Linear
    by_fold: tuple[Linear, ...]
    score: Floats
    without: Floats


def learn_linear(
    judgments: Ratings | Preferences, readings: Readings, folds: Ints, count: int
) -> LearnedDecoder:
    """Fit a linear decoder to judgments of readings (P,), the pairs of ``count`` ``folds`` (P,).

    Pairs without a judgment that counts have the fold -1.
    """
    if count < FEWEST_FOLDS:
        raise InputError(f"--learn requires --folds {FEWEST_FOLDS} or more; given: {count}")
    scale = readings.scale.unique_name
    terms = linear_terms(readings)[1]
    table = np.array([*terms.values()]).T  # (P, F)
    first = next(iter(judgments.sides.values()))

    @cache
    def fitted(on: Set[int]) -> tuple[Linear, Floats]:
        used = np.isin(folds[first], [*on])
        weights = _fit(judgments, table, used)
        decoder = Linear(dict(zip([BIAS, *terms], weights.tolist(), strict=True)), scale)
        return decoder, decoder.decode(readings).score

    def score(without: int | None = None) -> Floats:
        value = fitted(every)[1].copy()
        for fold in every - {without}:
            rows = folds == fold
            value[rows] = fitted(_helpers(fold, count) - {without})[1][rows]
        return value

    every = frozenset(range(count))
    return LearnedDecoder(
        fitted(every)[0],
        tuple(fitted(_helpers(fold, count))[0] for fold in range(count)),
        score(),
        np.stack([score(fold) for fold in range(count)]),
    )


def _helpers(fold: int, count: int) -> frozenset[int]:
    """Choose the folds that fit a fold's weights; no two folds help each other.

    >>> [sorted(_helpers(fold, 5)) for fold in range(5)]
    [[1, 2], [2, 3], [3, 4], [0, 4], [0, 1]]
    """
    return frozenset((fold + step) % count for step in range(1, (count - 1) // 2 + 1))


def _fit(judgments: Ratings | Preferences, table: Floats, used: NDArray[np.bool_]) -> Floats:
    """Fit the bias and the weights (1 + F,) of terms (P, F) to the judgments ``used``.

    Scores get the mean and the spread of the smoothed ones, which are the first term.
    """
    if isinstance(judgments, Ratings):
        used = used & np.isfinite(table[judgments.pair]).all(axis=1)
        sides = table[judgments.pair[used]][None]
    else:
        table_of = np.stack([table[judgments.left], table[judgments.right]])
        used = used & np.isfinite(table_of).all(axis=(0, 2))
        sides = table_of[:, used]
    if not used.any():
        return np.zeros(1 + table.shape[1])
    seen = sides.reshape(-1, table.shape[1])
    centre, spread = seen.mean(axis=0), seen.std(axis=0)
    spread = np.where(spread > 1e-12 * np.abs(centre), spread, np.inf)  # a constant has no weight
    if isinstance(judgments, Ratings):
        target = ranks(judgments.value[used])
        target = 2 * (target - target.mean()) / len(target)
        design = (sides[0] - centre) / spread
    else:
        sign = 1.0 - 2 * judgments.chosen[used]
        design, target = sign[:, None] * (sides[0] - sides[1]) / spread, np.ones(len(sign))
    penalty = np.full(table.shape[1], RIDGE)
    penalty[0] = 0.0
    weights = ridge(design, target, penalty) / spread
    size = ((seen - centre) @ weights).std()
    weights *= seen[:, 0].std() / size if size else 1.0
    return np.append(centre[0] - centre @ weights, weights)


def ridge(x: Floats, y: Floats, penalty: Floats) -> Floats:
    """Find the w (F,) that minimises |y - x·w|² + Σ penalty·w²; the smallest if not unique.

    >>> ridge(np.array([[1.0], [1.0]]), np.array([1.0, 3.0]), np.array([2.0])).tolist()
    [1.0]
    """
    above = np.concatenate([x, np.diag(np.sqrt(penalty))])
    return np.asarray(np.linalg.lstsq(above, np.append(y, np.zeros(len(penalty))), rcond=None)[0])
