"""Decoders without a prior: the raw answer, its smoothed value, and FLEUR's score."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from discode.decoders._base import (
    NEAR,
    Alternatives,
    Decoded,
    DistributionDecoder,
    Floats,
    Solve,
    alternatives,
    certain,
    distinct_size,
    greedy_stem,
    integer_logp,
)
from discode.errors import InputError
from discode.options import Configurable, option, with_options_documented
from discode.readings import Readings


@with_options_documented
@dataclass(frozen=True, kw_only=True)
class Raw(DistributionDecoder):
    """The answer with the highest probability, as in greedy decoding.

    The distribution is one-hot by definition, so it is never marked as degenerate, and 1.0 is not
    graded.
    """

    stem: str = option(
        "greedy",
        "the likeliest answer after the likelier stem, or of all values of scale unit (joint)",
        "greedy",
        "joint",
    )

    name = "raw"
    counts_ties = False
    decimal = True

    def prepare(self, seen: Alternatives, readings: Readings) -> Solve:
        """Assign all mass to the raw answer."""
        return lambda rows, logp, raw: certain(raw, len(logp))


@with_options_documented
@dataclass(frozen=True, kw_only=True)
class Smoothing(DistributionDecoder):
    """The expectation under the token probabilities, renormalised over the answers.

    ŝ = Σ_k v_k p(k) / Σ_k p(k); off-scale mass drops out.
    """

    name = "smoothing"
    centred = False

    def prepare(self, seen: Alternatives, readings: Readings) -> Solve:
        """Renormalise the token probabilities."""
        return lambda rows, logp, raw: logp


@dataclass(frozen=True)
class Fleur(Configurable):
    """FLEUR's score smoothing, with full-vocabulary probabilities (scale ``unit`` only).

    Raw score below 1: Σ_d 0.1·d·p(d) at the first decimal, plus Σ_d 0.01·d·p₂(d) where a
    second decimal other than 0 was generated (FLEUR reads "0.80" as 0.8). Raw score 1.0:
    0.9·p('0') + p('1') at the integer token. Nothing is renormalised, so mass off the digits
    counts as 0 and the rows of ``distribution`` sum to less than 1. Sums that floats would round
    to their highest value keep their order (:func:`~discode.decoders._base.distinct_size`).
    """

    name = "fleur"
    requires = frozenset[str]()

    def decode(self, readings: Readings) -> Decoded:
        """Decode N readings."""
        if len(readings.scale.stems) == 1:
            raise InputError(
                f"method 'fleur' requires scale 'unit', not {readings.scale.name!r}; "
                "use 'smoothing'"
            )
        plain = Smoothing().decode(readings)
        raw = plain.raw
        stem = greedy_stem(readings)
        seen = alternatives(readings)
        p = np.exp(seen.logp)
        score = 0.1 * _weighted_sum(seen.logp, seen.values)
        if readings.second_logp is not None:
            second = 0.01 * _weighted_sum(readings.second_logp, seen.values)
            written = readings.second_logp.argmax(axis=1) != 0
            score += np.where(written & ~np.isnan(second), second, 0.0)
        whole = _weighted_sum(integer_logp(readings), np.array([0.9, 1.0]))
        score = np.where(stem == 1, whole, score)
        # Rounded log-probabilities may sum to slightly more than 1.
        score = np.where(np.isnan(raw), np.nan, np.minimum(score, readings.scale.maximum))
        degenerate = np.zeros(len(readings), bool)
        return Decoded(
            seen.answers, p, raw, score, degenerate, plain.score, plain=plain.distribution
        )


@dataclass(frozen=True)
class PYes(Configurable):
    """VQAScore: P("Yes") under the full vocabulary, as published (scale ``yes-no`` only).

    Unlike smoothing, P("Yes") / (P("Yes") + P("No")), it counts the probability of every other
    token against the caption.

    >>> from discode._scales import YES_NO
    >>> readings = Readings.of(np.log([[0.2, 0.6]]), YES_NO)
    >>> PYes().decode(readings).score.round(3), Smoothing().decode(readings).score.round(3)
    (array([0.6]), array([0.75]))
    """

    name = "p-yes"
    requires = frozenset[str]()

    def decode(self, readings: Readings) -> Decoded:
        """Decode N readings."""
        if readings.scale.answers != ("No", "Yes"):
            raise InputError(
                f"method 'p-yes' is defined on scale 'yes-no' only, not {readings.scale.name!r}; "
                "use 'smoothing'"
            )
        plain = Smoothing().decode(readings)
        logp = readings.answer_logp[:, 0]
        # Rounded log-probabilities may exceed 0.
        score = np.where(np.isnan(plain.raw), np.nan, np.minimum(np.exp(logp[:, 1]), 1.0))
        return replace(plain, score=score, distribution=np.exp(logp), other=None)


def _weighted_sum(logp: Floats, values: Floats) -> Floats:
    """Compute Σ_k values[k]·exp(logp[:, k]), in the same order for any number of rows.

    Near the value v of its largest term, the sum is v minus the remainder, in exact order.
    """
    top = np.nan_to_num(logp, nan=-np.inf).argmax(axis=1)
    result, missing = np.zeros(len(logp)), -values[top] * np.expm1(logp[np.arange(len(logp)), top])
    for k, value in enumerate(values):
        part = value * np.exp(logp[:, k])
        result += part
        missing -= np.where(top == k, 0.0, part)
    near = (missing > 0) & (missing < NEAR)
    result[near] = values[top[near]] - distinct_size(np.log(missing[near]), NEAR)
    return result
