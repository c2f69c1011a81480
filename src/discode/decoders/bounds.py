"""How wrong a score may be where a server left answers out.

An answer that was not sent has a probability between 0 and a largest one that follows from what was
sent. Scores are expectations: with all else fixed they rise with the probabilities of the answers
above them and fall with those below. So the extremes lie where the absent answers from some value
upwards have the largest probability and the others none, or the other way round, and these few
cases are decoded.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from discode.decoders.base import Decoder, greedy_stem
from discode.readings import Readings

Floats = NDArray[np.float64]


def truncation_bound(decoder: Decoder, readings: Readings) -> Floats | None:
    """Return the largest error (N,) that truncation may have caused; None if nothing is truncated.

    Absent are the answers that share the row's smallest probability f, n of them: that is how they
    are filled in. Each is at most n·f, and not above the smallest probability that was sent.

    >>> from discode.decoders import get_decoder
    >>> from discode.scales import FIVE
    >>> readings = Readings.of({"5": -0.2, "4": -2.0, "the": -4.0}, FIVE, missing="spread")
    >>> truncation_bound(get_decoder("smoothing"), readings).round(3).tolist()
    [0.148]
    >>> truncation_bound(get_decoder("raw"), readings).tolist()
    [0.0]
    """
    rows = np.flatnonzero(np.asarray(readings.truncated))
    if not rows.size or decoder.requires:  # a server that truncates gives no hidden states
        return None
    error = np.zeros(len(readings))
    part = replace(readings.take(rows), hidden=None, head=None, bias=None)
    stem = greedy_stem(part)
    which = np.arange(len(rows))
    error[rows] = _spread(decoder, part, part.answer_logp[which, stem], "answer_logp", stem)
    if part.second_logp is not None:
        error[rows] += _spread(decoder, part, part.second_logp, "second_logp", stem)
    return error


def _spread(
    decoder: Decoder, part: Readings, logp: Floats, name: str, stem: NDArray[np.intp]
) -> Floats:
    """Return the largest change of each score while the absent answers of (N, K) vary."""
    here = decoder.decode(part).score
    smallest = logp.min(axis=1, keepdims=True)
    absent = logp == smallest
    count = absent.sum(axis=1, keepdims=True)
    sent = np.where(absent, np.inf, logp).min(axis=1, keepdims=True)
    largest = np.minimum(smallest + np.log(np.maximum(count, 1)), sent)
    order = np.argsort(np.argsort(part.scale.values))
    worst = np.zeros(len(logp))
    for cut in range(logp.shape[1] + 1):
        for high in (order >= cut, order < cut):
            varied = np.where(absent, np.where(high[None], largest, -np.inf), logp)
            values = varied
            if name == "answer_logp":
                values = part.answer_logp.copy()
                values[np.arange(len(logp)), stem] = varied
            # The check of Readings would refuse probabilities that add up to more than 1.
            score = decoder.decode(_vary(part, name, values)).score
            worst = np.fmax(worst, np.abs(score - here))
    return worst


def _vary(part: Readings, name: str, values: Floats) -> Readings:
    """Return readings with other numbers, whose sum may exceed 1 and is not checked."""
    varied = part.take(np.arange(len(part)))
    object.__setattr__(varied, name, values)
    return varied
