"""What every decoder shares: the view of a reading, the block loop, the result.

Inside a block, arrays are (K, n): one contiguous vector an answer. Sums over the answers are
written as loops over K, so every row is added up in the same order whatever n is, and a batch
equals its rows one by one bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from discode.errors import InputError
from discode.readings import Readings
from discode.scales import Scale

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
READINGS = ("greedy", "joint")
BLOCK = 4096
"""Rows a block: small enough for the cache, large enough to hide Python."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """What a decoder made of N readings: N scores and N distributions over K answers.

    ``degenerate`` (N,) marks rows whose distribution is one-hot although the decoder was
    asked for more than the raw answer: their scores tie.
    """

    answers: tuple[str, ...]
    distribution: Floats
    raw: Floats
    score: Floats
    degenerate: NDArray[np.bool_]


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
class View:
    """The alternatives a decoder chooses from, one distribution a row.

    ``greedy`` is the paper's rule: the likelier stem is taken, and the answers behind it are
    the alternatives (behind "1." there is one: 1.0). ``joint`` uses both stems of the unit
    scale and has eleven values: P(0.d) = P("0.") · P(d | "0.") and P(1.0) = P("1.").
    """

    scale: Scale
    logp: Floats  # (N, K)
    values: Floats  # (K,)
    answers: tuple[str, ...]
    stem: Indices  # (N,)

    def score(self, expectation: Floats) -> Floats:
        """Turn expected values (N,) into scores (N,)."""
        return self.scale.score(self.stem, expectation)


def view(readings: Readings, reading: str = "greedy") -> View:
    """Lay out readings for decoding; see :class:`View`."""
    scale = readings.scale
    values = np.asarray(scale.values)
    n = len(readings)
    if reading == "joint":
        if len(scale.stems) == 1:
            raise InputError(
                f"reading='joint' needs the two stems of scale 'unit', not scale {scale.name!r}"
            )
        below = readings.stem_logp[:, :1] + readings.answer_logp[:, 0]
        return View(
            scale,
            np.concatenate([below, readings.stem_logp[:, 1:]], axis=1),
            np.append(values, len(values)),
            (*(f"{scale.stems[0]}{answer}" for answer in scale.answers), scale.high),
            np.zeros(n, np.intp),
        )
    if len(scale.stems) == 1:
        return View(scale, readings.answer_logp[:, 0], values, scale.answers, np.zeros(n, np.intp))
    stem = greedy_stem(readings)
    logp = readings.answer_logp[np.arange(n), stem]
    # Behind the last stem only the lowest answer is on the scale (1.0): it need not be read.
    given = (stem == len(scale.stems) - 1) & np.isnan(logp).all(axis=1)
    logp[given] = np.where(values == values.min(), 0.0, -np.inf)
    return View(scale, logp, values, scale.answers, stem)


def greedy_stem(readings: Readings) -> Indices:
    """Return the likelier stem of each row (N,); the first where no stem was read."""
    return np.asarray(np.nan_to_num(readings.stem_logp, nan=-np.inf).argmax(axis=1))


def decode_view(
    view: View, solve: Callable[[slice, Floats, Indices], Floats], *, degenerate: bool = True
) -> Decoded:
    """Decode a view block by block.

    ``solve(rows, logp, raw)`` gets log-probabilities (K, n) shifted so that each row's largest
    is 0, and the index of the raw answer (n,); it returns the distribution (K, n). Rows that
    hold a NaN, or no mass at all, come out as NaN.
    """
    n, k = view.logp.shape
    distribution = np.empty((n, k))
    raw = np.empty(n)
    expectation = np.empty(n)
    one_hot = np.zeros(n, bool)
    for start in range(0, n, BLOCK):
        rows = slice(start, min(start + BLOCK, n))
        block = view.logp[rows]
        index = block.argmax(axis=1)  # of NaN, where there is one; else of the first maximum
        best = block[np.arange(len(block)), index]
        bad = ~np.isfinite(best)
        logp = np.array(block.T, order="C")  # ours to change, even if it is one row
        if bad.any():
            logp[:, bad] = 0.0
            best = np.where(bad, 0.0, best)
        p = solve(rows, logp - best, index)
        mean = np.zeros(len(block))
        for value, row in zip(view.values, p, strict=True):
            mean += value * row
        top = view.values[index]
        if degenerate:
            one_hot[rows] = (p == 1.0).any(axis=0) & ~bad
        if bad.any():
            p[:, bad] = np.nan
            mean[bad] = np.nan
            top = np.where(bad, np.nan, top)
        distribution[rows] = p.T
        expectation[rows] = mean
        raw[rows] = top
    return Decoded(view.answers, distribution, view.score(raw), view.score(expectation), one_hot)


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
    """Return (k, n) with a single 1 a column."""
    p = np.zeros((k, len(index)))
    p[index, np.arange(len(index))] = 1.0
    return p


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise InputError(f"{name}={value!r} is not allowed; allowed: {', '.join(allowed)}")


def check_number(name: str, value: object, allowed: str) -> None:
    """Raise unless ``value`` is a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InputError(f"{name}={value!r} is not allowed; allowed: {allowed}")


def check_positive(name: str, value: object, also: str = "") -> None:
    """Raise unless ``value`` is a finite number above 0."""
    check_number(name, value, f"{also}a number above 0")
    if float(value) <= 0:  # type: ignore[arg-type]  # a number, as was just checked
        raise InputError(f"{name}={value!r} is not allowed; allowed: {also}a number above 0")
