"""Readings from a server's answer: the tokens written, and the likeliest ones at each position.

The answer may come from our own client or, as JSON, from anyone's: whole responses of OpenAI's
interfaces, or the parts of them that hold log-probabilities.

Tokenizers cut "0.75" in many ways: ``0 . 75``, ``0. 7 5``, ``0 .7``, or one token. So we find the
answer in the text; the token that holds its first decimal is at position T. The other tokens that
were likely at T are read letter by letter: after a written ``0``, ``.7`` is a 7, and so is ``.75``.
Tokens before the message, which are reasoning, are not looked at.
"""

from __future__ import annotations

import bisect
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
from discode.scales import Scale, find_rating, piece_at, why_no_rating

Floats = NDArray[np.float64]
_MARKS = str.maketrans({"▁": " ", "Ġ": " ", "Ċ": "\n"})
# What servers write in many ways: spaces, and the bytes of characters that tokens cut.
_UNSPELLED = re.compile(r"(?:bytes:)?(?:\\x[0-9a-fA-F]{2})+|<0x[0-9a-fA-F]{2}>|[^!-~]")
SEVERAL_TOKENS = "in several tokens; take another scale (unit, five)"
OTHER_TOKENS = "the log-probabilities are not those of the message"
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
            if answer is None:
                part = Readings.failed(scale, [OTHER_TOKENS])
            elif isinstance(answer, Token | Mapping):
                top = _candidates(answer) if isinstance(answer, Token) else answer
                part = Readings.of(top, scale, missing=missing)
            else:
                part = reading_from_tokens(answer, scale, missing=missing)
                pieces = _pieces(answer)
                if rating := find_rating("".join(pieces), scale):
                    place = (piece_at(pieces, rating.at), len(answer))
        except InputError as error:
            if not isinstance(given, list | tuple):
                raise
            part = Readings.failed(scale, [str(error)])  # the others are not lost
        parts.append(part)
        places.append(place)
    return GivenReadings(Readings.concat(scale, parts), tuple(places))


def _plain(given: Any) -> Any:
    """Return the JSON of OpenAI's objects, in a list, too."""
    if isinstance(given, list | tuple):
        return [_plain(item) for item in given]
    return given.model_dump() if hasattr(given, "model_dump") else given


_Answer = Token | list[Token] | Mapping[str, Any] | InputError | None
"""One position, an answer's tokens, a mapping of tokens, or why there are none.

None where the tokens are not the message's."""


def _answers_in(given: Any) -> list[_Answer] | None:
    """Return the answers in OpenAI's JSON, or in a list of such; None where it is neither."""
    if not isinstance(given, list):
        return _answers_of(given) if isinstance(given, Mapping) else None
    if given and all(isinstance(item, Mapping) and "top_logprobs" in item for item in given):
        return [_tokens(given)]  # the positions of one answer
    collected: list[_Answer] = []
    known = False
    for item in given:
        try:
            answers = _answers_in(item)
        except InputError as error:
            answers = [error]
        if answers is not None:
            collected += answers
            known = True
        elif isinstance(item, Mapping) and "token" not in item:  # which is part of a row
            collected.append(item)
        else:
            return None
    return collected if known else None


def _answers_of(given: Mapping[str, Any]) -> list[_Answer] | None:
    if isinstance(given.get("error"), Mapping):
        raise InputError(f"an error, not an answer: {given['error'].get('message')}")
    if isinstance(given.get("response"), Mapping) and "custom_id" in given:  # a line of a batch
        return _answers_of(given["response"].get("body") or {})
    if isinstance(given.get("choices"), list):
        if not given["choices"]:
            raise InputError("the response has no choices, so no answer")
        return [_of_choice(choice) for choice in choices_in_order(given["choices"])]
    if isinstance(given.get("output"), list):
        return [_of_responses(given["output"])]
    if "token" in given and isinstance(given.get("top_logprobs"), list):
        return [*_tokens([given])]
    if isinstance(given.get("message"), Mapping) or isinstance(given.get("logprobs"), Mapping):
        return [_of_choice(given)]
    if isinstance(given.get("content"), list) or isinstance(given.get("tokens"), list):
        return [_of_logprobs(given)]
    return None


def _of_choice(choice: Any) -> list[Token] | None:
    logprobs = choice.get("logprobs") if isinstance(choice, Mapping) else None
    if not isinstance(logprobs, Mapping):
        ask = ASK_CHAT if isinstance(choice, Mapping) and "message" in choice else ASK_COMPLETIONS
        raise InputError(f"the response has no log-probabilities; {ask}")
    tokens, message = _of_logprobs(logprobs), choice.get("message", choice)
    text = message.get("content", choice.get("text", tokens))
    return tokens if text is tokens else tokens_of_text(tokens, str(text or ""))


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


def _of_responses(output: list[Any]) -> list[Token] | None:
    """Return the tokens of what was said; reasoning and calls of tools have none."""
    tokens: list[Token] = []
    text = ""
    for item in output:
        for part in (isinstance(item, Mapping) and item.get("content")) or ():
            if isinstance(part, Mapping) and part.get("type") == "output_text":
                tokens += _tokens(part.get("logprobs") or ())
                text += str(part.get("text") or "")
    if not tokens:
        raise InputError(f"the response has no log-probabilities; {ASK_RESPONSES}")
    return tokens_of_text(tokens, text)


def _tokens(items: Iterable[Any]) -> list[Token]:
    try:
        return [Token.parse(item) for item in items]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(
            f"not OpenAI's log-probabilities: {type(error).__name__} at {error}"
        ) from None


def choices_in_order(choices: Sequence[Any]) -> list[Any]:
    """Return a response's choices by their index, which need not be the order they are sent in."""

    def index(choice: Any) -> int:
        number = choice.get("index") if isinstance(choice, Mapping) else None
        return number if isinstance(number, int) else 0

    return sorted(choices, key=index)


def tokens_of_text(tokens: Sequence[Token], text: str) -> list[Token] | None:
    """Return the tokens that spell a message; None where they spell something else.

    Others may stand before it, which are reasoning, and after it.

    >>> tokens = [Token(t, {}) for t in ("<think>", "0.2", "</think>", " ", "0", ".9", "<eos>")]
    >>> [token.text for token in tokens_of_text(tokens, "0.9")], tokens_of_text(tokens, "0.3")
    (['0', '.9'], None)
    """
    pieces = [_UNSPELLED.sub("", token.text) for token in tokens]
    wanted, whole = _UNSPELLED.sub("", text), "".join(pieces)
    starts = list(itertools.accumulate(map(len, pieces), initial=0))
    for first in reversed(range(len(tokens))) if wanted else ():
        end = starts[first] + len(wanted)
        if whole.startswith(wanted, starts[first]) and end in starts:
            return list(tokens[first : bisect.bisect_left(starts, end)])
    return None if wanted and tokens else []


def _pieces(tokens: Sequence[Token]) -> list[str]:
    return [token.text.translate(_MARKS) for token in tokens]


def reading_from_tokens(
    tokens: Sequence[Token], scale: Scale, *, missing: str = "spread", whole: bool = False
) -> Readings:
    """Return the reading of one answer, or a NaN row that says what was written instead.

    Answers that are missing from the list get the smallest probability in it, or an equal share of
    the remaining mass if that is less; the row is then flagged truncated. With ``missing="nan"``,
    such a row is NaN. ``whole`` says that the model writes a number of several digits as one token;
    where that is not known, "1" on a scale to 10 may be the beginning of "10".

    >>> from discode.scales import FIVE
    >>> top = {"4": math.log(0.5), " 4": math.log(0.1), "5": math.log(0.2), "the": math.log(0.1)}
    >>> reading = reading_from_tokens([Token("4", top, math.log(0.5))], FIVE)
    >>> np.exp(reading.answer_logp[0, 0]).round(3).tolist(), reading.truncated.tolist()
    ([0.033, 0.033, 0.033, 0.6, 0.2], [True])
    """
    pieces = _pieces(tokens)
    rating = find_rating(text := "".join(pieces), scale)
    if rating is None:
        return Readings.failed(scale, [why_no_rating(text, scale)])
    stem, answer = rating.stem, scale.answers[rating.answer]
    first, at = (piece_at(pieces, position) for position in (rating.start, rating.at))
    junk = pieces[first][: rating.start - len("".join(pieces[:first]))]
    written = "".join(pieces[:at])[rating.start :]
    top = _candidates(tokens[at])
    if not scale.stems[stem]:
        if _answer(pieces[at], scale) != answer:
            return Readings.failed(scale, [f"the model writes {answer!r} {SEVERAL_TOKENS}"])
        if not whole and len(answer) == 1:  # a longer one would be one token
            top = _before_unclear(top, scale)
        if tokens[at].text not in top:
            return Readings.failed(scale, [f"the model may write answers {SEVERAL_TOKENS}"])
    # All in one token: take the stem with the larger mass, as elsewhere.
    by_stem = {
        number: _answers_at(top, scale, number, written, "" if written else junk)
        for number in (range(len(scale.stems)) if first == at else (stem,))
    }
    stem = max(by_stem, key=lambda number: by_stem[number][1])
    answers, _, absent = by_stem[stem]
    if absent and missing == "nan":
        return Readings.failed(scale, [absent_answers(absent, len(answers))])
    answer_logp = np.full((1, len(scale.stems), len(answers)), np.nan)
    answer_logp[0, stem] = answers
    stem_logp = _stem_logp(scale, stem, by_stem, sum(map(_token_logp, tokens[first:at])))
    begins = _candidates(tokens[first])
    lead_logp = np.array([[_lead(begins, beginning, junk) for beginning in scale.stems]])
    second = None
    if scale.stems[stem] and _has_second_decimal(pieces, at, rating.at, answer):
        second, more = _second_decimal(tokens[at + 1], scale, stem)
        absent = [*absent, *more]
    return Readings(
        scale,
        answer_logp.clip(max=0),
        stem_logp.clip(max=0),
        lead_logp=lead_logp.clip(max=0) if any(scale.stems) else None,
        second_logp=second,
        truncated=np.array([bool(absent)]),
        how=np.array(["generated"]),
    )


def _stem_logp(
    scale: Scale, stem: int, by_stem: Mapping[int, tuple[Floats, float, list[str]]], before: float
) -> Floats:
    """Return log P(stem) (1, B); ``before`` is that of the tokens before the answer's."""
    result = np.full((1, len(scale.stems)), np.nan)
    if not scale.stems[stem]:
        result[0, stem] = before
        return result
    for number, (_, mass, _) in by_stem.items():
        if number == stem:
            result[0, number] = before + mass
        elif mass > -math.inf:
            result[0, number] = mass
    return result


def _has_second_decimal(pieces: Sequence[str], at: int, start: int, answer: str) -> bool:
    """Whether the first decimal ends the token ``at``, and the next token begins with another."""
    ends = pieces[at].endswith(answer) and len("".join(pieces[: at + 1])) == start + len(answer)
    return ends and at + 1 < len(pieces) and pieces[at + 1][:1].isdigit()


def _second_decimal(token: Token, scale: Scale, stem: int) -> tuple[Floats, list[str]]:
    """Return log P of the second decimal (1, K), and the absent ones."""
    digits, _, absent = _answers_at(_candidates(token), scale, stem, scale.stems[stem], "")
    return digits[None].clip(max=0), absent


def _answer(text: str, scale: Scale) -> str | None:
    """Return the answer that a token is on a scale without stems; "B)" is B, "45" is not 4."""
    rating = find_rating(text.translate(_MARKS), scale)
    return None if rating is None else scale.answers[rating.answer]


def _before_unclear(top: Mapping[str, float], scale: Scale) -> dict[str, float]:
    """Return the tokens that are likelier than any that may be the beginning of a longer answer.

    How likely "1" is says nothing about 1 nor 10 where "10" is written as "1" and "0", only that
    neither is likelier: so the list is read as if it ended there. Where "10" itself is likelier
    than "1", it is not written that way.
    """
    mass: dict[str, float] = {}
    for token, logp in top.items():
        if (answer := _answer(token, scale)) is not None:
            mass[answer] = float(np.logaddexp(mass.get(answer, -math.inf), logp))
    unclear = -math.inf
    for answer, logp in mass.items():
        longer = [a for a in scale.answers if a.startswith(answer) and a != answer]
        if longer and logp > max(mass.get(a, -math.inf) for a in longer):
            unclear = max(unclear, logp)
    return {token: logp for token, logp in top.items() if logp > unclear}


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
        elif (answer := _answer(piece, scale)) is not None:
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
    logps = []
    for text, logp in top.items():
        piece = text.translate(_MARKS)
        rest = piece.removeprefix(junk) if piece.startswith(junk) else ""
        if rest and (rest.startswith(stem) or stem.startswith(rest)):
            logps.append(logp)
    return float(np.logaddexp.reduce(logps)) if logps and stem else math.nan
