"""Captions with a wrong word: one colour, number, noun, action or relation swapped.

A word is only swapped for one that no reference of the image uses, so that the new caption is
wrong by all references. The words are in ``data/wrong_words.json``; ``KINDS`` groups its lists into
the kinds that are reported.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from discode.explain._phrases import CaptionWords

_DATA: Any = json.loads(
    files("discode").joinpath("data", "wrong_words.json").read_text(encoding="utf-8")
)
WORDS: dict[str, list[str]] = {name: words.split() for name, words in _DATA["words"].items()}
"""Words that can be swapped, by list. Left and right are not among them: training flips images."""
KINDS: dict[str, str] = _DATA["kinds"]
OPPOSITES: dict[str, list[str]] = {
    word: others.split() for word, others in _DATA["opposites"].items()
}
"""The hardest wrong words, preferred where there are some; for relations, the only ones."""
SAME = [{*words.split()} for words in _DATA["same"]]
"""Words that say nearly the same: swapping them is not wrong."""
_LIST = {word: name for name, words in WORDS.items() for word in words}
_NEAR: dict[str, set[str]] = {word: {word} for word in _LIST}
for _group in SAME:
    for _word in _group & _LIST.keys():
        _NEAR[_word] |= _group


def swap(
    caption: str,
    references: Sequence[str],
    rng: random.Random,
    kind: str = "",
    *,
    hardest: float = 0.3,
) -> tuple[str, str] | None:
    """Replace one word by a wrong one: (caption, kind), or None if no word can be swapped.

    ``hardest`` is how often an opposite is taken where there is one (man for woman).

    >>> swap("An orange cat.", ["An orange cat.", "a black pet"], random.Random(0), "colour")
    ('A purple cat.', 'colour')
    """
    words = CaptionWords(caption)
    said = {word for text in references for word in CaptionWords(text).texts}
    near = set().union(*(_NEAR.get(word, set()) for word in said))
    places = [i for i, word in enumerate(words.texts) if word in _LIST]
    if kind:
        places = [i for i in places if KINDS[_LIST[words.texts[i]]] == kind]
    rng.shuffle(places)
    for place in places:
        name = _LIST[words.texts[place]]
        choices = [word for word in WORDS[name] if word not in said and word not in near]
        opposite = [word for word in OPPOSITES.get(words.texts[place], ()) if word not in said]
        if KINDS[name] == "relation" or (opposite and rng.random() < hardest):
            choices = opposite
        if choices:
            return words.instead(place, place, rng.choice(choices)), KINDS[name]
    return None
