"""Readings from what a server sent: tokens it wrote, and the likeliest others at each place.

Tokenizers cut "0.75" in many ways: ``0 . 75``, ``0. 7 5``, ``0 .7``, or one token. So the answer
is found in the text, and the token that holds its first decimal is the place T. What else could
have stood at T is read letter by letter: behind a written ``0``, the token ``.7`` is a 7
as ``.75`` is.
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


def to_reading(tokens: Sequence[Token], scale: Scale) -> Readings:
    """Return the reading of one answer, or a NaN row that says what was written instead.

    Answers that were not sent get the smallest probability that was, or an even share of the mass
    that is left if that is less; the row is flagged truncated then.

    >>> from discode.scales import FIVE
    >>> top = {"4": math.log(0.5), " 4": math.log(0.1), "5": math.log(0.2), "the": math.log(0.1)}
    >>> reading = to_reading([Token("4", top, math.log(0.5))], FIVE)
    >>> np.exp(reading.answer_logp[0, 0]).round(3).tolist(), reading.truncated.tolist()
    ([0.033, 0.033, 0.033, 0.6, 0.2], [True])
    """
    pieces = [token.text.translate(_MARKS) for token in tokens]
    text = "".join(pieces)
    found = _pattern(scale).search(text)
    if found is None:
        return Readings.failed(scale, [f"the model did not answer with a rating but {text!r}"])
    starts = list(itertools.accumulate(map(len, pieces), initial=0))
    first = bisect.bisect_right(starts, found.start(1)) - 1
    place = bisect.bisect_right(starts, found.start(2)) - 1
    junk = pieces[first][: found.start(1) - starts[first]]
    behind = text[found.start(1) : max(found.start(1), starts[place])]
    stem = scale.stems.index(found[1])
    b, k = len(scale.stems), len(scale.answers)
    answer_logp, stem_logp = np.full((1, b, k), np.nan), np.full((1, b), np.nan)
    lead_logp = np.full((1, b), np.nan)
    top = _candidates(tokens[place])
    one = first == place  # all in one token: the stem with the larger mass, as everywhere
    spelled = {
        number: _behind(top, scale, number, behind, "" if behind else junk)
        for number in (range(b) if one else (stem,))
    }
    stem = max(spelled, key=lambda number: spelled[number][1])
    answers, mass, absent = spelled[stem]
    if not found[1] and _only(pieces[place].removeprefix(junk), scale) != found[2]:
        reason = f"the model writes {found[2]!r} in several tokens; take another scale (unit, five)"
        return Readings.failed(scale, [reason])
    answer_logp[0, stem] = answers
    chosen = [_logp(token) for token in tokens[first:place]]
    stem_logp[0, stem] = sum(chosen) + (mass if scale.stems[stem] else 0.0)
    for other, (_, seen, _) in spelled.items() if scale.stems[stem] else ():
        if other != stem and seen > -math.inf:
            stem_logp[0, other] = seen
    for number in range(b):
        lead_logp[0, number] = _lead(_candidates(tokens[first]), scale.stems[number], junk)
    second = None
    alone = pieces[place][found.start(2) - starts[place] :] == found[2]
    if found[1] and alone and pieces[place + 1 :] and pieces[place + 1][:1].isdigit():
        digits, _, more = _behind(_candidates(tokens[place + 1]), scale, stem, found[1], "")
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
    """Find the stem (group 1) and the answer (group 2); "10.5" holds no "0."."""
    answers = _either(scale.answers)
    if any(scale.stems):
        return re.compile(rf"(?<![\d.])({_either(scale.stems)})({answers})")
    return re.compile(rf"(?<![\w.])()({answers})(?!\w)")


def _either(words: Sequence[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


@functools.lru_cache
def _answer_alone(scale: Scale) -> re.Pattern[str]:
    return re.compile(rf"\s*({_either(scale.answers)})(?!\w)")


def _only(text: str, scale: Scale) -> str | None:
    """Return the answer that a token of a scale without stems spells; "B)" is a B, "45" no 4."""
    found = _answer_alone(scale).match(text.translate(_MARKS))
    return found[1] if found else None


def _logp(token: Token) -> float:
    return token.top.get(token.text, -math.inf) if math.isnan(token.logp) else token.logp


def _candidates(token: Token) -> dict[str, float]:
    """Return what could have stood here; the token itself may be missing from a server's list."""
    return {token.text: _logp(token), **token.top}


def _behind(
    top: Mapping[str, float], scale: Scale, stem: int, behind: str, junk: str
) -> tuple[Floats, float, bool]:
    """Return log P(answer | stem) (K,), log P(the rest of the stem), and whether any was absent.

    ``behind`` is the part of the stem that stands before this place, ``junk`` what was glued to the
    number's front.
    """
    wanted = scale.stems[stem]
    known: dict[str, list[float]] = {}
    bare = -math.inf  # the stem alone: its answer would stand in the next token
    for text, logp in top.items():
        said = text.translate(_MARKS)
        if wanted:
            said = behind + (said if behind else said.removeprefix(junk).lstrip())
            rest = said[len(wanted) :] if said.startswith(wanted) else ""
            if said == wanted:
                bare = float(np.logaddexp(bare, logp))
            if rest[:1] in scale.answers:
                known.setdefault(rest[0], []).append(logp)
        elif (answer := _only(said.removeprefix(junk), scale)) is not None:
            known.setdefault(answer, []).append(logp)
    absent = [answer for answer in scale.answers if answer not in known]
    left = max(1.0 - float(np.exp(list(top.values())).sum()), 0.0) / max(len(absent), 1)
    fill = min(min(top.values()), math.log(left) if left else -math.inf)
    joint = np.array(
        [float(np.logaddexp.reduce(known[a])) if a in known else fill for a in scale.answers]
    )
    if not known:
        return joint, -math.inf, True
    if not wanted or behind == wanted:
        return joint, 0.0, bool(absent)
    whole = np.logaddexp.reduce([*joint, bare])
    seen = np.logaddexp.reduce([bare, *(logp for values in known.values() for logp in values)])
    return joint - whole, float(seen), bool(absent)


def _lead(top: Mapping[str, float], stem: str, junk: str) -> float:
    """Return log P of what begins as the stem does, spelled as the model spells it."""
    found = []
    for text, logp in top.items():
        said = text.translate(_MARKS)
        rest = said.removeprefix(junk) if said.startswith(junk) else ""
        if rest and (rest.startswith(stem) or stem.startswith(rest)):
            found.append(logp)
    return float(np.logaddexp.reduce(found)) if found and stem else math.nan
