"""Where the rating is in an answer that the model generated, and what the model wrote before it.

We let the model generate a few tokens, greedily, as in the paper and in FLEUR. What it wrote before
the rating is then given to it, and the ratings after that are read as after a prompt
(:func:`discode.backends.local.vocabulary.readings_from_logp`): every stem, every answer. This is
slower than forcing the stems at once, and fails where the model writes no rating. It is used on
request, and where a rating is an unlikely beginning for the model.
"""

from __future__ import annotations

from collections.abc import Sequence

from discode.backends.local.vocabulary import TokenizedPrompt
from discode.errors import InputError
from discode.scales import Scale

MAX_NEW_TOKENS = 10
"""Enough for "Score: 0.75"."""


def find_answer(pieces: Sequence[str], scale: Scale) -> tuple[int, int, int] | None:
    """Return (stem, answer, step of the answer) of the first rating, or None.

    The text before it must end with the stem, and no digit or dot may come before that: "10.5" does
    not contain the stem "0.". On scales without stems the answer must be a word of its own: the "A"
    of "A dog" is not a rating, and neither is the "1" of "15".

    >>> from discode.scales import LETTERS, UNIT
    >>> find_answer(["Score", ":", " ", "0", ".", "85"], UNIT)
    (0, 8, 5)
    >>> find_answer(["A", " dog"], LETTERS), find_answer([" B", "."], LETTERS)
    (None, (0, 1, 0))
    """
    text = ""
    for step, piece in enumerate(pieces):
        rest = "".join(pieces[step + 1 :])
        for number, stem in enumerate(scale.stems):
            if not text.endswith(stem):
                continue
            before = text[: len(text) - len(stem)]
            if before and (before[-1].isdigit() or before[-1] == "."):
                continue
            if stem and piece[:1] in scale.answers:
                return number, scale.answers.index(piece[:1]), step
            word = piece.strip()
            if not stem and word in scale.answers and not _continues(word, rest):
                return number, scale.answers.index(word), step
        text += piece
    return None


def _continues(word: str, rest: str) -> bool:
    """Return whether an answer on a scale without stems is part of something longer."""
    if word.isalpha():
        return rest.lstrip(" ")[:1].isalnum()
    return rest[:1].isalnum()


def written_before_answer(
    tokens: Sequence[int], pieces: Sequence[str], tokenized: TokenizedPrompt
) -> list[int]:
    """Return the tokens before the rating and its stem; raise where there is no rating.

    The rating is found by its text and checked by its tokens: one that the model writes with other
    tokens than those whose probabilities we read is not read at all.
    """
    found = find_answer(pieces, tokenized.scale)
    text = "".join(pieces)
    if found is None:
        raise InputError(f"the model did not answer with a rating but with {text!r}")
    stem, answer, step = found
    starts = [
        step - len(spelling.ids)
        for spelling in tokenized.spellings
        if spelling.stem == stem
        and len(spelling.ids) <= step
        and tuple(tokens[step - len(spelling.ids) : step]) == spelling.ids
        and tokens[step] in spelling.answers[answer]
    ]
    if not starts:
        raise InputError(
            f"the model answered {text!r}, but wrote the rating with other tokens than the "
            "tokenizer does"
        )
    return list(tokens[: min(starts)])
