"""What backends share that ask a chat model for its likeliest tokens: prompts, ids and parsing."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial

from discode._scales import Scale
from discode.errors import InputError
from discode.readings import Readings
from discode.readings._stems import reading_from_paths, reading_from_tokens, stem_paths
from discode.readings._tokens import Token

TOP = 20
"""Log-probabilities per position; hosted servers do not return more."""
MAX_TOKENS = 10
"""Enough for "Score: 0.75"."""
MAX_TOKEN_IDS = 128
"""Maximum number of token ids in vLLM's ``logprob_token_ids``."""
SPACES = " \n▁ĠĊ"
READ = ("auto", "forced", "generate")
READ_ABOUT = (
    "generate uses the answer that the model writes; auto begins the answer for it if that is "
    "not a rating; forced reads both stems (two requests per pair)"
)


def check_answers(scale: Scale) -> None:
    """Raise if a scale has more answers than can be requested by their ids."""
    if len(scale.answers) > MAX_TOKEN_IDS:
        raise InputError(
            f"scale {scale.name!r} has {len(scale.answers)} answers, and a server returns at "
            f"most {MAX_TOKEN_IDS}; use unit, ten, five, letters or a shorter range"
        )


def words_of_answers(scale: Scale) -> str:
    """A text whose tokens include those of a scale's answers and stems."""
    words = [stem + answer for stem in scale.stems for answer in scale.answers]
    if any(scale.stems):  # "85" after "0." counts as 8
        words += [f"{stem}{number:02}" for stem in scale.stems for number in range(100)]
    return " ".join(words) + "\n" + "\n".join(words)


def ids_of_answers(scale: Scale, texts: Mapping[int, str]) -> list[int]:
    """The ids of a scale's answers among tokens with these texts, at most :data:`MAX_TOKEN_IDS`.

    Empty if an answer is not one token: then the likeliest tokens are more informative.

    >>> from discode._scales import FIVE
    >>> ids_of_answers(FIVE, dict(enumerate(["1", "2", "3", "▁4", "5", "1\\n2"])))
    [0, 1, 2, 3, 4]
    """
    wanted = {*scale.answers, *"".join(scale.stems)}
    texts = {i: text.strip(SPACES) for i, text in texts.items()}
    if not wanted <= set(texts.values()):
        return []
    two = r"\d\d" if any(scale.stems) else r"(?!)"
    ids = [i for i, text in texts.items() if text in wanted or re.fullmatch(two, text)]
    ids.sort(key=lambda i: (texts[i] not in wanted, i))  # the rarest are cut off
    return ids[:MAX_TOKEN_IDS]


def follow_answer(
    tokens: Sequence[Token], scale: Scale, *, read: str, whole: bool, every: bool
) -> Generator[tuple[str, int], Sequence[Token] | None, Readings]:
    """Read an answer, and ask for continuations of it where that is needed.

    Yields the begun answer and the maximum number of tokens, and expects the tokens of the
    continuation, or None if the model cannot continue an answer; returns the reading. ``read`` is
    one of :data:`READ`; for ``whole`` and ``every`` see
    :func:`~discode.readings._stems.reading_from_tokens`.
    """
    reading = _checked(partial(reading_from_tokens, tokens, scale, whole=whole, every=every), scale)
    if read == "generate" or (read == "auto" and not reading.errors):
        return reading
    forced = read == "forced"
    paths = stem_paths(tokens, scale, forced=forced) if any(scale.stems) else []
    for path in paths:
        while not path.complete and not path.lost:
            more = yield path.begun, path.left
            if more is None:
                return reading
            path.follow(more)
    if not paths:
        return reading
    return _checked(partial(reading_from_paths, paths, every=every), scale)


def _checked(read: Callable[[], Readings], scale: Scale) -> Readings:
    try:
        return read()
    except Exception as error:  # e.g. probabilities that add up to more than 1
        return Readings.failed(scale, [f"the server returned invalid numbers: {error}"])
