"""The forward passes of a local model: many captions packed into one, or one pass per caption.

Both give the same answers. :mod:`discode.backends.local.calibrate` checks that for each model.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discode.backends.local.generate import MAX_NEW_TOKENS
from discode.backends.local.gpu.fused import (
    RotaryModules,
    TreeAttention,
    find_rotary_modules,
    fuse_activations,
    fuse_norms,
    fuse_residuals,
    grouped_attention,
    has_wide_products,
    split_attention,
    use_attention,
    use_fused_rotation,
)
from discode.backends.local.load import OpenedModel, short_message
from discode.backends.local.memory import tokens_that_fit
from discode.backends.local.packing import (
    CaptionGrid,
    PackedLayout,
    find_places,
    packed_attention_mask,
    stack_continuations,
    stack_layouts,
)
from discode.backends.local.vocabulary import (
    TokenizedPrompt,
    conversation,
    first_decimal,
)
from discode.errors import BackendError, require
from discode.images import open_image
from discode.pairs import Pair

LogpAndStates = tuple[NDArray[np.float64], NDArray[np.float32]]
"""Log-probabilities (N, R, I) of the wanted ids, and hidden states (N, R, D).

Where a second decimal is looked for, the log-probabilities have a position more for each of the
prompt's ``decimal_stems``: that after its likeliest first decimal. They are NaN where the model
would end the number there."""
Answers = Callable[[], list[LogpAndStates]]
"""Waits for a batch that was given to the device; returns the answers of each of its groups."""
LOG = logging.getLogger("discode")
PER_TOKEN_INPUTS = {
    "token_type_ids": False,
    "mm_token_type_ids": False,
    "cross_attention_mask": True,
}
"""Inputs with one value per token, and whether text continues with the last value (else 0)."""
MAX_PACKED_TOKENS = 1 << 15
"""Packed tokens per chunk, unless memory is short: more would gain nothing."""
MAX_MASKED_TOKENS = 8192
"""The same for models whose captions attend with one mask: longer rows attend to more tokens that
are masked out."""
ONE_PASS_TOKENS = {"cuda": 1024, "cpu": 128}
"""Tokens of captions that run in one pass with their images, by device. With more, a pass of their
own uses a GPU as well, and in one pass they would attend in vain to the captions before them; on a
CPU the tokens that this adds soon take longer than to read the weights again."""
MAX_IMAGES = 8
"""Images per batch, unless memory is short; for the same reason."""
STREAMS = 2
"""Batches that a GPU may have at once: while the host waits for a part of one (models count their
image tokens), the GPU works on the other."""
HEAD_BLOCK = 1 << 14
"""Rows of the head that are converted to float32 at once."""


class _Ids(NamedTuple):
    """Ids of a prompt on the device."""

    wanted: Any  # (I,)
    answer_of: Any  # (I, K), of the prompt
    digits: Any  # (K,), one for each digit
    all_digits: Any  # those that begin with a digit


@dataclass
class ProcessedImage:
    """An image after the processor: the ids of the prefix (1, P) and the model's other inputs.

    ``opened`` is kept where the processor builds the prompt around a caption in its own way
    (PaliGemma): then each caption is processed together with the image, and ``ids`` are not used.
    """

    ids: Any
    inputs: dict[str, Any]
    opened: Any = None

    def shape(self) -> tuple[Any, ...]:
        """What must be equal for images to share a batch."""
        return (
            self.ids.shape[1],
            *((name, tuple(x.shape), x.dtype) for name, x in sorted(self.inputs.items())),
        )


@dataclass
class CaptionGroup:
    """Captions of one image, ready for the model.

    ``rows`` are their rows in the batch; ``suffixes`` are the ids that follow the prefix, and
    ``written`` those at their end that the model wrote itself before its rating.
    """

    tokenized: TokenizedPrompt
    image: ProcessedImage
    pairs: list[Pair]
    rows: list[int]
    suffixes: list[list[int]]
    written: list[list[int]] = field(default_factory=list)

    def after(self, written: Mapping[int, list[int]]) -> CaptionGroup:
        """Return the captions with these indices, followed by what the model wrote."""
        return CaptionGroup(
            self.tokenized,
            self.image,
            [self.pairs[i] for i in written],
            [self.rows[i] for i in written],
            [self.suffixes[i] + ids for i, ids in written.items()],
            list(written.values()),
        )


class ModelRunner:
    """Runs a model, which is loaded for it.

    ``packed`` says whether captions of an image share one pass, ``one_pass`` whether few of them
    (at most ``one_pass_tokens``) may share that of their image; ``second_decimal`` whether a second
    decimal is looked for; ``rounding`` is the relative error of one block; ``logit_scale`` is the
    factor f in logits = f · states · head, or 0 where the logits are not such a product.
    """

    def __init__(self, opened: OpenedModel, batch_captions: int | None) -> None:
        torch = require("torch", "hf")
        self.model, self.processor, self.name = opened.model, opened.processor, opened.name
        self.vocabulary = opened.vocabulary
        self.batch_captions = batch_captions
        self.packed = True
        self.one_pass = False
        self.one_pass_tokens = ONE_PASS_TOKENS.get(opened.device.type, 0)
        self.second_decimal = False
        self.logit_scale = 0.0  # until the model is calibrated
        self.dtype = getattr(torch, opened.dtype)
        self.text_config = opened.model.config.get_text_config()
        self.rounding = float(torch.finfo(self.dtype).eps)
        if any(type(module).__name__ == "Fp8Linear" for module in self.model.modules()):
            # Of two passes that differ in the last bit, a few entries are rounded apart to 8 bits.
            self.rounding = 2.0**-5
        self.lock = opened.lock
        self._device = opened.device
        self._head_rows: dict[TokenizedPrompt, Any] = {}
        self._id_tensors: dict[TokenizedPrompt, _Ids] = {}
        self._rotary_modules: RotaryModules = {}
        self._streams: deque[Any] = deque()
        _widen_head(self.model.get_output_embeddings())
        if self._device.type == "cuda":  # elsewhere the matrix products take almost all the time
            fuse_norms(self.model)
            fuse_activations(self.model)
            fuse_residuals(getattr(self.model, "get_decoder", lambda: self.model)())
            self._rotary_modules = find_rotary_modules(self.model)
            self._streams.extend(torch.cuda.Stream(self._device) for _ in range(STREAMS))

    def process_image(self, image: Any, tokenized: TokenizedPrompt) -> ProcessedImage:
        """Process an image with the prompt's prefix; what follows the prefix is tokenised apart."""
        opened = open_image(image)
        ids, inputs = self.process(tokenized.text, opened)
        inputs = {name: self._pinned(value) for name, value in inputs.items()}
        length, tail = ids.shape[1], len(tokenized.tail)
        if ids[0, length - tail :].tolist() != tokenized.tail:
            return ProcessedImage(ids, inputs, opened)
        for name in PER_TOKEN_INPUTS.keys() & inputs.keys():
            inputs[name] = inputs[name][:, : length - tail]
        return ProcessedImage(ids[:, : length - tail], inputs)

    def process(self, text: str, opened: Any) -> tuple[Any, dict[str, Any]]:
        """Return a prompt's ids (1, L) with the image's tokens, and the model's other inputs."""
        try:
            inputs = self.processor.apply_chat_template(
                conversation(text, opened),
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
            )
        # Processors refuse images (too narrow, too small) with all kinds of exceptions.
        except Exception as error:
            why = short_message(error)
            raise BackendError(f"the model's processor refuses the image: {why}") from error
        ids = inputs.pop("input_ids")
        return ids, {k: v for k, v in inputs.items() if k not in ("attention_mask", "labels")}

    def generate(self, group: CaptionGroup, index: int) -> list[int]:
        """Let the model generate an answer to one caption of a group, greedily."""
        torch = require("torch", "hf")
        image, pair = group.image, group.pairs[index]
        if image.opened is not None:
            text = group.tokenized.render(pair.caption, pair.references)
            image = ProcessedImage(*self.process(text, image.opened))
            ids, inputs = image.ids, self.model_inputs([image])
        else:
            suffix = torch.tensor([group.suffixes[index]])
            ids = torch.cat([image.ids, suffix], dim=1)
            inputs = self.model_inputs([image], longer=suffix.shape[1])
        ids = ids.to(self._device)
        with self.lock, torch.inference_mode():
            out = self.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                **inputs,
                max_new_tokens=MAX_NEW_TOKENS,
                do_sample=False,
                repetition_penalty=1.0,  # some models' own settings penalise a second zero
                return_dict_in_generate=True,
            )
        return [int(token) for token in out.sequences[0, ids.shape[1] :]]

    def start(self, groups: list[CaptionGroup], hidden: bool = True) -> Answers:
        """Give groups to the device; their images share a shape, and the prompt is the same.

        What is returned waits for the answers of each group. Without ``hidden``, packed captions
        come with states of width 0: they take long to fetch. One thread at a time: others wait.
        """
        torch = require("torch", "hf")
        with self.lock, torch.inference_mode(), self._next_stream():
            if self.packed and groups[0].image.opened is None and self._captions_per_chunk(groups):
                if self.one_pass and self._are_few(groups):
                    with suppress(torch.OutOfMemoryError):
                        return self.start_at_once(groups, hidden)
                    self.one_pass = False  # two passes need less memory at once
                return self.start_packed(groups, hidden=hidden)
            answers = [self.run_separately(group) for group in groups]
            return lambda: answers

    def _next_stream(self) -> AbstractContextManager[None]:
        """Let a GPU work on a batch beside the one before it."""
        if not self._streams:
            return nullcontext()
        torch = require("torch", "hf")
        self._streams.rotate()
        self._streams[0].wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._streams[0])  # type: ignore[no-any-return]

    def run_separately(self, group: CaptionGroup) -> LogpAndStates:
        """Read each caption by forward passes of its own: logp (N, R, I), states (N, R, D)."""
        if group.image.opened is not None:
            written = group.written or [[] for _ in group.pairs]
            answers = [
                self._run_whole_prompt(group.image, pair, group.tokenized, ids)
                for pair, ids in zip(group.pairs, written, strict=True)
            ]
        else:
            answers = [
                self._run_caption(group.image, suffix, group.tokenized) for suffix in group.suffixes
            ]
        return np.stack([logp for logp, _ in answers]), np.stack([states for _, states in answers])

    def start_packed(
        self, groups: list[CaptionGroup], size: int | None = None, hidden: bool = True
    ) -> Answers:
        """Read all captions over one pass of the prefixes, ``size`` per image at a time."""
        images, suffixes = [g.image for g in groups], [g.suffixes for g in groups]
        tokenized = groups[0].tokenized
        torch = require("torch", "hf")
        cache = self.run_prefixes(images)
        delta = self._rope_delta(len(images))
        parts: list[tuple[Any, Any, list[int]]] = []
        start, most = 0, max(map(len, suffixes))
        size = size or self._captions_per_chunk(groups)
        size = -(-most // -(-most // size))  # as many in each chunk
        while start < most:
            try:
                chunk = [several[start : start + size] for several in suffixes]
                logp, states = self._run_suffixes(chunk, tokenized, cache, delta)
                states = states if hidden else states[..., :0]
                parts.append((logp, states, [len(several) for several in chunk]))
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
                prefix = images[0].ids.shape[1]
                for layer in cache.layers:  # those after the one that failed have nothing to crop
                    if layer.get_seq_length() > prefix:
                        layer.crop(prefix - layer.get_seq_length())
                torch.cuda.empty_cache()
                size = self.batch_captions = size // 2
                LOG.warning("discode: out of memory; continuing with %d captions at once", size)
                continue
            start += size
        return _fetch(parts)

    def start_at_once(self, groups: list[CaptionGroup], hidden: bool = True) -> Answers:
        """Read all captions in the pass of their prefixes, after each stem every first decimal."""
        torch = require("torch", "hf")
        images, tokenized = [group.image for group in groups], groups[0].tokenized
        prefix, leaves = images[0].ids.shape[1], self._leaves(tokenized)
        layouts = [PackedLayout.of(g.suffixes, tokenized.stems, leaves) for g in groups]
        *rows, keep = stack_layouts(layouts)
        tokens, steps, _, branch = self._send(torch.from_numpy(np.stack(rows)))
        grid = self._grid(rows[2], branch, tokens.shape[1])
        ids = torch.cat([self._send(torch.cat([image.ids for image in images])), tokens], dim=1)
        front = torch.arange(prefix, device=ids.device).expand(len(images), prefix)
        inputs = self.model_inputs(images, longer=tokens.shape[1])
        inputs["position_ids"] = torch.cat([front, prefix + steps], dim=1)
        attention = TreeAttention(prefix, grid)
        with (
            use_attention(self.text_config, attention),
            attention.leave_prefixes(self.model.get_decoder().layers[-1]),
        ):
            states, logits = self._run_rows(ids, inputs, None, keep, grid.mask)
        read = keep.shape[1] - sum(map(len, leaves.values()))
        logp = self._logp(logits[:, :read], tokenized)
        if leaves:
            after = logits[:, read:].unflatten(1, (len(leaves), -1))
            decimals = self._first_decimals(logp, tokenized)[..., None, None]
            after = after.take_along_dim(decimals, dim=2)[:, :, 0]
            logp = torch.cat([logp, self._unless_ended(after, tokenized)], dim=1)
        states = states[:, :read] if hidden else states[:, :read, :0]
        return _fetch([(logp, states, [len(group.suffixes) for group in groups])])

    def _leaves(self, tokenized: TokenizedPrompt) -> dict[int, list[int]]:
        """Return the first decimals that may follow each stem after which a second is read."""
        digits = [group[0] for group in tokenized.answers[0]]
        return dict.fromkeys(self._decimal_stems(tokenized), digits)

    def _are_few(self, groups: list[CaptionGroup]) -> bool:
        """Whether captions are so few that one pass with their images is the quickest."""
        tokenized, many = groups[0].tokenized, max(len(group.suffixes) for group in groups)
        longest = max(len(suffix) for group in groups for suffix in group.suffixes)
        forced = [*tokenized.stems, *self._leaves(tokenized).values()]
        width = many * (longest + sum(map(len, forced)))
        return (
            len(groups) * width <= self.one_pass_tokens
            and many <= (self.batch_captions or many)
            and len(groups) * (groups[0].image.ids.shape[1] + width) <= self._tokens_that_fit()
        )

    def may_run_at_once(self) -> bool:
        """Whether tokens attend to all before them and are counted one by one, images included."""
        return self._attends_to_all() and self._rope_delta(1) is None

    def run_prefixes(self, images: list[ProcessedImage]) -> Any:
        """Run the prefixes of images; return the cache of their keys and values.

        Nothing else is wanted of them: the pass ends with the keys and values of the last layer.
        """
        torch = require("torch", "hf")
        cache = _cache_class()(stop_after=self.text_config.num_hidden_layers - 1)
        ids = torch.cat([image.ids for image in images])
        with suppress(_PrefixDone):
            self.run(ids, self.model_inputs(images), cache, keep=1)
        return cache

    def _run_suffixes(
        self,
        chunk: list[list[list[int]]],
        tokenized: TokenizedPrompt,
        cache: Any,
        delta: Any,
    ) -> tuple[Any, Any]:
        """Run a chunk of captions of each image over the cache of the prefixes.

        Returns the answers of all C captions, image by image, still on the device:
        log-probabilities (C, R + S, I), the last S after first decimals, and states (C, R, D).
        """
        torch = require("torch", "hf")
        prefix = cache.get_seq_length()
        text_cache = _cache_class()() if self._attends_to_all() else cache
        layouts = [PackedLayout.of(several, tokenized.stems) for several in chunk]
        *rows, keep = stack_layouts(layouts)
        tokens, *places = self._send(torch.from_numpy(np.stack(rows)))
        states, logits = self._run_packed(
            tokens, places, rows[2], cache, text_cache, prefix, delta, keep
        )
        logp = self._logp(logits, tokenized)
        if stems := self._decimal_stems(tokenized):
            order, *added = stack_continuations(layouts, list(stems), list(stems.values()))
            # The likeliest first decimals never leave the device: nothing has to wait for them.
            decimals = self._first_decimals(logp, tokenized)
            order, *sent = self._send(torch.from_numpy(np.stack([order, *added])))
            places = [torch.cat(pair, dim=1) for pair in zip(places, sent, strict=True)]
            owner = np.concatenate([rows[2], added[1]], axis=1)
            _, logits = self._run_packed(
                self._ids(tokenized).digits[decimals].flatten()[order], places, owner, cache,
                text_cache, prefix, delta, np.flatnonzero(added[1] >= 0).reshape(-1, len(stems)),
            )  # fmt: skip
            logp = torch.cat([logp, self._unless_ended(logits, tokenized)], dim=1)
        cache.crop(prefix - cache.get_seq_length())
        return logp, states

    def _first_decimals(self, logp: Any, tokenized: TokenizedPrompt) -> Any:
        """Return the likeliest answer (C, S) after each of the S decimal stems, by (C, R, I)."""
        torch = require("torch", "hf")
        places = self._decimal_stems(tokenized).values()
        first = torch.stack([logp[:, place] for place in places], dim=1)
        return (first.exp() @ self._ids(tokenized).answer_of).argmax(-1)

    def _run_packed(
        self,
        tokens: Any,
        places: list[Any],
        owner: NDArray[np.int64],
        cache: Any,
        text_cache: Any,
        prefix: int,
        delta: Any,
        keep: NDArray[np.int64],
    ) -> tuple[Any, Any]:
        """Run packed tokens (B, Q), the last of those whose steps, owner and branch are given.

        Their keys and values go into ``text_cache``: a cache of theirs, or that of the prefixes.
        Returns states (*keep, D) and logits (*keep, V) at the places ``keep`` among all B·Q.
        """
        last = tokens.shape[1]
        steps, owners, branch = places
        position_ids = prefix + steps[:, -last:]
        if delta is not None:
            position_ids = (position_ids + delta).expand(3, *position_ids.shape)
        if text_cache is cache:
            attention: Any = grouped_attention
            mask = self._packed_mask(owners, branch, steps, prefix, last)
        else:
            grid = self._grid(owner, branch, last)
            attention = functools.partial(split_attention, prefixes=cache, grid=grid)
            mask = grid.mask  # a model may ask for one, and only hands it on
        with use_attention(self.text_config, attention):
            return self._run_rows(tokens, {"position_ids": position_ids}, text_cache, keep, mask)

    def _grid(self, owner: NDArray[np.int64], branch: Any, last: int) -> CaptionGrid:
        """Return where the tokens of captions are, by the owner and the branch of each (B, K)."""
        torch = require("torch", "hf")
        queries, keys, back = (self._send(torch.from_numpy(x)) for x in find_places(owner, last))
        return CaptionGrid.of(queries, keys, back, branch, self.dtype)

    def _run_rows(
        self, ids: Any, inputs: dict[str, Any], cache: Any, keep: NDArray[np.int64], mask: Any
    ) -> tuple[Any, Any]:
        """Run the model; returns states (*keep, D) and logits (*keep, V)."""
        rows = self._send(require("torch", "hf").from_numpy(keep.ravel()))
        states, logits = self.run(ids, inputs, cache, keep=rows, mask=mask)
        return states.reshape(*keep.shape, -1), logits.reshape(*keep.shape, -1)

    def _attends_to_all(self) -> bool:
        """Whether every layer attends to all tokens before it, and to those of the text alone."""
        config = self.text_config
        kinds = getattr(config, "layer_types", None) or ["full_attention"]
        return (
            set(kinds) == {"full_attention"}
            and getattr(config, "sliding_window", None) is None
            and not getattr(config, "cross_attention_layers", None)
        )

    def _decimal_stems(self, tokenized: TokenizedPrompt) -> dict[int, int]:
        """Return the stems after whose first decimal a second one is looked for, with places."""
        return tokenized.decimal_stems if self.second_decimal else {}

    def _unless_ended(self, logits: Any, tokenized: TokenizedPrompt) -> Any:
        """Return log-probabilities (..., I), NaN where the likeliest token is not a digit."""
        torch = require("torch", "hf")
        goes_on = torch.isin(logits.argmax(-1), self._ids(tokenized).all_digits)
        return self._logp(logits, tokenized).where(goes_on[..., None], torch.nan)

    def _ids(self, tokenized: TokenizedPrompt) -> _Ids:
        """Return a prompt's ids as tensors.

        Made once: a copy to the device would wait for what it has queued.
        """
        torch = require("torch", "hf")
        if tokenized not in self._id_tensors:
            groups = tokenized.answers[0]
            self._id_tensors[tokenized] = _Ids(
                torch.tensor(tokenized.wanted, device=self._device),
                torch.from_numpy(tokenized.answer_of).to(self._device),
                torch.tensor([group[0] for group in groups], device=self._device),
                torch.tensor([i for group in groups for i in group], device=self._device),
            )
        return self._id_tensors[tokenized]

    def _pinned(self, tensor: Any) -> Any:
        """Convert and pin a tensor for the copy to the device; done in the preparing threads."""
        tensor = tensor.to(self.dtype) if tensor.is_floating_point() else tensor
        return tensor.pin_memory() if self._device.type == "cuda" else tensor

    def _send(self, tensor: Any) -> Any:
        """Copy to the device without waiting for the work it has queued."""
        if tensor.is_cuda:
            return tensor
        return self._pinned(tensor).to(self._device, non_blocking=True)

    def _packed_mask(self, owner: Any, branch: Any, steps: Any, prefix: int, last: int) -> Any:
        """Return the mask, or one per kind of layer where the model has several kinds."""
        config = self.text_config
        window = getattr(config, "sliding_window", None)
        bounds: dict[str, dict[str, int | None]] = {
            "full_attention": {},
            "sliding_attention": {"window": window},
            "chunked_attention": {"chunk": getattr(config, "attention_chunk_size", None)},
        }
        kinds = set(getattr(config, "layer_types", None) or ())
        masks = {
            kind: packed_attention_mask(
                owner, branch, steps, prefix, self.dtype, last=last, **bounds[kind]
            )
            for kind in (kinds & bounds.keys())
            or ({"full_attention"} if window is None else {"sliding_attention"})
        }
        return masks if len(kinds) > 1 else next(iter(masks.values()))

    def _run_caption(
        self, image: ProcessedImage, suffix: list[int], tokenized: TokenizedPrompt
    ) -> LogpAndStates:
        """Read one caption with one forward pass per stem: logp (R, I), states (R, D)."""
        torch = require("torch", "hf")

        def run(*stem: int) -> tuple[Any, Any]:
            rest = torch.tensor([[*suffix, *stem]])
            inputs = self.model_inputs([image], longer=rest.shape[1])
            return self.run(torch.cat([image.ids, rest], dim=1), inputs, None, keep=len(stem) + 1)

        logp, states = [], []
        for number, stem in enumerate(tokenized.stems):
            state, logits = run(*stem)
            first = 1 if number else 0  # the position before the stems is read once
            logp.append(self._logp(logits, tokenized)[0, first:].cpu().numpy())
            states.append(state[0, first:].float().cpu().numpy())
        logp.append(self._after_decimal(np.concatenate(logp), tokenized, run))
        return np.concatenate(logp), np.concatenate(states)

    def _after_decimal(
        self,
        logp: NDArray[np.float64],
        tokenized: TokenizedPrompt,
        run: Callable[..., tuple[Any, Any]],
    ) -> NDArray[np.float64]:
        """Return log-probabilities (S, I) after the likeliest first decimals in ``logp`` (R, I).

        ``run`` runs the model on the prompt and the ids it is given.
        """
        after = [logp[:0]]
        for number, place in self._decimal_stems(tokenized).items():
            answer, token = first_decimal(tokenized, logp[place])
            if token in tokenized.second_digit:  # it holds the second decimal
                after.append(np.full_like(logp[:1], np.nan))
                continue
            _, logits = run(*tokenized.stems[number], tokenized.answers[number][answer][0])
            after.append(self._unless_ended(logits, tokenized)[0, -1:].cpu().numpy())
        return np.concatenate(after)

    def _run_whole_prompt(
        self,
        image: ProcessedImage,
        pair: Pair,
        tokenized: TokenizedPrompt,
        written: list[int],
    ) -> LogpAndStates:
        """Read one caption whose prompt the processor builds; the stems follow over its cache."""
        torch, transformers = require("torch", "hf"), require("transformers", "hf")
        text = tokenized.render(pair.caption, pair.references)
        whole = ProcessedImage(*self.process(text, image.opened))
        cache = transformers.DynamicCache()
        parts = [self.run(whole.ids, self.model_inputs([whole]), cache, keep=1)]
        if written:
            parts = [self.run(torch.tensor([written]), {}, cache, keep=1)]

        def run(*stem: int) -> tuple[Any, Any]:
            part = self.run(torch.tensor([stem]), {}, cache, keep=len(stem))
            cache.crop(-len(stem))
            return part

        parts += [run(*stem) for stem in tokenized.stems if stem]
        logp = [self._logp(logits, tokenized)[0].cpu().numpy() for _, logits in parts]
        logp.append(self._after_decimal(np.concatenate(logp), tokenized, run))
        states = [state[0].float().cpu().numpy() for state, _ in parts]
        return np.concatenate(logp), np.concatenate(states)

    def run(
        self, ids: Any, inputs: dict[str, Any], cache: Any, keep: Any, mask: Any = None
    ) -> tuple[Any, Any]:
        """Run the model; returns the states (B, R, D) before the head and the logits (B, R, V).

        ``keep`` is how many of the last positions are read, or a tensor of M places among all
        B·L: then these M alone go through the head, as (1, M, D).
        """
        torch = require("torch", "hf")
        ids = self._send(ids)
        if mask is None:
            before = 0 if cache is None else cache.get_seq_length()
            mask = torch.ones(len(ids), before + ids.shape[1], dtype=torch.long, device=ids.device)
        head = self.model.get_output_embeddings()
        rows = None if isinstance(keep, int) else keep
        with _head_input(head, rows) as seen, use_fused_rotation(self._rotary_modules):
            logits = self.model(
                input_ids=ids,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=cache is not None,
                logits_to_keep=keep if rows is None else 0,
                **inputs,
            ).logits
        return seen[0], logits

    def model_inputs(self, images: list[ProcessedImage], longer: int = 0) -> dict[str, Any]:
        """Join the inputs of several images on the device, padded for ``longer`` tokens of text."""
        torch = require("torch", "hf")
        inputs = {}
        for name in images[0].inputs:
            values = [image.inputs[name] for image in images]
            # Models read sizes as numbers, and would wait for the device to send them back.
            values = values if name == "image_sizes" else [self._send(value) for value in values]
            value = torch.cat(values)
            if longer and name in PER_TOKEN_INPUTS:
                more = value[:, -1:].expand(-1, longer, *value.shape[2:])
                more = more if PER_TOKEN_INPUTS[name] else torch.zeros_like(more)
                value = torch.cat([value, more], dim=1)
            inputs[name] = value
        return inputs

    def _rope_delta(self, batch: int) -> Any:
        """Return how far multimodal positions lag behind the token count (B, 1), or None."""
        delta = getattr(self.model.base_model, "rope_deltas", None)
        return None if delta is None else delta.reshape(batch, 1).to(self._device).clone()

    def _logp(self, logits: Any, tokenized: TokenizedPrompt) -> Any:
        """Return log-probabilities (..., I) of the wanted ids, by logits (..., V)."""
        logits = logits.float()
        chosen = logits[..., self._ids(tokenized).wanted]
        return (chosen - logits.logsumexp(-1, keepdim=True)).double()

    def head_rows(self, tokenized: TokenizedPrompt) -> Any:
        """Return the rows of the head for the wanted ids (I, D), in float32."""
        if tokenized not in self._head_rows:
            weight = self.model.get_output_embeddings().weight
            self._head_rows[tokenized] = weight[tokenized.wanted].float() * self.logit_scale
        return self._head_rows[tokenized]

    def _captions_per_chunk(self, groups: list[CaptionGroup]) -> int:
        """Return how many captions of each image run at once, 0 where not even one may."""
        longest = max(len(suffix) for group in groups for suffix in group.suffixes)
        longest += sum(map(len, groups[0].tokenized.stems))
        longest += len(self._decimal_stems(groups[0].tokenized))
        tokens = min(self.max_packed_tokens(), self._tokens_that_fit())
        size = self.batch_captions or max(1, tokens // (len(groups) * longest))
        # Llama 4 counts places in the sequence, whatever the positions say, in steps of this size.
        step = getattr(self.text_config, "floor_scale", None)
        if step and getattr(self.text_config, "attn_temperature_tuning", False):
            size = min(size, (step - 1 - groups[0].image.ids.shape[1] % step) // longest)
        return int(size)

    def max_packed_tokens(self) -> int:
        """Return how many tokens of captions run at once where memory is not short."""
        return MAX_PACKED_TOKENS if self._attends_to_all() else MAX_MASKED_TOKENS

    def max_suffix(self, image: ProcessedImage, tokenized: TokenizedPrompt) -> int:
        """Return how many tokens may follow an image's prefix, not counting what is forced."""
        most = getattr(self.text_config, "max_position_embeddings", None) or 1 << 30
        used = image.ids.shape[1] - (len(tokenized.tail) if image.opened is not None else 0)
        longest = max(map(len, tokenized.stems)) + bool(self._decimal_stems(tokenized))
        return int(most - used - longest)

    def images_that_fit(self, image: ProcessedImage) -> int:
        """Return how many prefixes like this one run at once."""
        half = self._tokens_that_fit() // 2  # the other half is for the captions
        return max(1, min(MAX_IMAGES, half // int(image.ids.shape[1])))

    def _tokens_that_fit(self) -> int:
        tokens = tokens_that_fit(self.text_config, self.dtype.itemsize, self._device)
        return tokens // max(1, len(self._streams))  # a stream uses no memory of another


class _PrefixDone(Exception):
    """Raised inside a model when all that is wanted of a prefix is there."""


@functools.cache
def _cache_class() -> Any:
    """Return the class of caches that keep what they are given first; transformers' own copy it.

    With ``stop_after``, a cache ends the pass when that layer's keys and values are there. Without
    a configuration every layer keeps the whole prefix.
    """
    transformers = require("transformers", "hf")

    class KeepingCache(transformers.DynamicCache):  # type: ignore[misc, name-defined]
        def __init__(self, stop_after: int | None = None) -> None:
            super().__init__()
            self.stop_after = stop_after

        def update(
            self, key_states: Any, value_states: Any, layer_idx: int, *more: Any, **named: Any
        ) -> Any:
            states = key_states, value_states
            if layer_idx == len(self.layers) and _is_whole(key_states) and _is_whole(value_states):
                first = transformers.cache_utils.DynamicLayer()
                first.dtype, first.device = key_states.dtype, key_states.device
                first.keys, first.values = states
                first.is_initialized = True
                self.layers.append(first)
            else:
                states = super().update(key_states, value_states, layer_idx, *more, **named)
            if layer_idx == self.stop_after and self.get_seq_length() == key_states.shape[2]:
                raise _PrefixDone
            return states

    return KeepingCache


def _is_whole(tensor: Any) -> bool:
    """Whether a tensor is all of its storage, so that to keep it is to keep nothing else."""
    return bool(tensor.untyped_storage().nbytes() == tensor.nbytes)


def _widen_head(head: Any) -> None:
    """Let a head return float32: its logits are near 20, where bfloat16 has steps of 0.125.

    What a model does with its logits afterwards, it does in float32 too. Where 16-bit floats cannot
    be multiplied into float32, the weights are converted in blocks over the vocabulary. A quantised
    head stays as it is.
    """
    torch = require("torch", "hf")
    if type(head) is not torch.nn.Linear or head.weight.dtype == torch.float32:
        return

    def forward(states: Any) -> Any:
        if states.is_cuda and states.dtype == head.weight.dtype and has_wide_products(states.dtype):
            product = torch.mm(states.flatten(0, -2), head.weight.T, out_dtype=torch.float32)
            product = product if head.bias is None else product + head.bias
            return product.unflatten(0, states.shape[:-1])
        weights = head.weight.split(HEAD_BLOCK)
        biases = [None] * len(weights) if head.bias is None else head.bias.float().split(HEAD_BLOCK)
        rows, linear = states.float(), torch.nn.functional.linear
        blocks = zip(weights, biases, strict=True)
        return torch.cat([linear(rows, weight.float(), bias) for weight, bias in blocks], dim=-1)

    # Where accelerate moves inputs and weights of a head, it calls what it found there.
    setattr(head, "_old_forward" if hasattr(head, "_old_forward") else "forward", forward)


@contextmanager
def _head_input(head: Any, rows: Any) -> Iterator[list[Any]]:
    """Collect what goes into a head, call by call; only some ``rows`` of it if they are given."""
    seen: list[Any] = []

    def choose(_: Any, inputs: Any) -> Any:
        states, *others = inputs
        if rows is not None:
            states = states.flatten(0, 1)[rows.to(states.device)][None]
        seen.append(states)
        return (states, *others)

    hook = head.register_forward_pre_hook(choose)
    try:
        yield seen
    finally:
        hook.remove()


def _fetch(parts: list[tuple[Any, Any, list[int]]]) -> Answers:
    """Begin to copy the answers of chunks to the host; what is returned waits for the copies.

    A part is log-probabilities (C, R, I), states (C, R, D), and how many of the C captions are of
    each image.
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
