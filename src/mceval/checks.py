"""Decide when a person counts as careless: wrong gold answers, or answers that are too quick.

Gold answers are judged by a likelihood ratio. With r of n right, a coin does that with probability
2⁻ⁿ, and a careful person, who is right with probability c, with cʳ (1 − c)ⁿ⁻ʳ. Once

    2⁻ⁿ / (cʳ (1 − c)ⁿ⁻ʳ) ≥ odds

the person is taken for a coin. Over any number of questions, this ever happens to a careful person
with probability 1 / odds at most (Ville's inequality), however often one looks.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from discode.errors import InputError


@dataclass(frozen=True)
class Checks:
    """The limits of a campaign."""

    gold_rate: float = 0.1
    """The share of tasks that are gold questions, while there are new ones."""
    gold_after: int = 5
    """A person is judged by their gold answers once there are this many."""
    gold_careful: float = 0.9
    """How often somebody is right who looks: gold questions have an obvious answer."""
    gold_odds: float = 50.0
    """A person's part ends once a coin explains their gold answers so many times better."""
    quick_seconds: float = 2.0
    """A comparison answered sooner counts as quick."""
    quick_after: int = 10
    quick_most: float = 0.5
    """From this share of quick choices on a person is careless, once there are ``quick_after``:
    who answers every second page unseen reaches one half."""
    pass_free: int = 3
    """So many flags of a person always count, and so many skips."""
    flag_most: float = 0.1
    """Beyond those, a flag counts while a person has flagged at most this share of their tasks."""
    skip_most: float = 0.3
    """The same for skips."""
    automatic: bool = True
    """Put a careless person's work back at once; otherwise an admin does."""

    def __post_init__(self) -> None:
        for name in ("gold_rate", "quick_most", "flag_most", "skip_most"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name}={getattr(self, name)!r} must be from 0 to 1")
        if not 0.5 < self.gold_careful < 1:
            raise InputError(f"gold_careful={self.gold_careful!r} must be above 0.5 and below 1")
        if not self.gold_odds > 1:
            raise InputError(f"gold_odds={self.gold_odds!r} must be above 1")
        for name in ("gold_after", "quick_after"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)!r} must be 1 or more")
        if self.pass_free < 0:
            raise InputError(f"pass_free={self.pass_free!r} must be 0 or more")
        if not self.quick_seconds >= 0:
            raise InputError(f"quick_seconds={self.quick_seconds!r} must be 0 or more")


@dataclass(frozen=True)
class WorkRecord:
    """How many gold questions, right ones, choices and quick ones a person has answered."""

    gold: int = 0
    right: int = 0
    compared: int = 0
    quick: int = 0


@dataclass(frozen=True)
class Evidence:
    """A person's work at the time of a decision about them; all answers that counted then."""

    answers: int = 0
    compared: int = 0
    gold: int = 0
    right: int = 0
    quick: int = 0
    median_seconds: float | None = None
    flags: int = 0
    skips: int = 0


def may_pass(checks: Checks, kind: str, passed: int, dealt_with: int) -> bool:
    """Return whether one more flag or skip of a person counts towards discarding an image.

    Args:
        checks: The campaign's limits.
        kind: "flag" or "skip".
        passed: How many the person has made already.
        dealt_with: Their answers, skips and flags so far.

    >>> may_pass(Checks(), "flag", 2, 2), may_pass(Checks(), "flag", 3, 3)
    (True, False)
    >>> may_pass(Checks(), "flag", 3, 40)
    True
    """
    most = checks.flag_most if kind == "flag" else checks.skip_most
    return passed + 1 <= max(checks.pass_free, most * (dealt_with + 1))


def coin_odds(checks: Checks, gold: int, right: int) -> float:
    """Return how many times better a coin explains gold answers than a careful person does.

    >>> [round(coin_odds(Checks(), 6, right)) for right in (6, 4, 3, 2)]
    [0, 2, 21, 193]
    """
    careful = checks.gold_careful
    wrong = gold - right
    # A power of more than 600 gold answers would not fit into a number.
    return math.exp(
        min(700.0, -gold * math.log(2) - right * math.log(careful) - wrong * math.log1p(-careful))
    )


def careless_reason(checks: Checks, record: WorkRecord) -> str:
    """Return why a person counts as careless, or "".

    >>> careless_reason(Checks(), WorkRecord(gold=6, right=2))
    'gold questions: 2 of 6 right, as a coin would have it'
    """
    odds = coin_odds(checks, record.gold, record.right)
    if record.gold >= checks.gold_after and odds >= checks.gold_odds:
        return f"gold questions: {record.right} of {record.gold} right, as a coin would have it"
    too_many = max(1, checks.quick_most * record.compared)
    if record.compared >= checks.quick_after and record.quick >= too_many:
        return (
            f"time: {record.quick} of {record.compared} choices took under "
            f"{checks.quick_seconds:g} s"
        )
    return ""


def is_corrected(text: str, wrong: str, right: str) -> bool:
    """Return whether a revision of a gold question's wrong caption took out what is wrong in it.

    That is so if at most half of the words that only the wrong caption has are left; if it has
    none of its own, any change will do.

    >>> is_corrected("A red cup, on a table", "a blue cup", "a red cup")
    True
    >>> is_corrected("a blue cup on a table", "a blue cup", "a red cup")
    False
    """
    said, bad, good = (set(re.findall(r"\w+", one.casefold())) for one in (text, wrong, right))
    mistakes = bad - good
    return 2 * len(mistakes & said) <= len(mistakes) if mistakes else said != bad
