"""Scales: which answers a model may give, and what each is worth.

A scale has *stems* (text before the answer token), *answers* (K strings, from the lowest to the
highest) and *values* (what each answer counts). An expected answer ŝ
becomes a score by ``stem value + step · ŝ``.

===========  =====================  ==========================  =============
name         stems                  answers                     score
===========  =====================  ==========================  =============
``unit``     "0." and "1."          0 ... 9, the first decimal  0.0 ... 1.0
``ten``      none                   0 ... 9                     0 ... 9
``five``     none                   1 ... 5                     1 ... 5
``letters``  none                   A ... E                     1 ... 5
===========  =====================  ==========================  =============

Any other range is written from its lowest to its highest answer: ``1-7``, ``0-100``,
``A-D``; ``E-A`` are letters with A the best.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

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
    """Width of one answer on a 0-1 scale, for the ``unit`` reading of α."""
    stems: tuple[str, ...] = ("",)
    stem_values: tuple[float, ...] = (0.0,)
    step: float = 1.0

    def __post_init__(self) -> None:
        if len(self.answers) != len(self.values) or len(self.stems) != len(self.stem_values):
            raise InputError(f"scale {self.name!r} needs a value for each answer and each stem")
        if not 2 <= len(set(self.answers)) == len(self.answers) <= MAX_ANSWERS:
            raise InputError(f"scale {self.name!r} needs 2 to {MAX_ANSWERS} different answers")

    @property
    def minimum(self) -> float:
        """The lowest score."""
        return self.stem_values[0] + self.step * min(self.values)

    @property
    def maximum(self) -> float:
        """The highest score; after the last of several stems only the lowest answer is valid."""
        last = min(self.values) if len(self.stems) > 1 else max(self.values)
        return self.stem_values[-1] + self.step * last

    def score(
        self, stem: NDArray[np.intp], expectation: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Turn expected answers (..., N) after the stems with indices (N,) into scores (..., N).

        The paper replaces everything after the decimal point by 0.1·ŝ. After the stem "1."
        that leaves the scale for any ŝ > 0 (1.03 is not a rating between 0.0 and 1.0, and the
        *less* sure model would get the higher score), so scores end at ``maximum``. How sure
        the model is of "1." grades them there: ``reading=graded`` of the decoders.
        """
        score = np.asarray(self.stem_values)[stem] + self.step * expectation
        return np.clip(score, self.minimum, self.maximum)

    def score_answers(
        self, stem: NDArray[np.intp], value: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Turn single answers (N,), which are decimals, into scores that print as such.

        >>> UNIT.score_answers(np.array([0]), np.array([7.0])), 0.1 * 7.0
        (array([0.7]), 0.7000000000000001)
        """
        score = self.score(stem, value)
        decimal = np.round(score, 9)
        return np.where(np.abs(decimal - score) < 1e-12, decimal, score)

    @property
    def unique_name(self) -> str:
        """The name, with a digest after it where the name belongs to another scale.

        >>> get_scale("1-7").unique_name
        '1-7'
        """
        try:
            known = get_scale(self.name) == self
        except InputError:
            known = False
        if known:
            return self.name
        return f"{self.name}~{hashlib.sha256(repr(self).encode()).hexdigest()[:8]}"


def _digits(name: str, low: int, high: int) -> Scale:
    count = abs(high - low) + 1
    if not 2 <= count <= MAX_ANSWERS:
        raise InputError(f"scale {name!r} has {count} answers; allowed are 2 to {MAX_ANSWERS}")
    sign = 1 if high > low else -1
    answers = tuple(str(number) for number in range(low, high + sign, sign))
    values = tuple(float(v) for v in range(min(low, high), max(low, high) + 1))
    return Scale(name, answers, values, low=str(low), high=str(high), unit=1 / count)


def _letters(name: str, low: str, high: str) -> Scale:
    if low == high:
        raise InputError(f"scale {name!r} has 1 answer; allowed are 2 to 26 letters")
    sign = 1 if high > low else -1
    answers = tuple(chr(code) for code in range(ord(low), ord(high) + sign, sign))
    values = tuple(float(rank) for rank in range(1, len(answers) + 1))
    return Scale(name, answers, values, low=low, high=high, unit=1 / len(answers))


UNIT = Scale(
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
TEN = _digits("ten", 0, 9)
FIVE = _digits("five", 1, 5)
LETTERS = _letters("letters", "A", "E")

SCALES: dict[str, Scale] = {scale.name: scale for scale in (UNIT, TEN, FIVE, LETTERS)}


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
