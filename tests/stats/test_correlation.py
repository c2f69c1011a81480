"""τ, ρ, r against scipy, brute force and repeated rows."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from discode.errors import InputError, UnknownNameError
from discode.stats import (
    KendallPlan,
    UndefinedWarning,
    kendall,
    paired,
    pearson,
    ranks,
    spearman,
    tie_rate,
    weighted,
)

# Few levels: ties everywhere, in one column, in both, and constant columns too.
Rows = list[tuple[int, int, int]]
rows = st.integers(1, 9).flatmap(
    lambda most: st.lists(
        st.tuples(st.integers(0, most), st.integers(0, 3), st.integers(0, 3)), max_size=30
    )
)


def brute(x: np.ndarray, y: np.ndarray, variant: str) -> float:
    """τ by looking at every pair."""
    s = tied_x = tied_y = 0
    pairs = list(itertools.combinations(range(len(x)), 2))
    for i, j in pairs:
        dx, dy = int(np.sign(x[i] - x[j])), int(np.sign(y[i] - y[j]))
        s, tied_x, tied_y = s + dx * dy, tied_x + (dx == 0), tied_y + (dy == 0)
    m = min(len(set(x.tolist())), len(set(y.tolist())))
    if m < 2:
        return math.nan
    if variant == "c":
        return s / (len(x) ** 2 * (m - 1) / m / 2)
    return s / math.sqrt((len(pairs) - tied_x) * (len(pairs) - tied_y))


def oracle(x: np.ndarray, y: np.ndarray, variant: str) -> float:
    if min(len(set(x.tolist())), len(set(y.tolist()))) < 2:
        return math.nan  # scipy says the same, with several kinds of warnings
    return float(scipy.stats.kendalltau(x, y, variant=variant).statistic)


@given(rows, st.sampled_from("bc"))
@settings(max_examples=200, deadline=None)
def test_weighted_equals_repeated_scipy_and_brute_force(given_rows: Rows, variant: str) -> None:
    x, y, w = np.array(given_rows, dtype=np.int64).reshape(-1, 3).T
    many_x, many_y = np.repeat(x, w), np.repeat(y, w)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)
        got = KendallPlan(x, y, variant=variant)(w)
        repeated = kendall(many_x, many_y, variant=variant)
    np.testing.assert_equal(got, repeated)  # to the last bit, and NaN alike
    np.testing.assert_allclose(got, oracle(many_x, many_y, variant), atol=1e-14)
    np.testing.assert_allclose(got, brute(many_x, many_y, variant), atol=1e-14)


@given(rows, st.sampled_from("bc"), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_clusters_weigh_as_their_rows_do(given_rows: Rows, variant: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y, codes = np.array([*given_rows, (0, 0, 3)], dtype=np.int64).T
    multiplicities = rng.integers(0, 3, size=(5, 4))
    plan = KendallPlan(x, y, variant=variant)
    got = plan.clustered(codes)(multiplicities)
    np.testing.assert_array_equal(got, [plan(m[codes]) for m in multiplicities])


@pytest.mark.parametrize("variant", "bc")
@pytest.mark.parametrize("levels", [2, 20, 10_000])
def test_large_columns_against_scipy(levels: int, variant: str) -> None:
    rng = np.random.default_rng(levels)
    y = rng.integers(0, levels, 3000)
    x = np.round(y / levels + rng.normal(size=3000), 2)
    expected = scipy.stats.kendalltau(x, y, variant=variant).statistic
    assert kendall(x, y, variant=variant) == pytest.approx(expected, abs=1e-13)
    assert kendall(y, x, variant=variant) == pytest.approx(expected, abs=1e-13)
    plan, codes = KendallPlan(x, y, variant=variant), rng.integers(0, 7, 3000)
    multiplicities = rng.integers(0, 4, size=(3, 7))
    expected = [plan(m[codes]) for m in multiplicities]
    np.testing.assert_array_equal(plan.clustered(codes)(multiplicities), expected)


@given(rows)
@settings(max_examples=100, deadline=None)
def test_spearman_and_pearson_against_scipy(given_rows: Rows) -> None:
    x, y, w = np.array(given_rows, dtype=np.int64).reshape(-1, 3).T
    many_x, many_y = np.repeat(x, w), np.repeat(y, w)
    for name, ours, theirs in (
        ("spearman", spearman, scipy.stats.spearmanr),
        ("pearson", pearson, scipy.stats.pearsonr),
    ):
        if min(len(set(many_x.tolist())), len(set(many_y.tolist()))) < 2:
            with pytest.warns(UndefinedWarning):
                assert math.isnan(ours(x, y, weights=w))
            assert math.isnan(weighted(name, x, y)(w))
            continue
        expected = pytest.approx(theirs(many_x, many_y).statistic, abs=1e-12)
        assert ours(many_x, many_y) == expected
        assert ours(x, y, weights=w) == expected
        assert weighted(name, x, y)(w) == expected


def test_pearson_neither_overflows_nor_correlates_with_a_constant() -> None:
    x = np.array([1.0, 2.0, 4.0])
    assert pearson(x * 1e200, x * 1e-200) == pytest.approx(1)
    with pytest.warns(UndefinedWarning):
        assert math.isnan(pearson([0.1] * 10, np.arange(10)))


@given(st.lists(st.integers(0, 4), min_size=2, max_size=20))
def test_tie_rate_and_ranks(values: list[int]) -> None:
    pairs = list(itertools.combinations(values, 2))
    assert tie_rate(values) == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    np.testing.assert_array_equal(ranks(values), scipy.stats.rankdata(values))


def test_paired_masks_and_counts() -> None:
    mask, missing = paired([1, np.nan, 3, np.inf], [1, 2, np.nan, 4])
    assert mask.tolist() == [True, False, False, False]
    assert missing == 3


@pytest.mark.parametrize("function", [kendall, spearman, pearson])
@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        ([], [], "0 rows"),
        ([1.0], [1.0], "1 rows"),
        ([1, 1, 1], [1, 2, 3], "no two values"),
        ([1, 2, 3], [2, 2, 2], "no two values"),
        ([1, 2, np.nan], [1, 2, 3], r"1 of 3 rows are not finite: mask them with paired\(\)"),
        ([1, 2, 3], [1, np.inf, 3], "1 of 3 rows are not finite"),
    ],
)
def test_undefined_is_nan_with_a_warning(function: object, x: object, y: object, why: str) -> None:
    assert callable(function)
    with pytest.warns(UndefinedWarning, match=why):
        assert math.isnan(function(x, y))


def test_undefined_tie_rates_and_plans() -> None:
    for bad in ([], [1.0], [1.0, np.nan]):
        with pytest.warns(UndefinedWarning):
            assert math.isnan(tie_rate(bad))
    plan = KendallPlan([1.0, np.nan, 2.0], [1, 2, 3])
    assert math.isnan(plan([1, 1, 1]))
    assert np.isnan(plan.clustered(np.array([0, 0, 1]))(np.ones((2, 2), dtype=int))).all()
    assert math.isnan(KendallPlan([1, 2], [1, 2])([0, 0]))
    assert math.isnan(KendallPlan([], [])([]))


def test_bad_input() -> None:
    with pytest.raises(InputError, match="x has 2, y has 3 rows"):
        kendall([1, 2], [1, 2, 3])
    with pytest.raises(InputError, match="variant must be 'b' or 'c', not 'a'"):
        kendall([1, 2], [1, 2], variant="a")
    with pytest.raises(InputError, match="x must be numbers"):
        spearman(["a", "b"], [1, 2])
    with pytest.raises(InputError, match="one axis"):
        pearson([[1, 2]], [1, 2])
    with pytest.raises(InputError, match=r"the shape \(2,\), not \(3,\)"):
        KendallPlan([1, 2], [1, 2])([1, 1, 1])
    for weights in ([1, -1], [0.5, 1.0]):
        with pytest.raises(InputError, match="whole numbers from 0"):
            KendallPlan([1, 2], [1, 2])(weights)
    with pytest.raises(InputError, match="must have 2 rows"):
        KendallPlan([1, 2], [1, 2]).clustered(np.array([0]))
    with pytest.raises(UnknownNameError, match="did you mean 'tau_b'"):
        weighted("taub", [1, 2], [1, 2])
