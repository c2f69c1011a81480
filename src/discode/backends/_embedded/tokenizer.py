"""Byte-level BPE for the embedded model: any text becomes ids, unknown words become bytes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

# Merging is quadratic in a word's length, so overlong words are split.
_WORDS = re.compile(r" ?[^\W\d_]{1,200}| ?\d| ?[^\s\w]{1,200}|_{1,200}|\s{1,200}")


def normalise(caption: str) -> str:
    """Normalise a caption as in training: lower case, no quotes, no final stop.

    >>> normalise('A  "Big" Dog runs .')
    'a big dog runs'
    """
    text = unicodedata.normalize("NFKC", caption).lower().replace('"', "")
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r" ([.,!?;:'])", r"\1", text)
    return text.strip(" .")


def byte_alphabet() -> dict[int, str]:
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in plain}
    for shift, byte in enumerate(byte for byte in range(256) if byte not in table):
        table[byte] = chr(256 + shift)
    return table


class Bpe:
    """A byte-level BPE tokenizer over a fixed vocabulary.

    Args:
        tokens: The vocabulary; an id is an index into it. It must contain every byte.
        merges: Pairs of tokens in merge order; each result must be in ``tokens``.

    >>> alphabet = list(byte_alphabet().values())
    >>> bpe = Bpe([*alphabet, "do", "dog"], [("d", "o"), ("do", "g")])
    >>> [bpe.tokens[i] for i in bpe.encode("dog dö")]
    ['dog', 'Ġ', 'd', 'Ã', '¶']
    """

    def __init__(self, tokens: Sequence[str], merges: Sequence[tuple[str, str]]) -> None:
        self.tokens = list(tokens)
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.merges = [(a, b) for a, b in merges]
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        self._bytes = byte_alphabet()
        self._word = lru_cache(maxsize=50_000)(self._encode_word)

    def encode_caption(self, caption: str, limit: int | None = None) -> list[int]:
        """Tokenise a normalised caption; an empty one has no ids."""
        text = normalise(caption)
        return self.encode(f" {text}", limit) if text else []

    def encode(self, text: str, limit: int | None = None) -> list[int]:
        """Tokenise ``text``; every text can be.

        With a ``limit``, stop as soon as there are more ids than that. The first ``limit`` ids
        do not depend on it, and further ids show that the text is longer.
        """
        ids: list[int] = []
        for word in _WORDS.finditer(text):
            ids.extend(self._word(word[0]))
            if limit is not None and len(ids) > limit:
                break
        return ids

    def _encode_word(self, word: str) -> tuple[int, ...]:
        parts = [self._bytes[byte] for byte in word.encode("utf-8", errors="replace")]
        while len(parts) > 1:
            rank, at = min(
                (self._ranks.get((a, b), len(self._ranks)), i)
                for i, (a, b) in enumerate(pairwise(parts))
            )
            if rank == len(self._ranks):
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return tuple(self.ids[part] for part in parts)
