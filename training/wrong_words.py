"""Captions with a wrong word: one colour, number, actor, action, place or thing swapped.

A word is only swapped for one that no reference of the picture uses, so that the new caption is
wrong as far as anybody said. ``KINDS`` groups the lists into the four kinds that are reported.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

WORDS: dict[str, list[str]] = {
    "colour": "black white red blue green yellow brown orange pink purple gray tan".split(),
    "number": "one two three four five six several".split(),
    "who": "man woman boy girl child baby lady dog cat horse bird toddler".split(),
    "whos": "men women boys girls children dogs people kids horses birds cats".split(),
    "doing": (
        "running jumping sitting standing walking playing swimming climbing riding skating surfing "
        "sleeping eating laughing dancing fighting kicking throwing holding catching skiing "
        "digging looking smiling"
    ).split(),
    "does": (
        "runs jumps sits stands walks plays swims climbs rides skates surfs sleeps eats laughs "
        "dances kicks throws holds catches skis digs looks smiles"
    ).split(),
    "place": (
        "beach street snow grass water park field pool ocean lake forest mountain road sidewalk "
        "playground stadium kitchen room sand mud river hill city"
    ).split(),
    "thing": (
        "ball bike car frisbee stick toy skateboard snowboard surfboard boat bench rope camera "
        "guitar hat shirt jacket helmet dress bicycle motorcycle tree swing slide fence rock rocks "
        "wall"
    ).split(),
}
KINDS = {
    "colour": "colour",
    "number": "number",
    "who": "noun",
    "whos": "noun",
    "place": "noun",
    "thing": "noun",
    "doing": "action",
    "does": "action",
}
PENALTY = {"colour": 2.6, "number": 3.0, "noun": 3.5, "action": 3.0}
"""How far, on 0 ... 10, one wrong word takes a caption down."""
SPLICED = 4.5

# Words that say nearly the same: swapping them is not wrong.
SAME = [
    {"man", "men", "people", "lady", "child", "woman", "women", "person"} - {"lady", "woman"},
    {"woman", "women", "lady"},
    {"boy", "boys", "child", "children", "kids", "toddler", "baby"},
    {"girl", "girls", "child", "children", "kids", "toddler", "baby"},
    {"ocean", "water", "lake", "river", "beach", "pool"},
    {"grass", "field", "park"},
    {"street", "road", "sidewalk", "city"},
    {"mountain", "hill", "rock", "rocks"},
    {"sand", "beach"},
    {"bike", "bicycle", "motorcycle"},
    {"shirt", "jacket", "dress"},
    {"hat", "helmet"},
    {"running", "walking", "playing", "jumping"},
    {"runs", "walks", "plays", "jumps"},
    {"looking", "smiling", "laughing", "standing"},
    {"looks", "smiles", "laughs", "stands"},
    {"brown", "tan", "orange"},
    {"several", "three", "four", "five", "six"},
    {"pink", "purple", "red"},
]
_LIST = {word: name for name, words in WORDS.items() for word in words}
_NEAR: dict[str, set[str]] = {word: {word} for word in _LIST}
for _group in SAME:
    for _word in _group & _LIST.keys():
        _NEAR[_word] |= _group


def swap(
    caption: str, references: Sequence[str], rng: random.Random, kind: str = ""
) -> tuple[str, str] | None:
    """Return (caption with one wrong word, kind), or None where no word can be swapped."""
    words = caption.split()
    said = {word for text in references for word in text.split()}
    near = set().union(*(_NEAR.get(word, set()) for word in said))
    places = [i for i, word in enumerate(words) if word in _LIST]
    if kind:
        places = [i for i in places if KINDS[_LIST[words[i]]] == kind]
    rng.shuffle(places)
    for place in places:
        name = _LIST[words[place]]
        choices = [word for word in WORDS[name] if word not in said and word not in near]
        if choices:
            words[place] = rng.choice(choices)
            return " ".join(words), KINDS[name]
    return None


def splice(caption: str, other: str) -> str:
    """Return the first half of one caption with the second half of another."""
    words, rest = caption.split(), other.split()
    return " ".join(words[: max(2, len(words) // 2)] + rest[len(rest) // 2 :])
