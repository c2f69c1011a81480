"""The permutation tests: right on null data, able to see a difference, equal to plain swapping."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import kendalltau, pearsonr, rankdata, spearmanr

from discode.errors import InputError, UnknownNameError
from discode.stats import UndefinedWarning, permutation_test, permutation_test_preference

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


@pytest.mark.parametrize("name", ["tau_b", "tau_c", "spearman", "pearson"])
@pytest.mark.parametrize("standardise", ["rank", "z"])
def test_all_swaps_of_few_images(name: str, standardise: str) -> None:
    """p converges to the share of the 2^4 swaps that are as extreme, taken one by one."""
    rng = np.random.default_rng(5)
    image = np.repeat(np.arange(4), 3)
    human = rng.integers(0, 3, 12)
    a, b = human + rng.normal(size=12), np.round(rng.normal(size=12), 0)
    theirs: dict[str, Callable[[np.ndarray], float]] = {
        "tau_b": lambda x: kendalltau(x, human, variant="b").statistic,
        "tau_c": lambda x: kendalltau(x, human, variant="c").statistic,
        "spearman": lambda x: spearmanr(x, human).statistic,
        "pearson": lambda x: pearsonr(x, human).statistic,
    }
    tau = theirs[name]
    if standardise == "rank":
        x, y = rankdata(a), rankdata(b)
    else:
        x, y = ((c - c.mean()) / c.std() for c in (a, b))
    differences = []
    for coins in itertools.product([False, True], repeat=4):
        swap = np.array(coins)[image]
        differences.append(tau(np.where(swap, y, x)) - tau(np.where(swap, x, y)))
    for alternative, sign in (("greater", 1), ("less", -1), ("two-sided", 0)):
        d = np.abs(differences) if not sign else sign * np.array(differences)
        done = permutation_test(
            a, b, human, correlation=name, clusters=image, resamples=2000,
            alternative=alternative, standardise=standardise,
        )  # fmt: skip
        assert done.difference == pytest.approx(differences[0])
        assert done.p == pytest.approx((d >= d[0] - 1e-9).mean(), abs=0.03)


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


def test_identical_metrics_and_repetition() -> None:
    a, b, human, image = sample(1)
    assert permutation_test(a, 2 * a + 1, human, clusters=image, resamples=50).p == 1
    first = permutation_test(a, b, human, clusters=image, resamples=50, seed=7)
    assert permutation_test(a, b, human, clusters=image, resamples=50, seed=7) == first
    assert first.resamples == 50


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
    less = permutation_test_preference(a, b, clusters=image, alternative="less")
    assert less.p > 0.9


def test_p_depends_neither_on_the_unit_nor_on_where_zero_is() -> None:
    """Against all swaps in whole numbers; in hundredths most of them are ties to rounding only."""
    rng = np.random.default_rng(3)
    for images in (3, 4, 6, 9, 12):
        a, b = rng.integers(0, 8, (2, images)).tolist()
        apart = [x - y for x, y in zip(a, b, strict=True)]
        bar = abs(sum(apart))
        swaps = [
            abs(sum(sign * one for sign, one in zip(signs, apart, strict=True)))
            for signs in itertools.product((1, -1), repeat=images)
        ]
        exact = Fraction(sum(one >= bar for one in swaps), 2**images)
        found = set()
        for unit, zero in itertools.product((1.0, 100000.1, 1e-13, 1 / 3, 7e12), (0, 0.1, 1e5)):
            x, y = (unit * (np.array(side) / 100 + zero) for side in (a, b))
            found.add(permutation_test_preference(x, y, resamples=4000, seed=5).p)
        assert len(found) == 1
        error = 4 * math.sqrt(float(exact * (1 - exact)) / 4000) + 1 / 4001
        assert found.pop() == pytest.approx(float(exact), abs=error)


def test_a_constant_metric_has_no_z_scores() -> None:
    human = np.arange(8.0)
    with pytest.warns(UndefinedWarning):
        done = permutation_test(np.full(8, 0.1), human, human, correlation="pearson",
                                standardise="z", resamples=20)  # fmt: skip
    assert math.isnan(done.p)


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
    with pytest.warns(UndefinedWarning, match="not finite"):
        assert math.isnan(permutation_test([1, np.nan], [1, 2], [1, 2]).p)
    with pytest.warns(UndefinedWarning, match="undefined"):
        assert math.isnan(permutation_test([1, 1], [1, 2], [1, 2]).p)


def test_bad_input() -> None:
    two = [1.0, 2.0]
    with pytest.raises(InputError, match="a has 2, b has 2, human has 1"):
        permutation_test(two, two, [1])
    with pytest.raises(InputError, match="no rows"):
        permutation_test([], [], [])
    with pytest.raises(InputError, match="sources go with clusters"):
        permutation_test(two, two, two, sources=["x", "y"])
    with pytest.raises(InputError, match="clusters has 1"):
        permutation_test(two, two, two, clusters=[1])
    with pytest.raises(InputError, match="sources has 1"):
        permutation_test(two, two, two, clusters=[1, 2], sources=[1])
    with pytest.raises(InputError, match="alternative must be"):
        permutation_test(two, two, two, alternative="both")
    with pytest.raises(InputError, match="standardise must be"):
        permutation_test(two, two, two, standardise="minmax")
    with pytest.raises(InputError, match="resamples must be"):
        permutation_test(two, two, two, resamples=0)
    with pytest.raises(UnknownNameError, match="did you mean 'spearman'"):
        permutation_test(two, two, two, correlation="spearmen")
    with pytest.raises(InputError, match="credits must be finite"):
        permutation_test_preference([np.nan], [1])
    with pytest.raises(InputError, match="categories has 1"):
        permutation_test_preference([1, 0], [0, 1], categories=["a"])
