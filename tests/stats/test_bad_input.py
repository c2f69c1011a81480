"""What the statistics refuse: an error that names the column, never a number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from discode.errors import InputError
from discode.stats import (
    AccuracyPlan,
    Interval,
    KendallPlan,
    acc23,
    bootstrap,
    credit,
    paired_effect,
    pearson,
    permutation_test_preference,
    permutation_tests,
    spearman,
    tie_calibrated,
    wilson,
)
from discode.stats._contributions import tau_c_contributions

NAN, TWO = float("nan"), [1.0, 2.0]
PLAN = KendallPlan(TWO, TWO)


@pytest.mark.parametrize(
    ("call", "place"),
    [
        (lambda: spearman(["a", "b"], TWO), "x"),
        (lambda: spearman([1j, 2j], TWO), "x"),
        (lambda: pearson([TWO], TWO), "x"),
        (lambda: pearson(TWO, [1, 2, 3]), "y"),
        (lambda: KendallPlan(TWO, TWO, variant="a"), "variant"),
        (lambda: KendallPlan(TWO, TWO, variant="c", m="both"), "people, scipy"),
        (lambda: PLAN([1, 1, 1]), "weights"),
        (lambda: PLAN([1, -1]), "weights"),
        (lambda: PLAN([0.5, 1.0]), "weights"),
        (lambda: PLAN.clustered(np.array([0])), "clusters"),
        (lambda: bootstrap(PLAN, []), "weights"),
        (lambda: bootstrap(PLAN, [1, 2, 3]), "clusters"),
        (lambda: bootstrap(PLAN, [TWO]), "clusters"),
        (lambda: bootstrap(PLAN, [1, NAN]), "clusters"),
        (lambda: bootstrap(PLAN, np.array(["a", 1], object)), "clusters"),
        (lambda: bootstrap(PLAN, TWO, resamples=-1), "resamples"),
        (lambda: bootstrap(PLAN, TWO, seed=-1), "seed"),
        (lambda: bootstrap(PLAN, TWO, level=95), "level"),
        (lambda: Interval.point(0.5, 1.0), "level"),
        (lambda: permutation_tests([[], []], []), "rows"),
        (lambda: permutation_tests([TWO, TWO], [1]), "human"),
        (lambda: permutation_tests([TWO, TWO], TWO, clusters=[1]), "clusters"),
        (lambda: permutation_tests([TWO, TWO], TWO, clusters=TWO, sources=[1]), "sources"),
        (lambda: permutation_tests([TWO, TWO], TWO, resamples=0), "resamples"),
        (lambda: permutation_test_preference([NAN], [1]), "finite"),
        (lambda: permutation_test_preference(TWO, TWO, categories=["a"]), "categories"),
        (lambda: credit([1], [2], [2]), "chosen"),
        (lambda: credit([1], [2], [1], ties="right"), "ties"),
        (lambda: acc23([1, NAN], TWO), "human"),
        (lambda: acc23(TWO, TWO, groups=["a"]), "groups"),
        (lambda: tie_calibrated(TWO, [1, np.inf]), "metric"),
        (lambda: AccuracyPlan(TWO, categories=["a"]), "categories"),
        (lambda: paired_effect([1, NAN], TWO), "a, b"),
        (lambda: tau_c_contributions([1, NAN], TWO, [0, 1], [0, 0]), "finite"),
        (lambda: tau_c_contributions(TWO, TWO, [0, 1], [0, 1]), "two images"),
        (lambda: tau_c_contributions(TWO, TWO, [0], [0, 0]), "clusters"),
        (lambda: wilson(3, 2), "3 of 2"),
    ],
)
def test_bad_input_is_refused(call: Callable[[], object], place: str) -> None:
    with pytest.raises(InputError, match=place):
        call()
