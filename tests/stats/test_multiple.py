"""Holm's adjustment and significance groups, worked by hand."""

from __future__ import annotations

import numpy as np

from discode.stats import holm, significance_clusters


def test_holm_by_hand() -> None:
    # Sorted: 0.005·4 = 0.02, 0.01·3 = 0.03, 0.03·2 = 0.06, 0.04·1 = 0.04, raised to 0.06.
    adjusted = holm([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(adjusted, [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.5, 0.6]), [1, 1])
    # A test without a result is still one of the three.
    np.testing.assert_allclose(holm([0.01, np.nan, 0.02]), [0.03, np.nan, 0.04])
    assert holm([]).shape == (0,)


def test_groups_by_hand() -> None:
    names, values = ["d", "a", "c", "b"], [0.1, 0.9, 0.4, 0.8]
    # In order a, b, c, d: b is no worse than a; c is worse than both; d is worse than a and b,
    # but not than c.
    worse = {("a", "c"), ("b", "c"), ("a", "d"), ("b", "d")}
    p = [[0.01 if {(i, j), (j, i)} & worse else 0.5 for j in names] for i in names]
    assert significance_clusters(names, values, p) == [["a", "b"], ["c", "d"]]
    assert significance_clusters(names, values, p, alpha=0.6) == [["a"], ["b"], ["c"], ["d"]]
    assert significance_clusters(names, values, p, alpha=0.001) == [["a", "b", "c", "d"]]


def test_a_metric_without_a_value_comes_last() -> None:
    p = np.full((3, 3), np.nan)
    assert significance_clusters(["x", "y", "z"], [np.nan, 0.2, 0.3], p) == [["z", "y"], ["x"]]
    assert significance_clusters([], [], np.zeros((0, 0))) == []
