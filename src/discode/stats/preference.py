"""Agreement on pairs: which of two captions is better, and rankings that may hold ties.

A failed score is NaN. It cannot be right and must not be left out: it counts as wrong here, and
the caller reports how many there were.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discode.errors import InputError
from discode.stats.base import (
    Floats,
    Ints,
    check_choice,
    columns,
    counts,
    label_codes,
    same_length,
    undefined,
)
from discode.stats.tau import KendallPlan

BINS = 4096
"""Differences of scores are counted in this many bins before any are sorted."""
CHUNK = 1 << 18
"""Differences are made about this many at a time."""
MAX_SORTED = 1 << 26
"""More differences than this are not sorted: they would take 2 GiB."""
ROUNDING = 1e-9
"""A bin that falls short of the best by less may still hold it: sums over groups are rounded."""


def credit(left: ArrayLike, right: ArrayLike, chosen: ArrayLike, *, ties: str = "wrong") -> Floats:
    """Return what each preference earns (M,): 1 if the chosen side scores higher, else 0.

    ``left`` and ``right`` (M,) are the scores of the two candidates, ``chosen`` (M,) is 0 where
    people preferred the left one and 1 the right one. Equal scores earn 0, or ½ with
    ``ties="half"``; a NaN on either side earns 0.

    >>> credit([0.9, 0.2, 0.5], [0.1, 0.6, 0.5], [0, 0, 1], ties="half").tolist()
    [1.0, 0.0, 0.5]
    """
    check_choice("ties", ties, ("wrong", "half"))
    a, b, side = columns({"left": left, "right": right, "chosen": chosen})
    if not np.isin(side, (0, 1)).all():
        raise InputError("chosen must be 0 (left) or 1 (right) in every row")
    earned = np.where(side == 0, a > b, b > a).astype(np.float64)
    return earned + 0.5 * (a == b) if ties == "half" else earned


def accuracy(left: ArrayLike, right: ArrayLike, chosen: ArrayLike, *, ties: str = "wrong") -> float:
    """Return the share of preferences (M,) that the scores get right, as ``credit`` counts it.

    "wrong" is the published protocol of Pascal-50S (Vedantam et al., CVPR 2015, and after).

    >>> accuracy([0.9, 0.2], [0.1, 0.6], [0, 0])
    0.5
    """
    earned = credit(left, right, chosen, ties=ties)
    if not len(earned):
        return undefined("no preferences: the accuracy is undefined")
    return float(earned.mean())


class AccuracyPlan:
    """Accuracy as a function of how often each preference counts, for ``bootstrap``.

    ``earned`` (M,) is what ``credit`` returned. With ``categories`` (M,) it is the mean over
    categories; one that a resample misses makes it NaN.

    >>> plan = AccuracyPlan([1, 0, 1], categories=["HC", "HC", "MM"])
    >>> plan(np.array([1, 1, 1])), plan(np.array([2, 0, 1]))
    (0.75, 1.0)
    """

    def __init__(self, earned: ArrayLike, *, categories: ArrayLike | None = None) -> None:
        (self.earned,) = columns({"earned": earned})
        rows = len(self.earned)
        labels = np.zeros(rows, dtype=np.int64) if categories is None else categories
        self._codes = label_codes(labels, "categories")
        same_length({"earned": 0, "categories": 0}, [self.earned, self._codes])

    def __call__(self, weights: ArrayLike) -> float:
        """Return the mean over categories of their accuracies."""
        return float(self.by_category(weights)[-1])

    def by_category(self, weights: ArrayLike) -> Floats:
        """Return the accuracy of each of the K sorted categories, and their mean, (K + 1,)."""
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
    shares = []
    for h, m in _grouped(human, metric, groups):
        finite = np.isfinite(m)
        pairs = len(h) * (len(h) - 1) / 2
        shares.append(_right(h[finite], m[finite]) / pairs)
    if not shares:
        return undefined("no pairs of rows: the pairwise accuracy is undefined")
    return float(np.mean(shares))


def tie_calibrated(
    human: ArrayLike, metric: ArrayLike, groups: ArrayLike | None = None
) -> tuple[float, float]:
    """Return (accuracy, ε): the best ``acc23`` when differences up to ε count as ties, and that ε.

    A metric that never ties cannot match people who do. Every difference |m_i - m_j| is tried,
    and 0; of equally good ones the smallest is returned. ε is fitted on the rows it is judged on:
    one number for the whole column, as in the paper, but not a held-out accuracy.

    Rows with equal scores are merged, so that three raters per caption cost no more than one, and
    the G(G-1)/2 differences of G distinct scores are first counted in bins: only bins that may
    hold the best ε are sorted. 6,000 distinct scores, 18 million differences, take about a second.

    >>> tie_calibrated([1, 1, 2], [0.25, 0.5, 1.0])
    (1.0, 0.25)
    """
    parts = _grouped(human, metric, groups)
    if not parts:
        nothing = undefined("no pairs of rows: the pairwise accuracy is undefined")
        return nothing, nothing
    pairs = [len(h) * (len(h) - 1) / 2 for h, _ in parts]
    # Without groups a pair counts 1, so that the sums are whole and exact.
    weights, total = ([1.0], pairs[0]) if len(pairs) == 1 else ([1 / n for n in pairs], len(pairs))
    scored = [(h[np.isfinite(m)], m[np.isfinite(m)]) for h, m in parts]
    plain = sum(w * _right(h, m) for w, (h, m) in zip(weights, scored, strict=True))
    widest = max((float(np.ptp(m)) for _, m in scored if len(m)), default=0.0)

    def bins(difference: Floats) -> Ints:
        return np.minimum((difference / widest * BINS).astype(np.int64), BINS - 1)

    size, net, rise = np.zeros((3, BINS))
    for difference, gain in _chunks(scored, weights):
        at = bins(difference)
        size += np.bincount(at, minlength=BINS)
        net += np.bincount(at, weights=gain, minlength=BINS)
        rise += np.bincount(at, weights=np.maximum(gain, 0), minlength=BINS)
    after = plain + np.cumsum(net)
    before = after - net
    hopeful = (size > 0) & (before + rise >= max(plain, after.max()) - ROUNDING)
    if size[hopeful].sum() > MAX_SORTED:
        raise InputError(
            f"tie calibration would sort {int(size[hopeful].sum()):,} differences, at most "
            f"{MAX_SORTED:,} are allowed: give groups (the image, say) or round the scores"
        )
    kept = [np.zeros((2, 0))]
    for difference, gain in _chunks(scored, weights):
        chosen = hopeful[bins(difference)]
        kept.append(np.stack([difference[chosen], gain[chosen]]))
    difference, gain = np.concatenate(kept, axis=1)
    order = np.argsort(difference)
    difference, gain = difference[order], np.cumsum(gain[order])
    at = bins(difference)
    first = np.searchsorted(at, at)  # the sum starts anew in each bin, from what lies before it
    value = before[at] + gain - np.append(0.0, gain)[first]
    # Equal differences become ties together. Before all of them, ε = 0: the scores as they are.
    last = np.append(np.diff(difference) > 0, True)[: len(difference)]
    value, epsilon = np.append(plain, value[last]), np.append(0.0, difference[last])
    best = int(value.argmax())
    return float(value[best] / total), float(epsilon[best])


def _grouped(
    human: ArrayLike, metric: ArrayLike, groups: ArrayLike | None
) -> list[tuple[Floats, Floats]]:
    """Return the (human, metric) columns of each group that has a pair."""
    h, m = columns({"human": human, "metric": metric})
    if not np.isfinite(h).all():
        raise InputError("human must be finite: leave out rows that nobody judged")
    if np.isinf(m).any():
        raise InputError("metric must not be infinite: differences of its scores are compared")
    codes = np.zeros(len(h), dtype=np.int64) if groups is None else label_codes(groups, "groups")
    same_length({"human": 0, "groups": 0}, [h, codes])
    order = np.argsort(codes, kind="stable")
    edges = np.flatnonzero(np.diff(codes[order])) + 1
    return [(h[rows], m[rows]) for rows in np.split(order, edges) if len(rows) > 1]


def _right(human: Floats, metric: Floats) -> float:
    """Return the number of pairs that are concordant, or tied on both sides."""
    n = len(human)
    if n < 2:
        return 0.0
    h, m = _codes(human), _codes(metric)
    both = _codes(h * (m.max() + 1) + m)
    tied_h, tied_m, tied_both = (_tied(codes) for codes in (h, m, both))
    untied = n * (n - 1) // 2 - tied_h - tied_m + tied_both  # C + D
    return (KendallPlan(m, h).concordance(np.ones(n, dtype=np.int64)) + untied) / 2 + tied_both


def _chunks(
    parts: list[tuple[Floats, Floats]], weights: list[float]
) -> Iterator[tuple[Floats, Floats]]:
    """Yield, for each two distinct scores of a part, their difference and the gain of a tie.

    Pairs tied in ``human`` become right, concordant ones become wrong.
    """
    differences: list[Floats] = []
    gains: list[Floats] = []
    held = 0
    for (human, metric), weight in zip(parts, weights, strict=True):
        scores, rows = np.unique(metric, return_inverse=True)  # (G,)
        levels = _codes(human)
        size = int(levels.max(initial=-1)) + 1
        counts = np.bincount(rows * size + levels, minlength=len(scores) * size)
        table = counts.reshape(len(scores), size).astype(np.float64)  # (G, L)
        # Rows at this score with the same level, minus those with a higher one: a lower score's
        # row ties with the former and is concordant with the latter.
        net = weight * (2 * table - np.cumsum(table[:, ::-1], axis=1)[:, ::-1])
        for i in range(len(scores) - 1):
            differences.append(scores[i + 1 :] - scores[i])
            gains.append(net[i + 1 :] @ table[i])
            held += len(scores) - 1 - i
            if held >= CHUNK:
                yield np.concatenate(differences), np.concatenate(gains)
                differences, gains, held = [], [], 0
    if held:
        yield np.concatenate(differences), np.concatenate(gains)


def _codes(values: NDArray[np.generic]) -> Ints:
    return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)


def _tied(codes: Ints) -> int:
    sizes = np.bincount(codes).astype(np.int64)
    return int((sizes * (sizes - 1)).sum()) // 2
