"""Decoders without a prior: the raw answer, its smoothed value, and FLEUR's score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from discode.decoders.base import (
    READINGS,
    Decoded,
    check_choice,
    decode_view,
    greedy_stem,
    one_hot,
    softmax,
    view,
)
from discode.errors import InputError
from discode.readings import Readings


@dataclass(frozen=True, kw_only=True)
class _Simple:
    reading: str = "greedy"

    name = ""
    requires = frozenset[str]()

    def __post_init__(self) -> None:
        check_choice("reading", self.reading, READINGS)

    def options(self) -> dict[str, object]:
        """Return the options for the signature."""
        return {"reading": self.reading}


class Raw(_Simple):
    """The answer with the highest probability: what greedy decoding prints.

    The distribution is one-hot by definition, hence never counted as degenerate.
    """

    name = "raw"

    def decode(self, readings: Readings) -> Decoded:
        """Decode N readings."""
        seen = view(readings, self.reading)
        k = seen.logp.shape[1]
        return decode_view(seen, lambda rows, logp, raw: one_hot(raw, k), degenerate=False)


class Smoothing(_Simple):
    """The expectation under the token probabilities, renormalised over the answers.

    ŝ = Σ_k v_k p(k) / Σ_k p(k); off-scale mass drops out.
    """

    name = "smoothing"

    def decode(self, readings: Readings) -> Decoded:
        """Decode N readings."""
        return decode_view(view(readings, self.reading), lambda rows, logp, raw: softmax(logp))


@dataclass(frozen=True)
class Fleur:
    """FLEUR's score smoothing, with full-vocabulary probabilities (scale ``unit`` only).

    Raw score below 1: Σ_d 0.1·d·p(d) at the first decimal, plus Σ_d 0.01·d·p₂(d) where a
    second decimal was generated. Raw score 1.0: 0.9·p('0') + p('1') at the integer token.
    Nothing is renormalised, so mass off the digits counts as 0 and the rows of
    ``distribution`` add up to less than 1.
    """

    name = "fleur"
    requires = frozenset[str]()

    def options(self) -> dict[str, object]:
        """Return the options for the signature."""
        return {}

    def decode(self, readings: Readings) -> Decoded:
        """Decode N readings."""
        if len(readings.scale.stems) == 1:
            raise InputError(
                f"method 'fleur' is defined on scale 'unit' only, not on {readings.scale.name!r}; "
                "use 'smoothing'"
            )
        raw = Raw().decode(readings).score
        stem = greedy_stem(readings)
        seen = view(readings)
        p = np.exp(seen.logp)
        score = 0.1 * weighted_sum(p, seen.values)
        if readings.second_logp is not None:
            second = 0.01 * weighted_sum(np.exp(readings.second_logp), seen.values)
            score += np.where(np.isnan(second), 0.0, second)
        lead = readings.stem_logp if readings.lead_logp is None else readings.lead_logp
        integer = np.exp(lead)
        score = np.where(stem == 1, 0.9 * integer[:, 0] + integer[:, 1], score)
        # Rounded log-probabilities may add up to a hair over 1.
        score = np.where(np.isnan(raw), np.nan, np.minimum(score, readings.scale.maximum))
        return Decoded(seen.answers, p, raw, score, np.zeros(len(readings), bool))


def weighted_sum(p: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return Σ_k p[:, k]·values[k], added up in the same order for any number of rows."""
    total = np.zeros(len(p))
    for k, value in enumerate(values):
        total += value * p[:, k]
    return total
