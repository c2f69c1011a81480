"""Tokens as servers return them: what was written, and the likeliest tokens in its place."""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from discode.errors import InputError
from discode.readings._base import POSITIVE_TOLERANCE

SPACE_MARKS = str.maketrans({"▁": " ", "Ġ": " ", "Ċ": "\n"})
# What servers write in many ways: spaces, and the bytes of characters that tokens cut.
_UNSPELLED = re.compile(r"(?:bytes:)?(?:\\x[0-9a-fA-F]{2})+|<0x[0-9a-fA-F]{2}>|[^!-~]")


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
                raise InputError(f"impossible log-probability {logp} of {top['token']!r}")
            seen.setdefault(str(top["token"]), set()).add(logp)
        merged = {
            text: min(0.0, float(np.logaddexp.reduce(sorted(values))))
            for text, values in seen.items()
        }
        return cls(str(item["token"]), merged, _logp(item) if "logprob" in item else math.nan)


def _logp(item: Mapping[str, Any]) -> float:
    logp = float(item["logprob"])
    if logp > POSITIVE_TOLERANCE:
        raise InputError(f"impossible log-probability {logp} of {item['token']!r}")
    return min(logp, 0.0)


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
    if not wanted and not whole and text.strip():  # no sign of it can be compared: "七"
        return list(tokens)
    return None if wanted and tokens else []


def pieces_of(tokens: Sequence[Token]) -> list[str]:
    return [token.text.translate(SPACE_MARKS) for token in tokens]


def token_logp(token: Token) -> float:
    return token.top.get(token.text, -math.inf) if math.isnan(token.logp) else token.logp


def candidates(token: Token) -> dict[str, float]:
    """Return the likely tokens; the one written may be missing from a server's list."""
    return {token.text: token_logp(token), **token.top}
