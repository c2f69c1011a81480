"""Layout and masks of many captions of one image in one forward pass.

A prompt is a *prefix* (the image and the instruction, the same for every caption) and a *suffix*
(the caption, the end of the prompt, and the forced stems). The prefix is computed once; then all
suffixes run as one sequence over its cache:

    prefix | caption 1 | 0 . | 1 . | caption 2 | 0 . | 1 . | ...

Each suffix attends to the prefix and to itself, the stems of a caption do not attend to each other,
and each caption's positions continue from the prefix. So each answer equals that of a separate
pass.

The second decimal depends on those answers. It is read in a second pass over the same cache, with
one token per caption: the first decimal after its "0.".

If there are few captions, prefix and suffixes are one sequence and one pass, and every possible
first decimal follows the "0." as a *leaf*: a few more tokens cost less than two more passes over a
model's weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
BRANCHES = 64
"""An upper bound on the stems of a caption. Leaf k of branch b is branch b + 64 (k + 1)."""


@dataclass(frozen=True)
class PackedLayout:
    """Suffixes of one image in one sequence of Q tokens.

    ``tokens``, ``steps`` (positions after the prefix), ``owner`` (the caption) and ``branch`` are
    (Q,). Branch -1 is the caption itself, its trunk; a token of branch b, the b-th stem, attends to
    the trunk and to branch b, and so does a leaf of that branch. ``keep`` (N, R) are the positions
    where the R answers of each caption are read: the end of the trunk, then every token of every
    stem, then the leaves.
    """

    tokens: Ints
    steps: Ints
    owner: Ints
    branch: Ints
    keep: Ints

    @classmethod
    def of(
        cls,
        suffixes: Sequence[Sequence[int]],
        stems: Sequence[Sequence[int]],
        leaves: Mapping[int, Sequence[int]] = MappingProxyType({}),
    ) -> PackedLayout:
        """Lay out N suffixes, each followed by every stem, and stem b by each of ``leaves[b]``.

        >>> layout = PackedLayout.of([[5, 6], [7]], [[1, 2], [3]])
        >>> layout.tokens.tolist(), layout.steps.tolist()
        ([5, 6, 1, 2, 3, 7, 1, 2, 3], [0, 1, 2, 3, 2, 0, 1, 2, 1])
        >>> layout.keep.tolist()
        [[1, 2, 3, 4], [5, 6, 7, 8]]
        >>> layout = PackedLayout.of([[5, 6]], [[1, 2], [3]], {1: [8, 9]})
        >>> layout.tokens.tolist(), layout.steps.tolist(), layout.branch.tolist()
        ([5, 6, 1, 2, 3, 8, 9], [0, 1, 2, 3, 2, 3, 3], [-1, -1, 0, 0, 1, 65, 129])
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
            for b, several in leaves.items():
                places += range(len(tokens), len(tokens) + len(several))
                tokens += several
                steps += [len(suffix) + len(stems[b])] * len(several)
                branch += [b + BRANCHES * (k + 1) for k in range(len(several))]
            owner += [number] * (len(tokens) - len(owner))
            keep.append(places)
        answers = 1 + sum(map(len, stems)) + sum(map(len, leaves.values()))
        kept = np.array(keep, np.int64).reshape(len(suffixes), answers)
        rows = (tokens, steps, owner, branch, kept)
        return cls(*(np.array(row, np.int64) for row in rows))


def stack_layouts(layouts: Sequence[PackedLayout]) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Pad the layouts of B images: tokens, steps, owner and branch (B, Q), and ``keep``.

    ``keep`` (C, R) are the places among all B·Q where the answers of all C captions are read.
    Each padding token has a unique owner: it attends only to itself, and no other attends to it.
    """
    width = max(len(layout.tokens) for layout in layouts)
    tokens, steps, branch = (np.zeros((len(layouts), width), np.int64) for _ in range(3))
    owner = np.tile(-1 - np.arange(width), (len(layouts), 1))
    for row, layout in enumerate(layouts):
        n = len(layout.tokens)
        tokens[row, :n], steps[row, :n] = layout.tokens, layout.steps
        owner[row, :n], branch[row, :n] = layout.owner, layout.branch
    keep = np.concatenate([row * width + layout.keep for row, layout in enumerate(layouts)])
    return tokens, steps, owner, branch, keep


def stack_continuations(
    layouts: Sequence[PackedLayout], branches: Sequence[int], places: Sequence[int]
) -> tuple[Ints, Ints, Ints, Ints]:
    """Lay out S tokens per caption that follow its answers at ``places``, on these branches.

    Returns the order of the C·S tokens of all captions (B, N·S), and their steps, owner and branch
    (B, N·S), padded as in :func:`stack_layouts`.

    >>> layouts = [PackedLayout.of([[5, 6], [7]], [[1, 2], [3]]), PackedLayout.of([[8]], [[1, 2]])]
    >>> order, steps, owner, branch = stack_continuations(layouts, branches=[0], places=[2])
    >>> order.tolist(), steps.tolist(), owner.tolist()
    ([[0, 1], [2, 0]], [[4, 3], [3, 0]], [[0, 1], [0, -11]])
    """
    width = max(len(layout.tokens) for layout in layouts)
    most = max(len(layout.keep) for layout in layouts) * len(branches)
    order, steps = (np.zeros((len(layouts), most), np.int64) for _ in range(2))
    owner = np.tile(-1 - width - np.arange(most), (len(layouts), 1))
    before = 0
    for row, layout in enumerate(layouts):
        at = layout.keep[:, list(places)].ravel()
        order[row, : len(at)] = range(before, before + len(at))
        steps[row, : len(at)] = layout.steps[at] + 1
        owner[row, : len(at)] = layout.owner[at]
        before += len(at)
    branch = np.tile(branches, (len(layouts), most // len(branches)))
    return order, steps, owner, branch


@dataclass(frozen=True)
class CaptionGrid:
    """The places of the tokens of each caption, so that it attends only to itself.

    Of K tokens in each of B sequences the last Q attend. ``queries`` (B·N, S) and ``keys`` (B·N, T)
    are the places of the tokens of N captions among all B·Q and B·K, padded with -1; ``mask``
    (B·N, 1, S, T) is added to the scores; ``back`` (B, Q) is the place of each token among all
    B·N·S.
    """

    queries: Any
    keys: Any
    mask: Any
    back: Any

    @classmethod
    def of(cls, queries: Any, keys: Any, back: Any, branch: Any, dtype: Any) -> CaptionGrid:
        """Make the grid from tensors: the places by :func:`find_places`, and ``branch`` (B, K).

        A token attends to earlier ones on the trunk and on its own branch; a leaf also to the
        branch that it follows.
        """
        import torch

        count, last = branch.shape[1], back.shape[1]
        asking = branch[:, -last:].flatten()[queries][:, :, None]
        asked = branch.flatten()[keys][:, None]
        allowed = (asked == -1) | (asked == asking) | (asked == asking % BRANCHES)
        allowed &= keys[:, None] % count <= (queries % last + count - last)[:, :, None]
        allowed &= keys[:, None] >= 0
        mask = torch.zeros(allowed.shape, dtype=dtype, device=keys.device)
        mask.masked_fill_(~allowed, torch.finfo(dtype).min)
        return cls(queries, keys, mask[:, None], back)


def find_places(owner: Ints, last: int) -> tuple[Ints, Ints, Ints]:
    """Compute ``queries``, ``keys`` and ``back`` of a :class:`CaptionGrid`.

    ``owner`` (B, K) is the owner of each token. T is a multiple of eight, as kernels require.

    >>> owner = np.array([[0, 0, 1, 0, 1], [0, -2, -3, 0, -5]])
    >>> queries, keys, back = find_places(owner, last=2)
    >>> queries.tolist(), keys[:3, :4].tolist(), back.tolist()
    ([[0], [1], [2], [-1]], [[0, 1, 3, -1], [2, 4, -1, -1], [5, 8, -1, -1]], [[0, 1], [2, 0]])
    """
    batch, count = owner.shape
    captions = int(owner.max()) + 1
    row, place = np.nonzero(owner >= 0)
    caption = row * captions + owner[row, place]
    _, keys = _by_caption(caption, batch * captions, row * count + place, multiple=8)
    asking = place >= count - last
    row, place, caption = row[asking], place[asking] - (count - last), caption[asking]
    rank, queries = _by_caption(caption, batch * captions, row * last + place)
    back = np.zeros((batch, last), np.int64)
    back[row, place] = caption * queries.shape[1] + rank
    return queries, keys, back


def _by_caption(caption: Ints, captions: int, value: Ints, multiple: int = 1) -> tuple[Ints, Ints]:
    """Number each token within its caption, and arrange the values in a row per caption."""
    sizes = np.bincount(caption, minlength=captions)
    rank = np.empty_like(caption)
    rank[np.argsort(caption, kind="stable")] = np.arange(len(caption)) - np.repeat(
        np.cumsum(sizes) - sizes, sizes
    )
    rows = np.full((captions, -(-int(sizes.max()) // multiple) * multiple), -1, np.int64)
    rows[caption, rank] = value
    return rank, rows


def packed_attention_mask(
    owner: Any,
    branch: Any,
    steps: Any,
    prefix: int,
    dtype: Any,
    *,
    window: int | None = None,
    chunk: int | None = None,
    last: int | None = None,
) -> Any:
    """Make the additive mask (B, 1, Q, prefix + Q) for tensors (B, Q), on their device.

    With ``last``, only the rows of the last tokens: (B, 1, last, prefix + Q).

    A token attends to the prefix and, within its caption, to earlier tokens on the trunk or on its
    own branch. ``window`` limits how far back it attends (sliding attention); ``chunk`` limits it
    to its own chunk of positions (chunked attention). Positions are those of a separate sequence:
    step s is at ``prefix + s``.
    """
    import torch

    batch, width = owner.shape
    rows = width if last is None else last
    order = torch.arange(width, device=owner.device)
    own = owner[:, -rows:, None] == owner[:, None]
    own &= (branch[:, None] == -1) | (branch[:, -rows:, None] == branch[:, None])
    own &= order[-rows:, None] >= order
    allowed = torch.cat([own.new_ones(batch, rows, prefix), own], dim=2)
    if window or chunk:
        here = (prefix + steps)[:, -rows:, None]
        front = torch.arange(prefix, device=owner.device).expand(batch, prefix)
        there = torch.cat([front, prefix + steps], dim=1)[:, None]
        near = here - there < window if window else here // (chunk or 1) == there // (chunk or 1)
        near[:, order[:rows], prefix + order[-rows:]] = True
        allowed &= near
    mask = torch.zeros(batch, 1, rows, prefix + width, dtype=dtype, device=owner.device)
    return mask.masked_fill_(~allowed[:, None], torch.finfo(dtype).min)
