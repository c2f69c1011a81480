"""τ, ρ, r against scipy, brute force and repeated rows."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from discode.stats import (
    KendallPlan,
    UndefinedWarning,
    pearson,
    ranks,
    spearman,
    tie_rate,
)
from discode.stats._correlation import PearsonPlan
from discode.stats._tau import M_RULES

# Few levels: ties everywhere, in one column, in both, and constant columns too.
Rows = list[tuple[int, int, int]]
rows = st.integers(1, 9).flatmap(
    lambda most: st.lists(
        st.tuples(st.integers(0, most), st.integers(0, 3), st.integers(0, 3)), max_size=30
    )
)


def brute(x: np.ndarray, y: np.ndarray, variant: str, m_rule: str) -> float:
    """τ by looking at every pair."""
    s = tied_x = tied_y = 0
    pairs = list(itertools.combinations(range(len(x)), 2))
    for i, j in pairs:
        dx, dy = int(np.sign(x[i] - x[j])), int(np.sign(y[i] - y[j]))
        s, tied_x, tied_y = s + dx * dy, tied_x + (dx == 0), tied_y + (dy == 0)
    m = min(len(set(x.tolist())), len(set(y.tolist())))
    if m < 2:
        return math.nan
    if m_rule == "people":
        m = len(set(y.tolist()))
    if variant == "c":
        return s / (len(x) ** 2 * (m - 1) / m / 2)
    return s / math.sqrt((len(pairs) - tied_x) * (len(pairs) - tied_y))


@given(rows, st.sampled_from("bc"), st.sampled_from(M_RULES), st.booleans())
@settings(max_examples=300, deadline=None)
def test_weighted_equals_repeated_and_brute_force(
    given_rows: Rows, variant: str, m: str, exchanged: bool
) -> None:
    x, y, w = np.array(given_rows, dtype=np.int64).reshape(-1, 3).T
    x, y = (y, x) if exchanged else (x, y)  # either side may have more values
    many_x, many_y = np.repeat(x, w), np.repeat(y, w)
    tau = KendallPlan(x, y, variant=variant, m=m)(w)
    repeated = KendallPlan(many_x, many_y, variant=variant, m=m)(np.ones(len(many_x), int))
    np.testing.assert_equal(tau, repeated)  # to the last bit, and NaN alike
    np.testing.assert_allclose(tau, brute(many_x, many_y, variant, m), atol=1e-14)


def test_coarse_scores_gain_by_scipys_m_and_not_by_peoples() -> None:
    """The same order in two values instead of many: only scipy's m rewards it."""
    people = np.arange(40)
    fine, coarse, ones = people, people // 20, np.ones(40, int)
    tau = {
        (name, m): KendallPlan(x, people, variant="c", m=m)(ones)
        for name, x in (("fine", fine), ("coarse", coarse))
        for m in M_RULES
    }
    assert tau["fine", "people"] == tau["fine", "scipy"] == pytest.approx(1)
    assert tau["coarse", "scipy"] == pytest.approx(1)
    assert tau["coarse", "people"] == pytest.approx((1 / 2) / (39 / 40))
    for m in M_RULES:
        assert math.isnan(KendallPlan(np.ones(40), people, variant="c", m=m)(ones))


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
    for sides in ((x, y), (y, x)):
        tau = KendallPlan(*sides, variant=variant, m="scipy")(np.ones(3000, int))
        assert tau == pytest.approx(expected, abs=1e-13)
        if variant == "c":
            few = min(len(np.unique(x)), len(np.unique(y)))
            people = len(np.unique(sides[1]))
            tau = KendallPlan(*sides, variant="c")(np.ones(3000, int))
            assert tau == pytest.approx(expected * (1 - 1 / few) / (1 - 1 / people), abs=1e-13)
    plan, codes = KendallPlan(x, y, variant=variant), rng.integers(0, 7, 3000)
    multiplicities = rng.integers(0, 4, size=(3, 7))
    expected = [plan(m[codes]) for m in multiplicities]
    np.testing.assert_array_equal(plan.clustered(codes)(multiplicities), expected)


@given(rows)
@settings(max_examples=100, deadline=None)
def test_spearman_and_pearson_against_scipy(given_rows: Rows) -> None:
    x, y, _ = np.array(given_rows, dtype=np.int64).reshape(-1, 3).T
    for ours, theirs in ((spearman, scipy.stats.spearmanr), (pearson, scipy.stats.pearsonr)):
        if min(len(set(x.tolist())), len(set(y.tolist()))) < 2:
            with pytest.warns(UndefinedWarning):
                assert math.isnan(ours(x, y))
        else:
            assert ours(x, y) == pytest.approx(theirs(x, y).statistic, abs=1e-12)


@given(rows, st.booleans(), st.integers(0, 2**32 - 1))
@settings(max_examples=200, deadline=None)
def test_weighted_spearman_and_pearson_equal_repeated_rows(
    given_rows: Rows, ranked: bool, seed: int
) -> None:
    x, y, codes = np.array([*given_rows, (0, 0, 3)], dtype=np.int64).T
    plan = PearsonPlan(x, 1e6 + y / 7, ranked=ranked)
    drawn = np.random.default_rng(seed).integers(0, 3, size=(5, 4))
    oracle = scipy.stats.spearmanr if ranked else scipy.stats.pearsonr
    for w, clustered in zip((m[codes] for m in drawn), plan.clustered(codes)(drawn), strict=True):
        many_x, many_y = np.repeat(x, w), np.repeat(y, w)
        constant = min(len(np.unique(many_x)), len(np.unique(many_y))) < 2
        expected = math.nan if constant else oracle(many_x, many_y).statistic
        assert plan(w) == pytest.approx(expected, abs=1e-9, nan_ok=True)
        assert clustered == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_pearson_neither_overflows_nor_correlates_with_a_constant() -> None:
    x = np.array([1.0, 2.0, 4.0])
    assert pearson(x * 1e200, x * 1e-200) == pytest.approx(1)
    with pytest.warns(UndefinedWarning):
        assert math.isnan(pearson([0.1] * 10, np.arange(10)))


def test_what_is_not_finite_is_undefined() -> None:
    for bad in ([1.0, np.nan, 2.0], [1.0, np.inf, 2.0]):
        for function in (spearman, pearson, lambda x, _: tie_rate(x)):
            with pytest.warns(UndefinedWarning):
                assert math.isnan(function(bad, [1, 2, 3]))
        for plan in (KendallPlan(bad, [1, 2, 3]), PearsonPlan(bad, [1, 2, 3])):
            assert math.isnan(plan([1, 1, 1]))
            assert np.isnan(plan.clustered(np.array([0, 0, 1]))(np.ones((2, 2), dtype=int))).all()
    with pytest.warns(UndefinedWarning):
        assert math.isnan(tie_rate([1.0]))


@given(st.lists(st.integers(0, 4), min_size=2, max_size=20))
def test_tie_rate_and_ranks(values: list[int]) -> None:
    pairs = list(itertools.combinations(values, 2))
    assert tie_rate(values) == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    np.testing.assert_array_equal(ranks(values), scipy.stats.rankdata(values))
