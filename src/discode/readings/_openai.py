"""Readings from responses of OpenAI's interfaces, which most servers implement.

Tokens before the message, which are reasoning, are not looked at; nor are thoughts inside it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from discode._scales import Scale, find_rating, piece_at
from discode.errors import DiscodeError, InputError
from discode.readings._base import Readings
from discode.readings._stems import reading_from_tokens
from discode.readings._tokens import Token, candidates, pieces_of, tokens_of_text

OTHER_TOKENS = "the log-probabilities are not those of the message"
NO_LOGPROBS = (
    "the response has no log-probabilities; ask for logprobs=True, top_logprobs=20 (completions: "
    'logprobs=5; Responses: include=["message.output_text.logprobs"], top_logprobs=20)'
)
_THOUGHTS = {"<think>": "</think>", "◁think▷": "◁/think▷", "<|channel>": "<channel|>"}
"""What thoughts begin and end with, where the server does not separate them from the message."""
Places = list[tuple[int, int] | None]
"""For each answer, which token held it, of how many."""


def readings_from_json(
    data: Any, scale: Scale, *, missing: str = "nan"
) -> tuple[Readings, Places] | None:
    """Read responses of OpenAI's interfaces, or parts of them; None for anything else.

    That is: a response of chat completions, completions or Responses, one of its choices, its
    ``logprobs``, a list of positions, or one position, as JSON or as objects of OpenAI's package;
    or a sequence of these, among which mappings of tokens may stand. One position is the answer's
    own; among several it is found.

    >>> from discode._scales import FIVE
    >>> top = [{"token": str(n), "logprob": math.log(0.2)} for n in range(1, 6)]
    >>> content = [{"token": t, "logprob": -1.7, "top_logprobs": top} for t in ("I", " say ", "4")]
    >>> readings, places = readings_from_json({"logprobs": {"content": content}}, FIVE)
    >>> places, readings.errors
    ([(2, 3)], {})
    """
    first = data
    while isinstance(first, list | tuple) and first:
        first = first[0]
    if not isinstance(first, Mapping) and not hasattr(first, "model_dump"):
        return None  # numbers, of which there may be millions
    answers = _answers_in(_plain(data))
    if answers is None:
        return None
    parts: list[Readings] = []
    places: Places = []
    for answer in answers:
        place = None
        try:
            if isinstance(answer, InputError):
                raise answer
            if answer is None:
                part = Readings.failed(scale, [OTHER_TOKENS])
            elif isinstance(answer, Token | Mapping):
                top = candidates(answer) if isinstance(answer, Token) else answer
                part = Readings.of(top, scale, missing=missing)
            else:
                part = reading_from_tokens(answer, scale, missing=missing)
                pieces = pieces_of(answer)
                if rating := find_rating("".join(pieces), scale):
                    place = (piece_at(pieces, rating.at), len(answer))
        except InputError as error:
            if not isinstance(data, list | tuple):
                raise
            part = Readings.failed(scale, [str(error)])  # the others are not lost
        parts.append(part)
        places.append(place)
    return Readings.concat(scale, parts), places


def _plain(data: Any) -> Any:
    """Return the JSON of OpenAI's objects, in a list, too."""
    if isinstance(data, list | tuple):
        return [_plain(item) for item in data]
    return data.model_dump() if hasattr(data, "model_dump") else data


_Answer = Token | list[Token] | Mapping[str, Any] | InputError | None
"""One position, an answer's tokens, a mapping of tokens, or why there are none.

None where the tokens are not the message's."""


def _answers_in(data: Any) -> list[_Answer] | None:
    """Return the answers in OpenAI's JSON, or in a list of such; None where it is neither."""
    if not isinstance(data, list):
        return _answers_of(data) if isinstance(data, Mapping) else None
    if data and all(isinstance(item, Mapping) and "top_logprobs" in item for item in data):
        return [_tokens(data)]  # the positions of one answer
    collected: list[_Answer] = []
    known = False
    for item in data:
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


def _answers_of(data: Mapping[str, Any]) -> list[_Answer] | None:
    if isinstance(data.get("error"), Mapping):
        raise InputError(f"an error, not an answer: {data['error'].get('message')}")
    if isinstance(data.get("response"), Mapping) and "custom_id" in data:  # a line of a batch
        return _answers_of(data["response"].get("body") or {})
    if isinstance(data.get("choices"), list):
        if not data["choices"]:
            raise InputError("the response has no choices, so no answer")
        return [_of_choice(choice) for choice in choices_in_order(data["choices"])]
    if isinstance(data.get("output"), list):
        return [_of_responses(data["output"])]
    if "token" in data and isinstance(data.get("top_logprobs"), list):
        return [*_tokens([data])]
    if isinstance(data.get("message"), Mapping) or isinstance(data.get("logprobs"), Mapping):
        return [_of_choice(data)]
    if isinstance(data.get("content"), list) or isinstance(data.get("tokens"), list):
        return [_of_logprobs(data)]
    return None


def _of_choice(choice: Any) -> list[Token] | None:
    logprobs = choice.get("logprobs") if isinstance(choice, Mapping) else None
    if not isinstance(logprobs, Mapping):
        raise InputError(NO_LOGPROBS)
    tokens, message = _of_logprobs(logprobs), choice.get("message", choice)
    text = message.get("content", choice.get("text", tokens))
    return tokens if text is tokens else tokens_of_text(tokens, split_thoughts(str(text or ""))[1])


def _of_logprobs(logprobs: Mapping[str, Any]) -> list[Token]:
    if isinstance(logprobs.get("tokens"), list):  # of completions: three lists
        names = ("tokens", "token_logprobs", "top_logprobs")
        lists = itertools.zip_longest(*(logprobs.get(name) or () for name in names))
        return _tokens(
            {
                "token": token,
                "logprob": math.nan if logp is None else logp,
                "top_logprobs": [{"token": t, "logprob": p} for t, p in (top or {}).items()],
            }
            for token, logp, top in lists
        )
    if not logprobs.get("content"):
        raise InputError(NO_LOGPROBS)
    return _tokens(logprobs["content"])


def _of_responses(output: list[Any]) -> list[Token] | None:
    """Return the tokens of the text; reasoning and tool calls have none."""
    tokens: list[Token] = []
    text = ""
    for item in output:
        for part in (isinstance(item, Mapping) and item.get("content")) or ():
            if isinstance(part, Mapping) and part.get("type") == "output_text":
                tokens += _tokens(part.get("logprobs") or ())
                text += str(part.get("text") or "")
    if not tokens:
        raise InputError(NO_LOGPROBS)
    return tokens_of_text(tokens, text)


def _tokens(items: Iterable[Any]) -> list[Token]:
    try:
        return [Token.parse(item) for item in items]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"not OpenAI's log-probabilities: {what_is_wrong(error)}") from None


def what_is_wrong(error: Exception) -> str:
    """Return why a response could not be read, without Python's names."""
    if isinstance(error, KeyError):
        return f"it has no {error}"
    if isinstance(error, DiscodeError):
        return str(error)
    return "a part of it is empty or of the wrong kind"


def split_thoughts(text: str) -> tuple[str, str]:
    """Split a message into the thoughts at its beginning and the answer after them.

    A template may have written where thoughts begin, so that only their end is in the message.

    >>> split_thoughts("<think>a dog?</think> 0.7"), split_thoughts("a dog?</think>0.7")
    (('a dog?', ' 0.7'), ('a dog?', '0.7'))
    >>> split_thoughts("0.7"), split_thoughts("<think>a d")
    (('', '0.7'), ('<think>a d', ''))
    """
    for begin, end in _THOUGHTS.items():
        thoughts, ended, answer = text.rpartition(end)
        if ended:
            return thoughts.strip().removeprefix(begin).strip(), answer
        if text.lstrip().startswith(begin):
            return text, ""
    return "", text


def choices_in_order(choices: Sequence[Any]) -> list[Any]:
    numbers = [isinstance(choice, Mapping) and choice.get("index") for choice in choices]
    order = [number if isinstance(number, int) else 0 for number in numbers]
    return [choices[place] for place in np.argsort(order, kind="stable")]
