"""Find the rating in a generated answer, and the tokens before it.

The model generates a few tokens greedily, as in the paper. The tokens before the rating are then
appended to the prompt, and all ratings are read after them. This is done on request, or if the
model is unlikely to begin with a rating.
"""

from __future__ import annotations

from collections.abc import Sequence

from discode._scales import find_rating, piece_at, why_no_rating
from discode.backends._local.vocabulary import TokenizedPrompt
from discode.errors import InputError

MAX_NEW_TOKENS = 10
"""Enough for "Score: 0.75", after thoughts if there are any."""


def written_before_answer(
    tokens: Sequence[int], pieces: Sequence[str], tokenized: TokenizedPrompt
) -> list[int]:
    """Return the tokens before the rating and its stem; raise if there is no rating.

    The rating is found by its text and checked by its tokens: it must consist of the tokens whose
    probabilities are read.
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
            f"the model answered {text!r}, but not with the tokens that the tokenizer uses for "
            "this rating"
        )
    return list(tokens[: min(starts)])
