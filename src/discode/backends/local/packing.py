"""Many captions of one picture in one forward.

A prompt is a *prefix* (the picture and the instruction, the same for every caption) and a *suffix*
(the caption, the end of the prompt, and the forced stems). The prefix is computed once; then all
suffixes run as one sequence over its cache:

    prefix | caption 1 | 0 . | 1 . | caption 2 | 0 . | 1 . | ...

Each suffix sees the prefix and itself, the stems of a caption do not see each other, and positions
start anew behind the prefix. So every answer is what a forward of its own would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Suffixes of one picture in one sequence of Q tokens.

    ``tokens``, ``steps`` (position behind the prefix) and ``branch`` are (Q,); a token of branch b
    sees its caption's trunk and branch b. ``keep`` (N, R) says where each caption's R answers are
    read: behind the trunk, then behind every token of every stem.
    """

    tokens: Ints
    steps: Ints
    owner: Ints
    branch: Ints
    keep: Ints

    @classmethod
    def of(cls, suffixes: Sequence[Sequence[int]], stems: Sequence[Sequence[int]]) -> Layout:
        """Lay out N suffixes, each followed by every stem.

        >>> layout = Layout.of([[5, 6], [7]], [[1, 2], [3]])
        >>> layout.tokens.tolist(), layout.steps.tolist()
        ([5, 6, 1, 2, 3, 7, 1, 2, 3], [0, 1, 2, 3, 2, 0, 1, 2, 1])
        >>> layout.keep.tolist()
        [[1, 2, 3, 4], [5, 6, 7, 8]]
        """
        tokens: list[int] = []
        steps: list[int] = []
        owner: list[int] = []
        branch: list[int] = []
        keep: list[list[int]] = []
        for number, suffix in enumerate(suffixes):
            tokens += suffix
            steps += range(len(suffix))
            branch += [-1] * len(suffix)
            places = [len(tokens) - 1]
            for b, stem in enumerate(stems):
                places += range(len(tokens), len(tokens) + len(stem))
                tokens += stem
                steps += range(len(suffix), len(suffix) + len(stem))
                branch += [b] * len(stem)
            owner += [number] * (len(tokens) - len(owner))
            keep.append(places)
        rows = (tokens, steps, owner, branch, keep)
        return cls(*(np.array(row, np.int64) for row in rows))


def stack(layouts: Sequence[Layout]) -> tuple[Ints, Ints, Ints, Ints, list[Ints]]:
    """Pad layouts of B pictures: tokens, steps, owner and branch (B, Q), places to read.

    Padding belongs to owners of its own: it sees itself alone, and nobody sees it.
    """
    width = max(len(layout.tokens) for layout in layouts)
    tokens, steps, branch = (np.zeros((len(layouts), width), np.int64) for _ in range(3))
    owner = np.tile(-1 - np.arange(width), (len(layouts), 1))
    for row, layout in enumerate(layouts):
        n = len(layout.tokens)
        tokens[row, :n], steps[row, :n] = layout.tokens, layout.steps
        owner[row, :n], branch[row, :n] = layout.owner, layout.branch
    return tokens, steps, owner, branch, [layout.keep for layout in layouts]


def masks(
    owner: Any,
    branch: Any,
    steps: Any,
    prefix: int,
    dtype: Any,
    *,
    window: int | None = None,
    chunk: int | None = None,
) -> Any:
    """Return the additive mask (B, 1, Q, prefix + Q), from tensors (B, Q) and where they are.

    A token sees the prefix, and of its own caption what stands before it on the trunk or on its
    own branch. ``window`` bounds how far back one sees (sliding attention), ``chunk`` how far back
    to a multiple of it (chunked attention). Places are those of a sequence of its own: step s
    stands ``prefix + s`` from the start.
    """
    import torch

    batch, width = owner.shape
    order = torch.arange(width, device=owner.device)
    own = owner[:, :, None] == owner[:, None]
    own &= (branch[:, None] == -1) | (branch[:, :, None] == branch[:, None])
    own &= order[:, None] >= order
    allowed = torch.cat([own.new_ones(batch, width, prefix), own], dim=2)
    if window or chunk:
        here = (prefix + steps)[:, :, None]
        front = torch.arange(prefix, device=owner.device).expand(batch, prefix)
        there = torch.cat([front, prefix + steps], dim=1)[:, None]
        near = here - there < window if window else here // (chunk or 1) == there // (chunk or 1)
        near[:, order, prefix + order] = True
        allowed &= near
    mask = torch.zeros(batch, 1, width, prefix + width, dtype=dtype, device=owner.device)
    return mask.masked_fill_(~allowed[:, None], torch.finfo(dtype).min)
