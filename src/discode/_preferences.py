"""Which of two captions of an image is better: asked in both orders, or by scores.

A comparison is a :class:`~discode.Pair` whose only reference is the other caption. So questions
about two captions are read, stored and decoded as any others.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode._pairs import Pair
from discode._scores import Floats, Scores, or_none
from discode._signature import Signature
from discode.errors import InputError

TIED = 1e-9
"""A preference this close to ½ is a tie: what rounding leaves of one."""
_FLAGS = ("truncated", "generated", "cut", "sampled", "defused")
"""Flags of a comparison that either of its two readings may have."""


@dataclass(frozen=True, eq=False)
class PreferenceScores:
    """N comparisons of two captions of an image, in the order of the input.

    Attributes:
        value: (N,) the probability that the first caption is better, the mean of both orders;
            NaN where one of them could not be read.
        flip: (N,) how much the order matters: the probability where the first caption is shown
            first, minus that where it is shown second. Above 0, what is shown first gains.
        signature: How they were made; its field ``preference`` is "orders", or "scores" for a
            model that judges captions one by one: 1, 0, or ½ for equal scores.
        first, second: The captions.
        images: What each image is called, "" where it has no name.
        flags: Name to (N,) booleans: "failed", "tied" (½), "flipped" (the orders choose different
            captions), "truncated", "generated", "cut", "sampled", "defused".
        errors: Row number to the reason of its NaN.
        bound: (N,) how wrong a value may be because a server left labels out, or because they were
            never drawn; NaN for other rows, None if all are.
        stderr: (N,) the standard errors of values of sampled answers, likewise.
    """

    value: Floats
    flip: Floats
    signature: Signature
    first: tuple[str, ...]
    second: tuple[str, ...]
    images: tuple[str, ...]
    flags: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    bound: Floats | None = None
    stderr: Floats | None = None

    @classmethod
    def of_orders(cls, scores: Scores) -> PreferenceScores:
        """Join the scores of N questions and, after them, of the same ones in the other order."""
        half = len(scores) // 2
        forward, backward = scores.value[:half], 1 - scores.value[half:]
        value, flip = (forward + backward) / 2, forward - backward
        flipped = (forward - 0.5) * (backward - 0.5) < 0
        bound, stderr = (
            None if column is None else column.reshape(2, half)
            for column in (scores.bound, scores.stderr)
        )
        if bound is not None:  # an order that is not truncated has none
            bound = np.where(np.isnan(bound).all(axis=0), math.nan, np.nansum(bound, axis=0) / 2)
        if stderr is not None:
            stderr = np.hypot(*stderr) / 2
        return cls._of(scores, value, flip, flipped, "orders", bound, stderr)

    @classmethod
    def of_scores(cls, scores: Scores) -> PreferenceScores:
        """Compare the scores of N first captions and, after them, of the second ones."""
        half = len(scores) // 2
        value = (np.sign(scores.value[:half] - scores.value[half:]) + 1) / 2
        return cls._of(scores, value, 0 * value, np.zeros(half, bool), "scores")

    @classmethod
    def _of(
        cls, scores: Scores, value: Floats, flip: Floats, flipped: NDArray[np.bool_], how: str,
        *columns: Floats | None,
    ) -> PreferenceScores:  # fmt: skip
        half = len(value)
        flags: dict[str, NDArray[np.bool_]] = {
            "failed": np.asarray(np.isnan(value)),
            "tied": np.asarray(np.abs(value - 0.5) < TIED),
            "flipped": flipped,
            **{name: scores.flags[name][:half] | scores.flags[name][half:] for name in _FLAGS},
        }
        # The first order's reason, where both failed.
        errors = {row % half: why for row, why in sorted(scores.errors.items(), reverse=True)}
        captions, images = scores.captions or (), scores.images or ()
        return cls(
            value, flip, scores.signature.with_fields(preference=how), captions[:half],
            captions[half:], images[:half], flags, dict(sorted(errors.items())), *columns,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.value)

    def __float__(self) -> float:
        """Return the preference of a single comparison."""
        if len(self) != 1:
            raise InputError(f"float() needs one comparison, these are {len(self)}; use .value")
        return float(self.value[0])

    def __repr__(self) -> str:
        shown = ", ".join(f"{value:.4g}" for value in self.value[:6].tolist())
        more = ", ..." if len(self) > 6 else ""
        counts = ", ".join(f"{n} {name}" for name, n in self.counts().items() if n)
        return f"PreferenceScores([{shown}{more}], {counts or 'none tied or failed'})"

    def counts(self) -> dict[str, int]:
        """Return how many comparisons carry each flag."""
        return {name: int(np.count_nonzero(marks)) for name, marks in self.flags.items()}

    def rows(self, ids: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield one JSON-ready dictionary per comparison, None where it has nothing."""
        empty: list[None] = [None] * len(self)
        numbers = {
            name: empty if column is None else or_none(column)
            for name, column in (
                ("preference", self.value), ("flip", self.flip), ("bound", self.bound),
                ("stderr", self.stderr),
            )
        }  # fmt: skip
        for row in range(len(self)):
            yield {
                "id": str(row) if ids is None else ids[row],
                "image": self.images[row],
                "caption": self.first[row],
                "other_caption": self.second[row],
                **{name: column[row] for name, column in numbers.items()},
                "flags": [name for name, marks in self.flags.items() if marks[row]],
                "error": self.errors.get(row),
                "signature": str(self.signature),
            }


def other_captions(first: str | Sequence[str], second: str | Sequence[str]) -> list[tuple[str]]:
    """Return the other captions as references, one for each of the ``first``.

    >>> other_captions(["a dog", "a cat"], ["a man", "a bus"])
    [('a man',), ('a bus',)]
    """
    texts, others = ([each] if isinstance(each, str) else list(each) for each in (first, second))
    if len(texts) != len(others):
        raise InputError(
            f"{len(texts)} first and {len(others)} second captions do not pair up; give as many"
        )
    return [(other,) for other in others]


def check_comparisons(pairs: Sequence[Pair]) -> None:
    """Raise unless every pair has exactly one reference, or a problem."""
    for number, pair in enumerate(pairs):
        if len(pair.references) != 1 and not pair.problem:
            raise InputError(
                f"pair {number} has {len(pair.references)} references; to compare two captions, "
                "give the second as the only one"
            )


def comparison(pair: Pair, other: Pair) -> Pair:
    """Make a comparison of the captions of two pairs; of different images it has a problem.

    >>> comparison(Pair("a.jpg", "x", ("z",)), Pair("a.jpg", "y")).references
    ('y',)
    """
    problem = pair.problem or other.problem
    if str(pair.image) != str(other.image):
        problem = problem or "the two captions are of different images"
    return replace(pair, references=(other.caption,), problem=problem)


def in_both_orders(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the N questions, and after them the same ones with the captions exchanged.

    >>> [(p.caption, p.references) for p in in_both_orders([Pair("a.jpg", "x", ("y",))])]
    [('x', ('y',)), ('y', ('x',))]
    """
    swapped = [
        replace(pair, caption=other, references=(pair.caption,))
        for pair, other in zip(pairs, _others(pairs), strict=True)
    ]
    return [*pairs, *swapped]


def one_by_one(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the N first captions, and after them the second ones, as pairs to score."""
    return [replace(pair, references=()) for pair in in_both_orders(pairs)]


def _others(pairs: Sequence[Pair]) -> list[str]:
    return [next(iter(pair.references), "") for pair in pairs]


@cache
def note_by_scores(model: str) -> None:
    """Log once per process that a model compares captions by their scores."""
    logging.getLogger("discode").warning(
        "discode: %s judges captions one by one: preferences are 1, 0 or ½ by its scores", model
    )
