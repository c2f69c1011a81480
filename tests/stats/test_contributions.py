"""What each image contributes, against the definition by brute force and against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from discode.stats import AccuracyPlan, credit
from discode.stats._contributions import accuracy_contributions, tau_c_contributions
from discode.stats._tau import concordances


@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 60),
    levels=st.tuples(st.integers(1, 60), st.integers(1, 60)),
)
def test_concordances_are_the_sums_of_signs(seed: int, rows: int, levels: tuple[int, int]) -> None:
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(0, level, rows).astype(float) for level in levels)
    weights, groups = rng.integers(0, 9, (rows, 3)).astype(float), rng.integers(0, 4, rows)
    signs = np.sign(x[:, None] - x) * np.sign(y[:, None] - y)
    np.testing.assert_array_equal(concordances(x, y, weights), signs @ weights)
    alike = groups[:, None] == groups
    np.testing.assert_array_equal(concordances(x, y, weights, groups), (signs * alike) @ weights)


def rated(seed: int, images: int = 14) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Scores, ratings and images of rows, a folder of unequal images, and the images' folds."""
    rng = np.random.default_rng(seed)
    image = np.repeat(np.arange(images), rng.integers(1, 6, images))
    x = rng.normal(size=len(image))
    y = np.clip(np.round(2 + x + rng.normal(size=len(image))), 0, 4)
    return x, y, image, rng.permutation(np.arange(images) % 3)


def tau_c(x: np.ndarray, y: np.ndarray, distinct: int) -> float:
    """scipy's τ_c with the number of levels of all rows, not of these."""
    m = min(len(np.unique(x)), len(np.unique(y)))
    factor = (m - 1) / m / ((distinct - 1) / distinct)
    return float(kendalltau(x, y, variant="c").statistic * factor)


@pytest.mark.parametrize("seed", range(5))
def test_pseudo_values_are_those_of_leaving_each_image_out(seed: int) -> None:
    x, y, image, fold = rated(seed)
    distinct = len(np.unique(y))
    parts = tau_c_contributions(x, y, image, fold)

    def expected(inside: np.ndarray) -> np.ndarray:
        rows = inside[image]
        whole, size = tau_c(x[rows], y[rows], distinct), inside.sum()
        values = np.zeros(len(fold))
        for c in np.flatnonzero(inside):
            rest = rows & (image != c)
            values[c] = size * whole - (size - 1) * tau_c(x[rest], y[rest], distinct)
        return values

    everything = np.ones(len(fold), bool)
    np.testing.assert_allclose(parts.whole, expected(everything), atol=1e-10)
    for k in range(3):
        inside = fold == k
        np.testing.assert_allclose(parts.apart[inside], expected(inside)[inside], atol=1e-10)
        np.testing.assert_allclose(parts.others[k], expected(~inside), atol=1e-10)


def test_what_is_held_out_depends_on_nothing_outside_its_fold() -> None:
    x, y, image, fold = rated(7)
    changed = np.where(fold[image] == 0, x, np.random.default_rng(1).normal(size=len(x)))
    before, after = (tau_c_contributions(each, y, image, fold) for each in (x, changed))
    np.testing.assert_array_equal(before.apart[fold == 0], after.apart[fold == 0])
    assert (before.apart[fold == 1] != after.apart[fold == 1]).any()
    assert (before.others[0] != after.others[0]).any()


def test_parts_of_an_accuracy_add_up_to_it() -> None:
    rng = np.random.default_rng(0)
    left, right, chosen = rng.normal(size=50), rng.normal(size=50), rng.integers(0, 2, 50)
    category, image = rng.choice(["a", "b", "c"], 50), np.arange(50) % 20
    earned, fold = credit(left, right, chosen), np.arange(20) % 4
    parts = accuracy_contributions(earned, category, image, fold)
    exact = AccuracyPlan(earned, categories=category)(np.ones(50, np.int64))
    assert parts.whole.mean() == pytest.approx(exact)
    np.testing.assert_array_equal(parts.others[2], np.where(fold == 2, 0, parts.whole))


def test_a_constant_metric_contributes_nothing() -> None:
    _, y, image, fold = rated(0)
    assert not tau_c_contributions(np.ones(len(y)), y, image, fold).whole.any()
