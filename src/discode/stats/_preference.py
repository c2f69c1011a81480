"""Agreement on pairs: which of two captions is better, and rankings that may hold ties.

A failed score is NaN. It cannot be right and must not be left out: it counts as wrong here, and
the caller reports how many there were.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discode.errors import InputError, lookup
from discode.stats._base import (
    Floats,
    Ints,
    columns,
    counts,
    label_codes,
    undefined,
)
from discode.stats._tau import concordances

MAX_DIFFERENCES = 1 << 24
"""More differences of scores than this are not sorted: they would take a GiB."""


def credit(left: ArrayLike, right: ArrayLike, chosen: ArrayLike, *, ties: str = "wrong") -> Floats:
    """Score each preference (M,): 1 if the chosen side has the higher score, else 0.

    ``left`` and ``right`` (M,) are the scores of the two candidates, ``chosen`` (M,) is 0 where
    people preferred the left one and 1 the right one. Equal scores earn 0 (the published protocol
    of Pascal-50S), or ½ with ``ties="half"``; a NaN on either side earns 0.

    >>> credit([0.9, 0.2, 0.5], [0.1, 0.6, 0.5], [0, 0, 1], ties="half").tolist()
    [1.0, 0.0, 0.5]
    """
    lookup(dict.fromkeys(("wrong", "half")), ties, "ties")
    a, b, side = columns(left=left, right=right, chosen=chosen)
    if not np.isin(side, (0, 1)).all():
        raise InputError("chosen must be 0 (left) or 1 (right) in every row")
    earned = np.where(side == 0, a > b, b > a).astype(np.float64)
    return earned + 0.5 * (a == b) if ties == "half" else earned


def accuracy(
    left: ArrayLike, right: ArrayLike, chosen: ArrayLike, *, ties: str = "wrong",
    categories: ArrayLike | None = None,
) -> float:  # fmt: skip
    """Share of preferences whose chosen side scores higher, or its mean over ``categories``.

    The columns (M,) and ``ties`` are those of :func:`credit`. NaN, with an ``UndefinedWarning``,
    without preferences.

    >>> accuracy([0.9, 0.2, 0.5], [0.1, 0.6, 0.5], [0, 1, 1])
    0.6666666666666666
    """
    earned = credit(left, right, chosen, ties=ties)
    if not len(earned):
        return undefined("no preferences: the accuracy is undefined")
    return AccuracyPlan(earned, categories=categories)(np.ones(len(earned), np.int64))


class AccuracyPlan:
    """Accuracy as a function of how often each preference counts, for ``bootstrap``.

    ``earned`` (M,) is what ``credit`` returned. With ``categories`` (M,) it is the mean over
    categories; one that a resample misses makes it NaN.

    >>> plan = AccuracyPlan([1, 0, 1], categories=["HC", "HC", "MM"])
    >>> plan(np.array([1, 1, 1])), plan(np.array([2, 0, 1]))
    (0.75, 1.0)
    """

    def __init__(self, earned: ArrayLike, *, categories: ArrayLike | None = None) -> None:
        (self.earned,) = columns(earned=earned)
        self._codes = label_codes(categories, "categories", len(self.earned))

    def __call__(self, weights: ArrayLike) -> float:
        """Compute the mean over categories of their accuracies."""
        return float(self.by_category(weights)[-1])

    def by_category(self, weights: ArrayLike) -> Floats:
        """Compute the accuracy of each of the K sorted categories, and their mean, (K + 1,)."""
        w = counts(weights, len(self.earned))
        rows = np.bincount(self._codes, weights=w)
        right = np.bincount(self._codes, weights=w * self.earned)
        each = np.divide(right, rows, out=np.full(len(rows), np.nan), where=rows > 0)
        return np.append(each, each.mean() if len(each) else np.nan)


def acc23(human: ArrayLike, metric: ArrayLike, groups: ArrayLike | None = None) -> float:
    """Pairwise accuracy with ties: the share of pairs of rows that both sides order alike.

    acc = (C + T_hm) / P: a pair is right if it is concordant, or tied in ``human`` and in
    ``metric`` (n,) alike. With ``groups`` (n,), such as the image, pairs are formed inside groups
    and the groups' accuracies are averaged; a group of one row has no pairs and is left out.

    A pair with a NaN in ``metric`` is wrong; ``human`` must be finite. O(n log n) per group.
    Deutsch, Foster & Freitag, "Ties Matter" (EMNLP 2023, arXiv 2305.14324).

    >>> acc23([1, 1, 2, 3], [0.2, 0.2, 0.5, 0.4])
    0.8333333333333334
    """
    return accuracies_with_ties(human, metric, groups, calibrate=False)[0]


def tie_calibrated(
    human: ArrayLike, metric: ArrayLike, groups: ArrayLike | None = None
) -> tuple[float, float]:
    """Find the best ``acc23`` when differences up to ε count as ties: (accuracy, ε).

    A metric that never ties cannot match people who do. Every difference |m_i - m_j| is tried,
    and 0; of equally good ones the smallest is returned. ε is fitted on the rows it is judged on:
    one number for the whole column, as in the paper, but not a held-out accuracy.

    Rows with equal scores are merged, so that three raters per caption cost no more than one.

    >>> tie_calibrated([1, 1, 2], [0.25, 0.5, 1.0])
    (1.0, 0.25)
    """
    return accuracies_with_ties(human, metric, groups)[1:]


def accuracies_with_ties(
    human: ArrayLike, metric: ArrayLike, groups: ArrayLike | None = None, *, calibrate: bool = True
) -> tuple[float, float, float]:
    """Compute :func:`acc23` and, if wanted, both numbers of :func:`tie_calibrated` (else NaN).

    >>> accuracies_with_ties([1, 1, 2], [0.25, 0.5, 1.0])
    (0.6666666666666666, 1.0, 0.25)
    """
    h, m, group = _grouped(human, metric, groups)
    right, pairs = _right(h, m, group)
    if not len(pairs):
        nothing = undefined("no pairs of rows: the pairwise accuracy is undefined")
        return nothing, nothing, nothing
    accuracy = float(np.mean(right / pairs))
    if not calibrate:
        return accuracy, np.nan, np.nan
    # Without groups a pair counts 1, so that the sums are whole and exact.
    weights, total = (1 / pairs, len(pairs)) if len(pairs) > 1 else (np.ones(1), pairs[0])
    plain = sum((weights * right).tolist())
    rows = np.flatnonzero(np.isfinite(m))
    rows = rows[np.argsort(group[rows], kind="stable")]
    edges = np.cumsum(np.bincount(group[rows], minlength=len(pairs)))[:-1]
    scored = [(h[part], m[part]) for part in np.split(rows, edges)]
    distinct = np.array([len(np.unique(metric)) for _, metric in scored])
    if (count := int((distinct * (distinct - 1)).sum()) // 2) > MAX_DIFFERENCES:
        nothing = undefined(
            f"{count:,} differences of scores exceed {MAX_DIFFERENCES:,}; give groups"
        )
        return accuracy, nothing, nothing
    difference, gain = _differences(scored, weights)
    order = np.argsort(difference)
    difference, value = difference[order], plain + np.cumsum(gain[order])
    # Equal differences become ties together. Before all of them, ε = 0: the scores as they are.
    last = np.append(np.diff(difference) > 0, True)[: len(difference)]
    value, epsilon = np.append(plain, value[last]), np.append(0.0, difference[last])
    best = int(value.argmax())
    return accuracy, float(value[best] / total), float(epsilon[best])


def _grouped(
    human: ArrayLike, metric: ArrayLike, groups: ArrayLike | None
) -> tuple[Floats, Floats, Ints]:
    """Select the rows whose group has a pair; groups are numbered from 0."""
    h, m = columns(human=human, metric=metric)
    if not np.isfinite(h).all() or np.isinf(m).any():
        raise InputError("human must be finite, and metric finite or NaN")
    group = label_codes(groups, "groups", len(h))
    several = np.bincount(group)[group] > 1
    return h[several], m[several], _codes(group[several])


def _right(human: Floats, metric: Floats, group: Ints) -> tuple[Floats, Floats]:
    """Count the pairs of each group that are concordant or tied on both sides, and all pairs."""
    size = np.bincount(group).astype(np.float64)
    finite = np.isfinite(metric)
    h, m, group = _codes(human[finite]), _codes(metric[finite]), group[finite]
    both = _codes(h * (m.max(initial=0) + 1) + m)
    n, tied_h, tied_m, tied_both = (
        _tied(group, codes, len(size)) for codes in (np.zeros_like(group), h, m, both)
    )
    each = concordances(m, h, np.ones((len(group), 1)), group)[:, 0]
    score = np.bincount(group, weights=each, minlength=len(size)) / 2  # C - D
    untied = n - tied_h - tied_m + tied_both  # C + D
    return (score + untied) / 2 + tied_both, size * (size - 1) / 2


def _differences(parts: list[tuple[Floats, Floats]], weights: Floats) -> tuple[Floats, Floats]:
    """List the differences of every two distinct scores of a part, and the gains of their ties.

    Pairs tied in ``human`` become right, concordant ones become wrong.
    """
    differences, gains = [np.zeros(0)], [np.zeros(0)]
    for (human, metric), weight in zip(parts, weights, strict=True):
        scores, rows = np.unique(metric, return_inverse=True)  # (G,)
        levels = _codes(human)
        table = np.zeros((len(scores), int(levels.max(initial=-1)) + 1))  # (G, L)
        np.add.at(table, (rows, levels), 1)
        # Rows at this score with the same level, minus those with a higher one: a lower score's
        # row ties with the former and is concordant with the latter.
        net = weight * (2 * table - np.cumsum(table[:, ::-1], axis=1)[:, ::-1])
        for i in range(len(scores) - 1):
            differences.append(scores[i + 1 :] - scores[i])
            gains.append(net[i + 1 :] @ table[i])
    return np.concatenate(differences), np.concatenate(gains)


def _codes(values: NDArray[np.generic]) -> Ints:
    return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)


def _tied(group: Ints, codes: Ints, size: int) -> Floats:
    count = int(codes.max(initial=0)) + 1
    cells, rows = np.unique(group * count + codes, return_counts=True)
    pairs = rows * (rows - 1) / 2
    return np.bincount(cells // count, weights=pairs, minlength=size).astype(np.float64)
