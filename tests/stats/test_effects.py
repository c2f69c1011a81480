"""Two systems on the same images: means resampled together, against scipy and brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from discode.stats import (
    MeansPlan,
    bootstrap_all,
    paired_effect,
    resampled_difference,
)
from discode.stats._resampling import resample

scipy_stats = pytest.importorskip("scipy.stats", reason="the oracle wants discode-eval[dev]")


def test_means_by_cluster_are_the_means_by_row() -> None:
    rng = np.random.default_rng(0)
    values, clusters = rng.random((30, 3)), rng.integers(0, 8, 30)
    plan = MeansPlan(values)
    fast = resample(plan, clusters, 50, 1)
    slow = resample(lambda weights: plan(weights), clusters, 50, 1)
    assert fast.shape == (51, 3)
    assert np.allclose(fast, slow, rtol=1e-12)
    weights = rng.integers(1, 5, 30)
    assert np.allclose(plan(weights), np.average(values, axis=0, weights=weights), rtol=1e-12)


def test_intervals_of_differences_are_those_of_every_possible_resample() -> None:
    a, b = np.array([0.9, 0.3, 0.6, 0.2]), np.array([0.5, 0.4, 0.1, 0.25])
    every = [np.mean((a - b)[list(rows)]) for rows in itertools.product(range(4), repeat=4)]
    low, high = np.quantile(every, [0.05, 0.95])
    interval = bootstrap_all(
        MeansPlan(np.stack([a - b], axis=1)), range(4), resamples=20_000, level=0.9
    )[0]
    assert interval.value == pytest.approx(np.mean(a - b))
    assert interval.low == pytest.approx(low, abs=0.02)
    assert interval.high == pytest.approx(high, abs=0.02)


def test_intervals_agree_with_scipy_and_the_paired_bootstrap() -> None:
    rng = np.random.default_rng(2)
    a = rng.beta(5, 2, 80)
    b = np.clip(a - 0.03 + rng.normal(0, 0.1, 80), 0, 1)
    plan = MeansPlan(np.stack([a, b, a - b], axis=1))
    interval = bootstrap_all(plan, range(80), resamples=5000)[2]
    theirs = scipy_stats.bootstrap(
        (a - b,), np.mean, method="percentile", n_resamples=20_000, random_state=0
    ).confidence_interval
    width = theirs.high - theirs.low
    assert interval.low == pytest.approx(theirs.low, abs=0.05 * width)
    assert interval.high == pytest.approx(theirs.high, abs=0.05 * width)

    def mean_of(values: np.ndarray) -> object:
        return lambda weights: float(np.average(values, weights=weights))

    ours, others = (resample(mean_of(values), range(80), 300, 3) for values in (a, b))  # type: ignore[arg-type]  # a function
    other = resampled_difference(ours, others, 0.95).difference
    same = bootstrap_all(plan, range(80), resamples=300, seed=3)[2]
    assert (same.low, same.high) == pytest.approx((other.low, other.high))


def test_effects() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.integers(0, 10, (2, 50)) / 10
    above, below, size = paired_effect(a, b)
    assert above == sum(x > y for x, y in zip(a, b, strict=True)) / 50
    assert below == sum(x < y for x, y in zip(a, b, strict=True)) / 50
    t = scipy_stats.ttest_rel(a, b).statistic
    assert size == pytest.approx(t / math.sqrt(50))
    assert paired_effect([1, 2], [1, 2])[2] == 0
    assert math.isnan(paired_effect([2, 3], [1, 2])[2])


@pytest.mark.parametrize("unit", [1.0, 1e5, 1e-13])
@pytest.mark.parametrize("step", [0.1, -0.3, 1 / 3])
def test_a_constant_difference_has_no_effect_size(step: float, unit: float) -> None:
    x = np.array([0.5 + i / 100 for i in range(20)])
    y = (x + step) * unit
    *shares, size = paired_effect(x * unit, y)
    assert math.isnan(size)
    assert tuple(shares) == ((0, 1) if step > 0 else (1, 0))
    y[3] += 1e-6 * unit  # a spread that is small, and there
    apart = x * unit - y
    assert paired_effect(x * unit, y)[2] == pytest.approx(apart.mean() / apart.std(ddof=1))
