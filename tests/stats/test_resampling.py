"""Intervals: how often they hold the truth, that they repeat, and what they refuse."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau

from discode.stats import (
    AccuracyPlan,
    Interval,
    KendallPlan,
    UndefinedWarning,
    bootstrap,
    bootstrap_all,
    resampled_difference,
)
from discode.stats._resampling import Comparison, resample


def paired_bootstrap(
    a: Any, b: Any, clusters: Any, resamples: int = 1000, seed: int = 0
) -> Comparison:
    ours, theirs = (resample(statistic, clusters, resamples, seed) for statistic in (a, b))
    return resampled_difference(ours, theirs, 0.95)


def sample(
    rng: np.random.Generator, images: int, *, captions: int = 4, noise: float = 0.8
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A metric, four-level human ratings and images; both err by image as well as by row."""
    image = np.repeat(np.arange(images), captions)
    n = len(image)
    quality = 0.8 * rng.normal(size=n) + 0.6 * rng.normal(size=images)[image]
    human = np.digitize(quality + 0.4 * rng.normal(size=n), [-0.8, 0, 0.8])
    metric = quality + noise * rng.normal(size=n) + 0.7 * rng.normal(size=images)[image]
    return metric, human, image


@pytest.mark.parametrize("variant", "bc")
def test_clustered_intervals_cover_the_truth(variant: str) -> None:
    metric, human, _ = sample(np.random.default_rng(99), 100_000)
    truth = kendalltau(metric, human, variant=variant).statistic
    held = 0
    for seed in range(200):
        metric, human, image = sample(np.random.default_rng(seed), 60)
        plan = KendallPlan(metric, human, variant=variant)
        interval = bootstrap(plan, image, resamples=300, seed=seed)
        held += interval.low <= truth <= interval.high
    assert 0.90 <= held / 200 <= 0.985


def test_resampling_rows_instead_of_images_is_too_sure() -> None:
    metric, human, image = sample(np.random.default_rng(0), 60, captions=10)
    plan = KendallPlan(metric, human)
    clustered, rows = (bootstrap(plan, c) for c in (image, np.arange(len(image))))
    assert clustered.high - clustered.low > 1.15 * (rows.high - rows.low)


def test_weights_are_drawn_clusters() -> None:
    clusters = np.array(["b", "a", "b", "c", "a", "b"])
    draws = resample(lambda weights: weights, clusters, 300, 0)
    assert draws.shape == (301, 6)
    assert (draws[0] == 1).all()
    assert (draws[:, 0] == draws[:, 2]).all()
    assert (draws[:, 0] + draws[:, 1] + draws[:, 3] == 3).all()
    assert draws[:, 3].mean() == pytest.approx(1, abs=0.15)


def test_plans_resample_as_any_function_does() -> None:
    metric, human, image = sample(np.random.default_rng(1), 30)
    plan = KendallPlan(metric, human, variant="b")
    slow = bootstrap(
        lambda w: kendalltau(np.repeat(metric, w), np.repeat(human, w)).statistic,
        image, resamples=50,
    )  # fmt: skip
    fast = bootstrap(plan, image, resamples=50)
    assert (fast.value, fast.low, fast.high) == pytest.approx((slow.value, slow.low, slow.high))
    assert bootstrap(plan, image, resamples=50, seed=1) != fast


def test_draws_do_not_depend_on_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    metric, human, image = sample(np.random.default_rng(1), 30)
    plan = KendallPlan(metric, human)
    whole = resample(plan, image, 40, 0)
    monkeypatch.setattr("discode.stats._resampling.BLOCK", 100)
    np.testing.assert_array_equal(resample(plan, image, 40, 0), whole)
    monkeypatch.setattr("discode.stats._tau.MATRIX_CLUSTERS", 1)
    np.testing.assert_array_equal(resample(plan, image, 40, 0), whole)


def test_threads_do_not_matter() -> None:
    code = """
import numpy as np
from discode.stats import KendallPlan, bootstrap, permutation_tests
rng = np.random.default_rng(0)
y, c = rng.integers(0, 5, 4000), np.arange(4000) % 300
a, b = y + rng.normal(size=(2, 4000))
print(bootstrap(KendallPlan(a, y), c), permutation_tests([a, b], y, clusters=c))
"""
    outputs = set()
    for threads in ("1", "2"):
        env = os.environ | {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_several_numbers_share_their_resamples() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0])
    both = bootstrap_all(
        lambda w: [np.average(x, weights=w), -np.average(x, weights=w)], range(4), resamples=99
    )
    assert both[0].value == 2.5
    assert (both[1].low, both[1].high) == pytest.approx((-both[0].high, -both[0].low))


def test_paired_differences() -> None:
    rng = np.random.default_rng(3)
    metric, human, image = sample(rng, 100)
    worse = metric + 1.5 * rng.normal(size=len(metric))
    good, bad = KendallPlan(metric, human), KendallPlan(worse, human)
    done = paired_bootstrap(good, bad, image, resamples=500)
    assert done.difference.value > 0 < done.difference.low
    assert done.p == 2 / 501
    back = paired_bootstrap(bad, good, image, resamples=500)
    assert (back.difference.low, back.p) == pytest.approx((-done.difference.high, done.p))
    same = paired_bootstrap(good, good, image, resamples=50)
    assert (same.p, same.difference) == (1, Interval(0, 0, 0, 0.95))


def test_p_and_interval_say_the_same() -> None:
    for seed in range(30):
        metric, human, image = sample(np.random.default_rng(seed), 40)
        other = metric + 0.6 * np.random.default_rng(seed + 1000).normal(size=len(metric))
        plans = KendallPlan(metric, human), KendallPlan(other, human)
        done = paired_bootstrap(*plans, image, resamples=999, seed=seed)
        outside = done.difference.low > 0 or done.difference.high < 0
        assert outside == (done.p < 0.05) or done.p == pytest.approx(0.05, abs=0.006)


def test_accuracy_intervals() -> None:
    earned = np.random.default_rng(0).random(400) < 0.8
    interval = bootstrap(AccuracyPlan(earned), np.arange(400), resamples=2000)
    half = 1.96 * math.sqrt(interval.value * (1 - interval.value) / 400)  # the normal one
    assert interval.high - interval.low == pytest.approx(2 * half, rel=0.08)


def test_undefined_resamples_are_counted() -> None:
    plan = KendallPlan([1, 2, 3], [1, 2, 3], variant="b")
    with pytest.warns(UndefinedWarning) as told:
        interval = bootstrap(plan, [0, 1, 2], resamples=200)
    count = int(str(told[0].message).split(" of 200")[0].rpartition(" ")[2])
    assert 200 / 9 / 3 < count < 200 / 9 * 2  # all three alike: one in nine
    assert interval.low == interval.high == 1
    with pytest.warns(UndefinedWarning):
        nothing = bootstrap(KendallPlan([1, 1, 1], [1, 2, 3]), [0, 1, 2], resamples=20)
    assert math.isnan(nothing.value)
    assert math.isnan(nothing.low)
    with pytest.warns(UndefinedWarning):
        against = paired_bootstrap(plan, KendallPlan([1, 1, 1], [1, 2, 3]), [0, 1, 2])
    assert math.isnan(against.p)


@pytest.mark.parametrize("images", [[0, 0, 0, 0], ["a", "b", "a", "b"]])
def test_one_or_two_clusters_have_no_interval(images: Any) -> None:
    x, y = np.array([1.0, 2, 3, 5]), np.array([1.0, 3, 2, 4])

    def mean(values: Any) -> Any:
        return lambda weights: float(np.average(values, weights=weights))

    intervals = [
        bootstrap(KendallPlan(x, y), images),
        *bootstrap_all(lambda weights: [mean(x)(weights), mean(y)(weights)], images),
        (compared := paired_bootstrap(mean(x), mean(y), images)).difference,
    ]
    assert [interval.value for interval in intervals] == pytest.approx([2 / 3, 2.75, 2.5, 0.25])
    assert all(math.isnan(bound) for each in intervals for bound in (each.low, each.high))
    assert math.isnan(compared.p)
    three = bootstrap(mean(x), [0, 1, 2, 2])
    assert three.low < three.value < three.high
