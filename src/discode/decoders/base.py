"""What every decoder shares: the alternatives it chooses from, the block loop, the result.

Inside a block, arrays are (K, n): one contiguous vector per answer. Sums over the answers are
written as loops over K, so every row is added up in the same order whatever n is, and a batch
equals its rows one by one bit for bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from discode.errors import InputError
from discode.options import Configurable, option
from discode.readings import Readings
from discode.scales import Scale

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Solve = Callable[[slice, Floats, Indices], Floats]
"""``solve(rows, logp, raw)`` gets log-probabilities (K, n) shifted so that each row's largest is 0,
and the index of the raw answer (n,); it returns the distribution (K, n)."""

RENAMED = {"reading": "stem"}
"""Names of options in older files and what they are called now."""
BLOCK = 4096
"""Rows per block: small enough for the cache, large enough to hide Python."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """What a decoder made of N readings: N scores and N distributions over K answers.

    ``degenerate`` (N,) marks rows whose distribution is one-hot although the decoder was
    asked for more than the raw answer: their scores tie. ``raw`` and ``smoothing`` (N,) are what
    those two methods make of the same readings, to compare with; a decoder may leave the second
    out.
    """

    answers: tuple[str, ...]
    distribution: Floats
    raw: Floats
    score: Floats
    degenerate: NDArray[np.bool_]
    smoothing: Floats | None = None


@runtime_checkable
class Decoder(Protocol):
    """Turns readings into scores; pure, and free compared with the model."""

    @property
    def name(self) -> str:
        """The decoder's short name."""

    @property
    def requires(self) -> frozenset[str]:
        """What readings must carry, e.g. ``{"hidden"}``."""

    def options(self) -> Mapping[str, object]:
        """Return every option that shapes the result, for the signature."""

    def decode(self, readings: Readings) -> Decoded:
        """Decode N readings."""


@dataclass(frozen=True, eq=False)
class Alternatives:
    """The values a decoder chooses from, with one distribution over them per row."""

    scale: Scale
    logp: Floats  # (N, K)
    values: Floats  # (K,)
    answers: tuple[str, ...]
    stem: Indices  # (N,)


def alternatives(readings: Readings, after: str = "greedy") -> Alternatives:
    """Lay out readings for decoding.

    ``greedy`` is the paper's rule, kept on the scale: the likelier stem is taken, and the answers
    after it are the alternatives (after "1." there is one: 1.0). ``graded`` has the same
    alternatives, and differs in the score of 1.0 (:func:`graded_top`). ``joint`` uses both stems of
    the unit scale and has eleven values: P(0.d) = P("0.") · P(d | "0.") and P(1.0) = P("1.").
    """
    scale = readings.scale
    values = np.asarray(scale.values)
    n = len(readings.answer_logp)
    if after == "joint":
        if len(scale.stems) == 1:
            raise InputError(
                f"stem='joint' needs the two stems of scale 'unit', not scale {scale.name!r}"
            )
        below = readings.stem_logp[:, :1] + readings.answer_logp[:, 0]
        return Alternatives(
            scale,
            np.concatenate([below, readings.stem_logp[:, 1:]], axis=1),
            np.append(values, len(values)),
            (*(f"{scale.stems[0]}{answer}" for answer in scale.answers), scale.high),
            np.zeros(n, np.intp),
        )
    if len(scale.stems) == 1:
        stem = np.zeros(n, np.intp)
        return Alternatives(scale, readings.answer_logp[:, 0], values, scale.answers, stem)
    stem = greedy_stem(readings)
    logp = readings.answer_logp[np.arange(n), stem]
    # After the last stem only the lowest answer is on the scale (1.0): it need not be read.
    unread = (stem == len(scale.stems) - 1) & np.isnan(logp).all(axis=1)
    logp[unread] = np.where(values == values.min(), 0.0, -np.inf)
    return Alternatives(scale, logp, values, scale.answers, stem)


def greedy_stem(readings: Readings) -> Indices:
    """Return the likelier stem of each row (N,); the first where no stem was read."""
    return np.asarray(np.nan_to_num(readings.stem_logp, nan=-np.inf).argmax(axis=1))


def integer_logp(readings: Readings) -> Floats:
    """Return log P of the tokens '0' and '1' (N, B); of the whole stems where those are not read.

    A generated answer has the first token of both stems, but only one whole stem.
    """
    if readings.lead_logp is None:
        return readings.stem_logp
    unread = np.isnan(readings.lead_logp).any(axis=1, keepdims=True)
    return np.where(unread, readings.stem_logp, readings.lead_logp)


def graded_top(readings: Readings, stem: Indices, score: Floats) -> Floats:
    """Return the scores (..., N), those after the last stem graded by how sure the model is of it.

    After "1." a score is the mean of 1.0 and 0.9 under the stems' probabilities,
    1.0 - 0.1·P("0") / (P("0") + P("1")): FLEUR's rule for 1.0, renormalised. It lies above
    every score after "0.", so only ties are broken and no order is reversed. Where the other
    stem was not read, the score stays.

    >>> from discode.scales import UNIT
    >>> answers = np.tile(np.log([0.9] + [0.01] * 9), (2, 2, 1))
    >>> readings = Readings(UNIT, answers, np.log([[0.19, 0.8], [0.01, 0.98]]))
    >>> graded_top(readings, np.array([1, 1]), np.ones(2)).round(3).tolist()
    [0.981, 0.999]
    """
    scale, logp = readings.scale, integer_logp(readings)
    with np.errstate(over="ignore", invalid="ignore"):
        other = 1 / (1 + np.exp(logp[:, -1] - np.logaddexp.reduce(logp[:, :-1], axis=1)))
    top = (stem == len(scale.stems) - 1) & np.isfinite(score) & np.isfinite(other)
    return np.where(top, scale.maximum - scale.step * other, score)


@dataclass(frozen=True, kw_only=True)
class DistributionDecoder(Configurable, ABC):
    """A decoder that finds a distribution over the alternatives; its expectation is the score."""

    stem: str = option(
        "graded",
        'the answers after the likelier stem, with 1.0 graded by how sure the model is of "1." '
        "or flat (greedy); or both stems of scale unit with 1.0 as a value (joint)",
        "graded",
        "greedy",
        "joint",
    )

    name = ""
    requires = frozenset[str]()
    counts_one_hot = True
    """Whether a one-hot row is marked as degenerate."""

    @abstractmethod
    def prepare(self, seen: Alternatives, readings: Readings) -> Solve:
        """Return the function that turns a block of ``seen`` into distributions."""

    def decode(self, readings: Readings) -> Decoded:
        """Decode N readings; rows that hold a NaN, or no mass at all, come out as NaN."""
        seen = alternatives(readings, self.stem)
        solve = self.prepare(seen, readings)
        n, k = seen.logp.shape
        distribution = np.empty((n, k))
        answered, expected = np.empty(n), np.empty((2, n))  # raw; mean with the prior, without
        degenerate = np.zeros(n, bool)
        own = type(self).__module__.startswith("discode.")  # a plug-in's results are checked
        for start in range(0, n, BLOCK):
            rows = slice(start, min(start + BLOCK, n))
            block = seen.logp[rows]
            index = block.argmax(axis=1)  # of NaN, where there is one; else of the first maximum
            best = block[np.arange(len(block)), index]
            bad = ~(np.exp(best) > 0)  # also where servers send -9999 for no mass
            logp = np.array(block.T, order="C")  # ours to change, even if it is one row
            if bad.any():
                logp[:, bad] = 0.0
                best = np.where(bad, 0.0, best)
            logp -= best
            plain = np.exp(logp)  # before ``solve`` changes them
            p = solve(rows, logp, index)
            if not own:
                _check_distributions(p, plain.shape, self.name)
            plain /= total(plain)
            mean = np.zeros((2, len(block)))
            for value, *both in zip(seen.values, p, plain, strict=True):
                mean += value * np.array(both)
            top = seen.values[index]
            if self.counts_one_hot:
                degenerate[rows] = (p == 1.0).any(axis=0) & ~bad
            if bad.any():
                p[:, bad] = np.nan
                mean[:, bad] = np.nan
                top = np.where(bad, np.nan, top)
            distribution[rows] = p.T
            answered[rows], expected[:, rows] = top, mean
        raw = seen.scale.score_answers(seen.stem, answered)
        score, smoothing = flat = seen.scale.score(seen.stem, expected)
        if self.stem != "joint" and len(seen.scale.stems) > 1:
            graded, smoothing = graded_top(readings, seen.stem, flat)
            score = graded if self.stem == "graded" else score
        return Decoded(seen.answers, distribution, raw, score, degenerate, smoothing)


def _check_distributions(p: Floats, shape: tuple[int, ...], name: str) -> None:
    if np.shape(p) != shape or (p < 0).any() or not np.allclose(total(p), 1):
        raise InputError(f"decoder {name!r} gave no distribution over the answers for each row")


def total(p: Floats) -> Floats:
    """Sum (K, n) over the answers, in the same order for any n (``sum`` would not)."""
    result: Floats = p[0].copy()
    for row in p[1:]:
        result += row
    return result


def softmax(logits: Floats) -> Floats:
    """Softmax over axis 0 of (K, n), in place, for logits whose maximum is 0."""
    np.exp(logits, out=logits)
    logits /= total(logits)
    return logits


def one_hot(index: Indices, k: int) -> Floats:
    """Return (k, n) with a single 1 per column."""
    p = np.zeros((k, len(index)))
    p[index, np.arange(len(index))] = 1.0
    return p
