"""Bounds on the error of a score if a server omitted answers.

An omitted answer has a probability between 0 and a maximum that follows from the returned ones. If
p_k is proportional to a power of L_k times a constant, a score rises with the probability of any
answer above it and falls with that of any answer below. So at the extremes the omitted answers from
some value upwards have their maximum and the others zero, or the reverse, and these few cases are
decoded. For other divergences an extreme may lie between these cases, and there is no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from discode._scales import Scale
from discode.decoders._base import Decoder, greedy_stem, integer_logp
from discode.decoders._discode import POWERS, Discode
from discode.decoders._preset import PresetDecoder
from discode.decoders._simple import Fleur, PYes, Raw, Smoothing
from discode.readings import Readings
from discode.readings._sampled import draws_of

Floats = NDArray[np.float64]


def truncation_bound(decoder: Decoder, readings: Readings) -> Floats | None:
    """Compute the largest error (N,) that truncation may have caused.

    None if nothing is truncated, or if the decoder's extremes are not known.

    The n omitted answers are those that share the row's smallest probability f, with which they
    were filled in. Each is at most n·f, and at most the smallest probability that was returned.
    After a stem, tokens that begin with a digit ("85") may be missing for any answer: then each may
    have all of the remaining mass.

    >>> from discode.decoders import get_decoder
    >>> from discode._scales import FIVE
    >>> readings = Readings.of({"5": -0.2, "4": -2.0, "the": -4.0}, FIVE, missing="spread")
    >>> truncation_bound(get_decoder("smoothing"), readings).round(3).tolist()
    [0.148]
    >>> truncation_bound(get_decoder("raw"), readings).tolist()
    [0.0]
    >>> truncation_bound(get_decoder("beta"), readings) is None
    True
    """
    if isinstance(decoder, PresetDecoder):
        return _calibrated(decoder, readings, truncation_bound)
    rows = np.flatnonzero(np.asarray(readings.truncated))
    if not rows.size or not _has_bound(decoder):
        return None
    error = np.zeros(len(readings))
    part = replace(readings.take(rows), hidden=None, head=None, bias=None)
    # Whichever stem is likelier, joint has the answers after the first.
    joint = decoder.options().get("stem") == "joint"
    stem = np.zeros(len(rows), np.intp) if joint else greedy_stem(part)
    which = np.arange(len(rows))
    error[rows] = _spread(decoder, part, part.answer_logp[which, stem], "answer_logp", stem)
    if part.second_logp is not None:
        error[rows] += _spread(decoder, part, part.second_logp, "second_logp", stem)
    if decoder.options().get("stem") == "graded":
        error[rows] += _ungraded(part, stem)
    return error


def undrawn_bound(decoder: Decoder, readings: Readings) -> Floats | None:
    """Compute how much the answers that were never drawn may change scores (N,).

    With n draws, answers that were never drawn have together at most m = 1 - 0.05^(1/n), at 95 %
    confidence. The extremes give all of m to one of them, if a score's weights are powers of at
    least 1 of the probabilities. None if no row was sampled, or for other decoders.

    >>> from discode._scales import FIVE
    >>> from discode.decoders import get_decoder
    >>> from discode.readings._sampled import from_counts
    >>> sampled = from_counts(FIVE, np.array([[[0, 0, 0, 20, 0]]]), np.array([20]))
    >>> undrawn_bound(get_decoder("smoothing"), sampled).round(3).tolist()  # m = 0.139, for "1"
    [0.366]
    """
    if isinstance(decoder, PresetDecoder):
        return _calibrated(decoder, readings, undrawn_bound)
    draws = draws_of(readings)
    rows = np.flatnonzero(draws)
    if not rows.size or not _has_bound(decoder) or _flattens(decoder):
        return None
    part, which = readings.take(rows), np.arange(len(rows))
    stem = greedy_stem(part)
    most = np.log(-np.expm1(np.log(0.05) / draws[rows]))
    here, worst = decoder.decode(part).score, np.zeros(len(rows))
    for answer in range(len(part.scale.answers)):
        values = part.answer_logp.copy()
        own = values[which, stem, answer]
        values[which, stem, answer] = np.where(np.isneginf(own), most, own)
        varied = decoder.decode(_vary(part, "answer_logp", values)).score
        worst = np.fmax(worst, np.abs(varied - here))
    error = np.zeros(len(readings))
    error[rows] = worst
    return error


def _flattens(decoder: Decoder) -> bool:
    """Whether a score's weights may be powers below 1 of the probabilities."""
    options = decoder.options()
    tau = options.get("tau", 1)
    unit = options.get("alpha_scale") == "unit"
    return unit if tau == "alpha" else float(str(tau)) > 1


def _calibrated(
    preset: PresetDecoder,
    readings: Readings,
    bound: Callable[[Decoder, Readings], Floats | None],
) -> Floats | None:
    error = bound(preset.decoder, readings)
    calibration = preset.preset.calibration
    if error is None or calibration is None:
        return error
    score = preset.decoder.decode(readings).score
    low, here, high = (calibration.apply(score + shift) for shift in (-error, 0, error))
    return np.nan_to_num(np.maximum(high - here, here - low))


def _has_bound(decoder: Decoder) -> bool:
    """Whether :func:`_cases` covers the extremes."""
    if isinstance(decoder, Discode):  # a server that truncates returns no hidden states
        return decoder.divergence in POWERS and not decoder.requires
    return isinstance(decoder, Raw | Smoothing | Fleur | PYes)


def _ungraded(part: Readings, stem: NDArray[np.intp]) -> Floats:
    """Compute how much 1.0 may be too high (N,) if the probability of "0" was also omitted.

    The score is 1.0 - 0.1·P("0") / (P("0") + P("1")), and P("0") <= 1 - P("1"), P("1").
    """
    scale, last = part.scale, len(part.scale.stems) - 1
    if not last:
        return np.zeros(len(part))
    unknown = (stem == last) & np.isnan(integer_logp(part)[:, :-1]).any(axis=1)
    lead = part.stem_logp if part.lead_logp is None else part.lead_logp
    log_one = np.fmax(lead[:, last], part.stem_logp[:, last])  # "1" is as likely as "1." or more
    other = np.minimum(-np.expm1(np.nan_to_num(log_one, nan=-np.inf)), 0.5)
    return np.where(unknown, scale.step * other, 0.0)


def _spread(
    decoder: Decoder, part: Readings, logp: Floats, name: str, stem: NDArray[np.intp]
) -> Floats:
    """Compute the largest change of each score while the omitted answers of (N, K) vary."""
    here = decoder.decode(part).score
    worst = np.zeros(len(logp))
    for varied in _cases(logp, part.scale):
        values = varied
        if name == "answer_logp":
            values = part.answer_logp.copy()
            values[np.arange(len(logp)), stem] = varied
        # The check of Readings would refuse probabilities that add up to more than 1.
        score = decoder.decode(_vary(part, name, values)).score
        worst = np.fmax(worst, np.abs(score - here))
    return worst


def _cases(logp: Floats, scale: Scale) -> Iterator[Floats]:
    """Yield the extremes of (N, K) before answers were omitted."""
    smallest = logp.min(axis=1, keepdims=True)
    absent = logp == smallest
    count = absent.sum(axis=1, keepdims=True)
    sent = np.where(absent, np.inf, logp).min(axis=1, keepdims=True)
    # At least one answer was returned; if all are equal it is one of them, and none is above it.
    sent = np.where(np.isinf(sent), smallest, sent)
    low = np.where(absent, -np.inf, logp)
    high = np.where(absent, np.minimum(smallest + np.log(np.maximum(count, 1)), sent), logp)
    if any(scale.stems):
        left = 1 - np.exp(low).sum(axis=1, keepdims=True)
        high = np.log(np.exp(low) + np.maximum(left, np.exp(smallest)))
    best = logp.max(axis=1, keepdims=True)
    tied = (high > low) & (high >= best)  # may be as likely as the raw answer
    order = np.argsort(np.argsort(scale.values))
    # The raw answer's probability: the returned one, or another answer's, up to that one's maximum.
    raws: list[tuple[int | None, Floats]] = [(None, best)]
    for answer in np.flatnonzero(tied.any(axis=0)).tolist():
        own = np.where(tied[:, [answer]], high[:, [answer]], best)
        raws += [(answer, best), (answer, own)]
    for raw, most in raws:
        # Of equals the first is the raw answer; the others come as near as floats allow.
        below = np.where(high >= most, np.nextafter(most, -np.inf), high)
        for cut in range(len(order) + 1):
            for rising in (order >= cut, order < cut):
                varied = np.where(rising[None] & (high > low), below, low)
                if raw is not None:
                    varied[:, raw] = np.where(tied[:, raw], most[:, 0], varied[:, raw])
                yield varied


def _vary(part: Readings, name: str, values: Floats) -> Readings:
    """Copy readings with other numbers, whose sum may exceed 1 and is not checked."""
    varied = part.take(np.arange(len(part)))
    object.__setattr__(varied, name, values)
    return varied
