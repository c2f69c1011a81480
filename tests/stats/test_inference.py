"""The plain functions: kendall and accuracy against scipy, intervals against the plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau

from discode.errors import InputError
from discode.stats import (
    AccuracyPlan,
    KendallPlan,
    UndefinedWarning,
    accuracy,
    bootstrap,
    compare,
    credit,
    interval,
    kendall,
    pearson,
    resample,
    resampled_difference,
    spearman,
)


def columns(rows: int = 60) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(5)
    human = rng.integers(1, 6, rows).astype(float)
    a, b = (human + rng.normal(0, spread, rows).round(1) for spread in (1.0, 3.0))
    return a, b, human, np.arange(rows) // 4


@pytest.mark.parametrize("variant", ["b", "c"])
def test_kendall_is_scipys(variant: str) -> None:
    a, _, human, _ = columns()
    expected = kendalltau(a, human, variant=variant).statistic
    assert kendall(a, human, variant=variant, m="scipy") == pytest.approx(expected, abs=1e-12)


def test_m_is_peoples_or_a_number() -> None:
    a, _, human, _ = columns()
    coarse = a.round()  # more values than people's
    tau = kendall(coarse, human, variant="c", m=5)
    assert kendall(coarse, human, variant="c") == tau
    # tau_c is 2S / (N² (m - 1) / m): only m differs.
    assert kendall(coarse, human, variant="c", m=9) == pytest.approx(tau * (4 / 5) / (8 / 9))
    with pytest.raises(InputError):
        kendall(a, human, variant="c", m=1)
    with pytest.raises(InputError):
        kendall(a, human, variant="c", m="metric")


def test_undefined_statistics_are_nan_with_a_warning() -> None:
    with pytest.warns(UndefinedWarning):
        assert np.isnan(kendall([1, 1, 1], [1, 2, 3]))
    with pytest.warns(UndefinedWarning):
        assert np.isnan(accuracy([], [], []))


def test_accuracy_is_the_mean_credit() -> None:
    left, right, chosen = [0.9, 0.2, 0.5, 0.4], [0.1, 0.6, 0.5, 0.3], [0, 1, 1, 1]
    assert accuracy(left, right, chosen) == 0.5
    assert accuracy(left, right, chosen, ties="half") == 0.625
    assert accuracy(left, right, chosen, categories=["a", "b", "b", "b"]) == pytest.approx(2 / 3)


@pytest.mark.parametrize("options", [{"variant": "b"}, {"variant": "c", "m": 7}])
def test_the_interval_of_kendall_is_that_of_its_plan(options: dict[str, Any]) -> None:
    a, _, human, images = columns()
    quick = interval(kendall, a, human, clusters=images, resamples=50, **options)
    assert quick == bootstrap(KendallPlan(a, human, **options), images, resamples=50)

    def slow(x: Any, y: Any) -> float:
        return kendall(x, y, **options)

    repeated = interval(slow, a, human, clusters=images, resamples=50)
    for name in ("value", "low", "high"):
        assert getattr(repeated, name) == pytest.approx(getattr(quick, name), abs=1e-12)


def test_the_interval_of_accuracy_is_that_of_its_plan() -> None:
    a, b, human, images = columns()
    chosen, kinds = (human > 2).astype(int), (human > 3).astype(int)
    plan = AccuracyPlan(credit(a, b, chosen, ties="half"), categories=kinds)
    found = interval(
        accuracy, a, b, chosen, clusters=images, resamples=50, ties="half", categories=kinds
    )
    assert found == bootstrap(plan, images, resamples=50)


def test_any_function_of_columns_has_an_interval() -> None:
    a, _, human, images = columns()
    mean = interval(np.mean, a, clusters=images, level=0.9)
    assert mean.value == pytest.approx(a.mean())
    assert mean.low < mean.value < mean.high
    assert interval(pearson, a, human).value == pytest.approx(pearson(a, human))


@pytest.mark.parametrize("statistic", [kendall, spearman])
def test_compare_is_the_paired_bootstrap(statistic: Any) -> None:
    a, b, human, images = columns()
    options: dict[str, Any] = {"variant": "c", "m": 5} if statistic is kendall else {}
    found = compare(statistic, a, b, human, clusters=images, resamples=40, **options)

    def draws(x: Any) -> Any:
        def weighted(w: Any) -> float:
            rows = np.repeat(np.arange(len(x)), w)
            return float(statistic(x[rows], human[rows], **options))

        return resample(weighted, images, 40, 0)

    expected = resampled_difference(draws(a), draws(b), 0.95)
    assert found.p == expected.p
    assert found.difference.value == pytest.approx(expected.difference.value, abs=1e-12)
    assert found.difference.low == pytest.approx(expected.difference.low, abs=1e-12)
    assert found.difference.value > 0


def test_bad_columns_are_refused() -> None:
    with pytest.raises(InputError):
        interval(np.mean)
    with pytest.raises(InputError):
        interval(spearman, [1, 2, 3], [1, 2])
    with pytest.raises(InputError):
        interval(kendall, [1, 2], [1, 2], level=2.0)
