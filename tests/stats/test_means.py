"""The mean of values that arrive in parts, beside closed forms and the whole bootstrap."""

from __future__ import annotations

import numpy as np
import pytest

from discode.stats import ClusteredMean, MeansPlan, bootstrap_all
from discode.stats._means import MOST


def test_parts_make_the_bootstrap_of_the_whole() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 50, 300)
    value = rng.random(50)[images] + 0.1 * rng.random(300)
    value[7] = np.nan
    mean = ClusteredMean()
    for rows in np.array_split(np.arange(300), 7):
        mean.add(value[rows], [f"{image}.jpg" for image in images[rows]])
    kept = np.isfinite(value)
    # as they come, not in the order of their names
    codes = [[*dict.fromkeys(images[kept].tolist())].index(image) for image in images[kept]]
    (want,) = bootstrap_all(MeansPlan(value[kept, None]), codes, resamples=5000)
    found = mean.interval()
    assert mean.clusters == 50
    assert [found.value, found.low, found.high] == pytest.approx([want.value, want.low, want.high])


@pytest.mark.parametrize("images", [400, 3 * MOST])
def test_the_interval_is_that_of_a_ratio_of_sums(images: int) -> None:
    """Its linearised standard error over images; more than ``MOST`` images share clusters."""
    rng = np.random.default_rng(1)
    count = rng.integers(1, 5, images)
    names = np.repeat(np.arange(images), count)
    value = np.repeat(rng.normal(0.5, 0.1, images), count) + rng.normal(0, 0.05, len(names))
    mean = ClusteredMean()
    mean.add(value, [str(name) for name in names])
    rest = np.bincount(names, value) - value.mean() * count
    error = np.sqrt((rest**2).sum()) / count.sum()
    found = mean.interval()
    assert found.value == pytest.approx(value.mean())
    assert (found.high - found.low) / (2 * 1.96 * error) == pytest.approx(1, abs=0.1)
    assert mean.clusters == min(images, MOST)


def test_without_names_and_without_values() -> None:
    mean = ClusteredMean()
    assert np.isnan(mean.interval().value)
    mean.add([0.5, 1.0], [None, ""])
    found = mean.interval()
    assert (mean.clusters, found.value, np.isnan(found.low)) == (2, 0.75, True)
