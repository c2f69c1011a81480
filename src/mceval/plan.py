"""Estimate the needs of a campaign (images, judgments, hours, money), by formula and simulation.

A person chooses the right caption with probability a, and at random on a share h of the images. n
people agree with probability

    p = (1 − h) (aⁿ + (1 − a)ⁿ) + h 2¹⁻ⁿ

and an image is discarded with probability 1 − p. To keep T images, T / p are shown on average, each
n times. The simulation draws people who differ in accuracy and speed, and gives quantiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discode.errors import InputError
from discode.options import (
    FRACTION,
    NON_NEGATIVE,
    POSITIVE,
    SIZE,
    Configurable,
    Numbers,
    option,
)  # fmt: skip
from mceval.rules import Rules

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Target(Configurable):
    """The target of a campaign: the benchmark and the people. The defaults are the paper's.

    The paper gives 6,000 images, 81 people, 23 USD per hour and, from its user study, people's
    accuracy. It does not give the time per task: these seconds were chosen so that the cost is
    close to its 6,500 USD.
    """

    domains: int = option(6, "number of domains", SIZE)
    images: int = option(1000, "images per domain", SIZE)
    workers: int = option(81, "number of people who take part", SIZE)
    accuracy: float = option(
        0.942,
        "how often people choose the right caption",
        Numbers("from 0.5 to 1", lambda x: 0.5 <= x <= 1),
    )
    spread: float = option(
        0.03,
        "standard deviation of accuracy between people",
        Numbers("0 to 0.5", lambda x: 0 <= x <= 0.5),
    )
    hard: float = option(0.0, "share of images on which people can only guess", FRACTION)
    compare_seconds: float = option(30.0, "time of a comparison", POSITIVE)
    revise_seconds: float = option(50.0, "time of a revision", POSITIVE)
    look_seconds: float = option(
        0.0, "time of a second look; 0: no second looks, as in the paper", NON_NEGATIVE
    )
    pay_per_hour: float = option(23.0, "people's pay", POSITIVE)
    fee: float = option(0.0, "a platform's share, on top of the pay", NON_NEGATIVE)
    gold_rate: float = option(
        0.0,
        "share of gold questions among comparisons, which are also paid",
        Numbers("a number from 0 to 0.9", lambda x: 0 <= x <= 0.9),
    )


@dataclass(frozen=True)
class Need:
    """The needs of a campaign."""

    shown: float
    """Images shown to people."""
    comparisons: float
    revisions: float
    hours: float
    money: float
    discard_rate: float
    wrong_rate: float
    """Share of kept images with the wrong preference."""


@dataclass(frozen=True)
class Plan:
    """Expected needs by formula, and quantiles (5 %, 50 %, 95 %) by simulation."""

    expected: Need
    simulated: tuple[Need, Need, Need]
    pool: int
    """Images per domain with which 95 % of campaigns fill its quota."""


def keep_probability(rules: Rules, accuracy: float, hard: float = 0.0) -> tuple[float, float]:
    """Compute the probability that an image is kept, and that it is kept with the wrong preference.

    >>> share, wrong = keep_probability(Rules(), 0.9)
    >>> round(share, 6) == round(0.9**3 + 0.1**3, 6), round(wrong, 6)
    (True, 0.001)
    """
    n = rules.people

    def tail(p: float) -> float:
        return sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(rules.needed, n + 1))

    coin = tail(0.5)
    right = (1 - hard) * tail(accuracy) + hard * coin
    wrong = (1 - hard) * tail(1 - accuracy) + hard * coin
    return min(1.0, right + wrong), wrong


def make_plan(target: Target, rules: Rules, *, rounds: int = 100, seed: int = 0) -> Plan:
    """Plan a target by formula and by ``rounds`` simulated campaigns."""
    if rounds < 1:
        raise InputError(f"rounds={rounds} must be 1 or more")
    if target.workers <= rules.people:
        raise InputError(
            f"{target.workers} people are too few: {rules.people} compare an image, another one "
            "revises"
        )
    share, wrong = keep_probability(rules, target.accuracy, target.hard)
    if share < 1e-3:
        raise InputError(f"{rules.people} people would agree on only {share:.2g} of the images")
    total = target.domains * target.images
    shown = total / share
    expected = _need(target, rules, shown, 1.0, 1.0, 1 - share, wrong / share)
    rng = np.random.default_rng(seed)
    runs, pools = [], []
    for _ in range(rounds):
        need, pool = _simulate(target, rules, rng)
        runs.append(need)
        pools += pool
    table = np.array([list(vars(need).values()) for need in runs])
    low, middle, high = (
        Need(*map(float, row)) for row in np.quantile(table, (0.05, 0.5, 0.95), axis=0)
    )
    return Plan(expected, (low, middle, high), math.ceil(np.quantile(pools, 0.95)))


def _need(
    target: Target,
    rules: Rules,
    shown: float,
    compare_pace: float,
    revise_pace: float,
    discarded: float,
    wrong: float,
) -> Need:
    """Compute the needs for ``shown`` images; the paces scale the seconds."""
    comparisons = rules.people * shown / (1 - target.gold_rate)
    kept_images = target.domains * target.images
    revisions = shown if rules.revise == "always" else kept_images
    seconds = comparisons * target.compare_seconds * compare_pace
    seconds += revisions * (target.revise_seconds + target.look_seconds) * revise_pace
    money = seconds / 3600 * target.pay_per_hour * (1 + target.fee)
    return Need(shown, comparisons, revisions, seconds / 3600, money, discarded, wrong)


def _simulate(target: Target, rules: Rules, rng: np.random.Generator) -> tuple[Need, list[int]]:
    """Simulate one campaign; its needs and the images shown per domain."""
    accuracy = _accuracies(target, rng)
    pace = rng.lognormal(-0.5 * 0.4**2, 0.4, target.workers)  # mean 1; standard deviation about 0.4
    share, _ = keep_probability(rules, target.accuracy, target.hard)
    shown, wrong, judged = [], 0, np.zeros(target.workers)
    for _ in range(target.domains):
        block = math.ceil(target.images / share * 1.1) + 20
        seen = got = 0
        while got < target.images:
            who = rng.random((block, target.workers)).argpartition(rules.people, axis=1)
            who = who[:, : rules.people]
            odds = np.where(rng.random((block, 1)) < target.hard, 0.5, accuracy[who])
            right = (rng.random((block, rules.people)) < odds).sum(axis=1)
            good, bad = right >= rules.needed, rules.people - right >= rules.needed
            count = np.cumsum(good | bad)
            end = min(int(np.searchsorted(count, target.images - got)) + 1, block)
            wrong += int(bad[:end].sum())
            got += int(count[end - 1])
            seen += end
            judged += np.bincount(who[:end].ravel(), minlength=target.workers)
        shown.append(seen)
    total, done = sum(shown), target.domains * target.images
    compare_pace = float((judged * pace).sum() / judged.sum())
    revise_pace = float(rng.choice(pace, size=done).mean())
    need = _need(target, rules, total, compare_pace, revise_pace, 1 - done / total, wrong / done)
    return need, shown


def _accuracies(target: Target, rng: np.random.Generator) -> Floats:
    """Draw people's accuracies from a beta distribution with the target's mean and spread."""
    mean, variance = target.accuracy, target.spread**2
    most = mean * (1 - mean)
    if variance == 0 or most == 0:
        return np.full(target.workers, mean)
    if variance >= most:
        raise InputError(f"spread={target.spread} is too wide for accuracy={mean}")
    strength = most / variance - 1
    return rng.beta(mean * strength, (1 - mean) * strength, target.workers)
