"""Captions with a wrong word: one colour, number, noun, action or relation swapped.

A word is only swapped for one that no reference of the image uses, so that the new caption is
wrong by all references. ``KINDS`` groups the lists into the kinds that are reported.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from discode.explain._phrases import CaptionWords

WORDS: dict[str, list[str]] = {
    "colour": (
        "black white red blue green yellow brown orange pink purple gray grey silver gold"
    ).split(),
    "number": "one two three four five six seven several".split(),
    "who": (
        "man woman boy girl child baby lady dog cat horse bird toddler cow sheep elephant bear "
        "zebra giraffe skier surfer skateboarder player puppy kitten"
    ).split(),
    "whos": (
        "men women boys girls children dogs people kids horses birds cats cows sheep elephants "
        "bears zebras giraffes skiers surfers players"
    ).split(),
    "doing": (
        "running jumping sitting standing walking playing swimming climbing riding skating surfing "
        "sleeping eating laughing dancing fighting kicking throwing holding catching skiing "
        "digging looking smiling laying lying flying driving cooking drinking reading hitting "
        "swinging pulling cutting washing grazing"
    ).split(),
    "does": (
        "runs jumps sits stands walks plays swims climbs rides skates surfs sleeps eats laughs "
        "dances kicks throws holds catches skis digs looks smiles lays lies flies drives cooks "
        "drinks reads hits swings pulls cuts"
    ).split(),
    "place": (
        "beach street snow grass water park field pool ocean lake forest mountain road sidewalk "
        "playground stadium kitchen room sand mud river hill city bathroom bedroom office "
        "restaurant airport station zoo desert"
    ).split(),
    "thing": (
        "ball bike car frisbee stick toy skateboard snowboard surfboard boat bench rope camera "
        "guitar hat shirt jacket helmet dress bicycle motorcycle tree swing slide fence rock rocks "
        "wall bus train truck plane airplane umbrella kite laptop computer phone book clock vase "
        "chair table bed couch toilet sink oven refrigerator bottle cup bowl plate pizza sandwich "
        "cake banana apple broccoli donut racket bat suitcase bag sign television mirror flowers"
    ).split(),
    "where": (
        # not left and right: training flips images
        "above below under behind inside outside indoors outdoors over beneath".split()
    ),
    "how": "young old small large big little empty full open closed tall short wet dry".split(),
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
    "where": "relation",
    "how": "relation",
}
OPPOSITES = {
    "above": ["below", "under", "beneath"],
    "over": ["under", "below", "beneath"],
    "below": ["above", "over"],
    "under": ["above", "over"],
    "beneath": ["above", "over"],
    "behind": ["inside", "above"],
    "inside": ["outside", "behind"],
    "outside": ["inside"],
    "indoors": ["outdoors"],
    "outdoors": ["indoors"],
    "young": ["old"],
    "old": ["young"],
    "small": ["large", "big"],
    "little": ["large", "big"],
    "large": ["small", "little"],
    "big": ["small", "little"],
    "empty": ["full"],
    "full": ["empty"],
    "open": ["closed"],
    "closed": ["open"],
    "tall": ["short"],
    "short": ["tall"],
    "wet": ["dry"],
    "dry": ["wet"],
    "man": ["woman", "girl", "boy"],
    "woman": ["man", "boy", "girl"],
    "boy": ["girl", "woman"],
    "girl": ["boy", "man"],
    "men": ["women", "girls"],
    "women": ["men", "boys"],
    "boys": ["girls", "women"],
    "girls": ["boys", "men"],
}
"""The hardest wrong words, preferred where there are some; for relations, the only ones."""

# Words that say nearly the same: swapping them is not wrong.
SAME = [
    {"man", "men", "people", "player", "players", "surfer", "skier", "skateboarder"},
    {"woman", "women", "lady", "people", "player", "players", "surfer", "skier"},
    {"boy", "boys", "child", "children", "kids", "toddler", "baby", "skateboarder"},
    {"girl", "girls", "child", "children", "kids", "toddler", "baby"},
    {"man", "child", "people"},
    {"skiers", "surfers", "players", "people", "men", "women"},
    {"dog", "dogs", "puppy"},
    {"cat", "cats", "kitten"},
    {"ocean", "water", "lake", "river", "beach", "pool"},
    {"grass", "field", "park", "zoo"},
    {"street", "road", "sidewalk", "city"},
    {"mountain", "hill", "rock", "rocks"},
    {"sand", "beach", "desert"},
    {"room", "bedroom", "kitchen", "bathroom", "office", "restaurant"},
    {"bike", "bicycle", "motorcycle"},
    {"shirt", "jacket", "dress"},
    {"hat", "helmet"},
    {"plane", "airplane", "airport"},
    {"train", "station"},
    {"laptop", "computer"},
    {"bowl", "plate", "cup", "table"},
    {"bag", "suitcase"},
    {"bench", "chair", "couch"},
    {"running", "walking", "playing", "jumping"},
    {"runs", "walks", "plays", "jumps"},
    {"looking", "smiling", "laughing", "standing", "holding"},
    {"looks", "smiles", "laughs", "stands", "holds"},
    {"laying", "lying", "sleeping"},
    {"lays", "lies", "sleeps"},
    {"eating", "grazing"},
    {"hitting", "swinging", "playing"},
    {"hits", "swings", "plays"},
    {"brown", "orange", "gold"},
    {"gray", "grey", "silver"},
    {"several", "three", "four", "five", "six", "seven"},
    {"pink", "purple", "red"},
]
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
