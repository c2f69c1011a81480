"""Compare answers of two servers, to detect different weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

from discode.readings._tokens import Token, candidates

LEAST_LOGP = -20.0
"""Smaller log-probabilities are rounding errors or placeholders such as -9999."""


def distance(one: Token, other: Token) -> float:
    """Compute a lower bound on the total variation between two lists of likely tokens.

    A token that is missing from a list is at most as likely there as the least likely one in it.

    >>> flat = {str(n): math.log(0.05) for n in range(20)}
    >>> other = {str(n): math.log(0.051) for n in range(4, 24)}
    >>> round(distance(Token("5", flat), Token("5", other)), 3)
    0.02
    >>> round(distance(Token("5", flat), Token("a", {"a": math.log(0.9)})), 3)
    0.85
    """
    lists = [{t: math.exp(p) for t, p in candidates(token).items()} for token in (one, other)]
    least = [min(p.values()) for p in lists]
    more = [
        sum(max(0.0, p - there.get(text, most)) for text, p in here.items())
        for here, there, most in zip(lists, lists[::-1], least[::-1], strict=True)
    ]
    return max(more)


def difference(one: Sequence[Token], other: Sequence[Token]) -> float:
    """Compute a lower bound on the RMS difference of two answers' log-probabilities.

    It covers positions up to the first at which the tokens differ, with missing tokens as in
    :func:`distance`, down to :data:`LEAST_LOGP`.

    >>> yes, no = Token("y", {"y": -0.1, "n": -2.3}), Token("n", {"y": -0.7, "n": -0.7})
    >>> round(difference([yes, yes], [no, yes]), 3), difference([yes], [yes])
    (1.208, 0.0)
    """
    squares: list[float] = []
    for pair in zip(one, other, strict=False):
        lists = [{t: max(p, LEAST_LOGP) for t, p in candidates(token).items()} for token in pair]
        for here, there in (lists, lists[::-1]):
            least = min(there.values())
            squares += [
                (p - there.get(text, min(p, least))) ** 2
                for text, p in here.items()
                if p > LEAST_LOGP
            ]
        if pair[0].text != pair[1].text:
            break
    return math.sqrt(sum(squares) / len(squares)) if squares else math.inf
