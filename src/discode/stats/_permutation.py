"""Permutation tests of two metrics, whose scores are swapped at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike

from discode.errors import InputError, lookup
from discode.stats._base import (
    Floats,
    Ints,
    columns,
    finite_columns,
    generator,
    label_codes,
    undefined,
)
from discode.stats._correlation import PearsonPlan, ranks, standardised
from discode.stats._resampling import block_sizes
from discode.stats._swaps import SwappedRanks, is_small
from discode.stats._tau import KendallPlan

VARIANTS = ("b", "c", "spearman", "pearson")
"""Correlations that can be tested."""
ROUNDING = 1e-12
"""A permuted difference counts as equal to the observed one where they are this close, as a share
of the largest difference that there could be."""
EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Permutation:
    """A difference a - b and its two-sided p-value, (count + 1) / (resamples + 1)."""

    difference: float
    p: float


def permutation_tests(
    metrics: Sequence[ArrayLike],
    human: ArrayLike,
    *,
    variant: str = "c",
    clusters: ArrayLike | None = None,
    sources: ArrayLike | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[tuple[int, int], Permutation]:
    """Test of every two metrics (n,) whether their correlations with ``human`` (n,) differ.

    ``variant`` is "b" or "c" for Kendall's τ, "spearman", or "pearson".

    If the two are equally good, their scores are exchangeable. Each *cell* is swapped with
    probability ½, and the difference of the correlations is computed again; p = (count + 1) /
    (resamples + 1) of those at least as large, |d*| >= |d|.

    A cell is swapped as a whole:

    - ``clusters``: an image. A metric errs on images, not only on rows, so this is the safe
      unit: with rows, two equally good metrics differ "at 5 %" about twice as often as that.
    - ``clusters`` and ``sources`` (the system or caption): each image-source combination. This
      is PERM-BOTH of Deutsch, Dror & Roth (TACL 2021, arXiv 2104.00054), one swap per summary, and
      with images alone it is their PERM-INPUT. More power, if a metric's errors on two captions
      of an image are independent; p is too small if they are not.
    - neither: each row. Never for ratings of several people on one caption.

    Scores are first made comparable, each metric by itself: they become mean ranks, so that no
    monotone change of a metric changes p; for "pearson" their mean becomes 0 and their standard
    deviation 1. For "spearman" these ranks are swapped and correlated. The hypothesis is that the
    ranks are exchangeable: a metric with more ties is not equal to the other, as it should be with
    τ_c, whose m is the number of distinct human scores for both. A test is NaN, with an
    ``UndefinedWarning``, where a row is not finite.

    All tests use the same swaps. A metric's own part of S is computed once, and the joint part of
    two metrics once per pair (:mod:`discode.stats._swaps`).

    >>> done = permutation_tests([[1, 2, 3], [1, 3, 2], [3, 2, 1]], [1, 2, 3], resamples=9)
    >>> [round(done[pair].difference, 3) for pair in sorted(done)]
    [0.667, 2.0, 1.333]
    """
    lookup(dict.fromkeys(VARIANTS), variant, "variant")
    *scores, h = columns(**{f"metric {i}": x for i, x in enumerate(metrics)}, human=human)
    cells, size = _cells(len(h), clusters, sources)
    kendall = variant in "bc"
    plan: Callable[..., KendallPlan | PearsonPlan] = (
        partial(KendallPlan, variant=variant) if kendall else PearsonPlan
    )
    ranked = [_comparable(x, variant) for x in scores]
    h = h if kendall else _comparable(h, variant)
    if kendall and is_small(ranked, h, size):
        swaps = [swapped.astype(np.int8) for swapped in _draw_swaps(size, resamples, seed)]
        differences = SwappedRanks(ranked, h, cells, variant, swaps).differences
    else:
        codes = np.concatenate([cells, cells + size])

        def differences(i: int, j: int) -> Iterator[Floats]:
            both = np.concatenate([ranked[i], ranked[j]])
            values = plan(both, np.tile(h, 2)).clustered(codes)
            for swapped in _draw_swaps(size, resamples, seed):
                chosen = np.concatenate([1 - swapped, swapped], axis=1)
                yield values(chosen) - values(1 - chosen)

    # Correlations are of size 1 whatever the unit of the scores.
    return {
        (i, j): _permutation(differences(i, j), resamples, ROUNDING)
        for i, j in combinations(range(len(scores)), 2)
    }


def _comparable(side: Floats, variant: str) -> Floats:
    """Make ranks of a side, or for "pearson" standard scores; NaN if a row is not finite."""
    if not np.isfinite(side).all():
        return np.full_like(side, np.nan)
    return standardised(side) if variant == "pearson" else ranks(side)


def permutation_test_preference(
    a: ArrayLike,
    b: ArrayLike,
    *,
    categories: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    sources: ArrayLike | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Permutation:
    """Test whether ``a`` and ``b`` are right equally often; both (M,) are what ``credit`` returns.

    Or any other numbers that come in pairs, such as two captioners' scores of the same images.

    The cell (``clusters``, ``sources``) whose credits are swapped and p are those of
    ``permutation_tests``. With ``categories`` (M,) the accuracies' mean over categories is
    compared. A swap changes the sign of the cell's part in the difference, so that all resamples
    are one matrix product.

    >>> permutation_test_preference([1, 1, 1, 1], [0, 0, 1, 0], clusters=range(4)).difference
    0.75
    """
    x, y = finite_columns(a=a, b=b)
    cells, size = _cells(len(x), clusters, sources)
    group = label_codes(categories, "categories", len(x))
    rows = np.bincount(group)
    share = 1 / (rows[group] * len(rows))
    part = np.bincount(cells, weights=(x - y) * share, minlength=size)
    # Sums are rounded, and so were the scores themselves when they were written in binary.
    near = ROUNDING * np.abs(part).sum() + EPSILON * ((np.abs(x) + np.abs(y)) * share).sum()
    swaps = _draw_swaps(size, resamples, seed)
    differences = (np.asarray((1.0 - 2.0 * swapped) @ part) for swapped in swaps)
    return _permutation(differences, resamples, float(near))


def _draw_swaps(size: int, resamples: int, seed: int) -> Iterator[Ints]:
    """Yield swaps (R, size) of zeros and ones: first none, then random ones."""
    rng = generator(resamples, seed)
    yield np.zeros((1, size), dtype=np.int64)
    for block in block_sizes(resamples, size):
        yield (rng.random((block, size)) < 0.5).astype(np.int64)


def _permutation(differences: Iterator[Floats], resamples: int, near: float) -> Permutation:
    """Count the differences of all swaps that are as large as the first, which is the observed."""
    observed, count = float(next(differences)[0]), 0
    if np.isnan(observed):
        reason = "a correlation is undefined: rows that are not finite, or a constant side"
        return Permutation(observed, undefined(reason))
    for drawn in differences:
        # NaN counts against the difference.
        count += int((~(np.abs(drawn) < abs(observed) - near)).sum())
    return Permutation(observed, (count + 1) / (resamples + 1))


def _cells(rows: int, clusters: ArrayLike | None, sources: ArrayLike | None) -> tuple[Ints, int]:
    if not rows:
        raise InputError("there are no rows to compare")
    cells = label_codes(np.arange(rows) if clusters is None else clusters, "clusters", rows)
    if sources is not None:
        other = label_codes(sources, "sources", rows)
        cells = label_codes(cells * (int(other.max()) + 1) + other, "cells", rows)
    return cells, int(cells.max()) + 1
