"""The permutation tests: right on null data, able to see a difference, equal to plain swapping."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau, pearsonr, rankdata, spearmanr, zscore

from discode.stats import (
    KendallPlan,
    Permutation,
    UndefinedWarning,
    permutation_test_preference,
    permutation_tests,
)


def permutation_test(a: Any, b: Any, human: Any, **options: Any) -> Permutation:
    return permutation_tests([a, b], human, **options)[0, 1]


Sample = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def sample(seed: int, *, by_image: float = 0.8, worse: float = 0.0, images: int = 40) -> Sample:
    """Two correlated metrics, exchangeable unless b is ``worse``; each errs by image and row."""
    rng = np.random.default_rng(seed)
    image = np.repeat(np.arange(images), 4)
    n = len(image)
    quality = 0.8 * rng.normal(size=n) + 0.6 * rng.normal(size=images)[image]
    human = np.digitize(quality + 0.4 * rng.normal(size=n), [-0.8, 0, 0.8])
    shared = quality + 0.5 * rng.normal(size=n)
    a, b = (
        shared + 0.6 * rng.normal(size=n) + by_image * rng.normal(size=images)[image]
        for _ in range(2)
    )
    return a, b + worse * rng.normal(size=n), human, image


def rejections(simulations: int, *, rows: bool = False, by_image: float = 0.8) -> float:
    count = 0
    for seed in range(simulations):
        a, b, human, image = sample(seed, by_image=by_image)
        clusters = None if rows else image
        # A metric on another scale: its ranks are the same.
        done = permutation_test(
            a, np.exp(b), human, clusters=clusters, resamples=99, seed=seed
        )  # fmt: skip
        count += done.p <= 0.05
    return count / simulations


def test_false_positives_are_five_in_a_hundred() -> None:
    assert 0.03 <= rejections(400) <= 0.07


def test_swapping_rows_is_too_sure_where_metrics_err_by_image() -> None:
    assert rejections(150, rows=True) > 0.08
    assert rejections(150, rows=True, by_image=0.0) <= 0.07


def test_a_true_difference_is_seen() -> None:
    seen = 0
    for seed in range(20):
        a, b, human, image = sample(seed, worse=2.0, images=80)
        seen += permutation_test(a, b, human, clusters=image, resamples=199, seed=seed).p < 0.05
    assert seen >= 19


@pytest.mark.parametrize("variant", "bc")
def test_all_swaps_of_few_images(variant: str) -> None:
    """p converges to the share of the 2^4 swaps that are as extreme, taken one by one."""
    rng = np.random.default_rng(5)
    image = np.repeat(np.arange(4), 3)
    human = rng.integers(0, 3, 12)
    a, b = human + rng.normal(size=12), np.round(rng.normal(size=12), 0)
    x, y = rankdata(a), rankdata(b)
    differences = []
    for coins in itertools.product([False, True], repeat=4):
        swap = np.array(coins)[image]
        sides = np.where(swap, y, x), np.where(swap, x, y)
        taus = [kendalltau(side, human, variant=variant).statistic for side in sides]
        if variant == "c":  # one m for both sides: that of the human ratings
            few = [min(3, len(np.unique(side))) for side in sides]
            taus = [t * (1 - 1 / m) / (1 - 1 / 3) for t, m in zip(taus, few, strict=True)]
        differences.append(taus[0] - taus[1])
    d = np.abs(differences)
    done = permutation_test(a, b, human, variant=variant, clusters=image, resamples=2000)
    assert done.difference == pytest.approx(differences[0])
    assert done.p == pytest.approx((d >= d[0] - 1e-9).mean(), abs=0.03)
    assert permutation_test(a, 2 * a + 1, human, clusters=image, resamples=50).p == 1


@pytest.mark.parametrize("measure", ["spearman", "pearson"])
def test_all_swaps_with_spearman_and_pearson(measure: str) -> None:
    rng = np.random.default_rng(6)
    image = np.repeat(np.arange(5), 3)
    human = rng.integers(0, 3, 15)
    a, b = human + rng.normal(size=15), 100 * np.round(rng.normal(size=15), 0)
    alike = rankdata if measure == "spearman" else zscore
    x, y, people = alike(a), alike(b), alike(human)
    differences = []
    for coins in itertools.product([False, True], repeat=5):
        swap = np.array(coins)[image]
        sides = np.where(swap, y, x), np.where(swap, x, y)
        first, second = (pearsonr(side, people).statistic for side in sides)
        differences.append(first - second)
    d = np.abs(differences)
    oracle = spearmanr if measure == "spearman" else pearsonr
    done = permutation_test(a, b, human, variant=measure, clusters=image, resamples=4000)
    assert done.difference == pytest.approx(oracle(a, human)[0] - oracle(b, human)[0])
    assert done.p == pytest.approx((d >= d[0] - 1e-9).mean(), abs=0.03)
    same = permutation_test(a, 2 * a + 1, human, variant=measure, clusters=image, resamples=50)
    assert same.p == 1
    with pytest.warns(UndefinedWarning):
        bad = permutation_test([np.inf, *a[1:]], b, human, variant=measure, clusters=image)
    assert math.isnan(bad.p)


def test_cells_of_images_and_sources() -> None:
    """PERM-BOTH: with one source per image it is the swap of images, else a finer one."""
    a, b, human, image = sample(0)
    sources = np.tile(["w", "x", "y", "z"], 40)
    whole = permutation_test(a, b, human, clusters=image, seed=3)
    assert permutation_test(a, b, human, clusters=image, sources=["s"] * 160, seed=3) == whole
    cells = permutation_test(a, b, human, clusters=image, sources=sources, seed=3)
    rows = permutation_test(a, b, human, seed=3)
    assert cells.difference == pytest.approx(whole.difference)
    assert cells == rows  # here every cell is a row, in the same order
    assert cells.p != whole.p


def test_preferences_swap_credits() -> None:
    rng = np.random.default_rng(2)
    image, kinds = np.repeat(np.arange(5), 3), np.tile(["HC", "HI", "MM"], 5)
    a, b = rng.random(15) < 0.9, rng.random(15) < 0.3
    every = []
    for coins in itertools.product([1, -1], repeat=5):
        d = np.array(coins)[image] * (a.astype(int) - b)
        every.append(np.mean([d[kinds == kind].mean() for kind in ("HC", "HI", "MM")]))
    done = permutation_test_preference(a, b, categories=kinds, clusters=image, resamples=4000)
    assert done.difference == pytest.approx(every[0])
    assert done.p == pytest.approx((np.abs(every) >= abs(every[0]) - 1e-9).mean(), abs=0.03)


def test_p_depends_neither_on_the_unit_nor_on_where_zero_is() -> None:
    """Against all swaps in whole numbers; in hundredths most of them are ties to rounding only."""
    rng = np.random.default_rng(3)
    for images in (3, 4, 6, 9, 12):
        a, b = rng.integers(0, 8, (2, images)).tolist()
        apart = [x - y for x, y in zip(a, b, strict=True)]
        bar = abs(sum(apart))
        swaps = [
            abs(sum(sign * gap for sign, gap in zip(signs, apart, strict=True)))
            for signs in itertools.product((1, -1), repeat=images)
        ]
        exact = Fraction(sum(swap >= bar for swap in swaps), 2**images)
        p_values = set()
        for unit, zero in itertools.product((1.0, 100000.1, 1e-13, 1 / 3, 7e12), (0, 0.1, 1e5)):
            x, y = (unit * (np.array(side) / 100 + zero) for side in (a, b))
            p_values.add(permutation_test_preference(x, y, resamples=4000, seed=5).p)
        assert len(p_values) == 1
        error = 4 * math.sqrt(float(exact * (1 - exact)) / 4000) + 1 / 4001
        assert p_values.pop() == pytest.approx(float(exact), abs=error)


def test_preferences_on_null_data() -> None:
    count = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        image = np.repeat(np.arange(50), 4)
        hard = rng.random(50)[image]
        a, b = (rng.random(200) < 0.3 + 0.6 * hard for _ in range(2))
        done = permutation_test_preference(a, b, clusters=image, resamples=199, seed=seed)
        count += done.p <= 0.05
    assert 0.03 <= count / 400 <= 0.07


def test_undefined_is_nan_with_a_warning() -> None:
    for bad in ([1, np.nan], [1, 1]):
        with pytest.warns(UndefinedWarning):
            assert math.isnan(permutation_test(bad, [1, 2], [1, 2]).p)


@pytest.mark.parametrize("variant", "bc")
def test_several_metrics_are_tested_as_each_two_of_them(variant: str) -> None:
    """Every difference and p, to the last bit, is that of τ of the swapped ranks."""
    rng = np.random.default_rng(2)
    for levels in (2, 5, 40):
        image = np.sort(rng.integers(0, 15, 90))
        human = rng.integers(0, levels, 90)
        metrics = [human + rng.normal(size=90), rng.integers(0, 3, 90), rng.normal(size=90)]
        done = permutation_tests(
            metrics, human, variant=variant, clusters=image, resamples=60, seed=4
        )
        assert list(done) == [(0, 1), (0, 2), (1, 2)]
        codes = np.unique(image, return_inverse=True)[1]
        coins = np.random.default_rng(4).random((60, codes.max() + 1)) < 0.5
        swaps = np.vstack([np.zeros_like(coins[:1]), coins])[:, codes]
        ones = np.ones(90, np.int64)
        for (i, j), test in done.items():
            x, y = rankdata(metrics[i]), rankdata(metrics[j])
            sides = [
                [KendallPlan(np.where(swap, a, b), human, variant=variant)(ones) for swap in swaps]
                for a, b in ((x, y), (y, x))
            ]
            observed, *drawn = np.diff(sides, axis=0)[0]
            assert test.difference == observed
            assert test.p == (1 + np.sum(np.abs(drawn) >= abs(observed) - 1e-12)) / 61


@pytest.mark.parametrize("variant", "bc")
def test_swaps_that_make_a_side_constant_count_against_the_difference(variant: str) -> None:
    """Swapping one of two rows leaves equal ranks on both sides, whose τ is undefined."""
    assert permutation_test([1, 2], [2, 1], [1, 2], variant=variant, resamples=40).p == 1


@pytest.mark.parametrize("variant", "bc")
def test_few_rows_and_few_values(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of counting swaps agree, where sides are often constant."""
    rng = np.random.default_rng(7)
    for _ in range(60):
        n = int(rng.integers(2, 6))
        human, a, b = rng.integers(0, 4, n), rng.integers(0, 2, n), rng.integers(0, 3, n)
        if min(len(np.unique(side)) for side in (human, a, b)) < 2:
            continue
        options: Any = {"variant": variant, "resamples": 30, "clusters": np.arange(n) // 2}
        quick = permutation_test(a, b, human, **options)
        with monkeypatch.context() as patched:
            patched.setattr("discode.stats._permutation.is_small", lambda *_: False)
            assert permutation_test(a, b, human, **options) == quick
