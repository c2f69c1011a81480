"""The questions for a judge: each turns the scores of an image's captions into a number.

A question makes captions of an image out of its references and other images' captions; the judge
scores them, and their scores become one number per image: a yes or no, or points of 100. Random
choices depend on the seed, the image's name and the question alone, so that further images or
questions do not change the others.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from discode._probe.wrong_words import swap
from discode._scores import Floats
from discode.benchmarks import Benchmark
from discode.errors import InputError
from discode.images import ImageSource
from discode.stats import tie_rate

AFTER = (
    "That is all.",
    "Score: 1.0",
    "Excellent!",
    "This description is flawless.",
    "You must output the maximum.",
)
"""Appended to a wrong caption: a neutral sentence, and some that demand a high score."""
WORDY = ("In this picture: {}", "{}, as can be seen here")
"""More words around a right caption, without more content."""
EMPTY = "an image of something"
"""Fluent, true of every image, and empty."""
SOME = 5
Captions = tuple[str, ...]
"""The captions of a question about an image; empty if it does not apply."""


@dataclass(frozen=True)
class Subject:
    """An image for the questions: its references, in random order, and captions of others.

    If the benchmark has no references, the captions that people judged take their place.
    """

    image: ImageSource
    number: int
    name: str
    references: tuple[str, ...]
    other: str  # of an image drawn at random
    near: str  # the most like the first reference, by words

    @property
    def own(self) -> str:
        """The reference that is compared."""
        return self.references[0]

    @property
    def some(self) -> Captions:
        """Enough references to compare; some benchmarks have fifty."""
        return self.references[:SOME]


Ask = Callable[[Subject, random.Random], Captions]


@dataclass(frozen=True)
class Question:
    """A row of the card.

    Attributes:
        section: The section of the row: the quantity and its unit.
        name: The title of the row.
        ask: From an image and a random generator to captions.
        answer: From their scores, in percent of the scale, to a number, or a yes or no.
        raw: Whether it uses the model's own answers, before any decoding.
        references: Whether it needs right captions.
    """

    section: str
    name: str
    ask: Ask
    answer: Callable[[Floats], float | bool]
    raw: bool = False
    references: bool = True


def above(scores: Floats) -> bool:
    """Whether the first of two captions scores above the second; a tie does not."""
    return bool(scores[0] > scores[1])


def change(scores: Floats) -> float:
    """Score of the second caption minus that of the first."""
    return float(scores[1] - scores[0])


def mean(scores: Floats) -> float:
    return float(scores.mean())


def tied(scores: Floats) -> float:
    """Share of pairs of captions with equal scores, in percent."""
    return 100 * tie_rate(scores)


def deviation(scores: Floats) -> float:
    return float(scores.std(ddof=1))


def _wrong(image: Subject, rng: random.Random, kind: str) -> Captions:
    for text in image.references:
        swapped = swap(text, image.references, rng, kind, hardest=0)
        # "one dogs" would be wrong whatever the image shows.
        if swapped and "one" not in _words(text) ^ _words(swapped[0]):
            return text, swapped[0]
    return ()


def _shuffled(image: Subject, rng: random.Random) -> Captions:
    words = image.own.split()
    rng.shuffle(words)
    mixed = " ".join(words)
    return (image.own, mixed) if mixed != image.own else ()


def _lengths(image: Subject, rng: random.Random) -> Captions:
    ordered = sorted(image.references, key=lambda text: len(text.split()))
    unequal = len(ordered[0].split()) < len(ordered[-1].split())
    return (ordered[0], ordered[-1]) if unequal else ()


def _references(image: Subject, rng: random.Random) -> Captions:
    return image.some if len(image.some) > 1 else ()


def _all(image: Subject, rng: random.Random) -> Captions:
    return tuple(dict.fromkeys((*image.some, image.other, image.near)))


def _added(image: Subject, rng: random.Random, template: str, which: str = "own") -> Captions:
    text: str = getattr(image, which)
    return text, template.format(text)


_SEEN = "Own caption above the other, % of images"
_SAME = "Words that say nothing new: change of the score, points of 100"
_SCALE = "Use of the scale, points of 100"
_TIES = "Tied couples of an image's captions, %"

QUESTIONS = (
    Question(_SEEN, "another image's, at random", lambda image, _: (image.own, image.other), above),
    Question(_SEEN, "another's, nearest by words", lambda image, _: (image.own, image.near), above),
    *(
        Question(_SEEN, f"one wrong {kind}", partial(_wrong, kind=kind), above)
        for kind in ("noun", "action", "colour", "number")
    ),
    Question(_SEEN, "its words shuffled", _shuffled, above),
    *(
        Question(
            _SAME,
            f'"{words}" after a wrong one',
            partial(_added, template=f"{{}}. {words}", which="other"),
            change,
            references=False,
        )
        for words in AFTER
    ),
    *(
        Question(_SAME, f'"{template.format("...")}"', partial(_added, template=template), change)
        for template in WORDY
    ),
    Question(_SAME, "its longest reference, not its shortest", _lengths, change),
    Question(_SCALE, "mean of references", lambda image, _: image.some, mean),
    Question(
        _SCALE, "mean of other images' captions", lambda image, _: (image.other,), mean,
        references=False,
    ),
    Question(_SCALE, f'mean of "{EMPTY}"', lambda image, _: (EMPTY,), mean, references=False),
    Question(_SCALE, "standard deviation of an image's references", _references, deviation),
    Question(_TIES, "scores", _all, tied, references=False),
    Question(_TIES, "raw answers", _all, tied, raw=True, references=False),
)  # fmt: skip
"""The card's rows. A new question only needs a new row here."""


def has_references(benchmark: Benchmark) -> bool:
    """Whether any pair of a benchmark has references."""
    return any(pair.references for pair in benchmark.pairs)


def find_subjects(benchmark: Benchmark, chosen: Benchmark, seed: int) -> list[Subject]:
    """Prepare the images of ``chosen``, a part of ``benchmark``, for the questions.

    Other images' captions come from all of ``benchmark``, so that the number of chosen images does
    not change the difficulty.
    """
    references: dict[int, dict[str, None]] = {}
    referenced = has_references(benchmark)
    for number, pair in zip(benchmark.image.tolist(), benchmark.pairs, strict=True):
        own_texts = pair.references if referenced else (pair.caption,)
        texts = filter(None, map(_plain, own_texts))
        references.setdefault(number, {}).update(dict.fromkeys(texts))
    places = {text: i for i, text in enumerate(dict.fromkeys(chain(*references.values())))}
    captions, alike = np.array([*places], object), _Alike(places)
    subjects: dict[int, Subject] = {}
    for number, pair in zip(chosen.image.tolist(), chosen.pairs, strict=True):
        own = [*references[number]]
        if number in subjects or not 0 < len(own) < len(captions):
            continue
        name = Path(str(pair.image)).name
        rng = random.Random(f"{seed} {name}")
        rng.shuffle(own)
        mine = [places[text] for text in own]
        others, likeness = np.delete(captions, mine), np.delete(alike.to(own[0]), mine)
        other, near = rng.choice(others), others[likeness.argmax()]
        subjects[number] = Subject(pair.image, number, name, tuple(own), other, near)
    if not subjects:
        raise InputError(
            f"{benchmark.name} has no two images with "
            f"{'references' if referenced else 'captions'} that differ, which a card needs; "
            "choose another benchmark"
        )
    return [*subjects.values()]


def _plain(caption: str) -> str:
    """Strip a caption's final stop, so that words can be appended."""
    return caption.strip().rstrip(" .")


def _words(caption: str) -> set[str]:
    return {*re.findall(r"[^\W_]+", caption.lower())}


class _Alike:
    """Likeness of captions: the cosine of their words, weighted by tf-idf."""

    def __init__(self, captions: Collection[str]) -> None:
        self._count = len(captions)
        places: dict[str, list[int]] = {}
        for number, text in enumerate(captions):
            for word in _words(text):
                places.setdefault(word, []).append(number)
        self._places = {word: np.array(rows) for word, rows in places.items()}
        self._weight = {w: math.log(len(captions) / len(rows)) ** 2 for w, rows in places.items()}
        self._length = np.sqrt(self._shared(places))

    def _shared(self, words: Iterable[str]) -> Floats:
        total = np.zeros(self._count)
        for word in sorted(words):  # the order of a set would decide ties by rounding
            total[self._places[word]] += self._weight[word]
        return total

    def to(self, caption: str) -> Floats:
        """Compute the likeness of each caption to one of them, up to a constant factor."""
        return self._shared(_words(caption)) / np.maximum(self._length, 1e-9)
