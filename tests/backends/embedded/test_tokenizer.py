"""The tokenizer of the embedded model: long words."""

from __future__ import annotations

import pytest

from discode.backends.embedded.tokenizer import Bpe


@pytest.mark.parametrize("letter", ["x", "🐕", "_", " ", "7", "."])
def test_a_word_without_an_end_is_read_in_pieces(
    monkeypatch: pytest.MonkeyPatch, letter: str
) -> None:
    """The time that a word takes grows with the square of its length."""
    lengths = []

    def watch(self: Bpe, word: str) -> tuple[int, ...]:
        lengths.append(len(word))
        return ()

    monkeypatch.setattr(Bpe, "_encode_word", watch)
    Bpe([], []).encode(letter * 50_000)
    assert max(lengths) <= 201
