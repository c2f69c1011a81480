"""Where the rating is in an answer that the model generated, and what the model wrote before it.

The model generates a few tokens, greedily, as in the paper. What it wrote before the rating is then
given to it, and the ratings after that are read as after a prompt. This is done on request, and
where a rating is an unlikely beginning for the model.
"""

from __future__ import annotations

from collections.abc import Sequence

from discode._scales import find_rating, piece_at, why_no_rating
from discode.backends._local.vocabulary import TokenizedPrompt
from discode.errors import InputError

MAX_NEW_TOKENS = 10
"""Enough for "Score: 0.75"."""


def written_before_answer(
    tokens: Sequence[int], pieces: Sequence[str], tokenized: TokenizedPrompt
) -> list[int]:
    """Return the tokens before the rating and its stem; raise where there is no rating.

    The rating is found by its text and checked by its tokens: one that the model writes with other
    tokens than those whose probabilities we read is not read at all.
    """
    text = "".join(pieces)
    rating = find_rating(text, tokenized.scale)
    if rating is None:
        raise InputError(why_no_rating(text, tokenized.scale))
    step = piece_at(pieces, rating.at)
    starts = [
        step - len(spelling.ids)
        for spelling in tokenized.spellings
        if spelling.stem == rating.stem
        and len(spelling.ids) <= step
        and tuple(tokens[step - len(spelling.ids) : step]) == spelling.ids
        and tokens[step] in spelling.answers[rating.answer]
    ]
    if not starts:
        raise InputError(
            f"the model answered {text!r}, but wrote the rating with other tokens than the "
            "tokenizer does"
        )
    return list(tokens[: min(starts)])
