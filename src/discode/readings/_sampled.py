"""Readings estimated from sampled answers, for models that return no log-probabilities.

Of n answers drawn at temperature 1, the share of each rating estimates its probability, without
bias. ``how`` of such a reading is "sampled n", so that its counts can be recovered and more
answers added to them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from discode._scales import Rating, Scale
from discode.errors import InputError
from discode.readings._base import Readings

Ints = NDArray[np.int64]
SAMPLED = "sampled"


def from_counts(scale: Scale, counts: Ints, draws: Ints) -> Readings:
    """Return readings of N pairs from the counts (N, B, K) of each answer after each stem.

    ``draws`` (N,) is how many answers were drawn; those without a rating are off the scale. Rows
    without a rating have no reading.

    >>> from discode._scales import FIVE
    >>> readings = from_counts(FIVE, np.array([[[0, 0, 1, 3, 0]]]), np.array([5]))
    >>> np.exp(readings.answer_logp[0, 0]).round(2).tolist(), readings.how.tolist()
    ([0.0, 0.0, 0.2, 0.6, 0.0], ['sampled 5'])
    """
    counts, draws = np.asarray(counts, np.int64), np.asarray(draws, np.int64)
    by_stem = counts.sum(axis=2)
    if (counts < 0).any() or (by_stem.sum(axis=1) > draws).any():
        raise InputError("counts must be at least 0 and add up to at most the number of draws")
    # A share of an answer is given its stem; with one stem, which is empty, of all draws.
    whole = by_stem if len(scale.stems) > 1 else draws[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        answer_logp = np.log(counts / whole[..., None])
        stem_logp = np.log(by_stem / draws[:, None])
    if len(scale.stems) == 1:
        stem_logp = np.full_like(stem_logp, np.nan)
    none = np.flatnonzero(by_stem.sum(axis=1) == 0).tolist()
    answer_logp[none], stem_logp[none] = np.nan, np.nan
    return Readings(
        scale,
        answer_logp,
        stem_logp,
        how=np.array([f"{SAMPLED} {n}" for n in draws.tolist()], np.str_),
        errors={row: f"none of {draws[row]} sampled answers has a rating" for row in none},
    )


def count_ratings(scale: Scale, ratings: Sequence[Rating | None]) -> Ints:
    """Return the counts (B, K) of the ratings of one pair; None counts nowhere."""
    counts = np.zeros((len(scale.stems), len(scale.answers)), np.int64)
    for rating in ratings:
        if rating is not None:
            counts[rating.stem, rating.answer] += 1
    return counts


def draws_of(readings: Readings) -> Ints:
    """Return how many answers were drawn for each row (N,); 0 where log-probabilities were read."""
    words = (how.split() for how in np.asarray(readings.how).tolist())
    return np.array([int(w[1]) if w[:1] == [SAMPLED] else 0 for w in words], np.int64)


def counts_of(readings: Readings) -> Ints:
    """Return the counts (N, B, K) that sampled readings were made of; 0 for other rows."""
    draws = draws_of(readings)[:, None]
    shares = np.exp(readings.answer_logp)
    if len(readings.scale.stems) > 1:
        shares = shares * np.exp(readings.stem_logp)[..., None]
    return np.rint(np.nan_to_num(shares) * draws[..., None]).astype(np.int64)


def merge_draws(first: Readings, second: Readings) -> Readings:
    """Return readings of the draws of both, row by row; a row that failed adds no draws."""
    draws = [draws_of(part) for part in (first, second)]
    return from_counts(first.scale, counts_of(first) + counts_of(second), draws[0] + draws[1])


def draw_answers(readings: Readings, draws: int, rng: np.random.Generator) -> Readings:
    """Return readings of answers drawn from others: what sampling that model would have given.

    >>> from discode._scales import FIVE
    >>> exact = Readings.of(np.log([0.1, 0.2, 0.3, 0.3, 0.1]), FIVE)
    >>> float(np.exp(draw_answers(exact, 20, np.random.default_rng(0)).answer_logp).sum().round(9))
    1.0
    """
    n, b, k = readings.answer_logp.shape
    shares = np.nan_to_num(np.exp(readings.answer_logp))
    if b > 1:
        shares = shares * np.nan_to_num(np.exp(readings.stem_logp))[..., None]
    shares = shares.reshape(n, b * k)
    total = shares.sum(axis=1, keepdims=True)
    shares = shares / np.maximum(total, 1.0)  # rounded probabilities may exceed 1
    off = np.clip(1 - shares.sum(axis=1, keepdims=True), 0, 1)
    counts = rng.multinomial(draws, np.concatenate([shares, off], axis=1))[:, :-1]
    return from_counts(readings.scale, counts.reshape(n, b, k), np.full(n, draws))
