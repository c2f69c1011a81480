"""Captions of several sentences: where one ends, by rules that need no model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from discode._pairs import Pair
from discode.errors import InputError, shortened

WAYS = ("auto", "caption", "sentence")
"""How captions may be judged: by their sentences where the judge would not read all of them
("auto"), as a whole always, or by their sentences always."""
MAX_SENTENCES = 32
"""The most sentences of a caption; the text after them is judged as one more."""

# What ends a sentence before a space, or by itself in Chinese and Japanese, with the quotes and
# brackets that close after it. One that goes on with such marks began earlier: long rows of dots
# are looked at once.
_CLOSING = r"[\"'”’»)\]」』）*_]*"
_END = re.compile(
    rf"(?<![.!?…؟۔।])(?P<mark>[.!?…؟۔।]+)(?P<closed>{_CLOSING})\s+"
    rf"|(?P<full>[。！？｡]+{_CLOSING}\s*)"
    r"|(?P<line>\n\s*)"
)
_BULLET = re.compile(r"[-*•–—#>]|\(?\d{1,3}[.)]\s")
_LIST_NUMBER = re.compile(r"(^|\n)[ \t]*\d{1,3}$")
# Before a full stop that ends no sentence: anywhere, before a small letter, before a digit.
_BEFORE = r"(?:^|[\s(\"'“‘\[])"
_TITLE = re.compile(
    _BEFORE
    + r"(?:mrs?|ms|dr|prof|st|mt|vs|e\.?g|i\.?e|cf|approx|ca|gen|capt|sgt|lt|(?-i:[A-HJ-Z]))$",
    re.IGNORECASE,
)
_SHORT = re.compile(_BEFORE + r"(?:etc|[ap]\.?m|u\.s|u\.k|jr|sr|inc|ltd|corp|co|al|\d+)$", re.I)
_NUMBERED = re.compile(_BEFORE + r"(?:nos?|figs?|pp?|vol|ch|sec)$", re.IGNORECASE)


def not_a_way(by: object) -> InputError:
    return InputError(f"by={shortened(by)} is not allowed; give {', '.join(WAYS)}")


def split_sentences(text: str, most: int = MAX_SENTENCES) -> list[str]:
    """Return the sentences of a text, each as it stands there; one where none ends before its end.

    What follows the first ``most`` is not split.

    Every character but the space between two of them is in one of them. Lines of a list are
    sentences, except one that begins with a small letter or follows a colon.

    >>> split_sentences("Mr. Fox waits at 1.5 m. He is red... or brown. Who knows?")
    ['Mr. Fox waits at 1.5 m.', 'He is red... or brown.', 'Who knows?']
    """
    pieces, start = [""], 0
    for match in _END.finditer(text):
        if match.end() == len(text) or len(pieces) > most:
            break
        if _ends(text, match):
            pieces.append(text[start : match.end()])
            start = match.end()
    sentences = [""]
    for piece in (*pieces, text[start:]):
        if any(map(str.isalnum, piece)) and any(map(str.isalnum, sentences[-1])):
            sentences.append(piece)
        else:  # a quote, a picture, a row of dots is no sentence
            sentences[-1] += piece
    return [sentence.strip() for sentence in sentences]


def sentence_weights(texts: Sequence[str]) -> list[int]:
    """Return how many sentences each text of :func:`split_sentences` holds: all but the last, one.

    >>> sentence_weights(split_sentences("It is red. " * 40))[-2:]
    [1, 8]
    """
    return [1] * (len(texts) - 1) + [len(split_sentences(texts[-1], len(texts[-1])))]


def _ends(text: str, match: re.Match[str]) -> bool:
    start, following = match.start(), text[match.end()]
    near = max(0, start - 12)  # longer than any abbreviation
    if match["full"]:
        return True
    if match["line"]:
        last = text[near:start].rstrip()[-1:]
        listed = _BULLET.match(text, match.end()) is not None
        return last != ":" and (listed or not (following.islower() or last == ","))
    if following.islower() and (match["closed"] or match["mark"] not in (".", "!", "?")):
        return False  # a sign that says "Stop." on a wall; a cat ... on a mat
    if match["mark"] != ".":
        return True
    kinds = [_TITLE, _LIST_NUMBER]
    kinds += [_SHORT] * following.islower() + [_NUMBERED] * following.isdigit()
    return not any(kind.search(text, near, start) for kind in kinds)


def sentence_pairs(pair: Pair) -> list[Pair]:
    """Return a pair for each sentence of a caption; the pair itself where there is one.

    >>> [each.caption for each in sentence_pairs(Pair("dog.jpg", "A dog runs. It is brown."))]
    ['A dog runs.', 'It is brown.']
    """
    sentences = [] if pair.problem else split_sentences(pair.caption)
    return [replace(pair, caption=text) for text in sentences] if len(sentences) > 1 else [pair]
