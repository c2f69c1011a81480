"""Permutation tests of two metrics: swap their scores at random, see what that changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from discode.errors import InputError
from discode.stats.base import (
    Floats,
    Ints,
    check_choice,
    check_resamples,
    columns,
    generator,
    label_codes,
    same_length,
    warn,
)
from discode.stats.correlation import ranks, weighted
from discode.stats.resampling import ALTERNATIVES, Seed, block_sizes, by_multiplicity

ROUNDING = 1e-12
"""A permuted difference counts as equal to the observed one where they are this close, as a share
of the largest difference that there could be."""
EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Permutation:
    """A difference a - b and its p-value, (count + 1) / (resamples + 1)."""

    difference: float
    p: float
    resamples: int


def permutation_test(
    a: ArrayLike,
    b: ArrayLike,
    human: ArrayLike,
    *,
    correlation: str = "tau_c",
    clusters: ArrayLike | None = None,
    sources: ArrayLike | None = None,
    resamples: int = 1000,
    seed: Seed = 0,
    alternative: str = "two-sided",
    standardise: str = "rank",
) -> Permutation:
    """Test whether metric ``a`` correlates with ``human`` better than ``b``, all (n,).

    If the two were equally good one could swap their scores. For each *cell* a coin decides, and
    the difference of the correlations is taken again; p = (count + 1) / (resamples + 1) of those
    at least as large: |d*| >= |d|, or d* >= d for "greater" (a is better), d* <= d for "less".

    The cell is what is swapped as a whole:

    - ``clusters``: an image. A metric errs on images, not only on rows, so this is the safe
      unit: where the errors that captions of one image share were as large as those of a caption
      alone, two equally good metrics differed "at 5 %" in 4.8 % of 400 simulations with images
      swapped, and in 9.8 % with rows (80 images, 5 captions each).
    - ``clusters`` and ``sources`` (the system or caption): each image-source combination. This
      is PERM-BOTH of Deutsch, Dror & Roth (TACL 2021, arXiv 2104.00054), one coin per summary, and
      with images alone it is their PERM-INPUT. More power, if a metric's errors on two captions
      of an image are independent; p is too small if they are not.
    - neither: each row. Never for ratings of several people on one caption.

    Scores are first made comparable, each metric by itself: ``standardise`` "rank" (mean ranks, so
    that no monotone change of a metric changes p; the default) or "z" (mean 0, deviation 1, as in
    the paper; for Pearson's r). With a skewed metric "z" swaps unlike things and loses power:
    a true difference was seen in 64 % instead of 71 % of 300 simulations with exp(1.5·b) for b.
    What is tested is that the standardised scores may be swapped: a metric that ties where the
    other does not is not its equal, which is as it should be with τ_c.

    Swapping is weighting: the 2n scores are put in one order once, and a permutation is a choice
    of half of them, weights 0 and 1. NaN, with an ``UndefinedWarning``, where a row is not finite.

    >>> human = [1, 2, 3, 4, 5, 6, 7, 8]
    >>> permutation_test(human, [1, 2, 1, 2, 1, 2, 1, 2], human, resamples=99).difference
    0.75
    """
    check_choice("alternative", alternative, ALTERNATIVES)
    check_choice("standardise", standardise, ("rank", "z"))
    check_resamples(resamples)
    x, y, h = columns({"a": a, "b": b, "human": human})
    cells, size = _cells(len(h), clusters, sources)
    if not np.isfinite([x, y, h]).all():
        warn("rows that are not finite: mask them for both metrics alike and count them")
        return Permutation(float("nan"), float("nan"), resamples)
    both = np.concatenate([_standardised(x, standardise), _standardised(y, standardise)])
    statistic = weighted(correlation, both, np.tile(h, 2))
    values = by_multiplicity(statistic, np.concatenate([cells, cells + size]))

    def differences(swapped: Ints) -> Floats:
        chosen = np.concatenate([1 - swapped, swapped], axis=1)
        return values(chosen) - values(1 - chosen)

    observed = float(differences(np.zeros((1, size), dtype=np.int64))[0])
    # Correlations are of size 1 whatever the unit of the scores.
    return _permutation(observed, differences, size, resamples, seed, alternative, ROUNDING)


def permutation_test_preference(
    a: ArrayLike,
    b: ArrayLike,
    *,
    categories: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    sources: ArrayLike | None = None,
    resamples: int = 1000,
    seed: Seed = 0,
    alternative: str = "two-sided",
) -> Permutation:
    """Test whether ``a`` is right more often than ``b``; both (M,) are what ``credit`` returns.

    Or any other numbers that come in pairs, such as two captioners' scores of the same images.

    The cell (``clusters``, ``sources``) whose credits are swapped, ``alternative`` and p are those
    of ``permutation_test``. With ``categories`` (M,) the accuracies' mean over categories is
    compared. A swap changes the sign of the cell's part in the difference, so that all resamples
    are one matrix product.

    >>> permutation_test_preference([1, 1, 1, 1], [0, 0, 1, 0], clusters=range(4)).difference
    0.75
    """
    check_choice("alternative", alternative, ALTERNATIVES)
    check_resamples(resamples)
    x, y = columns({"a": a, "b": b})
    if not np.isfinite([x, y]).all():
        raise InputError("credits must be finite: credit() gives a failed score 0")
    cells, size = _cells(len(x), clusters, sources)
    group = np.zeros(len(x), dtype=np.int64)
    if categories is not None:
        group = label_codes(categories, "categories")
        same_length({"a": 0, "categories": 0}, [x, group])
    rows = np.bincount(group)
    share = 1 / (rows[group] * len(rows))
    part = np.bincount(cells, weights=(x - y) * share, minlength=size)
    # Sums are rounded, and so were the scores themselves when they were written in binary.
    near = ROUNDING * np.abs(part).sum() + EPSILON * ((np.abs(x) + np.abs(y)) * share).sum()

    def differences(swapped: Ints) -> Floats:
        return np.asarray((1.0 - 2.0 * swapped) @ part)

    observed = float(part.sum())
    return _permutation(observed, differences, size, resamples, seed, alternative, float(near))


def _permutation(
    observed: float,
    differences: Callable[[Ints], Floats],
    size: int,
    resamples: int,
    seed: Seed,
    alternative: str,
    near: float,
) -> Permutation:
    if np.isnan(observed):
        warn("a metric's correlation is undefined, and so is the difference")
        return Permutation(observed, float("nan"), resamples)
    sign = -1.0 if alternative == "less" else 1.0
    rng, count = generator(seed), 0
    for block in block_sizes(resamples, size):
        draws = sign * differences((rng.random((block, size)) < 0.5).astype(np.int64))
        bar = sign * observed
        if alternative == "two-sided":
            draws, bar = np.abs(draws), abs(bar)
        count += int((~(draws < bar - near)).sum())  # NaN counts against the difference
    return Permutation(observed, (count + 1) / (resamples + 1), resamples)


def _cells(rows: int, clusters: ArrayLike | None, sources: ArrayLike | None) -> tuple[Ints, int]:
    """Return the number of the cell of each row, and how many cells there are."""
    if not rows:
        raise InputError("there are no rows to compare")
    if clusters is None and sources is None:
        return np.arange(rows), rows
    if clusters is None:
        raise InputError("sources go with clusters: a cell is one source on one image")
    cells = label_codes(clusters, "clusters")
    same_length({"a": 0, "clusters": 0}, [range(rows), cells])
    if sources is not None:
        other = label_codes(sources, "sources")
        same_length({"a": 0, "sources": 0}, [range(rows), other])
        cells = label_codes(cells * (int(other.max()) + 1) + other, "cells")
    return cells, int(cells.max()) + 1


def _standardised(scores: Floats, how: str) -> Floats:
    if how == "rank":
        return ranks(scores)
    if np.ptp(scores) == 0:  # the mean is rounded, and would leave a spread
        return np.zeros(len(scores))
    centred = scores - scores.mean()
    return np.asarray(centred / centred.std())
