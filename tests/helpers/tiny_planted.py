"""Weights that make a tiny model answer: a chain of tokens, each of which calls for the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

BEGINNINGS = ("number", "space", "prose", "letters")
"""How planted models begin: "0.8", " 0.8", " the 0.8" or " B"."""


def plant(
    embedding: Any, head: Any, vocabulary: Mapping[str, int], end: int, eos: int, begins: str
) -> None:
    """Let the token ``end``, the last of a prompt, call for an answer that begins in this way."""
    space = "Ġ" if "Ġ" in vocabulary else "▁"
    digits = [vocabulary[digit] for digit in "0123456789"]
    number = [[vocabulary[space]], digits[:2], [vocabulary["."]], digits]
    chain: list[list[int]] = {
        "number": number[1:],
        "space": number,
        "prose": [[vocabulary[f"{space}the"]], *number],
        "letters": [[vocabulary[space + letter] for letter in "ABCDE"], [eos]],
    }[begins]
    directions = torch.linalg.qr(torch.randn(head.shape[1], len(chain))).Q.T
    for direction, before, after in zip(directions, [[end], *chain], chain, strict=False):
        embedding[before] += 16 * direction
        head[after] += 2 * direction
    if begins != "letters":
        longer = [vocabulary[token] for token in map(str, range(10, 100)) if token in vocabulary]
        head[longer] += directions[-1]  # Llama 3's "85", seldom
    head += 2.3 * directions.sum(0)  # large logits, as real models have; probabilities stay
