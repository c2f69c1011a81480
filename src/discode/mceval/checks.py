"""Decide when a person counts as careless: wrong gold answers, or answers that are too quick."""

from __future__ import annotations

import re
from dataclasses import dataclass

from discode.errors import InputError


@dataclass(frozen=True)
class Checks:
    """The limits of a campaign."""

    gold_rate: float = 0.1
    """The share of comparisons that are gold questions, while there are new ones."""
    gold_after: int = 5
    """A person is judged by their gold answers once there are this many."""
    gold_least: float = 0.6
    """The least share of them that must be right."""
    quick_seconds: float = 2.0
    """A comparison answered sooner counts as quick."""
    quick_after: int = 10
    quick_most: float = 0.5
    """The largest share of quick answers, once there are ``quick_after``."""
    pass_free: int = 3
    """So many flags of a person always count, and so many skips."""
    flag_most: float = 0.1
    """Beyond those, a flag counts while a person has flagged at most this share of their tasks."""
    skip_most: float = 0.3
    """The same for skips."""
    automatic: bool = True
    """Put a careless person's work back at once; otherwise an admin does."""

    def __post_init__(self) -> None:
        for name in ("gold_rate", "gold_least", "quick_most", "flag_most", "skip_most"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name}={getattr(self, name)!r} must be from 0 to 1")
        for name in ("gold_after", "quick_after"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)!r} must be 1 or more")
        if self.pass_free < 0:
            raise InputError(f"pass_free={self.pass_free!r} must be 0 or more")
        if not self.quick_seconds >= 0:
            raise InputError(f"quick_seconds={self.quick_seconds!r} must be 0 or more")


@dataclass(frozen=True)
class WorkRecord:
    """How many gold questions, right ones, comparisons and quick ones a person has answered."""

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


def careless_reason(checks: Checks, record: WorkRecord) -> str:
    """Return why a person counts as careless, or "".

    >>> careless_reason(Checks(), WorkRecord(gold=6, right=2))
    'gold questions: 2 of 6 right, at least 60 % are wanted'
    """
    if record.gold >= checks.gold_after and record.right < checks.gold_least * record.gold:
        return (
            f"gold questions: {record.right} of {record.gold} right, "
            f"at least {checks.gold_least:.0%} are wanted".replace("%", " %")
        )
    if record.compared >= checks.quick_after and record.quick > checks.quick_most * record.compared:
        return (
            f"time: {record.quick} of {record.compared} comparisons took under "
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
