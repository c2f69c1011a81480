"""Detect careless people: wrong gold answers, or answers that are too quick.

Gold answers are judged by a likelihood ratio. Random choice gives r of n correct answers with
probability 2⁻ⁿ, a careful person, who is right with probability c, with cʳ (1 − c)ⁿ⁻ʳ. Once

    2⁻ⁿ / (cʳ (1 − c)ⁿ⁻ʳ) ≥ odds

the person counts as careless. Over any number of questions, this happens to a careful person with
probability at most 1 / odds (Ville's inequality), however often it is checked.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from discode.options import (
    COUNT,
    FRACTION,
    NON_NEGATIVE,
    SIZE,
    Configurable,
    Numbers,
    option,
)  # fmt: skip


@dataclass(frozen=True)
class Checks(Configurable):
    """The limits of a campaign."""

    gold_rate: float = option(
        0.1, "share of tasks that are gold questions, as long as there are new ones", FRACTION
    )
    gold_after: int = option(5, "gold answers before a person is judged", SIZE)
    gold_careful: float = option(
        0.9,
        "how often a careful person is right; gold questions have an obvious answer",
        Numbers("a number above 0.5 and below 1", lambda x: 0.5 < x < 1),
    )
    gold_odds: float = option(
        50.0,
        "likelihood ratio, random choice to careful, at which a person counts as careless",
        Numbers("a number above 1", lambda x: x > 1),
    )
    quick_seconds: float = option(2.0, "a comparison answered in less time is quick", NON_NEGATIVE)
    quick_after: int = option(10, "choices before a person's speed is judged", SIZE)
    # Answering every second page unseen reaches one half.
    quick_most: float = option(
        0.5, "share of quick choices at which a person counts as careless", FRACTION
    )
    pass_free: int = option(3, "flags, and skips, of a person that always count", COUNT)
    flag_most: float = option(
        0.1, "share of a person's tasks beyond which flags do not count", FRACTION
    )
    skip_most: float = option(0.3, "the same for skips", FRACTION)
    automatic: bool = option(
        True,
        "requeue a careless person's work at once; otherwise an organiser decides",
        True,
        False,
    )


@dataclass(frozen=True)
class Evidence:
    """A person's answers that count at the time of a decision about them."""

    answers: int = 0
    compared: int = 0
    gold: int = 0
    right: int = 0
    quick: int = 0
    median_seconds: float | None = None
    flags: int = 0
    skips: int = 0


def pass_may_count(checks: Checks, kind: str, passed: int, dealt_with: int) -> bool:
    """Whether one more flag or skip of a person counts towards discarding an image.

    They have skipped or flagged ``passed`` images so far, of ``dealt_with`` tasks in all.

    >>> pass_may_count(Checks(), "flag", 2, 2), pass_may_count(Checks(), "flag", 3, 3)
    (True, False)
    >>> pass_may_count(Checks(), "flag", 3, 40)
    True
    """
    most = checks.flag_most if kind == "flag" else checks.skip_most
    return passed + 1 <= max(checks.pass_free, most * (dealt_with + 1))


def coin_odds(checks: Checks, gold: int, right: int) -> float:
    """Likelihood ratio of gold answers: random choice against a careful person.

    >>> [round(coin_odds(Checks(), 6, right)) for right in (6, 4, 3, 2)]
    [0, 2, 21, 193]
    """
    careful = checks.gold_careful
    wrong = gold - right
    # The result for more than 600 gold answers would overflow.
    return math.exp(
        min(700.0, -gold * math.log(2) - right * math.log(careful) - wrong * math.log1p(-careful))
    )


def careless_reason(checks: Checks, record: Evidence) -> str:
    """Reason why a person counts as careless, or "".

    >>> careless_reason(Checks(), Evidence(gold=6, right=2))
    'gold questions: 2 of 6 right, no better than chance'
    """
    odds = coin_odds(checks, record.gold, record.right)
    if record.gold >= checks.gold_after and odds >= checks.gold_odds:
        return f"gold questions: {record.right} of {record.gold} right, no better than chance"
    too_many = max(1, checks.quick_most * record.compared)
    if record.compared >= checks.quick_after and record.quick >= too_many:
        return (
            f"time: {record.quick} of {record.compared} choices took under "
            f"{checks.quick_seconds:g} s"
        )
    return ""


def is_corrected(text: str, wrong: str, right: str) -> bool:
    """Whether a revision of a gold question's wrong caption removes the mistake.

    At most half of the words that only the wrong caption has may be left. If there are none, any
    change is enough.

    >>> is_corrected("A red cup, on a table", "a blue cup", "a red cup")
    True
    >>> is_corrected("a blue cup on a table", "a blue cup", "a red cup")
    False
    """
    words, bad, good = (
        set(re.findall(r"\w+", caption.casefold())) for caption in (text, wrong, right)
    )
    mistakes = bad - good
    return 2 * len(mistakes & words) <= len(mistakes) if mistakes else words != bad
