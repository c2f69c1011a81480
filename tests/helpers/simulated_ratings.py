"""Readings of an invented model, and ratings by people whose favourite decoder is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from discode._scales import TEN
from discode.benchmarks import Ratings
from discode.decoders import get_decoder
from discode.readings import Readings
from discode.stats import ranks


@dataclass(frozen=True)
class SimulatedRatings:
    """Readings of P pairs, their images (P,), and one rating of each."""

    readings: Readings
    image: np.ndarray
    ratings: Ratings


def simulate_readings(rng: np.random.Generator, pairs: int, second: float) -> Readings:
    """Digits with a hump where the model thinks the caption stands, and one that means nothing.

    ``second`` is the largest share of the second hump.
    """
    digits = np.arange(10.0)
    centre = rng.uniform(-0.5, 9.5, pairs)
    width = rng.uniform(0.7, 1.6, pairs)
    elsewhere = rng.uniform(-0.5, 9.5, pairs)
    share = rng.uniform(0.0, second, pairs)

    def hump(middle: np.ndarray) -> np.ndarray:
        p = np.exp(-((digits - middle[:, None]) ** 2) / (2 * width[:, None] ** 2)) + 1e-6
        return np.asarray(p / p.sum(axis=1, keepdims=True))

    p = (1 - share)[:, None] * hump(centre) + share[:, None] * hump(elsewhere)
    return Readings.of(np.log(p), TEN)


def simulate(
    seed: int,
    *,
    truth: str | None = "smoothing",
    images: int = 100,
    captions: int = 5,
    strength: float = 0.8,
    second: float = 0.4,
    levels: int = 4,
) -> SimulatedRatings:
    """People rate by the score of the decoder ``truth`` (None: by nothing the model knows).

    Their rating is the normal score of that decoder's rank, weighted ``strength``, plus what they
    think of the image and noise, in ``levels`` equally frequent levels. Given the truth's score the
    ratings depend on nothing else in the readings: no other decoder agrees better with them.
    """
    rng = np.random.default_rng(seed)
    pairs = images * captions
    image = np.repeat(np.arange(images), captions)
    readings = simulate_readings(rng, pairs, second)
    noise = np.sqrt(0.3) * rng.normal(size=images)[image] + np.sqrt(0.7) * rng.normal(size=pairs)
    seen = np.zeros(pairs)
    if truth is not None:
        score = get_decoder(truth).decode(readings).score
        seen = strength * np.sqrt(12) * ((ranks(score) - 0.5) / pairs - 0.5)
    opinion = seen + np.sqrt(1 - strength**2 if truth is not None else 1.0) * noise
    level = np.floor((ranks(opinion) - 0.5) / pairs * levels)
    ratings = Ratings(np.arange(pairs), level + 1, np.zeros(pairs, np.int64))
    return SimulatedRatings(readings, image, ratings)
