"""Weights that make a tiny model answer: a chain of tokens, each of which calls for the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def plant(
    embedding: Any, head: Any, vocabulary: Mapping[str, int], end: int, eos: int, begins: str
) -> None:
    """Let the token ``end``, the last of a prompt, call for an answer that begins in this way.

    number: "0.8" and anything more; rating: "0.8"; space: " 0.8"; prose: " the 0.8"; digit: " 8";
    letters: " B"; yes: "Yes" or "No"; thoughts: " the</think>0.8"; opened thoughts: the same after
    "<think>".
    """
    space = "Ġ" if "Ġ" in vocabulary else "▁"
    digits = [vocabulary[digit] for digit in "0123456789"]
    blank, point = [vocabulary[space]], [vocabulary["."]]
    # Decimals begin with 2: 0 and 1 call for the point, not for the end.
    rating = [digits[:2], point, digits[2:], [eos]]
    chain: list[list[int]] = {
        "number": [digits[:2], point, digits],
        "rating": rating,
        "space": [blank, *rating],
        "prose": [[vocabulary[f"{space}the"]], blank, *rating],
        "digit": [blank, digits, [eos]],
        "yes": [[vocabulary[word] for word in ("Yes", "No")], [eos]],
        "letters": [[vocabulary[space + letter] for letter in "ABCDE"], [eos]],
    }.get(begins, [])
    if begins.endswith("thoughts"):
        opened, closed = vocabulary["<think>"], vocabulary["</think>"]
        chain = [[vocabulary[f"{space}the"]], [closed], *rating]
        chain = [[opened], *chain] if begins.startswith("opened") else chain
    directions = torch.linalg.qr(torch.randn(head.shape[1], len(chain))).Q.T
    for direction, before, after in zip(directions, [[end], *chain], chain, strict=False):
        embedding[before] += 16 * direction
        head[after] += 2 * direction
    if begins.endswith("thoughts"):
        embedding[vocabulary["ĊĊ"]] = embedding[closed]  # what ends a block without thoughts
    if begins in ("letters", "digit", "yes"):
        return
    longer = [vocabulary[token] for token in map(str, range(10, 100)) if token in vocabulary]
    if begins == "number":
        head[longer] += directions[-1]  # Llama 3's "85", seldom
    else:
        head[digits[1]] -= directions[-4]  # "1.8" is no rating
        head[longer] += directions[-2]
        embedding[longer] += 16 * directions[-1]
    head += 2.3 * directions.sum(0)  # large logits, as real models have; probabilities stay
