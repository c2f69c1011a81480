"""Reading an answer that the model wrote itself, the paper's and FLEUR's way.

A few tokens are generated greedily; T is the place where the first decimal (or, on scales without
stems, the answer) was written, and the probabilities of the answers are those at T. Slower than
forcing the stem, and it fails where the model writes no number; used on request, and as the way out
where forcing has little to do with what the model would have said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode.backends.local.vocabulary import Asked
from discode.readings import Readings

TOKENS = 10
"""Enough for "Score: 0.75"."""


@dataclass(frozen=True)
class Written:
    """What a model wrote: S tokens, and each step's log-probabilities (S, V) and state (S, D)."""

    tokens: list[int]
    pieces: list[str]
    logp: Any
    states: Any


def located(written: Written, asked: Asked) -> tuple[int, int] | None:
    """Return (stem, step T of the answer), or None where no answer stands.

    The text before T must end with the stem, and no digit or dot may stand before that: "10.5"
    holds no "0.".
    """
    text = ""
    for step, piece in enumerate(written.pieces):
        for number, stem in enumerate(asked.scale.stems):
            if not text.endswith(stem):
                continue
            before = text[: len(text) - len(stem)]
            if before and (before[-1].isdigit() or before[-1] == "."):
                continue
            wanted = piece if stem else piece.strip()
            if stem and wanted[:1] in asked.scale.answers:
                return number, step
            if not stem and wanted in asked.scale.answers:
                return number, step
        text += piece
    return None


def to_reading(written: Written, asked: Asked, head: NDArray[np.float32] | None) -> Readings:
    """Return the reading of one answer, or a NaN row that says what was written instead."""
    scale = asked.scale
    found = located(written, asked)
    if found is None:
        text = "".join(written.pieces)
        return Readings.failed(scale, [f"the model did not answer with a rating but {text!r}"])
    stem, place = found
    b, k = len(scale.stems), len(scale.answers)

    def answers(step: int) -> NDArray[np.float64]:
        row = written.logp[step]
        return np.array(
            [
                np.logaddexp.reduce(row[list(group)].astype(np.float64))
                for group in asked.answers[stem]
            ]
        ).clip(max=0)

    answer_logp = np.full((1, b, k), np.nan)
    answer_logp[0, stem] = answers(place)
    stem_logp, lead_logp = np.full((1, b), np.nan), np.full((1, b), np.nan)
    width = len(asked.stems[stem])
    chosen = [float(written.logp[s][written.tokens[s]]) for s in range(place - width, place)]
    stem_logp[0, stem] = min(0.0, sum(chosen))
    if width:
        lead_logp[0, stem] = min(0.0, chosen[0])
    second = None
    more = place + 1
    if asked.stems[stem] and more < len(written.pieces) and written.pieces[more][:1].isdigit():
        second = answers(more)[None]
    return Readings(
        scale,
        answer_logp,
        stem_logp,
        lead_logp=lead_logp if any(asked.stems) else None,
        second_logp=second,
        how=np.array(["generated"]),
        hidden=None if head is None else written.states[place][None],
        head=head,
    )
