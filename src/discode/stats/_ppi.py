"""The mean rating of many images from few ratings and a judge: prediction-powered inference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from discode.errors import InputError
from discode.stats._base import columns
from discode.stats._resampling import FEWEST, Interval

FEW_FOR_JUDGE = 5
"""Rated images below which the judge is not used: its weight could not be estimated."""


@dataclass(frozen=True)
class PoweredMean:
    """The mean rating with a judge's help, and ``people``'s alone.

    ``weight`` is the λ of the judge's scores, 0 if they do not help; ``rated`` of the ``images``
    have a rating.
    """

    mean: Interval
    people: Interval
    weight: float
    rated: int
    images: int

    @property
    def worth(self) -> float:
        """How many ratings alone would give as narrow an interval."""
        widths = [each.high - each.low for each in (self.people, self.mean)]
        return self.rated * (widths[0] / widths[1]) ** 2 if widths[1] > 0 else math.nan


def ppi_mean(rating: ArrayLike, score: ArrayLike, *, level: float = 0.95) -> PoweredMean:
    """Estimate the mean rating of images, of which a random part is rated, with a judge's scores.

    ``score`` (N,) has the judge's score of every image, ``rating`` (N,) people's, NaN where there
    is none. With n rated images R the estimate is

        θ = ȳ_R + λ (f̄ - f̄_R),   λ = cov_R(y, f) / var_R(f),

    the mean rating, corrected by what the judge says of the images that happened to be rated. It is
    unbiased for every fixed λ, however wrong the judge; λ, chosen for the smallest variance, adds a
    bias of order 1/n, and none if ratings are linear in scores. The interval is θ ± t·se with

        se² = s_e²/n · (1 + (1 - n/N)/(n - 3)) + λ² s_f²/N

    where e = y - λf and s_e² has n - 2 degrees of freedom, as t has. Where that is no narrower than
    ȳ_R ± t·s_y/√n, λ is 0 and the interval is people's. Cochran (1977), section 7.2; Angelopoulos,
    Duchi & Zrnic (2023).

    >>> rng = np.random.default_rng(0)
    >>> score = rng.normal(size=1000)
    >>> rating = np.where(np.arange(1000) < 50, 3 + score + 0.3 * rng.normal(size=1000), np.nan)
    >>> done = ppi_mean(rating, score)
    >>> done.rated, round(done.mean.value, 2), round(done.people.value, 2), round(done.worth)
    (50, 2.94, 3.13, 416)
    """
    y, f = columns(rating=rating, score=score)
    if np.isnan(f).any() or np.isinf([y, f]).any():
        raise InputError("every image needs a finite score, and ratings are finite or NaN")
    rated = ~np.isnan(y)
    y, g = y[rated], f[rated]
    n, size = len(y), len(f)
    if n < FEWEST:
        none = Interval.point(float(y.mean()) if n else math.nan, level)
        return PoweredMean(none, none, 0.0, n, size)
    mean = float(y.mean())
    half = t_quantile(level, n - 1) * float(y.std(ddof=1)) / math.sqrt(n)
    people = Interval(mean, mean - half, mean + half, level)
    variance = float(g.var())
    if n < FEW_FOR_JUDGE or variance <= 1e-24 * float(np.abs(g).max()) ** 2:
        return PoweredMean(people, people, 0.0, n, size)
    weight = float(np.mean((y - mean) * (g - g.mean()))) / variance
    error = y - mean - weight * (g - g.mean())
    own = float(error @ error) / (n - 2) / n * (1 + (1 - n / size) / (n - 3))
    narrower = t_quantile(level, n - 2) * math.sqrt(own + weight**2 * float(f.var(ddof=1)) / size)
    if narrower >= half:
        return PoweredMean(people, people, 0.0, n, size)
    value = mean + weight * float(f.mean() - g.mean())
    powered = Interval(value, value - narrower, value + narrower, level)
    return PoweredMean(powered, people, weight, n, size)


@cache
def t_quantile(level: float, degrees: int) -> float:
    """Compute t such that Student's distribution has the share ``level`` between -t and t.

    With x = √ν·tan(u) its density is proportional to cos(u)^(ν - 1).

    >>> round(t_quantile(0.95, 2), 4), round(t_quantile(0.95, 30), 4)
    (4.3027, 2.0423)
    """
    if degrees > 10_000:
        return NormalDist().inv_cdf(0.5 + level / 2)
    angle = np.linspace(0, math.pi / 2, 100_001)
    density = np.cos(angle) ** (degrees - 1)
    mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(degrees) * math.tan(float(np.interp(level, mass / mass[-1], angle)))
