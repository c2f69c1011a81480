"""A linear decoder: a weighted sum of terms of the log-probabilities, fitted to people's judgments.

The terms are the smoothed score and, of the log-odds against the likeliest answer, the level, slope
(from the lowest answer to the highest), bend and skew, with their squares and products: fifteen
terms on any scale of four answers or more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

import numpy as np

from discode._scales import UNIT
from discode.decoders._base import Decoded, Floats, alternatives
from discode.decoders._simple import Smoothing
from discode.errors import InputError
from discode.readings import Readings

FLOOR = -20.0
"""The lower bound of log-odds: answers that a server omitted have none."""
SHAPES = ("level", "slope", "bend", "skew")
BIAS = "bias"


@dataclass(frozen=True)
class Linear:
    """Score = bias + Σ weight·term, for readings on one ``scale`` (its unique name).

    ``weights`` have the names of :func:`linear_terms`, and ``bias``. Scores are not clipped, so
    they may exceed the ends of the scale. On scale unit the values of both stems are used
    (``joint``). ``discode choose --learn`` fits the weights.
    """

    weights: Mapping[str, float]
    scale: str

    name = "linear"
    requires = frozenset[str]()

    def __post_init__(self) -> None:
        sizes = range(2, len(SHAPES) + 1)
        if not any({*self.weights} == {BIAS, *_term_names(size)} for size in sizes):
            raise InputError(
                f"a linear decoder needs exactly the weights {BIAS}, "
                f"{', '.join(_term_names(len(SHAPES)))}; given: {', '.join(self.weights) or 'none'}"
            )
        if not np.isfinite([*self.weights.values()]).all():
            raise InputError("the weights of a linear decoder must be finite numbers")

    def options(self) -> dict[str, object]:
        """A digest of the weights, and the stem option on scale unit."""
        text = repr(sorted(self.weights.items())).encode()
        joint = {"stem": "joint"} if self.scale == UNIT.unique_name else {}
        return {"weights": hashlib.sha256(text).hexdigest()[:12], **joint}

    def decode(self, readings: Readings) -> Decoded:
        """Decode N readings; the distribution is the one without a prior."""
        plain, terms = linear_terms(readings)
        if readings.scale.unique_name != self.scale or {BIAS, *terms} != {*self.weights}:
            raise InputError(
                f"this linear decoder was fitted on scale {self.scale!r}, not on "
                f"{readings.scale.unique_name!r}; run discode choose on this scale"
            )
        score = np.full(len(plain.score), self.weights[BIAS])
        for name, term in terms.items():
            score += self.weights[name] * term
        return replace(plain, score=score, other=None)


def linear_terms(readings: Readings) -> tuple[Decoded, dict[str, Floats]]:
    """Compute the result of smoothing for N readings, and the terms (N,) by name.

    With g_k the log-odds of K answers against the likeliest, at least ``FLOOR``, and t_k from -1 to
    1, the shapes are Σ_k P_j(t_k)·g_k / K with Legendre's polynomials P_0 to P_3.

    >>> from discode._scales import FIVE
    >>> terms = linear_terms(Readings.of(np.log([0.1, 0.1, 0.1, 0.2, 0.5]), FIVE))[1]
    >>> len(terms), [round(float(terms[name][0]), 3) for name in ("smoothing", *SHAPES)]
    (15, [3.9, -1.149, 0.391, -0.098, 0.261])
    """
    stem = "joint" if len(readings.scale.stems) > 1 else "graded"
    plain = Smoothing(stem=stem).decode(readings)
    seen = alternatives(readings, stem)
    with np.errstate(invalid="ignore"):  # rows without mass, which smoothing makes NaN
        odds = np.maximum(seen.logp - seen.logp.max(axis=1, keepdims=True), FLOOR).T
    low, high = seen.values.min(), seen.values.max()
    t = 2 * (seen.values - low) / (high - low) - 1
    size = min(len(t), len(SHAPES))
    basis = [np.ones_like(t), t, (3 * t**2 - 1) / 2, (5 * t**3 - 3 * t) / 2][:size]
    shapes = [np.zeros(len(plain.score)) for _ in basis]
    for shape, weights in zip(shapes, basis, strict=True):
        for weight, row in zip(weights.tolist(), odds, strict=True):  # one order for any N
            shape += weight / len(t) * row
    products = [a * b for a, b in combinations_with_replacement(shapes, 2)]
    values = [plain.score, *shapes, *products]
    return plain, dict(zip(_term_names(size), values, strict=True))


def _term_names(size: int) -> list[str]:
    pairs = combinations_with_replacement(SHAPES[:size], 2)
    return ["smoothing", *SHAPES[:size], *(f"{a}*{b}" for a, b in pairs)]
