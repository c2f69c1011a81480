"""The rules of a campaign, as in the paper: which captions are drawn, and when people agree.

Of four candidates of an image one, drawn at random, is revised by a person and becomes the
reference. Two of the others are compared by three people; unless all agree, the image is discarded
and the next of its domain takes its place. Every draw depends only on the campaign's seed and the
image's SHA-256, so it can be checked afterwards.
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
"""Criteria of a comparison; one overall preference is recorded, as in the paper."""
CONSENSUS = ("all", "majority")
REVISE = ("always", "agreed")


def _upwards(low: int) -> Numbers:
    text = f"a whole number from {low} to 1000"
    return Numbers(text, lambda x: low <= x <= 1000, whole=True)


@dataclass(frozen=True)
class Rules(Configurable):
    """The rules of a campaign.

    The defaults of people, consensus (as we read it), writers and revise are the paper's. It does
    not mention flags, skips, second looks or near-duplicates.

    >>> Rules(people=2, consensus="majority")
    Traceback (most recent call last):
        ...
    discode.errors.InputError: a majority needs an odd number of people, not 2
    """

    seed: int = option(
        0, "seed of every draw", Numbers("a whole number", lambda x: True, whole=True)
    )
    people: int = option(3, "people per image", _upwards(1))
    consensus: str = option("all", "who must agree, or the image is discarded", *CONSENSUS)
    writers: int = option(4, "captions that an image needs before people see it", _upwards(3))
    revise: str = option(
        "always", "when captions are revised: at once, or after consensus", *REVISE
    )
    flags: int = option(2, "discard an image that this many people flag", _upwards(1))
    skips: int = option(5, "discard an image that this many people skip; 0: no skips", _upwards(0))
    second_look: bool = option(False, "require another person to accept each revision", True, False)
    # None in campaigns of earlier versions, which did not store it.
    near: int | None = option(
        6,
        "treat images whose hashes differ in at most this many of 256 bits as one; -1: off",
        Numbers("a whole number from -1 to 64", lambda x: -1 <= x <= 64, whole=True),
        None,
    )

    def __post_init__(self) -> None:
        """Check the options, and that a majority is always possible."""
        super().__post_init__()
        if self.consensus == "majority" and self.people % 2 == 0:
            raise InputError(f"a majority needs an odd number of people, not {self.people}")

    @property
    def needed(self) -> int:
        """The number of people who must choose the same caption of an image.

        >>> Rules().needed, Rules(consensus="majority").needed
        (3, 2)
        """
        return self.people if self.consensus == "all" else self.people // 2 + 1

    def consensus_text(self) -> str:
        """Describe the consensus rule in a sentence.

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
    """The writers whose caption is revised and whose captions are compared."""

    reference: str
    pair: tuple[str, str]


@dataclass(frozen=True)
class Verdict:
    """The result of the votes: "waiting", "agreed" on ``choice``, or "split"."""

    state: str
    choice: int | None = None


def random_bits(seed: int, *parts: object) -> int:
    """Draw 64 random bits that depend only on the seed and the parts.

    >>> random_bits(0, "a") == random_bits(0, "a") != random_bits(1, "a")
    True
    """
    text = json.dumps([seed, *map(str, parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def rank_of(rules: Rules, digest: str) -> str:
    """Sort key of an image in its domain's random order."""
    return f"{random_bits(rules.seed, 'rank', digest):016x}"


def draw_captions(rules: Rules, digest: str, captions: Mapping[str, str]) -> Draw | None:
    """Draw from the captions of an image, given by writer; ``None`` if fewer than three differ.

    The order of the pair is random, too. The three captions differ (:func:`normalized`): a caption
    that repeats one drawn before it is replaced by the next in the same random order, since a
    comparison with the reference itself would be pointless.

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
    """Normalize a caption for comparison with others.

    Case, white space, Unicode form and a closing full stop are ignored.

    >>> normalized("A  Cafe\\u0301.") == normalized("a caf\\u00e9")
    True
    """
    return " ".join(unicodedata.normalize("NFKC", caption).casefold().split()).rstrip(".。 ")


def is_swapped(rules: Rules, digest: str, person: int) -> bool:
    """Whether a person sees the pair's second caption on the left."""
    return bool(random_bits(rules.seed, "side", digest, person) & 1)


def verdict(rules: Rules, votes: Sequence[int]) -> Verdict:
    """Apply the rules to the votes on an image (0 or 1 each).

    >>> verdict(Rules(), [1, 1]).state, verdict(Rules(), [1, 1, 1]), verdict(Rules(), [1, 0, 1])
    ('waiting', Verdict(state='agreed', choice=1), Verdict(state='split', choice=None))
    """
    if len(votes) > rules.people:
        raise InputError(f"{len(votes)} votes on an image; the rules allow {rules.people}")
    if len(votes) < rules.people:
        return Verdict("waiting")
    choice, count = Counter(votes).most_common(1)[0]
    return Verdict("agreed", choice) if count >= rules.needed else Verdict("split")
