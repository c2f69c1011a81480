"""Readings from a server's answer: the tokens written, and the likeliest ones at each position.

Tokenizers cut "0.75" in many ways: ``0 . 75``, ``0. 7 5``, ``0 .7``, or one token. So we find the
answer in the text; the token that holds its first decimal is at position T. The other tokens that
were likely at T are read letter by letter: after a written ``0``, ``.7`` is a 7, and so is ``.75``.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from discode.backends.served.client import Token
from discode.readings import Readings
from discode.scales import Scale

Floats = NDArray[np.float64]
_MARKS = str.maketrans({"▁": " ", "Ġ": " ", "Ċ": "\n"})


def reading_from_tokens(tokens: Sequence[Token], scale: Scale) -> Readings:
    """Return the reading of one answer, or a NaN row that says what was written instead.

    Answers that are missing from the list get the smallest probability in it, or an equal share of
    the remaining mass if that is less; the row is then flagged truncated.

    >>> from discode.scales import FIVE
    >>> top = {"4": math.log(0.5), " 4": math.log(0.1), "5": math.log(0.2), "the": math.log(0.1)}
    >>> reading = reading_from_tokens([Token("4", top, math.log(0.5))], FIVE)
    >>> np.exp(reading.answer_logp[0, 0]).round(3).tolist(), reading.truncated.tolist()
    ([0.033, 0.033, 0.033, 0.6, 0.2], [True])
    """
    pieces = [token.text.translate(_MARKS) for token in tokens]
    text = "".join(pieces)
    found = _pattern(scale).search(text)
    if found is None:
        return Readings.failed(scale, [f"the model did not answer with a rating but with {text!r}"])
    starts = list(itertools.accumulate(map(len, pieces), initial=0))
    first = bisect.bisect_right(starts, found.start(1)) - 1
    at = bisect.bisect_right(starts, found.start(2)) - 1
    junk = pieces[first][: found.start(1) - starts[first]]
    written = text[found.start(1) : max(found.start(1), starts[at])]
    stem = scale.stems.index(found[1])
    b, k = len(scale.stems), len(scale.answers)
    answer_logp, stem_logp = np.full((1, b, k), np.nan), np.full((1, b), np.nan)
    lead_logp = np.full((1, b), np.nan)
    top = _candidates(tokens[at])
    one = first == at  # all in one token: take the stem with the larger mass, as elsewhere
    by_stem = {
        number: _answers_at(top, scale, number, written, "" if written else junk)
        for number in (range(b) if one else (stem,))
    }
    stem = max(by_stem, key=lambda number: by_stem[number][1])
    answers, mass, absent = by_stem[stem]
    if not found[1] and _whole_answer(pieces[at].removeprefix(junk), scale) != found[2]:
        reason = f"the model writes {found[2]!r} in several tokens; take another scale (unit, five)"
        return Readings.failed(scale, [reason])
    answer_logp[0, stem] = answers
    chosen = [_token_logp(token) for token in tokens[first:at]]
    stem_logp[0, stem] = sum(chosen) + (mass if scale.stems[stem] else 0.0)
    for other, (_, seen, _) in by_stem.items() if scale.stems[stem] else ():
        if other != stem and seen > -math.inf:
            stem_logp[0, other] = seen
    for number in range(b):
        lead_logp[0, number] = _lead(_candidates(tokens[first]), scale.stems[number], junk)
    second = None
    alone = pieces[at][found.start(2) - starts[at] :] == found[2]
    if found[1] and alone and pieces[at + 1 :] and pieces[at + 1][:1].isdigit():
        digits, _, more = _answers_at(_candidates(tokens[at + 1]), scale, stem, found[1], "")
        second, absent = digits[None], absent or more
    return Readings(
        scale,
        answer_logp.clip(max=0),
        stem_logp.clip(max=0),
        lead_logp=lead_logp.clip(max=0) if any(scale.stems) else None,
        second_logp=None if second is None else second.clip(max=0),
        truncated=np.array([absent]),
        how=np.array(["generated"]),
    )


@functools.lru_cache
def _pattern(scale: Scale) -> re.Pattern[str]:
    """Find the stem (group 1) and the answer (group 2); "10.5" does not contain the stem "0."."""
    answers = _either(scale.answers)
    if any(scale.stems):
        return re.compile(rf"(?<![\d.])({_either(scale.stems)})({answers})")
    return re.compile(rf"(?<![\w.])()({answers})(?!\w)")


def _either(words: Sequence[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


@functools.lru_cache
def _answer_alone(scale: Scale) -> re.Pattern[str]:
    return re.compile(rf"\s*({_either(scale.answers)})(?!\w)")


def _whole_answer(text: str, scale: Scale) -> str | None:
    """Return the answer that a token is on a scale without stems; "B)" is B, "45" is not 4."""
    found = _answer_alone(scale).match(text.translate(_MARKS))
    return found[1] if found else None


def _token_logp(token: Token) -> float:
    return token.top.get(token.text, -math.inf) if math.isnan(token.logp) else token.logp


def _candidates(token: Token) -> dict[str, float]:
    """Return the likely tokens; the one written may be missing from a server's list."""
    return {token.text: _token_logp(token), **token.top}


def _answers_at(
    top: Mapping[str, float], scale: Scale, stem: int, written: str, junk: str
) -> tuple[Floats, float, bool]:
    """Return log P(answer | stem) (K,), log P(the rest of the stem), and whether any is absent.

    ``written`` is the part of the stem before this position, ``junk`` whatever is glued to the
    front of the number in the same token.
    """
    wanted = scale.stems[stem]
    known: dict[str, list[float]] = {}
    bare = -math.inf  # the stem alone: its answer would be the next token
    for text, logp in top.items():
        piece = text.translate(_MARKS)
        if wanted:
            piece = written + (piece if written else piece.removeprefix(junk).lstrip())
            rest = piece[len(wanted) :] if piece.startswith(wanted) else ""
            if piece == wanted:
                bare = float(np.logaddexp(bare, logp))
            if rest[:1] in scale.answers:
                known.setdefault(rest[0], []).append(logp)
        elif (answer := _whole_answer(piece.removeprefix(junk), scale)) is not None:
            known.setdefault(answer, []).append(logp)
    absent = [answer for answer in scale.answers if answer not in known]
    left = max(1.0 - float(np.exp(list(top.values())).sum()), 0.0) / max(len(absent), 1)
    fill = min(min(top.values()), math.log(left) if left else -math.inf)
    joint = np.array(
        [float(np.logaddexp.reduce(known[a])) if a in known else fill for a in scale.answers]
    )
    if not known:
        return joint, -math.inf, True
    if not wanted or written == wanted:
        return joint, 0.0, bool(absent)
    whole = np.logaddexp.reduce([*joint, bare])
    seen = np.logaddexp.reduce([bare, *(logp for values in known.values() for logp in values)])
    return joint - whole, float(seen), bool(absent)


def _lead(top: Mapping[str, float], stem: str, junk: str) -> float:
    """Return log P of the tokens that begin as the stem does, cut as the model cuts it."""
    found = []
    for text, logp in top.items():
        piece = text.translate(_MARKS)
        rest = piece.removeprefix(junk) if piece.startswith(junk) else ""
        if rest and (rest.startswith(stem) or stem.startswith(rest)):
            found.append(logp)
    return float(np.logaddexp.reduce(found)) if found and stem else math.nan
