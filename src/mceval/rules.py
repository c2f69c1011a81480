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
from discode.options import Configurable, Numbers, option

CRITERIA = ("relevance", "descriptiveness", "correctness", "fluency")
"""What captions are compared by; one overall preference is recorded, as in the paper."""
CONSENSUS = ("all", "majority")
REVISE = ("always", "agreed")


def _upwards(low: int) -> Numbers:
    text = f"a whole number from {low} to 1000"
    return Numbers(text, lambda x: low <= x <= 1000, whole=True)


@dataclass(frozen=True)
class Rules(Configurable):
    """The rules of a campaign.

    The defaults of people, consensus (as we read it), writers and revise are the paper's; of flags,
    skips, second looks and images that look alike it says nothing: these are ours.

    >>> Rules(people=2, consensus="majority")
    Traceback (most recent call last):
        ...
    discode.errors.InputError: a majority needs an odd number of people, not 2
    """

    seed: int = option(
        0, "seed of every draw", Numbers("a whole number", lambda x: True, whole=True)
    )
    people: int = option(3, "how many people compare the two candidates of an image", _upwards(1))
    consensus: str = option("all", "who must agree, else the image is discarded", *CONSENSUS)
    writers: int = option(4, "candidates an image must have before people see it", _upwards(3))
    revise: str = option(
        "always", "when: always, as in the paper, or once people agreed, which is cheaper", *REVISE
    )
    flags: int = option(2, "an image flagged by this many people is discarded", _upwards(1))
    skips: int = option(5, "an image skipped by this many is discarded; 0: no skips", _upwards(0))
    second_look: bool = option(
        False, "a revision counts once another person has accepted it", True, False
    )
    # None in a campaign of an earlier version, which did not keep it.
    near: int | None = option(
        6,
        "images whose hashes differ in so many of 256 bits are the same; -1: no comparison",
        Numbers("a whole number from -1 to 64", lambda x: -1 <= x <= 64, whole=True),
        None,
    )

    def __post_init__(self) -> None:
        """Check the options, and that a majority can be had."""
        super().__post_init__()
        if self.consensus == "majority" and self.people % 2 == 0:
            raise InputError(f"a majority needs an odd number of people, not {self.people}")

    @property
    def needed(self) -> int:
        """How many people must choose the same caption of an image.

        >>> Rules().needed, Rules(consensus="majority").needed
        (3, 2)
        """
        return self.people if self.consensus == "all" else self.people // 2 + 1

    def consensus_text(self) -> str:
        """Return in a sentence when people agree on an image, and what happens if they do not.

        >>> Rules(people=5, consensus="majority").consensus_text()[:42]
        'consensus majority: at least 3 of 5 people'
        """
        if self.consensus == "majority" or self.people == 1:
            return (
                f"consensus {self.consensus}: at least {self.needed} of {self.people} people "
                "decide, so no image is discarded for disagreement"
            )
        return (
            f"consensus all: an image on which its {self.people} people do not all agree is "
            "discarded and replaced"
        )


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
    for writer in sorted(captions, key=lambda name: random_bits(rules.seed, "draw", digest, name)):
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
    return Verdict("agreed", choice) if count >= rules.needed else Verdict("split")
