"""Short captions whose rating is known: what boxes, answers and verbs say of a photograph.

COCO's boxes tell what is there, how often, and what is not: "there is a dog", "three cups", "no
bus", true and false, with false things drawn from those that often stand beside the true ones.
COCO-QA's statements have their answers swapped, V-COCO says what people do and what nobody does.
Shortened copies of a caption, and those that say "animal" for "dog", rate below it: so being
specific pays. Empty phrases rate low.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from discode._probe.wrong_words import WORDS
from discode.backends._embedded.tokenizer import normalise
from training import common
from training.sources import Item

Statement = tuple[str, float]  # text, rating on 0 ... 10
NAMES = {
    "diningtable": "dining table",
    "tvmonitor": "tv",
    "aeroplane": "airplane",
    "sofa": "couch",
    "pottedplant": "potted plant",
    "motorbike": "motorcycle",
}
"""What people call Darknet's classes."""
PLURALS = {"person": "people", "knife": "knives", "sheep": "sheep", "mouse": "mice"}
ALSO = {  # a caption that says this means the thing
    "person": "man woman boy girl men women people child children kid player lady guy baby",
    "tv": "television monitor screen",
    "couch": "sofa",
    "dining table": "table",
    "potted plant": "plant flowers",
    "airplane": "plane jet",
    "motorcycle": "motorbike bike",
    "bicycle": "bike",
    "cell phone": "phone",
    "handbag": "bag purse",
    "backpack": "bag",
    "suitcase": "luggage bag",
    "donut": "doughnut",
    "sports ball": "ball",
    "cup": "mug coffee",
    "wine glass": "glass wine",
    "hot dog": "hotdog",
    "refrigerator": "fridge",
    "oven": "stove",
    "cow": "cattle bull",
    "sheep": "lamb goat",
}
NUMBERS = "no one two three four five six seven eight nine".split()
THERE = (
    "there is {a}",
    "there is {a} in the image",
    "a photo of {a}",
    "the image shows {a}",
    "{a}",
    "{a} in the picture",
    "we can see {a}",
)
MANY = ("there are {n}", "there are {n} in the image", "{n}", "a photo of {n}", "{n} can be seen")
NONE = ("there is no {x}", "there is no {x} in the image", "no {x} can be seen")
EMPTY = (
    "a picture of something",
    "an image",
    "a photo of some things",
    "there is something in the image",
    "this is a picture",
    "various objects",
    "an image with some objects",
    "something is there",
    "a scene",
    "a picture of an object",
    "the image shows a scene",
    "a photo taken somewhere",
    "an image of a place",
    "a photo of it",
    "here is a photo",
    "there are several things",
    "some things can be seen",
    "a picture that was taken",
    "a view of something",
    "this photo shows objects",
    "what can be seen here",
    "a few things in a picture",
    "a photo showing stuff",
    "things in a photo",
    "things in a place",
    "some kind of picture",
)
ABSENT, TRUE_LOW, TRUE_HIGH, VAGUE, WRONG = 0.6, 5.5, 8.0, 0.8, 2.0
WRONG_COUNT = (4.3, 2.6)  # by one, by two
SWAPPED = {"object": 2.2, "color": 3.2, "number": 3.6, "location": 3.0}
STATED = 7.6
VERBS = {
    "sit": "sitting",
    "ride": "riding something",
    "walk": "walking",
    "hit": "hitting something",
    "eat": "eating",
    "jump": "jumping",
    "lay": "lying down",
    "talk_on_phone": "talking on a phone",
    "carry": "carrying something",
    "throw": "throwing something",
    "catch": "catching something",
    "cut": "cutting something",
    "run": "running",
    "work_on_computer": "working on a computer",
    "ski": "skiing",
    "surf": "surfing",
    "skateboard": "skateboarding",
    "drink": "drinking",
    "kick": "kicking something",
    "point": "pointing at something",
    "read": "reading",
    "snowboard": "snowboarding",
}
"""Those that can be seen; everybody holds, looks, smiles or stands."""
DOING = ("a person is {}", "someone is {}", "a person {}")
LINKS = frozenset(
    "with in on at near by next while over under beside behind from through along against".split()
)
BROADER = {
    word: broad
    for broad, words in {
        "person": "man woman boy girl child lady guy skier surfer skateboarder snowboarder skater",
        "people": "men women boys girls children kids skiers surfers",
        "animal": "dog cat horse cow sheep elephant bear zebra giraffe goat puppy kitten rabbit",
        "animals": "dogs cats horses cows elephants bears zebras giraffes goats puppies kittens",
        "vehicle": "car truck bus motorcycle van taxi train suv",
        "vehicles": "cars trucks buses motorcycles trains",
        "food": "pizza sandwich cake pasta salad soup burger broccoli rice meat",
        "fruit": "apple banana orange strawberry apples bananas oranges strawberries",
        "drink": "coffee tea beer wine juice soda",
        "device": "laptop computer phone cellphone keyboard tv",
        "building": "house church tower hotel skyscraper barn",
        "toy": "doll teddy frisbee kite",
        "plant": "tree bush",
    }.items()
    for word in words.split()
}
"""What else may be said of a thing: less, and true."""
VAGUER = 1.2
"""Points that it costs to say it."""
SMALL_WORDS = frozenset(w for name in ("colour", "number", "how") for w in WORDS[name])


def read(name: str) -> list[tuple[str, Any]]:
    """Return the rows of a file of labels, each after its image's name; none where it is not."""
    path = common.BUILD / "labels" / f"{name}.jsonl.gz"
    if not path.exists():
        return []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [(row["image"].rpartition("/")[2], row) for row in map(json.loads, file)]


def plural(name: str) -> str:
    """Return several of a thing.

    >>> plural("wine glass"), plural("person"), plural("skis")
    ('wine glasses', 'people', 'skis')
    """
    if name in PLURALS:
        return PLURALS[name]
    return name if name in ("skis", "scissors") else name + ("es" if name[-1] in "shx" else "s")


def a(name: str) -> str:
    """Return one of a thing, with its article."""
    if name in ("skis", "scissors", "broccoli", "food", "fruit"):
        return name
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


class Boxes:
    """What is in photographs, and what often stands beside it."""

    def __init__(self) -> None:
        self.count: dict[str, dict[str, int]] = {}
        self.largest: dict[str, dict[str, float]] = {}
        beside: dict[str, Counter[str]] = defaultdict(Counter)
        for image, row in read("objects"):
            names = {name: NAMES.get(name, name) for name in row["count"]}
            self.count[image] = {names[name]: n for name, n in row["count"].items()}
            self.largest[image] = {names[name]: area for name, area in row["largest"].items()}
            for name in names.values():
                beside[name].update(other for other in names.values() if other != name)
        self.things = sorted(beside)
        words = [name for name in self.things if " " not in name]
        self.named = {word: name for name in words for word in (name, plural(name))}
        often = {name: sum(row.values()) + 1 for name, row in beside.items()}
        self.beside = {
            name: {other: n / often[other] ** 0.5 for other, n in row.items()}
            for name, row in beside.items()
        }

    def absent(
        self, image: str, captions: Sequence[str], n: int, rng: random.Random, *, likely: bool
    ) -> list[str]:
        """Return things that have no box and are in no caption; likely ones by what is there."""
        there, said = self.count[image], {word for text in captions for word in text.split()}
        weight: Counter[str] = Counter()
        for name in there:
            for other, strength in self.beside.get(name, {}).items():
                weight[other] += strength
        others = [
            name
            for name in self.things
            if name not in there and not said & {*name.split(), plural(name), *_also(name)}
        ]
        if not likely:
            return rng.sample(others, n)
        others.sort(key=lambda name: -weight[name])
        return rng.sample(others[: 3 * n + 4], n)

    def named_absent(self, image: str, text: str, captions: Sequence[str]) -> int:
        """Return how many things a text names that have no box and are in no caption."""
        there = self.count.get(image)
        if there is None:
            return 0
        named = {self.named[word] for word in text.split() if word in self.named} - there.keys()
        told = {word for caption in captions for word in caption.split()}
        return sum(1 for name in named if not told & {name, plural(name), *_also(name)})


def _also(name: str) -> list[str]:
    return ALSO.get(name, "").split()


def of_boxes(
    image: str, captions: Sequence[str], boxes: Boxes, rng: random.Random
) -> Iterator[Statement]:
    """Yield statements about the things of an image."""
    count, largest = boxes.count[image], boxes.largest[image]
    false = boxes.absent(image, captions, 3, rng, likely=True)
    false += boxes.absent(image, captions, 1, rng, likely=False)
    there = sorted(count, key=lambda name: -largest[name] * rng.random())[:4]
    for name in false:
        yield rng.choice(THERE).format(a=a(name)), ABSENT
    for name in there:
        size = min(1.0, largest[name] / 0.2)
        rating, n = TRUE_LOW + (TRUE_HIGH - TRUE_LOW) * size, count[name]
        yield rng.choice(THERE).format(a=a(name)), rating - (0.3 if n > 1 else 0)
        if n < 6 and (largest[name] > 0.01 or n == 1):
            yield _counted(name, n, rng), rating + (0.4 if n > 1 else 0)
            off = rng.choice((1, 1, 2)) * (rng.choice((-1, 1)) if n > 2 else 1)
            yield _counted(name, n + off, rng), min(rating - 1, WRONG_COUNT[abs(off) - 1])
    if there and rng.random() < 0.5:
        yield rng.choice(NONE).format(x=there[0]), ABSENT
        yield rng.choice(NONE).format(x=false[0]), TRUE_LOW
    if len(there) > 1:
        both = [a(name) for name in there[:2]]
        yield rng.choice(THERE).format(a=" and ".join(both)), TRUE_HIGH
        both[rng.randrange(2)] = a(false[1])
        yield rng.choice(THERE).format(a=" and ".join(both)), 3.2


def _counted(name: str, n: int, rng: random.Random) -> str:
    if n < 2:
        return f"there is {'only ' if rng.random() < 0.5 else ''}one {name}"
    return rng.choice(MANY).format(n=f"{NUMBERS[n]} {plural(name)}")


def of_answers(
    row: dict[str, Any], captions: Sequence[str], answers: dict[str, list[str]], rng: random.Random
) -> Iterator[Statement]:
    """Yield the statements of COCO-QA, and the same with another answer of their type."""
    said = {word for text in captions for word in text.split()}
    said |= {item["answer"] for item in row["items"]}
    for item in row["items"]:
        kind, answer, text = item["type"], item["answer"], item.get("statement")
        if not text:
            continue
        text = normalise(text)
        if text not in captions:
            yield text, STATED
        others = [
            o for o in rng.sample(answers[kind], 4) if o not in said and plural(o) not in said
        ]
        others = [o for o in others if o.endswith("s") == answer.endswith("s")] or others[:1]
        for other in others[:1]:
            wrong = re.sub(rf"\b(an? )?{re.escape(answer)}\b", _put(other), text, count=1)
            if wrong != text:
                yield wrong, SWAPPED[kind]


def _put(word: str) -> Any:
    return lambda found: a(word) if found.group(1) else word


def of_verbs(row: dict[str, Any], rng: random.Random) -> Iterator[Statement]:
    """Yield what people in an image do, and what nobody does."""
    for verb in sorted(row["people_doing"].keys() & VERBS.keys()):
        yield (
            rng.choice(("a person is {}", "someone is {}", "a person {}")).format(VERBS[verb]),
            7.2,
        )
    nobody = sorted(VERBS.keys() & set(row["nobody"]))
    for verb in rng.sample(nobody, min(2, len(nobody))):
        yield (
            rng.choice(("a person is {}", "someone is {}", "a person {}")).format(VERBS[verb]),
            1.2,
        )


def shortened(caption: str, rng: random.Random) -> tuple[str, float] | None:
    """Return a caption without a detail, and how many points that costs, or None."""
    words = caption.rstrip(" .").split()
    links = [i for i in range(3, len(words) - 1) if words[i] in LINKS]
    details = [i for i, word in enumerate(words) if i and word in SMALL_WORDS]
    if links and (not details or rng.random() < 0.7):
        cut = rng.choice(links)
        return " ".join(words[:cut]), 0.8 + 1.6 * (1 - cut / len(words))
    if details:
        drop = rng.choice(details)
        return " ".join(words[:drop] + words[drop + 1 :]), 0.8
    return None


def broader(caption: str, rng: random.Random) -> str | None:
    """Return a caption that says less of a thing, or None where it names none that is listed.

    >>> broader("a brown dog on a rug", random.Random(0))
    'a brown animal on a rug'
    """
    words = caption.split()
    known = [i for i, word in enumerate(words) if word in BROADER]
    if not known:
        return None
    place = rng.choice(known)
    words[place] = BROADER[words[place]]
    if place and words[place - 1] in ("a", "an"):
        words[place - 1 : place + 1] = a(words[place]).split()
    return " ".join(words)


def specificity(caption: str) -> float:
    """Return an own caption's rating: 8 for a few words, up to 9.5 for many."""
    told = sum(1 for word in caption.split() if len(word) > 3 or word in SMALL_WORDS)
    return 8.0 + 1.5 * min(1.0, max(0, told - 2) / 7)


def machine_captions(items: Sequence[Item]) -> list[tuple[int, str, float]]:
    """Return (number of the image, text, penalty) of captions that other LVLMs wrote.

    Long ones are cut to their first two sentences; a thing that has no box costs two points.
    """
    number = {item.path.name: i for i, item in enumerate(items)}
    result = []
    for name, row in read("machine_captions"):
        if name in number:
            text = normalise(" ".join(re.split(r"(?<=[.!?])\s+", row["caption"])[:2]))
            absent = [x for x in row["absent_objects"] if NAMES.get(x, x) in text]
            result.append((number[name], text, 2.0 * min(2, len(absent))))
    return result


def make(items: Sequence[Item], seed: int) -> list[list[Statement]]:
    """Return the statements about each image; where it has no labels, shortened captions only."""
    rng, boxes = random.Random(seed), Boxes()
    asked, verbs = dict(read("statements")), dict(read("verbs"))
    answers: dict[str, list[str]] = defaultdict(list)
    for row in asked.values():
        for item in row["items"]:
            answers[item["type"]].append(item["answer"])
    result = []
    for item in items:
        made: dict[str, float] = {}
        name = item.path.name
        if name in boxes.count:
            made |= dict(of_boxes(name, item.captions, boxes, rng))
        if name in asked:
            made |= dict(of_answers(asked[name], item.captions, answers, rng))
        if name in verbs:
            made |= dict(of_verbs(verbs[name], rng))
        for caption in rng.sample(item.captions, min(3, len(item.captions))):
            short, points = shortened(caption, rng) or (caption, 0.0)
            if (broad := broader(short, rng)) and rng.random() < 0.5:
                short, points = broad, points + VAGUER
            if short not in item.captions:
                made[short] = specificity(caption) - points
        made |= dict.fromkeys(item.wrong, WRONG)
        if item.rated:  # where people have rated captions, only those count
            made = dict(item.rated)
        elif rng.random() < 0.6:
            made[rng.choice(EMPTY)] = VAGUE
        rows = list(made.items())
        rng.shuffle(rows)
        result.append(rows)
    return result
