from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discode.errors import InputError
from mceval.quality import fleiss_kappa, krippendorff_alpha

Votes = list[list[int]]


def by_pairs(votes: Votes) -> float:
    """Fleiss' κ from all pairs of people, one after another."""
    observed = [np.mean([a == b for a, b in itertools.permutations(item, 2)]) for item in votes]
    said = list(itertools.chain(*votes))
    chance = sum((said.count(k) / len(said)) ** 2 for k in set(said))
    return float((np.mean(observed) - chance) / (1 - chance))


def table(votes: Votes, k: int = 2) -> list[list[int]]:
    return [[item.count(c) for c in range(k)] for item in votes]


@given(st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=3), min_size=1, max_size=20))
def test_kappa_by_brute_force(votes: Votes) -> None:
    found = fleiss_kappa(table(votes))
    if len(set(itertools.chain(*votes))) == 1:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(by_pairs(votes))


def test_the_textbook_example_of_fleiss() -> None:
    """Fourteen people, ten subjects, five categories: κ = 0.210 (Fleiss 1971, as often printed)."""
    counts = [
        [0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1],
        [7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7],
    ]  # fmt: skip
    assert fleiss_kappa(counts) == pytest.approx(0.210, abs=5e-4)


def test_krippendorffs_own_example() -> None:
    """Four observers, twelve units, some values missing: α = 0.743 (Krippendorff 2011, C)."""
    units = [
        [1, 1, 1], [2, 2, 3, 2], [3, 3, 3, 3], [3, 3, 3, 3], [2, 2, 2, 2], [1, 2, 3, 4],
        [4, 4, 4, 4], [1, 1, 2, 1], [2, 2, 2, 2], [5, 5, 5], [1, 1], [3],
    ]  # fmt: skip
    counts = [[unit.count(c) for c in range(1, 6)] for unit in units]
    assert krippendorff_alpha(counts) == pytest.approx(0.743, abs=5e-4)


@given(st.lists(st.lists(st.integers(0, 2), min_size=0, max_size=4), min_size=1, max_size=15))
def test_alpha_as_the_package_krippendorff_has_it(votes: Votes) -> None:
    oracle = pytest.importorskip("krippendorff", reason="the oracle comes with discode-eval[dev]")
    found = krippendorff_alpha(table(votes, 3))
    paired = [item for item in votes if len(item) >= 2]
    if len(set(itertools.chain(*paired))) < 2:
        assert math.isnan(found)
        return
    data = np.full((4, len(votes)), np.nan)
    for i, item in enumerate(votes):
        data[: len(item), i] = item
    expected = oracle.alpha(data, level_of_measurement="nominal", value_domain=[0, 1, 2])
    assert found == pytest.approx(expected)


def test_what_has_no_value() -> None:
    assert math.isnan(fleiss_kappa(np.empty((0, 2))))
    assert math.isnan(krippendorff_alpha(np.empty((0, 2))))
    assert math.isnan(krippendorff_alpha([[1, 0]]))


def test_bad_input() -> None:
    for measure, counts in (
        (fleiss_kappa, [[3, 0], [2, 0]]), (fleiss_kappa, [[1, 0]]), (fleiss_kappa, [[-1, 4]]),
        (krippendorff_alpha, [1, 2]),
    ):  # fmt: skip
        with pytest.raises(InputError):
            measure(counts)
