"""Captioners ranked by a judge's preferences between their captions of the same images."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from discode._judge import Judge
from discode._pairs import Pair
from discode._preferences import TIED, comparison
from discode._scores import Floats, Progress
from discode._signature import Signature
from discode.bench._compare import LEVEL, Difference, adjust_and_group
from discode.bench._systems import SystemMean
from discode.bulk._judging import raise_if_stopped
from discode.errors import InputError
from discode.stats import (
    BradleyTerryPlan,
    ClusteredMean,
    Interval,
    MeansPlan,
    UndefinedWarning,
    bootstrap_all,
    permutation_test_preference,
)
from discode.stats._base import generator


@dataclass(frozen=True)
class ArenaSystem(SystemMean):
    """A captioner: its Bradley-Terry strength (``mean``) with its interval, NaN if undefined.

    ``preferred`` is the mean probability that its caption is the better one, ``score`` the mean
    score of its captions.
    """

    preferred: float
    score: float


@dataclass(frozen=True)
class ArenaDifference(Difference):
    """Captioner ``a`` against ``b``: how often each is preferred, the former minus the latter.

    ``flipped`` is the share of comparisons whose two orders choose different captions,
    ``disagree`` that of those in which scores choose the other caption; ties are left out.
    """

    flipped: float
    disagree: float

    wins = "is preferred to"

    @property
    def preferred(self) -> Interval:
        """The mean probability that a caption of ``a`` is better."""
        value, low, high = ((1 + each) / 2 for each in (self.difference, self.low, self.high))
        return Interval(value, low, high, LEVEL)


@dataclass(frozen=True)
class ArenaResult:
    """Captioners from the most preferred to the least, all pairs of them, and groups that differ.

    All are compared on the ``images`` of which every two captioners have a comparison;
    ``left_out`` counts the others. ``disagree`` joins all comparisons in which preference and
    scores both choose a caption; NaN if preferences are made of scores. ``undefined`` has the
    reason if strengths are, or in how many resamples; ``errors`` are the reasons of comparisons
    that failed, by image.
    """

    systems: tuple[ArenaSystem, ...]
    pairs: tuple[ArenaDifference, ...]
    groups: tuple[tuple[str, ...], ...]
    images: int
    left_out: int
    comparisons: int
    flipped: float
    disagree: Interval
    signature: Signature
    score_signature: Signature
    undefined: tuple[str, ...]
    errors: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ArenaPlan:
    """The N comparisons of captions of the same images by S captioners.

    ``captions`` are the pairs to score; the comparisons (N,) point at them by ``first`` and
    ``second``, at the two captioners by ``match``, a number of ``matches``, and at the image.
    """

    names: tuple[str, ...]
    captions: tuple[Pair, ...]
    owner: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    match: NDArray[np.int64]
    image: NDArray[np.int64]
    images: tuple[str, ...]
    left_out: int

    @property
    def matches(self) -> list[tuple[int, int]]:
        """Every two captioners, K of them."""
        return [*combinations(range(len(self.names)), 2)]

    @classmethod
    def of(cls, systems: Mapping[str, Sequence[Pair]]) -> ArenaPlan:
        """Plan to compare each two captioners' captions of the images that all of them have."""
        if len(systems) < 2:
            raise InputError("give the captions of two captioners or more")
        by_image: dict[str, dict[int, list[Pair]]] = {}
        for number, pairs in enumerate(systems.values()):
            for pair in pairs:
                bare = replace(pair, references=())
                by_image.setdefault(str(pair.image), {}).setdefault(number, []).append(bare)
        if empty := [name for name, pairs in systems.items() if not pairs]:
            raise InputError(f"{empty[0]} has no captions")
        shared = {image: own for image, own in by_image.items() if len(own) == len(systems)}
        if not shared:
            firsts = ", ".join(
                f"{name} begins with {pairs[0].image!s}" for name, pairs in systems.items()
            )
            raise InputError(f"no image is in all files: {firsts}; caption the same images")
        captions: list[Pair] = []
        owner: list[int] = []
        rows: list[tuple[int, int, int, int]] = []
        for image, own in enumerate(shared.values()):
            numbers: list[list[int]] = []
            for system in range(len(systems)):
                numbers.append([*range(len(captions), len(captions) + len(own[system]))])
                captions += own[system]
                owner += [system] * len(own[system])
            for match, (a, b) in enumerate(combinations(numbers, 2)):
                rows += [(i, j, match, image) for i, j in product(a, b)]
        first, second, matches, images = np.array(rows, np.int64).T
        return cls(
            tuple(systems), tuple(captions), np.array(owner), first, second, matches, images,
            tuple(shared), len(by_image) - len(shared),
        )  # fmt: skip

    @property
    def pairs(self) -> list[Pair]:
        """The comparisons, as :meth:`~discode.Judge.prefer_pairs` takes them."""
        both = zip(self.first.tolist(), self.second.tolist(), strict=True)
        return [comparison(self.captions[i], self.captions[j]) for i, j in both]


def hold_arena(
    judge: Judge, plan: ArenaPlan, *, resamples: int = 1000, seed: int = 0,
    progress: Progress | None = None,
) -> ArenaResult:  # fmt: skip
    """Rank captioners by a judge's preferences, and compare these with the judge's scores.

    An image counts once for two captioners, with the mean preference of their captions. Intervals
    are percentiles of a bootstrap over images that is the same for all captioners; p is two-sided:
    for each image the two captioners are exchanged with probability ½. Groups are made by Holm's p.
    """
    generator(resamples, seed)  # refuses them before the model is asked
    done = judge.prefer_pairs(plan.pairs, progress=progress)
    scores = judge.score_pairs(plan.captions, progress=progress)
    if done.errors or scores.errors:
        raise_if_stopped(judge)
    value = _means(done.value, plan)
    keep: NDArray[np.bool_] = np.asarray(np.isfinite(value).all(axis=1))
    failed = tuple((plan.images[plan.image[row]], why) for row, why in done.errors.items())
    if not keep.any():
        why = f": {failed[0][1]}" if failed else ""
        raise InputError(f"no image has a comparison of every two captioners{why}")
    value = value[keep]
    images, matches = len(value), plan.matches
    one, other = np.repeat(np.array(plan.names)[np.array(matches).T], images, axis=1)
    fitted = BradleyTerryPlan(one, other, value.T.ravel())
    draw = partial(bootstrap_all, resamples=resamples, seed=seed, level=LEVEL)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UndefinedWarning)
        strengths = draw(fitted, np.tile(np.arange(images), len(matches)))
    reasons = tuple(dict.fromkeys(str(each.message) for each in caught))  # resamples' last
    apart = draw(MeansPlan(2 * value - 1), np.arange(images))
    used = keep[plan.image] & np.isfinite(done.value)
    side = np.where(np.abs(done.value - 0.5) < TIED, 0, np.sign(done.value - 0.5))
    scored = np.sign(scores.value[plan.first] - scores.value[plan.second])
    both = used & (side * scored != 0) & np.isfinite(scored) & judge.backend.takes_references
    against = np.where(both, side * scored < 0, math.nan)
    flipped = np.where(used, done.flags["flipped"], math.nan)
    rows = []
    for k, (i, j) in enumerate(matches):
        of = plan.match == k
        p = permutation_test_preference(
            value[:, k], 1 - value[:, k], resamples=resamples, seed=seed
        ).p
        rows.append(
            ArenaDifference(
                plan.names[i], plan.names[j], apart[k].value, apart[k].low, apart[k].high, p, p,
                _mean(flipped[of]), _mean(against[of]),
            )
        )  # fmt: skip
    preferred = {
        name: float(
            np.mean([value[:, k] if i == number else 1 - value[:, k]
                     for k, (i, j) in enumerate(matches) if number in (i, j)])
        )
        for number, name in enumerate(plan.names)
    }  # fmt: skip
    pairs, groups = adjust_and_group(rows, preferred)
    rank = {name: number for number, group in enumerate(groups, start=1) for name in group}
    strength = dict(zip(fitted.players, strengths, strict=True))
    systems = [
        ArenaSystem(
            name, strength[name].value, strength[name].low, strength[name].high, rank[name],
            preferred[name], _mean(scores.value[plan.owner == number]),
        )
        for number, name in enumerate(plan.names)
    ]  # fmt: skip
    disagree = ClusteredMean()
    disagree.add(against, [plan.images[image] for image in plan.image.tolist()])
    return ArenaResult(
        tuple(sorted(systems, key=lambda each: -each.preferred)), pairs, groups, images,
        plan.left_out + int((~keep).sum()), len(done), _mean(flipped),
        disagree.interval(resamples=resamples, seed=seed), done.signature, scores.signature,
        reasons[:1] if np.isnan(strengths[0].value) else reasons[-1:], failed,
    )  # fmt: skip


def _means(value: Floats, plan: ArenaPlan) -> Floats:
    """Average the preferences (N,) of each image and match, (I, K); NaN where none was read."""
    shape = len(plan.images), len(plan.matches)
    sums, counts = np.zeros(shape), np.zeros(shape)
    read = np.isfinite(value)
    np.add.at(sums, (plan.image[read], plan.match[read]), value[read])
    np.add.at(counts, (plan.image[read], plan.match[read]), 1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), math.nan)


def _mean(values: Floats) -> float:
    seen = values[np.isfinite(values)]
    return float(seen.mean()) if len(seen) else math.nan
