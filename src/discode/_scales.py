"""Scales: which answers a model may give, and what each is worth.

A scale has *stems* (text before the answer token), *answers* (K strings, from the lowest to the
highest) and *values* (what each answer counts). An expected answer ŝ becomes a score by
``stem value + step · ŝ``. ``unit`` has the stems "0." and "1."; ``ten``, ``five``, ``letters``,
``yes-no``, ``prefer`` and any range from the lowest to the highest answer (``1-7``, ``E-A``) have
none.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from discode.errors import InputError, lookup

MAX_ANSWERS = 256
"""More answers than this are not a rating scale but a mistake."""


@dataclass(frozen=True)
class Scale:
    """A rating scale with K answers after B stems.

    >>> UNIT.score(np.array([0, 1]), np.array([7.5, 0.0])).tolist()
    [0.75, 1.0]
    """

    name: str
    answers: tuple[str, ...]
    values: tuple[float, ...]
    low: str
    """The word for the worst rating in the prompt."""
    high: str
    """The word for the best rating in the prompt."""
    unit: float
    """Width of one answer on a 0-1 scale, for ``alpha_scale=unit``."""
    stems: tuple[str, ...] = ("",)
    stem_values: tuple[float, ...] = (0.0,)
    step: float = 1.0
    minimum: float = field(init=False, repr=False, compare=False)
    """The lowest score."""
    maximum: float = field(init=False, repr=False, compare=False)
    """The highest score; after the last of several stems only the lowest answer is valid."""
    unique_name: str = field(init=False, repr=False, compare=False)
    """The name, with a digest after it unless :func:`get_scale` makes the scale of this name."""

    def __post_init__(self) -> None:
        if len(self.answers) != len(self.values) or len(self.stems) != len(self.stem_values):
            raise InputError(f"scale {self.name!r} needs a value for each answer and each stem")
        if not 2 <= len(set(self.answers)) == len(self.answers) <= MAX_ANSWERS:
            raise InputError(f"scale {self.name!r} needs 2 to {MAX_ANSWERS} different answers")
        numbers = (*self.values, *self.stem_values, self.step, self.unit)
        if not all(isinstance(number, Real) and np.isfinite(number) for number in numbers):
            raise InputError(f"scale {self.name!r} has a value that is not a finite number")
        lowest, highest = min(self.values), max(self.values)
        last = lowest if len(self.stems) > 1 else highest
        object.__setattr__(self, "minimum", self.stem_values[0] + self.step * lowest)
        object.__setattr__(self, "maximum", self.stem_values[-1] + self.step * last)
        digest = hashlib.sha256(repr(self).encode()).hexdigest()[:8]
        object.__setattr__(self, "unique_name", f"{self.name}~{digest}")

    def score(
        self, stem: NDArray[np.intp], expectation: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Turn expected answers (..., N) after the stems with indices (N,) into scores (..., N).

        The paper replaces everything after the decimal point by 0.1·ŝ. After the stem "1." that
        is above ``maximum`` for any ŝ > 0, and the *less* sure model gets the higher score:
        option ``stem`` of the decoders has other rules for it.
        """
        score = np.asarray(self.stem_values)[stem] + self.step * expectation
        return np.maximum(score, self.minimum)

    def score_answers(
        self, stem: NDArray[np.intp], value: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Turn single answers (N,), which are decimals, into scores that print as such.

        >>> UNIT.score_answers(np.array([0]), np.array([7.0])), 0.1 * 7.0
        (array([0.7]), 0.7000000000000001)
        """
        score = np.minimum(self.score(stem, value), self.maximum)
        decimal = np.round(score, 9)
        return np.where(np.abs(decimal - score) < 1e-12, decimal, score)


def _known(scale: Scale) -> Scale:
    """Return a scale that its name brings back."""
    object.__setattr__(scale, "unique_name", scale.name)
    return scale


def _digits(name: str, low: int, high: int) -> Scale:
    sign = 1 if high > low else -1
    answers = tuple(str(number) for number in range(low, high + sign, sign))
    values = tuple(float(v) for v in range(min(low, high), max(low, high) + 1))
    return _known(Scale(name, answers, values, str(low), str(high), unit=1 / len(answers)))


def _letters(name: str, low: str, high: str) -> Scale:
    sign = 1 if high > low else -1
    answers = tuple(chr(code) for code in range(ord(low), ord(high) + sign, sign))
    values = tuple(float(rank) for rank in range(1, len(answers) + 1))
    return _known(Scale(name, answers, values, low, high, unit=1 / len(answers)))


UNIT = _known(
    Scale(
        "unit",
        answers=tuple("0123456789"),
        values=tuple(map(float, range(10))),
        low="0.0",
        high="1.0",
        unit=0.1,
        stems=("0.", "1."),
        stem_values=(0.0, 1.0),
        step=0.1,
    )
)
TEN = _digits("ten", 0, 9)
FIVE = _digits("five", 1, 5)
LETTERS = _letters("letters", "A", "E")
YES_NO = _known(Scale("yes-no", ("No", "Yes"), (0.0, 1.0), "No", "Yes", unit=0.5))
PREFER = _known(Scale("prefer", ("B", "A"), (0.0, 1.0), "B", "A", unit=0.5))
"""Which of two captions is better; the expectation is the probability of the first, A."""

SCALES: dict[str, Scale] = {
    scale.name: scale for scale in (UNIT, TEN, FIVE, LETTERS, YES_NO, PREFER)
}


def get_scale(spec: str | Scale) -> Scale:
    """Return a scale by name, or build one from a range written lowest-highest.

    >>> get_scale("E-A").answers, get_scale("1-7").maximum
    (('E', 'D', 'C', 'B', 'A'), 7.0)
    """
    if isinstance(spec, Scale):
        return spec
    if not isinstance(spec, str):
        raise InputError(f"a scale is a name or a Scale, not {spec!r}")
    if spec in SCALES:
        return SCALES[spec]
    if match := re.fullmatch(r"(\d{1,4})-(\d{1,4})", spec):
        return _digits(spec, int(match[1]), int(match[2]))
    if match := re.fullmatch(r"([A-Z])-([A-Z])", spec):
        return _letters(spec, match[1], match[2])
    return lookup(SCALES, spec, "scale", also=", or LOW-HIGH (1-7, A-D, E-A)")


@dataclass(frozen=True)
class Rating:
    """A rating that stands in a text: its stem and answer by number, and where they begin."""

    stem: int
    answer: int
    start: int
    at: int
    """Where its answer begins."""


# Scripts that put no spaces between words end a word, so that a rating may stand among them.
_LETTER = r"[^\W_\u2e80-\uffff]"
_END = rf"(?!{_LETTER}|[.,]\d)"
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_WORD_FOLLOWS = re.compile(r"(?:['’]| +)[^\W\d]")


@cache
def _rating_pattern(scale: Scale) -> re.Pattern[str]:
    """Match the scale's own range ("0.0 to 1.0"), something like a rating, or any other word."""

    def either(words: Sequence[str]) -> str:
        return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))

    more = r"\d*" if any(scale.stems) else r"(?:\.\d+)?"
    return re.compile(
        rf"{re.escape(scale.low)}\s*(?:to|and|[-–—])\s*{re.escape(scale.high)}{_END}"
        rf"|(?P<sign>(?<!{_LETTER})[-−–])?(?<!\.)(?P<stem>{either(scale.stems)})"
        rf"(?P<answer>{either(scale.answers)})(?P<more>{more}){_END}"
        rf"(?:\s*(?:/|out of)\s*(?P<best>\d+(?:\.\d+)?){_END})?"
        rf"|{_LETTER}+(?:[.,](?=\d){_LETTER}+)*"
    )


def _ratings_in(text: str, scale: Scale) -> dict[str | float, Rating | None]:
    """Return the different ratings in a text; None for one that is unclear or off the scale."""
    ratings: dict[str | float, Rating | None] = {}
    for match in _rating_pattern(scale).finditer(text):
        if match["answer"] is None:
            continue
        word = match["stem"] + match["answer"] + match["more"]
        value: str | float = word
        if _NUMBER.fullmatch(word):
            value = float(word)
            numbers = map(float, filter(_NUMBER.fullmatch, scale.answers))
            best = scale.maximum if any(scale.stems) else max(numbers)
            clear = not match["sign"] and value <= best and float(match["best"] or best) == best
            clear &= not value or match["stem"] + match["answer"] != "0"  # 0.7 is no 0
        else:  # the article, the pronoun
            clear = word not in ("A", "I") or not _WORD_FOLLOWS.match(text, match.end())
        stem, answer = scale.stems.index(match["stem"]), scale.answers.index(match["answer"])
        place = Rating(stem, answer, match.start("stem"), match.start("answer"))
        ratings.setdefault(value if clear else f"{value}?", place if clear else None)
    return ratings


def find_rating(text: str, scale: Scale) -> Rating | None:
    """Return the rating in a text; None where there is none, or where different ones are.

    The scale's own range is no rating, nor is the best one in "4 out of 5". A further decimal is
    part of the rating, and one beyond the scale ("1.5", "-0.5") makes the text unclear.

    >>> find_rating("On a scale of 0.0 to 1.0: 0.85", UNIT)
    Rating(stem=0, answer=8, start=26, at=28)
    >>> [find_rating(text, FIVE) for text in ("2 dogs. Rating: 5", "15 dogs", "4 or 5", "5.5")]
    [None, None, None, None]
    """
    ratings = list(_ratings_in(text, scale).values())
    return ratings[0] if len(ratings) == 1 else None


def why_no_rating(text: str, scale: Scale) -> str:
    if len(_ratings_in(text, scale)) > 1:
        return f"the model did not answer with one rating but with {text!r}"
    reason = f"the model did not answer with a rating but with {text!r}"
    if scale != UNIT and find_rating(text, UNIT):
        reason += f", which is none on scale {scale.name!r}; set scale to 'unit'"
    return reason


def piece_at(pieces: Sequence[str], position: int) -> int:
    """Return the number of the piece that holds a position of the text that they are.

    >>> piece_at(["0", ".", "75"], 3)
    2
    """
    starts = list(itertools.accumulate(map(len, pieces), initial=0))
    return bisect.bisect_right(starts, position) - 1
