"""Packed batches: the captions of some images in one pass, or a few passes over their prefixes.

:mod:`discode.backends._local.packing` has the layouts and masks.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from discode.backends._local.gpu.fused import (
    TreeAttention,
    split_attention,
    use_attention,
)
from discode.backends._local.packing import (
    CaptionGrid,
    PackedLayout,
    find_places,
    packed_attention_mask,
    stack_continuations,
    stack_layouts,
)
from discode.backends._local.prefix import Answers, CaptionGroup, LogpAndStates, Prefix, new_cache
from discode.errors import require

if TYPE_CHECKING:
    from discode.backends._local.forward import Runner

LOG = logging.getLogger("discode")


class PackedBatch:
    """Captions of images of one shape with one prompt, which a runner reads together.

    If ``hidden`` is false, answers have states of width 0, because fetching them takes long.
    """

    def __init__(self, runner: Runner, groups: list[CaptionGroup], *, hidden: bool = True) -> None:
        self.runner, self.groups, self.hidden = runner, groups, hidden
        self.tokenized = groups[0].tokenized
        self.images = [group.image for group in groups]
        self.decimal_stems = runner.decimal_stems(self.tokenized)
        self._most = max(len(group.suffixes) for group in groups)
        self._longest = max(len(suffix) for group in groups for suffix in group.suffixes)

    def captions_per_chunk(self) -> int:
        """Compute how many captions of each image can run together; 0 if not even one can."""
        runner = self.runner
        longest = self._longest + sum(map(len, self.tokenized.stems)) + len(self.decimal_stems)
        tokens = min(runner.max_packed_tokens(), runner.tokens_that_fit())
        size = runner.batch_captions or max(1, tokens // (len(self.groups) * longest))
        # Llama 4 scales attention by the place in the sequence, not by position, in such steps.
        step = getattr(runner.text_config, "floor_scale", None)
        if step and getattr(runner.text_config, "attn_temperature_tuning", False):
            size = min(size, (step - 1 - self.images[0].ids.shape[1] % step) // longest)
        return int(size)

    def are_few(self) -> bool:
        """Whether captions are few enough for one pass with their images to be the fastest."""
        runner, count = self.runner, len(self.groups)
        forced = [*self.tokenized.stems, *self._leaves().values()]
        width = self._most * (self._longest + sum(map(len, forced)))
        return (
            count * width <= runner.one_pass_tokens
            and self._most <= (runner.batch_captions or self._most)
            and count * (self.images[0].ids.shape[1] + width) <= runner.tokens_that_fit()
        )

    def at_once(self) -> Answers:
        """Read all captions in the pass of their prefixes, with every first decimal as a leaf."""
        torch = require("torch", "hf")
        runner, tokenized = self.runner, self.tokenized
        prefix, leaves = self.images[0].ids.shape[1], self._leaves()
        layouts = [PackedLayout.of(g.suffixes, tokenized.stems, leaves) for g in self.groups]
        *rows, keep = stack_layouts(layouts)
        tokens, steps, _, branch = runner.send(torch.from_numpy(np.stack(rows)))
        grid = self._grid(rows[2], branch, tokens.shape[1])
        ids = torch.cat([runner.send(torch.cat([i.ids for i in self.images])), tokens], dim=1)
        inputs = runner.model_inputs(self.images, longer=tokens.shape[1])
        positions = runner.axis_positions(self.images)
        if positions is None:
            front = torch.arange(prefix, device=ids.device).expand(len(self.images), prefix)
            inputs["position_ids"] = torch.cat([front, prefix + steps], dim=1)
        else:
            front, delta = positions
            after = (prefix + steps + delta).expand(len(front), *steps.shape)
            inputs["position_ids"] = torch.cat([front, after], dim=2)
        attention = TreeAttention(prefix, grid)
        with (
            use_attention(runner.text_config, attention),
            attention.leave_prefixes(runner.model.get_decoder().layers[-1]),
        ):
            states, logits = runner.run_rows(ids, inputs, None, keep, grid.mask)
        read = keep.shape[1] - sum(map(len, leaves.values()))
        logp = runner.logp(logits[:, :read], tokenized)
        if leaves:
            after = logits[:, read:].unflatten(1, (len(leaves), -1))
            decimals = runner.first_decimals(logp, tokenized)[..., None, None]
            after = after.take_along_dim(decimals, dim=2)[:, :, 0]
            logp = torch.cat([logp, runner.unless_ended(after, tokenized)], dim=1)
        states = states[:, :read] if self.hidden else states[:, :read, :0]
        return _fetch([(logp, states, [len(group.suffixes) for group in self.groups])])

    def over_prefixes(self, size: int | None = None) -> Answers:
        """Read all captions over one pass of the prefixes, ``size`` per image at a time."""
        torch = require("torch", "hf")
        prefix = Prefix.run(self.runner, self.images)
        parts: list[tuple[Any, Any, list[int]]] = []
        start, size = 0, size or self.captions_per_chunk()
        size = -(-self._most // -(-self._most // size))  # as many in each chunk
        while start < self._most:
            chunk = [group.suffixes[start : start + size] for group in self.groups]
            try:
                logp, states = self._run_suffixes(chunk, prefix)
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
                prefix.crop()
                torch.cuda.empty_cache()
                size = self.runner.batch_captions = size // 2
                LOG.warning("discode: out of memory; continuing with %d captions at once", size)
                continue
            states = states if self.hidden else states[..., :0]
            parts.append((logp, states, [len(several) for several in chunk]))
            start += size
        return _fetch(parts)

    def _leaves(self) -> dict[int, list[int]]:
        """The possible first decimals after each stem for which a second one is read."""
        digits = [group[0] for group in self.tokenized.answers[0]]
        return dict.fromkeys(self.decimal_stems, digits)

    def _run_suffixes(self, chunk: list[list[list[int]]], prefix: Prefix) -> tuple[Any, Any]:
        """Run a chunk of captions of each image over the prefixes.

        Returns the answers of all C captions, image by image, on the device: log-probabilities
        (C, R + S, I), the last S after first decimals, and states (C, R, D).
        """
        torch = require("torch", "hf")
        runner, tokenized = self.runner, self.tokenized
        # If all layers attend to everything, captions have a separate cache.
        cache = new_cache() if runner.attends_to_all() else prefix.cache
        layouts = [PackedLayout.of(several, tokenized.stems) for several in chunk]
        *rows, keep = stack_layouts(layouts)
        tokens, *places = runner.send(torch.from_numpy(np.stack(rows)))
        states, logits = self._run_packed(tokens, places, rows[2], prefix, cache, keep)
        logp = runner.logp(logits, tokenized)
        if stems := self.decimal_stems:
            order, *added = stack_continuations(layouts, list(stems), list(stems.values()))
            # The likeliest first decimals stay on the device, so that the host does not wait.
            decimals = runner.first_decimals(logp, tokenized)
            order, *sent = runner.send(torch.from_numpy(np.stack([order, *added])))
            tokens = runner.ids(tokenized).digits[decimals].flatten()[order]
            places = [torch.cat(pair, dim=1) for pair in zip(places, sent, strict=True)]
            owner = np.concatenate([rows[2], added[1]], axis=1)
            keep = np.flatnonzero(added[1] >= 0).reshape(-1, len(stems))
            _, logits = self._run_packed(tokens, places, owner, prefix, cache, keep)
            logp = torch.cat([logp, runner.unless_ended(logits, tokenized)], dim=1)
        prefix.crop()
        return logp, states

    def _run_packed(
        self,
        tokens: Any,
        places: list[Any],
        owner: NDArray[np.int64],
        prefix: Prefix,
        cache: Any,
        keep: NDArray[np.int64],
    ) -> tuple[Any, Any]:
        """Run packed tokens (B, Q), the last of those whose steps, owner and branch are given.

        Their keys and values go into ``cache``, a separate one or that of the prefixes.
        Returns states (*keep, D) and logits (*keep, V) at the places ``keep`` among all B·Q.
        """
        last = tokens.shape[1]
        steps, owners, branch = places
        position_ids = prefix.length + steps[:, -last:]
        if prefix.delta is not None:
            position_ids = (position_ids + prefix.delta).expand(3, *position_ids.shape)
        inputs = {"position_ids": position_ids}
        if cache is prefix.cache:
            mask = self._mask(owners, branch, steps, prefix.length, last)
            return self.runner.run_rows(tokens, inputs, cache, keep, mask)
        grid = self._grid(owner, branch, last)
        attention = functools.partial(split_attention, prefixes=prefix.cache, grid=grid)
        with use_attention(self.runner.text_config, attention):
            # Some models require a mask, which they only pass on.
            return self.runner.run_rows(tokens, inputs, cache, keep, grid.mask)

    def _grid(self, owner: NDArray[np.int64], branch: Any, last: int) -> CaptionGrid:
        """Locate the tokens of captions by the owner and the branch of each (B, K)."""
        torch = require("torch", "hf")
        sent = (self.runner.send(torch.from_numpy(x)) for x in find_places(owner, last))
        queries, keys, back = sent
        return CaptionGrid.of(queries, keys, back, branch, self.runner.dtype)

    def _mask(self, owner: Any, branch: Any, steps: Any, prefix: int, last: int) -> Any:
        config = self.runner.text_config
        window = getattr(config, "sliding_window", None)
        bounds: dict[str, dict[str, int | None]] = {
            "full_attention": {},
            "sliding_attention": {"window": window},
            "chunked_attention": {"chunk": getattr(config, "attention_chunk_size", None)},
        }
        kinds = set(getattr(config, "layer_types", None) or ())
        masks = {
            kind: packed_attention_mask(
                owner, branch, steps, prefix, self.runner.dtype, last=last, **bounds[kind]
            )
            for kind in (kinds & bounds.keys())
            or ({"full_attention"} if window is None else {"sliding_attention"})
        }
        return masks if len(kinds) > 1 else next(iter(masks.values()))


def _fetch(parts: list[tuple[Any, Any, list[int]]]) -> Answers:
    """Start copying the answers of chunks to the host; the result waits for the copies.

    A part is log-probabilities (C, R, I), states (C, R, D), and how many of the C captions belong
    to each image.
    """
    torch = require("torch", "hf")
    device, images = parts[-1][0].device, len(parts[-1][2])
    later = device.type == "cuda"
    copies = [
        [x.to("cpu", non_blocking=later).split(counts) for x in (logp, states)]
        for logp, states, counts in parts
    ]
    copied = None
    if later:
        copied = torch.cuda.Event()
        copied.record(torch.cuda.current_stream(device))

    def answers() -> list[LogpAndStates]:
        if copied is not None:
            copied.synchronize()
        return [
            (
                np.concatenate([logp[image].numpy() for logp, _ in copies]),
                np.concatenate([states[image].float().numpy() for _, states in copies]),
            )
            for image in range(images)
        ]

    return answers
