"""More captions with a wrong word: somebody else, a number of one thing, half of another caption.

One word swapped for another is :func:`discode._probe.wrong_words.swap`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from discode._probe.wrong_words import OPPOSITES, WORDS

PENALTY = {"colour": 3.0, "number": 3.2, "noun": 4.0, "action": 3.5, "relation": 2.5}
"""How far, on 0 ... 10, one wrong word takes a caption down."""
SPLICED = 4.5
PEOPLE = ("man", "woman", "boy", "girl", "men", "women", "boys", "girls")


def swap_people(
    caption: str, references: Sequence[str], rng: random.Random
) -> tuple[str, str] | None:
    """Return (caption with a man for a woman or the like, kind), or None where there is none."""
    said = {word for text in references for word in text.split()}
    words = caption.split()
    places = [i for i, word in enumerate(words) if word in PEOPLE]
    rng.shuffle(places)
    for place in places:
        if other := [word for word in OPPOSITES[words[place]] if word not in said]:
            words[place] = rng.choice(other)
            return " ".join(words), "noun"
    return None


PLURALS = {
    "man": "men",
    "woman": "women",
    "child": "children",
    "person": "people",
    "bus": "buses",
    "bench": "benches",
    "sandwich": "sandwiches",
} | {
    word: f"{word}s"
    for word in (
        "boy girl dog cat horse bird cow elephant bear zebra giraffe skier surfer skateboarder "
        "player car train truck plane airplane boat bike bicycle motorcycle umbrella kite laptop "
        "phone clock vase chair table bed couch sink bottle cup bowl plate pizza cake banana apple "
        "surfboard skateboard snowboard sign"
    ).split()
}


def add_number(
    caption: str, references: Sequence[str], rng: random.Random
) -> tuple[str, str] | None:
    """Return (caption with several of what there is one of, kind), or None where there is none."""
    said = {word for text in references for word in text.split()}
    words = caption.split()
    places = [i for i in range(1, len(words)) if words[i - 1] in ("a", "one")]
    places = [i for i in places if words[i] in PLURALS and PLURALS[words[i]] not in said]
    if not places or said & {"group", *WORDS["number"][1:]}:
        return None
    place = rng.choice(places)
    words[place - 1 : place + 1] = [rng.choice(("two", "three", "four")), PLURALS[words[place]]]
    return " ".join(words), "number"


SIDE = re.compile(r"\b(?:(?<=the )|(?<=his )|(?<=her ))(left|right)\b")
"""Not "right next to" or "left alone"."""


def names_side(caption: str) -> bool:
    """Say whether a caption would be wrong of the mirror image.

    >>> names_side("a dog on the left"), names_side("a dog right next to a cat")
    (True, False)
    """
    return SIDE.search(caption) is not None


def swap_side(caption: str, references: Sequence[str]) -> tuple[str, str] | None:
    """Return (caption with left for right or the reverse, kind), or None where it names no side.

    None, too, where the references name both sides: something else may be there.
    """
    sides = {found for text in references for found in SIDE.findall(text)}
    if not names_side(caption) or len(sides) > 1:
        return None
    other = {"left": "right", "right": "left"}
    return SIDE.sub(lambda found: other[found[0]], caption), "relation"


def splice(caption: str, other: str) -> str:
    """Return the first half of one caption with the second half of another."""
    words, rest = caption.split(), other.split()
    return " ".join(words[: max(2, len(words) // 2)] + rest[len(rest) // 2 :])
