"""The rules of a campaign, as in the paper: which captions are drawn, and when people agree.

Of four candidates of an image one, drawn at random, is revised by a person and becomes the
reference. Two of the others are compared by three people; unless all agree, the image is discarded
and the next of its domain takes its place: so far the paper. Every draw is a function of the
campaign's seed and the image's SHA-256, so it depends on no order and can be checked afterwards.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from discode.errors import InputError

CRITERIA = ("relevance", "descriptiveness", "correctness", "fluency")
"""What captions are compared by; one overall preference is recorded, as in the paper."""
CONSENSUS = ("all", "majority")
REVISE = ("always", "agreed")


@dataclass(frozen=True)
class Rules:
    """The rules of a campaign.

    The defaults of people, consensus (as we read it), writers and revise are the paper's; of flags,
    skips, second looks and images that look alike it says nothing: these are ours.

    >>> Rules(people=2, consensus="majority")
    Traceback (most recent call last):
        ...
    discode.errors.InputError: a majority needs an odd number of people, not 2
    """

    seed: int = 0
    people: int = 3
    """How many people compare the two candidates of an image."""
    consensus: str = "all"
    """"all": one who disagrees discards the image; "majority": more than half decide."""
    writers: int = 4
    """Candidates that an image must have before people see it."""
    revise: str = "always"
    """"always": any time, as in the paper; "agreed": only once people agree, which is cheaper."""
    flags: int = 2
    """An image flagged by this many people is discarded."""
    skips: int = 5
    """An image skipped by this many people is discarded; 0: nobody may skip."""
    second_look: bool = False
    """A revision counts once another person has accepted it."""
    near: int | None = 6
    """Images whose hashes differ in so many of 256 bits are the same; -1: no comparison. ``None``
    in a campaign of an earlier version, which did not keep it."""

    def __post_init__(self) -> None:
        for name, low in (("people", 1), ("writers", 3), ("flags", 1), ("skips", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= 1000:
                raise InputError(f"{name}={value!r} must be a whole number from {low} to 1000")
        if not isinstance(self.second_look, bool):
            raise InputError(f"second_look={self.second_look!r} must be true or false")
        if self.near is not None and not -1 <= self.near <= 64:
            raise InputError(f"near={self.near} must be from 0 to 64 bits, or -1 for no comparison")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise InputError(f"seed={self.seed!r} must be a whole number")
        for name, allowed in (("consensus", CONSENSUS), ("revise", REVISE)):
            value = getattr(self, name)
            if value not in allowed:
                raise InputError(f"{name}={value!r} is not allowed; allowed: {', '.join(allowed)}")
        if self.consensus == "majority" and self.people % 2 == 0:
            raise InputError(f"a majority needs an odd number of people, not {self.people}")


@dataclass(frozen=True)
class Draw:
    """Whose caption is revised, and whose two are compared."""

    reference: str
    pair: tuple[str, str]


@dataclass(frozen=True)
class Verdict:
    """What the votes amount to: "waiting", "agreed" on ``choice``, or "split"."""

    state: str
    choice: int | None = None


def random_bits(seed: int, *parts: object) -> int:
    """Return 64 random bits that follow from the seed and the parts alone.

    >>> random_bits(0, "a") == random_bits(0, "a") != random_bits(1, "a")
    True
    """
    text = json.dumps([seed, *map(str, parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def rank_of(rules: Rules, digest: str) -> str:
    """Return the key of an image in its domain's random order: the lowest comes first."""
    return f"{random_bits(rules.seed, 'rank', digest):016x}"


def draw_captions(rules: Rules, digest: str, captions: Mapping[str, str]) -> Draw | None:
    """Draw from the captions of an image, given by writer; ``None`` if fewer than three differ.

    The order of the pair is random, too. The three captions differ (:func:`normalized`): one that
    repeats the reference or the first of the pair makes room for the next writer in the same random
    order, since a comparison with the reference itself would be decided beforehand.

    >>> draw_captions(Rules(), "00", dict(a="a dog", b="a cat", c="a cow", d="a fox"))
    Draw(reference='b', pair=('c', 'a'))
    >>> draw_captions(Rules(), "00", dict(a="a dog", b="a cat", c="A  cat", d="a fox"))
    Draw(reference='b', pair=('a', 'd'))
    """
    drawn: dict[str, str] = {}
    for writer in sorted(captions, key=lambda one: random_bits(rules.seed, "draw", digest, one)):
        drawn.setdefault(normalized(captions[writer]), writer)
    if len(drawn) < 3:
        return None
    reference, first, second, *_ = drawn.values()
    return Draw(reference, (first, second))


def normalized(caption: str) -> str:
    """Return a caption to compare captions by.

    Case, white space, Unicode's form of a letter and a closing full stop make no other caption.

    >>> normalized("A  Cafe\\u0301.") == normalized("a caf\\u00e9")
    True
    """
    return " ".join(unicodedata.normalize("NFKC", caption).casefold().split()).rstrip(".。 ")


def is_swapped(rules: Rules, digest: str, person: int) -> bool:
    """Return whether a person sees the pair's second caption on the left."""
    return bool(random_bits(rules.seed, "side", digest, person) & 1)


def verdict(rules: Rules, votes: Sequence[int]) -> Verdict:
    """Return what the votes (0 or 1 each) amount to.

    >>> verdict(Rules(), [1, 1]).state, verdict(Rules(), [1, 1, 1]), verdict(Rules(), [1, 0, 1])
    ('waiting', Verdict(state='agreed', choice=1), Verdict(state='split', choice=None))
    """
    if len(votes) > rules.people:
        raise InputError(f"{len(votes)} votes on an image; the rules allow {rules.people}")
    if len(votes) < rules.people:
        return Verdict("waiting")
    choice, count = Counter(votes).most_common(1)[0]
    needed = rules.people if rules.consensus == "all" else rules.people // 2 + 1
    return Verdict("agreed", choice) if count >= needed else Verdict("split")
