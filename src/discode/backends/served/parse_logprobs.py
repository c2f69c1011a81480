"""Readings from a server's answer: the tokens written, and the likeliest ones at each position.

The answer may come from our own client or, as JSON, from anyone's: whole responses of OpenAI's
interfaces, or the parts of them that hold log-probabilities.

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode.errors import InputError
from discode.readings import Readings
from discode.readings.base import POSITIVE_TOLERANCE, absent_answers
from discode.scales import UNIT, Scale

Floats = NDArray[np.float64]
_MARKS = str.maketrans({"▁": " ", "Ġ": " ", "Ċ": "\n"})
ASK_CHAT = "ask for logprobs=True, top_logprobs=20"
ASK_COMPLETIONS = "ask for logprobs=5"
ASK_RESPONSES = 'ask for include=["message.output_text.logprobs"], top_logprobs=20'


@dataclass(frozen=True)
class Token:
    """A token that the model wrote, and log-probabilities of the likeliest tokens in its place."""

    text: str
    top: Mapping[str, float]
    logp: float = math.nan

    @classmethod
    def parse(cls, item: Mapping[str, Any]) -> Token:
        """Read one position of OpenAI's ``logprobs``; anything else raises.

        Probabilities of tokens with equal text are added, repeated rows dropped.
        """
        seen: dict[str, set[float]] = {}
        for top in item.get("top_logprobs") or ():
            logp = _logp(top)
            if math.isnan(logp):
                raise ValueError(f"log-probability {logp} of {top['token']!r}")
            seen.setdefault(str(top["token"]), set()).add(logp)
        merged = {
            text: min(0.0, float(np.logaddexp.reduce(sorted(values))))
            for text, values in seen.items()
        }
        return cls(str(item["token"]), merged, _logp(item) if "logprob" in item else math.nan)


def _logp(item: Mapping[str, Any]) -> float:
    logp = float(item["logprob"])
    if logp > POSITIVE_TOLERANCE:
        raise ValueError(f"log-probability {logp} of {item['token']!r}")
    return min(logp, 0.0)


@dataclass(frozen=True)
class GivenReadings:
    """Readings from JSON; ``places`` says which token, of how many, held each answer."""

    readings: Readings
    places: tuple[tuple[int, int] | None, ...] = ()


def readings_from_json(given: Any, scale: Scale, *, missing: str = "nan") -> GivenReadings | None:
    """Read responses of OpenAI's interfaces, or parts of them; None for anything else.

    That is: a response of chat completions, completions or Responses, one of its choices, its
    ``logprobs``, a list of positions, or one position, as JSON or as objects of OpenAI's package;
    or a sequence of these, among which mappings of tokens may stand. One position is the answer's
    own; among several it is found.

    >>> from discode.scales import FIVE
    >>> top = [{"token": str(n), "logprob": math.log(0.2)} for n in range(1, 6)]
    >>> content = [{"token": t, "logprob": -1.7, "top_logprobs": top} for t in ("I", " say ", "4")]
    >>> given = readings_from_json({"choices": [{"logprobs": {"content": content}}]}, FIVE)
    >>> given.places, given.readings.errors
    (((2, 3),), {})
    """
    first = given
    while isinstance(first, list | tuple) and first:
        first = first[0]
    if not isinstance(first, Mapping) and not hasattr(first, "model_dump"):
        return None  # numbers, of which there may be millions
    answers = _answers_in(_plain(given))
    if answers is None:
        return None
    parts: list[Readings] = []
    places: list[tuple[int, int] | None] = []
    for answer in answers:
        place = None
        try:
            if isinstance(answer, InputError):
                raise answer
            if isinstance(answer, Token | Mapping):
                top = _candidates(answer) if isinstance(answer, Token) else answer
                part = Readings.of(top, scale, missing=missing)
            else:
                part = reading_from_tokens(answer, scale, missing=missing)
                found = _find(answer, scale)
                place = None if found is None else (found.at, len(answer))
        except InputError as error:
            if not isinstance(given, list | tuple):
                raise
            # The others are not lost; nor is this the first of them.
            part = Readings.failed(scale, [str(error).removeprefix("row 0: ")])
        parts.append(part)
        places.append(place)
    return GivenReadings(Readings.concat(scale, parts), tuple(places))


def _plain(given: Any) -> Any:
    """Return the JSON of OpenAI's objects, in a list, too."""
    if isinstance(given, list | tuple):
        return [_plain(item) for item in given]
    return given.model_dump() if hasattr(given, "model_dump") else given


_Answer = Token | list[Token] | Mapping[str, Any] | InputError
"""One position, an answer's tokens, a mapping of tokens, or why there are none."""


def _answers_in(given: Any) -> list[_Answer] | None:
    """Return the answers in OpenAI's JSON, or in a list of such; None where it is neither."""
    if not isinstance(given, list):
        return _answers_of(given) if isinstance(given, Mapping) else None
    if given and all(isinstance(item, Mapping) and "top_logprobs" in item for item in given):
        return [_tokens(given)]  # the positions of one answer
    found: list[_Answer] = []
    known = False
    for item in given:
        try:
            answers = _answers_in(item)
        except InputError as error:
            answers = [error]
        if answers is not None:
            found += answers
            known = True
        elif isinstance(item, Mapping) and "token" not in item:  # which is part of a row
            found.append(item)
        else:
            return None
    return found if known else None


def _answers_of(given: Mapping[str, Any]) -> list[_Answer] | None:
    if isinstance(given.get("error"), Mapping):
        raise InputError(f"an error, not an answer: {given['error'].get('message')}")
    if isinstance(given.get("response"), Mapping) and "custom_id" in given:  # a line of a batch
        return _answers_of(given["response"].get("body") or {})
    if isinstance(given.get("choices"), list):
        if not given["choices"]:
            raise InputError("the response has no choices, so no answer")
        return [_of_choice(choice) for choice in given["choices"]]
    if isinstance(given.get("output"), list):
        return [_of_responses(given["output"])]
    if "token" in given and isinstance(given.get("top_logprobs"), list):
        return [*_tokens([given])]
    if isinstance(given.get("message"), Mapping) or isinstance(given.get("logprobs"), Mapping):
        return [_of_choice(given)]
    if isinstance(given.get("content"), list) or isinstance(given.get("tokens"), list):
        return [_of_logprobs(given)]
    return None


def _of_choice(choice: Any) -> list[Token]:
    logprobs = choice.get("logprobs") if isinstance(choice, Mapping) else None
    if not isinstance(logprobs, Mapping):
        ask = ASK_CHAT if isinstance(choice, Mapping) and "message" in choice else ASK_COMPLETIONS
        raise InputError(f"the response has no log-probabilities; {ask}")
    return _of_logprobs(logprobs)


def _of_logprobs(logprobs: Mapping[str, Any]) -> list[Token]:
    if isinstance(logprobs.get("tokens"), list):  # of completions: three lists
        written, own = logprobs["tokens"], logprobs.get("token_logprobs") or ()
        lists = itertools.zip_longest(written, own, logprobs.get("top_logprobs") or ())
        return _tokens(
            {
                "token": token,
                "logprob": math.nan if logp is None else logp,
                "top_logprobs": [{"token": t, "logprob": p} for t, p in (top or {}).items()],
            }
            for token, logp, top in lists
        )
    if not logprobs.get("content"):
        raise InputError(f"the response has no log-probabilities; {ASK_CHAT}")
    return _tokens(logprobs["content"])


def _of_responses(output: list[Any]) -> list[Token]:
    """Return the tokens of what was said; reasoning and calls of tools have none."""
    tokens = []
    for item in output:
        for part in (isinstance(item, Mapping) and item.get("content")) or ():
            if isinstance(part, Mapping) and part.get("type") == "output_text":
                tokens += _tokens(part.get("logprobs") or ())
    if not tokens:
        raise InputError(f"the response has no log-probabilities; {ASK_RESPONSES}")
    return tokens


def _tokens(items: Iterable[Any]) -> list[Token]:
    try:
        return [Token.parse(item) for item in items]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(
            f"not OpenAI's log-probabilities: {type(error).__name__} at {error}"
        ) from None


@dataclass(frozen=True)
class _Found:
    """Where the answer is: its text, the token it begins in, and the one with its first decimal."""

    match: re.Match[str]
    starts: Sequence[int]
    first: int
    at: int


def _find(tokens: Sequence[Token], scale: Scale) -> _Found | None:
    pieces = [token.text.translate(_MARKS) for token in tokens]
    match = _pattern(scale).search("".join(pieces))
    if match is None:
        return None
    starts = list(itertools.accumulate(map(len, pieces), initial=0))
    first, at = (bisect.bisect_right(starts, match.start(group)) - 1 for group in (1, 2))
    return _Found(match, starts, first, at)


def reading_from_tokens(
    tokens: Sequence[Token], scale: Scale, *, missing: str = "spread"
) -> Readings:
    """Return the reading of one answer, or a NaN row that says what was written instead.

    Answers that are missing from the list get the smallest probability in it, or an equal share of
    the remaining mass if that is less; the row is then flagged truncated. With ``missing="nan"``,
    such a row is NaN.

    >>> from discode.scales import FIVE
    >>> top = {"4": math.log(0.5), " 4": math.log(0.1), "5": math.log(0.2), "the": math.log(0.1)}
    >>> reading = reading_from_tokens([Token("4", top, math.log(0.5))], FIVE)
    >>> np.exp(reading.answer_logp[0, 0]).round(3).tolist(), reading.truncated.tolist()
    ([0.033, 0.033, 0.033, 0.6, 0.2], [True])
    """
    pieces = [token.text.translate(_MARKS) for token in tokens]
    text = "".join(pieces)
    place = _find(tokens, scale)
    if place is None:
        reason = f"the model did not answer with a rating but with {text!r}"
        if scale != UNIT and _find(tokens, UNIT):
            reason += f", which is none on scale {scale.name!r}; give scale='unit'"
        return Readings.failed(scale, [reason])
    found, starts, first, at = place.match, place.starts, place.first, place.at
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
    if absent and missing == "nan":
        return Readings.failed(scale, [absent_answers(absent, len(answers))])
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
        second, absent = digits[None], [*absent, *more]
    return Readings(
        scale,
        answer_logp.clip(max=0),
        stem_logp.clip(max=0),
        lead_logp=lead_logp.clip(max=0) if any(scale.stems) else None,
        second_logp=None if second is None else second.clip(max=0),
        truncated=np.array([bool(absent)]),
        how=np.array(["generated"]),
    )


@functools.lru_cache
def _pattern(scale: Scale) -> re.Pattern[str]:
    """Find the stem (group 1) and the answer (group 2).

    "10.5" does not contain the stem "0.", and "0.5" is not a 0 on a scale without stems.
    """
    answers = _either(scale.answers)
    if any(scale.stems):
        return re.compile(rf"(?<![\d.])({_either(scale.stems)})({answers})")
    return re.compile(rf"(?<![\w.])(?!0\.\d*[1-9])()({answers})(?!\w)")


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
) -> tuple[Floats, float, list[str]]:
    """Return log P(answer | stem) (K,), log P(the rest of the stem), and the absent answers.

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
        return joint, -math.inf, absent
    if not wanted or written == wanted:
        return joint, 0.0, absent
    whole = np.logaddexp.reduce([*joint, bare])
    seen = np.logaddexp.reduce([bare, *(logp for values in known.values() for logp in values)])
    return joint - whole, float(seen), absent


def _lead(top: Mapping[str, float], stem: str, junk: str) -> float:
    """Return log P of the tokens that begin as the stem does, cut as the model cuts it."""
    found = []
    for text, logp in top.items():
        piece = text.translate(_MARKS)
        rest = piece.removeprefix(junk) if piece.startswith(junk) else ""
        if rest and (rest.startswith(stem) or stem.startswith(rest)):
            found.append(logp)
    return float(np.logaddexp.reduce(found)) if found and stem else math.nan
