"""The mean rating with a judge's help: by hand, by simulation, and at its edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t as student

from discode.errors import InputError
from discode.stats import ppi_mean
from discode.stats._ppi import t_quantile

RUNS = 2000


@pytest.mark.parametrize("degrees", [1, 2, 4, 30, 1000, 20_000])
def test_students_quantile(degrees: int) -> None:
    for level in (0.5, 0.9, 0.95, 0.99):
        assert t_quantile(level, degrees) == pytest.approx(
            student.ppf(0.5 + level / 2, degrees), rel=1e-4
        )


def test_by_hand() -> None:
    rng = np.random.default_rng(0)
    score = rng.random(50)
    rating = np.where(np.arange(50) < 12, 1 + 4 * score + 0.2 * rng.normal(size=50), np.nan)
    done = ppi_mean(rating, score, level=0.9)
    y, f = rating[:12], score[:12]
    slope, _ = np.polyfit(f, y, 1)
    assert done.weight == pytest.approx(slope)
    assert done.mean.value == pytest.approx(y.mean() + slope * (score.mean() - f.mean()))
    spread = np.sum((y - y.mean() - slope * (f - f.mean())) ** 2) / 10
    se = math.sqrt(spread / 12 * (1 + (1 - 12 / 50) / 9) + slope**2 * score.var(ddof=1) / 50)
    half = student.ppf(0.95, 10) * se
    assert done.mean.high - done.mean.value == pytest.approx(half, rel=1e-4)
    alone = student.ppf(0.95, 11) * y.std(ddof=1) / math.sqrt(12)
    assert done.people.value - done.people.low == pytest.approx(alone, rel=1e-4)
    assert (done.rated, done.images) == (12, 50)
    assert done.worth == pytest.approx(12 * (alone / half) ** 2, rel=1e-3)


@pytest.mark.parametrize(("rated", "r"), [(20, 0.0), (50, 0.5), (200, 0.9)])
def test_coverage_where_the_truth_is_known(rated: int, r: float) -> None:
    rng = np.random.default_rng(1)
    inside, values = np.zeros(2), []
    widths = np.zeros(2)
    for _ in range(RUNS):
        score = rng.normal(size=1000)
        quality = r * score + math.sqrt(1 - r * r) * rng.normal(size=1000)
        rating = np.clip(np.round(3 + quality), 1, 5)
        rating[rated:] = np.nan
        for i, level in enumerate((0.9, 0.95)):
            done = ppi_mean(rating, score, level=level)
            inside[i] += done.mean.low <= 3 <= done.mean.high
        both = (done.people.high - done.people.low, done.mean.high - done.mean.low)
        assert both[1] <= both[0] * (1 + 1e-12)
        widths += both
        values.append(done.mean.value)
    for share, level in zip(inside / RUNS, (0.9, 0.95), strict=True):
        assert share == pytest.approx(level, abs=3.5 * math.sqrt(level * (1 - level) / RUNS))
    assert abs(np.mean(values) - 3) < 3.5 * np.std(values) / math.sqrt(RUNS)
    if r:
        best = math.sqrt(1 - r * r * (1 - rated / 1000))
        assert widths[1] / widths[0] == pytest.approx(best, abs=0.08)


def test_edges() -> None:
    score, none = np.arange(10.0), np.full(10, np.nan)
    assert math.isnan(ppi_mean(none, score).mean.value)
    two = none.copy()
    two[:2] = 1, 3
    assert ppi_mean(two, score).mean.value == 2
    assert math.isnan(ppi_mean(two, score).mean.low)
    four = none.copy()
    four[:4] = 1, 2, 3, 4
    assert ppi_mean(four, score).weight == 0  # too few for a weight
    whole = ppi_mean(score, np.full(10, 0.3))  # the judge says the same of all
    assert whole.weight == 0
    assert whole.mean == whole.people
    assert ppi_mean(np.full(10, 2.0), score).mean.high == 2  # people do
    for rating, judged in ((score, none), (score, score + np.inf), (score, score[:9])):
        with pytest.raises(InputError):
            ppi_mean(rating, judged)
    many = np.random.default_rng(0).normal(size=1000)
    exact = ppi_mean(np.where(np.arange(1000) < 30, 1 + many, np.nan), many)
    assert exact.mean.value == pytest.approx(1 + many.mean())
