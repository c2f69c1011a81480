"""Choose one of several metrics on some images and test the choice on others.

The images are dealt into K folds. For each fold the candidate that agrees best with people on the
*other* folds is chosen, and measured on this one against the first candidate, the baseline. The
difference T is the mean over all images, each judged by a candidate it had no part in choosing.

The K choices share most of their images, so that T varies more than the mean of as many independent
numbers, and the more candidates the more. The test therefore repeats everything, the choosing
included (sign-flip test): if no candidate is better than the baseline, the signs of an image's
differences are arbitrary. So each image's differences are flipped at random, for all candidates at
once, and p is the share of repetitions whose t = T / se(T) is at least the observed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from discode.errors import InputError
from discode.stats._base import Floats, Ints
from discode.stats._contributions import Contributions
from discode.stats._resampling import Interval, block_sizes, bootstrap

FEWEST_IMAGES = 20
"""With fewer, a fold holds too few images to compare anything on."""


@dataclass(frozen=True)
class NestedChoice:
    """The chosen candidate, and its gain on images it was not chosen on.

    ``winner`` agrees best on all images, ``by_fold`` (K,) outside each fold. ``value`` is the
    agreement of those choices on their held-out folds, ``baseline`` that of the first candidate,
    ``difference`` has the interval of a bootstrap over images, and ``p`` (one-sided) is how often
    no better candidate would look as good as this.
    """

    winner: int
    by_fold: tuple[int, ...]
    value: float
    baseline: float
    difference: Interval
    p: float


def deal_folds(images: int, count: int = 5, seed: int = 0, unit: str = "images") -> Ints:
    """Deal images into ``count`` folds of nearly equal size: the fold of each (C,).

    ``unit`` is what an error calls the images.

    >>> np.bincount(deal_folds(22)).tolist()
    [5, 5, 4, 4, 4]
    """
    if count < 2:
        raise InputError(f"folds={count} is not allowed; give 2 or more")
    if images < max(FEWEST_IMAGES, 2 * count):
        raise InputError(
            f"{images} {unit} are too few to choose and to test on different ones; "
            f"give judgments of {max(FEWEST_IMAGES, 2 * count)} {unit} or more"
        )
    return np.random.default_rng(seed).permutation(np.arange(images) % count)


def choose(
    candidates: Sequence[Contributions],
    folds: Ints,
    *,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> NestedChoice:
    """Choose among M candidates, the first of which is the baseline, by nested cross-validation.

    ``folds`` (C,) is the fold of each image. Of equally good candidates the earlier is chosen, so
    the simpler ones go first.

    >>> flat = np.zeros(40)
    >>> better = Contributions(flat + 0.1, flat + 0.1, np.full((5, 40), 0.1))
    >>> same = Contributions(flat, flat, np.zeros((5, 40)))
    >>> done = choose([same, better], deal_folds(40), resamples=99)
    >>> done.winner, done.by_fold, round(done.difference.value, 3), done.p
    (1, (1, 1, 1, 1, 1), 0.1, 0.01)
    """
    if not candidates:
        raise InputError("there is nothing to choose from")
    apart = np.stack([candidate.apart for candidate in candidates], axis=1)  # (C, M)
    gain = apart - apart[:, :1]
    images = len(folds)
    inside = [np.flatnonzero(folds == k) for k in range(int(folds.max()) + 1)]
    outside = [np.flatnonzero(folds != k) for k in range(len(inside))]
    training = [
        np.stack([each.others[k, rows] - candidates[0].others[k, rows] for each in candidates], 1)
        for k, rows in enumerate(outside)
    ]  # K times (C_k, M)
    repeat = partial(_flipped, gain, inside, outside, training)
    chosen, mean, t = repeat(np.ones((1, images)))
    rng, count = np.random.default_rng(seed), 0
    for block in block_sizes(resamples, images):
        signs = np.where(rng.random((block, images)) < 0.5, -1.0, 1.0)
        count += int((repeat(signs)[2] >= t[0] * (1 - 1e-12)).sum())
    each_gain = gain[np.arange(images), chosen[0][folds]]

    def mean_gain(weights: Ints) -> float:
        return float(weights @ each_gain / weights.sum())

    whole = np.stack([candidate.whole for candidate in candidates], axis=1)
    return NestedChoice(
        int((whole - whole[:, :1]).sum(axis=0).argmax()),
        tuple(chosen[0].tolist()),
        float(mean[0] + apart[:, 0].mean()),
        float(apart[:, 0].mean()),
        bootstrap(mean_gain, np.arange(images), resamples=resamples, seed=seed, level=level),
        1.0 if mean[0] <= 0 else (count + 1) / (resamples + 1),
    )


def _flipped(
    gain: Floats,
    inside: Sequence[Ints],
    outside: Sequence[Ints],
    training: Sequence[Floats],
    signs: Floats,
) -> tuple[Ints, Floats, Floats]:
    """Return, for (R, C) signs, the choices (R, K), T (R,) and t (R,)."""
    images = len(gain)
    total, square = np.zeros(len(signs)), np.zeros(len(signs))
    chosen = np.empty((len(signs), len(inside)), np.int64)
    which = np.arange(len(signs))
    for k, rows in enumerate(inside):
        chosen[:, k] = (signs[:, outside[k]] @ training[k]).argmax(axis=1)
        total += (signs[:, rows] @ gain[rows])[which, chosen[:, k]]
        square += (gain[rows] ** 2).sum(axis=0)[chosen[:, k]]
    mean = total / images
    spread = np.sqrt(np.maximum(square - images * mean**2, 0.0) / (images * (images - 1)))
    t = np.zeros(len(signs))
    # If all images agree up to rounding, t takes its largest value.
    np.divide(mean, np.maximum(spread, np.abs(mean) * 1e-9), out=t, where=mean != 0)
    return chosen, mean, t
