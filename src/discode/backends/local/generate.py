"""Readings of answers that the model generates itself, as in the paper and in FLEUR.

We let the model generate a few tokens, greedily; T is the position of the first decimal (or, on
scales without stems, of the answer), and the probabilities of the answers are those at T. This is
slower than forcing the stem, and fails where the model writes no number. It is used on request, and
where the forced stem is unlikely for the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode.backends.local.vocabulary import TokenizedPrompt
from discode.readings import Readings

MAX_NEW_TOKENS = 10
"""Enough for "Score: 0.75"."""


@dataclass(frozen=True)
class GeneratedText:
    """S generated tokens, and the log-probabilities (S, V) and the state (S, D) of each step."""

    tokens: list[int]
    pieces: list[str]
    logp: Any
    states: Any


def find_answer(generated: GeneratedText, tokenized: TokenizedPrompt) -> tuple[int, int] | None:
    """Return (stem, step T of the answer), or None where there is no answer.

    The text before T must end with the stem, and no digit or dot may come before that: "10.5" does
    not contain the stem "0.".
    """
    text = ""
    for step, piece in enumerate(generated.pieces):
        for number, stem in enumerate(tokenized.scale.stems):
            if not text.endswith(stem):
                continue
            before = text[: len(text) - len(stem)]
            if before and (before[-1].isdigit() or before[-1] == "."):
                continue
            wanted = piece if stem else piece.strip()
            if stem and wanted[:1] in tokenized.scale.answers:
                return number, step
            if not stem and wanted in tokenized.scale.answers:
                return number, step
        text += piece
    return None


def reading_from_generated(
    generated: GeneratedText, tokenized: TokenizedPrompt, head: NDArray[np.float32] | None
) -> Readings:
    """Return the reading of one answer, or a NaN row that says what was written instead."""
    scale = tokenized.scale
    found = find_answer(generated, tokenized)
    if found is None:
        text = "".join(generated.pieces)
        return Readings.failed(scale, [f"the model did not answer with a rating but with {text!r}"])
    stem, step_t = found
    b, k = len(scale.stems), len(scale.answers)

    def answers(step: int) -> NDArray[np.float64]:
        row = generated.logp[step]
        return np.array(
            [
                np.logaddexp.reduce(row[list(group)].astype(np.float64))
                for group in tokenized.answers[stem]
            ]
        ).clip(max=0)

    answer_logp = np.full((1, b, k), np.nan)
    answer_logp[0, stem] = answers(step_t)
    stem_logp, lead_logp = np.full((1, b), np.nan), np.full((1, b), np.nan)
    width = len(tokenized.stems[stem])
    chosen = [float(generated.logp[s][generated.tokens[s]]) for s in range(step_t - width, step_t)]
    stem_logp[0, stem] = min(0.0, sum(chosen))
    if width:
        lead_logp[0, stem] = min(0.0, chosen[0])
    second = None
    more = step_t + 1
    if (
        tokenized.stems[stem]
        and more < len(generated.pieces)
        and generated.pieces[more][:1].isdigit()
    ):
        second = answers(more)[None]
    return Readings(
        scale,
        answer_logp,
        stem_logp,
        lead_logp=lead_logp if any(tokenized.stems) else None,
        second_logp=second,
        how=np.array(["generated"]),
        hidden=None if head is None else generated.states[step_t][None],
        head=head,
    )
