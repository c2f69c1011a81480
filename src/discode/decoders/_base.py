"""The base of all decoders: the alternatives, the block loop, the result.

Inside a block, arrays are (K, n): one contiguous vector per answer. Sums over the answers are
loops over K, so that each row is summed in the same order for any n, and a batch equals its rows
one by one to the bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from discode._plugins import exited
from discode._scales import Scale
from discode.errors import InputError
from discode.options import Configurable, option
from discode.readings import Readings

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Solve = Callable[[Indices, Floats, Indices], Floats]
"""``solve(rows, logp, raw)`` takes the indices of n rows, their log-probabilities (K, n) shifted so
that each row's largest is 0, and the index of the raw answer (n,); it returns log p (K, n), up to a
constant per row. Logarithms keep differences that probabilities round away."""

RENAMED = {"reading": "stem"}
"""Names of options in older files, and their current names."""
BLOCK = 4096
"""Rows per block: small enough for the cache, large enough to hide Python's overhead."""
NEAR = 1e-6
"""The largest shift of a score, in answers, from the exact expectation to keep the exact order."""
MARGIN = 0.05
"""The assumed error of a log-probability: 16-bit logits, another batch, another engine."""
JUMP = 0.1
"""A score is marked bimodal if such an error moves it by more than this share of the scale."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """A decoder's result for N readings: N scores and N distributions over K answers.

    ``degenerate`` (N,) marks rows whose score depends only on the raw answer, although the decoder
    uses more: they tie with all other such rows of the same answer. ``raw`` and ``smoothing`` (N,)
    are the scores of those two methods, for comparison. ``other`` (N,) is the score that a change
    of the log-probabilities by ``MARGIN`` could lead to, if it is more than ``JUMP`` of the scale
    away, otherwise NaN. ``plain`` (N, K) is the distribution without a prior. ``people``, ``low``
    and ``high`` (N,) are the ratings that people would give, with an interval. The last six are
    optional.
    """

    answers: tuple[str, ...]
    distribution: Floats
    raw: Floats
    score: Floats
    degenerate: NDArray[np.bool_]
    smoothing: Floats | None = None
    other: Floats | None = None
    plain: Floats | None = None
    people: Floats | None = None
    low: Floats | None = None
    high: Floats | None = None


@runtime_checkable
class Decoder(Protocol):
    """Turns readings into scores; pure, and free compared with the model."""

    @property
    def name(self) -> str:
        """The decoder's short name."""

    @property
    def requires(self) -> frozenset[str]:
        """What readings must include, e.g. ``{"hidden"}``."""

    def options(self) -> Mapping[str, object]:
        """List every option that affects the result, for the signature."""

    def decode(self, readings: Readings) -> Decoded:
        """Decode N readings."""


def is_own(decoder: Decoder) -> bool:
    """Whether a decoder belongs to the package; the results of plug-ins are checked."""
    return type(decoder).__module__.startswith("discode.")


def decode_checked(decoder: Decoder, readings: Readings) -> tuple[Decoded, dict[int, str]]:
    """Decode N readings; also returns errors for rows that a plug-in's decoder scored as infinite.

    Their scores are NaN. If a plug-in's arrays have wrong shapes, or its scores are outside the
    scale, :class:`~discode.errors.InputError` is raised.
    """
    if is_own(decoder):
        return decoder.decode(readings), {}
    whose = _whose(decoder)
    try:
        decoded = decoder.decode(readings)
    except (SystemExit, StopIteration) as error:
        raise exited(decoder, error) from error
    if not isinstance(decoded, Decoded):
        raise InputError(f"{whose} returned {type(decoded).__name__}, not Decoded")
    if not isinstance(decoded.answers, tuple | list):
        raise InputError(f"{whose} returned the answers {decoded.answers!r}; return a tuple")
    n, scale = len(readings), readings.scale
    columns: dict[str, Any] = {}
    for name in ("distribution", "raw", "score", "degenerate", "smoothing", "other", "plain"):
        array = getattr(decoded, name)
        if array is None and name in ("smoothing", "other", "plain"):
            continue
        shape = (n, len(decoded.answers)) if name in ("distribution", "plain") else (n,)
        array = np.asarray(array)
        if array.shape != shape or array.dtype.kind not in "fiub":
            raise InputError(
                f"{whose} returned {name} as {array.dtype} {array.shape}; expected numbers {shape}"
            )
        columns[name] = array.astype(np.bool_ if name == "degenerate" else np.float64)
    infinite = np.flatnonzero(np.isinf(columns["score"]))
    for column in columns.values():
        column[np.isinf(column)] = np.nan  # JSON has no infinity
    score = columns["score"]
    highest = scale.maximum
    if decoder.options().get("stem") == "printed":
        highest = scale.stem_values[-1] + scale.step * max(scale.values)
    slack = 1e-9 * (highest - scale.minimum)
    outside = (score < scale.minimum - slack) | (score > highest + slack)  # never of NaN
    if outside.any():
        raise InputError(
            f"{whose} returned the score {score[outside][0]:g}, outside scale {scale.name!r} "
            f"({scale.minimum:g} to {highest:g})"
        )
    reason = f"{whose} returned an infinite score"
    return replace(decoded, **columns), dict.fromkeys(infinite.tolist(), reason)


def _whose(decoder: Decoder) -> str:
    return f"decoder {decoder.name!r} of {type(decoder).__module__}"


@dataclass(frozen=True, eq=False)
class Alternatives:
    """The values a decoder chooses from, with one distribution over them per row."""

    scale: Scale
    logp: Floats  # (N, K)
    values: Floats  # (K,)
    answers: tuple[str, ...]
    stem: Indices  # (N,)


def alternatives(
    readings: Readings, after: str = "greedy", stem: Indices | None = None
) -> Alternatives:
    """Lay out readings for decoding.

    The alternatives are the answers after the likelier stem, or after the given one; ``printed``,
    ``graded`` and ``greedy`` differ only in the score after "1.". ``joint`` uses both stems of the
    unit scale and has eleven values: P(0.d) = P("0.") · P(d | "0.") and P(1.0) = P("1.").
    """
    scale = readings.scale
    values = np.asarray(scale.values)
    n = len(readings.answer_logp)
    if after == "joint":
        if len(scale.stems) == 1:
            raise InputError(
                f"stem='joint' requires the two stems of scale 'unit', not scale {scale.name!r}"
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
        only = np.zeros(n, np.intp)
        return Alternatives(scale, readings.answer_logp[:, 0], values, scale.answers, only)
    stem = greedy_stem(readings) if stem is None else stem
    logp = readings.answer_logp[np.arange(n), stem]
    # After the last stem only the lowest answer is on the scale (1.0), so it may not be read.
    unread = (stem == len(scale.stems) - 1) & np.isnan(logp).all(axis=1)
    logp[unread] = np.where(values == values.min(), 0.0, -np.inf)
    return Alternatives(scale, logp, values, scale.answers, stem)


def greedy_stem(readings: Readings) -> Indices:
    """Find the likelier stem of each row (N,); the first if no stem was read."""
    return np.asarray(np.nan_to_num(readings.stem_logp, nan=-np.inf).argmax(axis=1))


def integer_logp(readings: Readings) -> Floats:
    """The log P of tokens '0' and '1' (N, B), or of the whole stems if those were not read.

    A generated answer has the first token of both stems, but only one whole stem.
    """
    if readings.lead_logp is None:
        return readings.stem_logp
    unread = np.isnan(readings.lead_logp).any(axis=1, keepdims=True)
    return np.where(unread, readings.stem_logp, readings.lead_logp)


def graded_top(readings: Readings, stem: Indices, score: Floats) -> Floats:
    """Grade the scores (..., N) after the last stem by that stem's probability.

    After "1." a score is the mean of 1.0 and 0.9 under the stems' probabilities,
    1.0 - 0.1·P("0") / (P("0") + P("1")): FLEUR's rule for 1.0, renormalised. It is above every
    score after "0.", so it breaks ties and reverses no order. If the other stem was not read, the
    score does not change.

    >>> from discode._scales import UNIT
    >>> answers = np.tile(np.log([0.9] + [0.01] * 9), (2, 2, 1))
    >>> readings = Readings(UNIT, answers, np.log([[0.19, 0.8], [0.01, 0.98]]))
    >>> graded_top(readings, np.array([1, 1]), np.ones(2)).round(3).tolist()
    [0.981, 0.999]
    """
    scale, logp = readings.scale, integer_logp(readings)
    with np.errstate(invalid="ignore"):  # NaN if only one stem was read
        others = np.logaddexp.reduce(logp[:, :-1], axis=1)
        log_other = others - np.logaddexp(others, logp[:, -1])
    top = (stem == len(scale.stems) - 1) & np.isfinite(score) & ~np.isnan(log_other)
    return np.where(top, scale.maximum - scale.step * distinct_size(log_other, NEAR), score)


@dataclass(frozen=True, kw_only=True)
class DistributionDecoder(Configurable, ABC):
    """A decoder that finds a distribution over the alternatives; its expectation is the score.

    Scores are ordered as the exact expectations are (:func:`ordered_mean`).
    """

    stem: str = option(
        "graded",
        'the answers after the likelier stem, and after "1." a score of 1.0 + 0.1·ŝ (printed), 1.0 '
        'graded by the probability of "1." (graded), or 1.0 for all (greedy); or both stems of '
        "scale unit with 1.0 as a value (joint)",
        "graded",
        "printed",
        "greedy",
        "joint",
    )

    name = ""
    requires = frozenset[str]()
    counts_ties = True
    """Whether rows whose score depends only on the raw answer are marked as degenerate."""
    decimal = False
    """Whether scores are single answers, which print as decimals."""
    centred = True
    """Whether the distribution depends on which answer is the likeliest."""
    uses_model = True
    """Whether the score depends on more than the raw answer."""
    near = NEAR
    """The largest shift of a score, in answers, from the exact expectation to keep the order."""

    @abstractmethod
    def prepare(self, seen: Alternatives, readings: Readings) -> Solve:
        """Make the function that turns a block of ``seen`` into log p."""

    def decode(self, readings: Readings) -> Decoded:
        """Decode N readings; rows that contain a NaN or have no mass become NaN."""
        decoded = self._decode(readings, alternatives(readings, self.stem))
        if self.stem == "joint" or len(readings.scale.stems) == 1:
            return decoded
        apart = readings.stem_logp[:, 0] - readings.stem_logp[:, -1]
        rows = np.flatnonzero(np.abs(apart) <= 2 * MARGIN)
        if rows.size:  # two stems of nearly equal probability: also score the other one
            part = readings.take(rows)
            swapped = len(readings.scale.stems) - 1 - greedy_stem(part)
            tried = np.full(len(readings), np.nan)
            tried[rows] = self._decode(part, alternatives(part, self.stem, swapped)).score
            other = _furthest(decoded.score, np.array([decoded.other, tried]), readings.scale)
            return replace(decoded, other=other)
        return decoded

    def _decode(self, readings: Readings, seen: Alternatives) -> Decoded:
        """Decode N readings laid out as ``seen``.

        Answers that are nearly as likely as the likeliest are also tried as the raw answer: this
        is the effect of a small change of the log-probabilities.
        """
        solve = self.prepare(seen, readings)
        if not is_own(self):
            solve = _checked(solve, _whose(self))
        n, k = seen.logp.shape
        near = seen.logp >= seen.logp.max(axis=1, keepdims=True) - 2 * MARGIN  # never of NaN
        near[np.arange(n), seen.logp.argmax(axis=1)] = False
        runners_up = np.flatnonzero(near.any(axis=0) & self.centred).tolist()
        distribution, without_prior = np.empty((2, n, k))
        answered, expected = np.empty(n), np.full((2 + len(runners_up), n), np.nan)
        degenerate = np.zeros(n, bool)
        for start in range(0, n, BLOCK):
            rows = np.arange(start, min(start + BLOCK, n))
            block = seen.logp[start : start + BLOCK]
            index = block.argmax(axis=1)  # of a NaN if there is one, otherwise of the first maximum
            best = block[np.arange(len(block)), index]
            bad = ~(np.exp(best) > 0)  # also if servers send -9999 for no mass
            logp = np.array(block.T, order="C")  # a copy, even if it is one row
            if bad.any():
                logp[:, bad] = 0.0
                best = np.where(bad, 0.0, best)
            logp -= best
            plain = logp.copy()  # ``solve`` may change its input
            logits = solve(rows, logp, index)
            some = [np.flatnonzero(near[rows, answer]) for answer in runners_up]
            tried = [
                solve(rows[few], plain[:, few], np.full(len(few), answer))
                for few, answer in zip(some, runners_up, strict=True)
            ]
            expected[0, rows], p, alone = ordered_mean(logits, seen.values, self.near)
            expected[1, rows], q, _ = ordered_mean(plain, seen.values)
            for place, (few, each) in enumerate(zip(some, tried, strict=True), 2):
                expected[place, rows[few]] = ordered_mean(each, seen.values, self.near)[0]
            answered[rows] = np.where(bad, np.nan, seen.values[index])
            if self.counts_ties:
                degenerate[rows] = (alone | (not self.uses_model)) & ~bad
            if bad.any():
                p[:, bad] = q[:, bad] = np.nan
                expected[:, rows[bad]] = np.nan
            distribution[rows], without_prior[rows] = p.T, q.T
        scale, stem = seen.scale, seen.stem
        raw = scale.score_answers(stem, answered)
        scores = scale.score(stem, expected)
        if self.decimal:  # all but smoothing are single answers
            scores = np.insert(
                scale.score_answers(stem, np.delete(expected, 1, 0)), 1, scores[1], 0
            )
        on_scale = np.minimum(scores, scale.maximum)
        if self.stem != "joint" and len(scale.stems) > 1:
            graded = graded_top(readings, stem, on_scale)
            on_scale[1] = graded[1]
            scores = {"graded": graded, "printed": scores}.get(self.stem, on_scale)
        else:
            scores = on_scale
        other = _furthest(scores[0], scores[2:], scale)
        return Decoded(
            seen.answers, distribution, raw, scores[0], degenerate, on_scale[1], other,
            without_prior,
        )  # fmt: skip


def _furthest(score: Floats, others: Floats, scale: Scale) -> Floats:
    """Choose from other scores (R, N) the furthest from each score; NaN if none is far."""
    other = np.full(len(score), np.nan)
    most = np.full(len(score), JUMP * (scale.maximum - scale.minimum))
    for found in others:
        apart = np.abs(found - score)
        far = apart > most  # never of NaN
        other, most = np.where(far, found, other), np.where(far, apart, most)
    return other


def _checked(solve: Solve, whose: str) -> Solve:
    """Return what a plug-in's ``prepare`` returned, with its results checked."""
    if not callable(solve):
        raise InputError(f"{whose}: prepare returned {solve!r}, not a function")

    def checked(rows: Indices, logp: Floats, raw: Indices) -> Floats:
        shape, logits = logp.shape, solve(rows, logp, raw)
        floats = isinstance(logits, np.ndarray) and logits.dtype.kind == "f"
        if not floats or logits.shape != shape or not np.isfinite(logits.max(axis=0)).all():
            raise InputError(f"{whose} did not return log p for every answer of each row")
        if ((logits >= 0) & (logits <= 1)).all() and logits.any():
            raise InputError(f"{whose} returned probabilities; return their logarithms")
        return logits

    return checked


def ordered_mean(
    logits: Floats, values: Floats, near: float = NEAR
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Compute E_p[v] (n,) in exact order, p ∝ exp(logits) (K, n), and whether p is one-hot (n,).

    The expectation of a confident model is so close to one value that floats round it there: at the
    printed formula's temperatures it is 1e-300 or less away. So if it is within ``near`` steps of a
    value v_i, its distance is computed in the log domain,

        E - v_i = Σ_d (v_(i+d) - v_i)·p_(i+d) - (v_i - v_(i-d))·p_(i-d),

    where equal terms cancel exactly. It is replaced by a distance that rises with the true one and
    that floats can distinguish (:func:`distinct_size`).

    >>> mean, p, alone = ordered_mean(np.array([[-60.0, -50, -np.inf], [0, 0, 0]]), np.arange(2.0))
    >>> bool(0.999999 < mean[1] < mean[0] < mean[2] == 1), alone.tolist(), p[1].tolist()
    (True, [False, False, True], [1.0, 1.0, 1.0])
    """
    gaps = logits - np.max(logits, axis=0)
    p = np.exp(gaps)
    p /= total(p)
    if (np.diff(values) <= 0).any():  # a custom scale: merge equal values, and sort
        values, place = np.unique(values, return_inverse=True)
        merged = [_log_total(gaps[place == number]) for number in range(len(values))]
        mean, _, alone = ordered_mean(np.array(merged), values, near)
        return mean, p, alone
    mean = np.zeros(p.shape[1])
    for value, row in zip(values, p, strict=True):
        mean += value * row
    alone = np.isneginf(gaps).sum(axis=0) == len(gaps) - 1
    middles = (values[1:] + values[:-1]) / 2
    nearest = np.searchsorted(middles, mean)
    near = near * np.diff(values).min(initial=1.0)
    close = np.flatnonzero((np.abs(mean - values[nearest]) < near) & ~alone)
    if not close.size:
        return mean, p, alone
    gaps, i = gaps[:, close], nearest[close]
    k, columns = len(values), np.arange(len(close))
    # Beyond the ends there is no mass, at any distance.
    padded = np.pad(gaps, ((k, k), (0, 0)), constant_values=-np.inf)
    apart = np.pad(values, k, constant_values=1.0)[:, None] - values[i]
    more, less = np.full((2, k - 1, len(close)), -np.inf)
    with np.errstate(divide="ignore"):
        padded = padded + np.log(np.abs(apart))
    for d in range(1, k):
        up, down = padded[k + i + d, columns], padded[k + i - d, columns]
        size = _log_difference(up, down)
        np.copyto(more[d - 1], size, where=up > down)
        np.copyto(less[d - 1], size, where=up < down)
    above, below = _log_total(more), _log_total(less)
    size = _log_difference(above, below) - _log_total(gaps)
    side = np.where(above < below, -1.0, 1.0)
    mean[close] = values[i] + side * distinct_size(size, near)
    return mean, p, alone


def distinct_size(log_size: Floats, near: float) -> Floats:
    """Convert log sizes (n,) to sizes; those below ``near`` become distinguishable, in order.

    x = log size / log near ranges from 1 to infinity, and near · 30 / (30 + log x) falls from
    ``near`` to 0 so slowly that floats next to a digit distinguish logarithms with a relative
    difference of 1e-7, or 1e-9 with near = 1e-3: about the precision of 32-bit log-probabilities.

    >>> distinct_size(np.array([-1e44, -1e43, -20.0, np.log(0.5)]), 1e-6).round(8).tolist()
    [2.3e-07, 2.4e-07, 9.9e-07, 0.5]
    """
    with np.errstate(over="ignore"):
        x = np.maximum(log_size / np.log(near), 1.0)
    return np.where(x > 1, near * 30 / (30 + np.log(x)), np.exp(np.minimum(log_size, 700.0)))


def _log_difference(a: Floats, b: Floats) -> Floats:
    """Compute log |exp(a) - exp(b)| (n,); -inf where they are equal."""
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.maximum(a, b) + np.log1p(-np.exp(-np.abs(a - b)))
    return np.where(a == b, -np.inf, size)


def _log_total(logs: Floats) -> Floats:
    """Compute log Σ_k exp(logs[k]) (n,) for (K, n), in the same order for any n."""
    most = logs.max(axis=0)
    shift = np.where(np.isfinite(most), most, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(shift + np.log(total(np.exp(logs - shift))))


def total(p: Floats) -> Floats:
    """Sum (K, n) over the answers in the same order for any n, unlike ``sum``."""
    result: Floats = p[0].copy()
    for row in p[1:]:
        result += row
    return result


def certain(index: Indices, k: int) -> Floats:
    """Make log p (k, n) with all mass on one answer per column."""
    logits = np.full((k, len(index)), -np.inf)
    logits[index, np.arange(len(index))] = 0.0
    return logits
