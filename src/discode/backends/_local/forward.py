"""The runner of a local model: every forward pass goes through :meth:`Runner.run`.

::

    CaptionGroup (captions of an image)
      │
      ├─ PackedBatch.at_once          image | caption 1 | 0 . | 1 . | caption 2 | ...    one pass
      │
      ├─ PackedBatch.over_prefixes    Prefix (image)   ◀── caption 1 | 0 . | 1 . | ...   two passes
      │                                                ◀── first decimals                or three
      │
      └─ read_separately              image | caption 1 | 0 .      a pass per caption and stem

All give the same answers, which :mod:`discode.backends._local.calibrate` checks for each model.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discode._arrays import widest_float
from discode._extras import require_transformers
from discode.backends._local.gpu.fused import (
    RotaryModules,
    find_rotary_modules,
    fuse_activations,
    fuse_norms,
    fuse_residuals,
    recurs,
    use_fused_rotation,
    without_plans,
)
from discode.backends._local.gpu.vision import join_sequences, multiply_patches
from discode.backends._local.head import head_input, widen_head
from discode.backends._local.image_part import ImagePart, size_key
from discode.backends._local.load import OpenedModel, short_message
from discode.backends._local.memory import tokens_that_fit
from discode.backends._local.packed import PackedBatch
from discode.backends._local.prefix import Answers, CaptionGroup, ProcessedImage
from discode.backends._local.separate import read_separately
from discode.backends._local.vocabulary import MAX_NEW_TOKENS, TokenizedPrompt, conversation
from discode.errors import BackendError, require
from discode.images import open_image

PER_TOKEN_INPUTS = {
    "token_type_ids": False,
    "mm_token_type_ids": False,
    "cross_attention_mask": True,
}
"""Inputs with one value per token, and whether text repeats the last value (otherwise 0)."""
MAX_PACKED_TOKENS = 1 << 15
"""Maximum packed tokens per chunk; fewer if memory is short. More would gain nothing."""
MAX_MASKED_TOKENS = 8192
"""The same for models whose captions share one mask: longer rows compute more masked scores."""
ONE_PASS_TOKENS = {"cuda": 1024, "cpu": 128}
"""Maximum tokens of captions in one pass with their images, by device. More captions use a GPU
equally well in a separate pass, without masked scores between captions; on a CPU the added tokens
soon take longer than reading the weights again."""
PREFIX_TOKENS = {"cuda": 20480, "cpu": 4096}
"""Maximum tokens of prefixes per batch, by device; fewer if memory is short. A GPU computes 20,000
tokens in about half a second, in which the host can launch several batches."""
STREAMS = 2
"""Concurrent batches on a GPU: it works on one while the host waits for a part of the other (models
count their image tokens)."""


KEPT_TEXTS = 1024
"""Sizes of images for which the ids of the prompt are kept."""


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise :class:`BackendError`: processors refuse (too narrow, too small) with any exception."""
    try:
        yield
    except Exception as error:
        why = short_message(error)
        raise BackendError(f"the model's processor refuses the image: {why}") from error


class _Ids(NamedTuple):
    """Ids of a prompt on the device."""

    wanted: Any  # (I,)
    answer_of: Any  # (I, K), of the prompt
    digits: Any  # (K,), one for each digit
    all_digits: Any  # those that begin with a digit


class Runner:
    """Loads and runs a model.

    Attributes:
        packed: Whether captions of an image share one pass.
        one_pass: Whether few captions (``one_pass_tokens``) may share the pass of their image.
        second_decimal: Whether a second decimal is read.
        rounding: The relative error of one block.
        logit_scale: The factor f in logits = f · states · head, 0 if they are no such product.
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
            # A difference in the last bit may become one of a step in 8 bits.
            self.rounding = 2.0**-5
        self.lock = opened.lock
        self._device = opened.device
        # torch's own generator has the same seed in every process, which would repeat the draws.
        self.generator = torch.Generator(opened.device)
        self.generator.seed()
        self._image_part = ImagePart(self.processor)
        self._texts: dict[tuple[TokenizedPrompt, Any], tuple[list[str], ProcessedImage]] = {}
        self._head_rows: dict[TokenizedPrompt, Any] = {}
        self._id_tensors: dict[TokenizedPrompt, _Ids] = {}
        self._rotary_modules: RotaryModules = {}
        self._streams: deque[Any] = deque()
        widen_head(self.model.get_output_embeddings())
        join_sequences(self.model)
        multiply_patches(self.model)
        if self._device.type == "cuda":  # elsewhere matrix products dominate
            fuse_norms(self.model)
            fuse_activations(self.model)
            fuse_residuals(getattr(self.model, "get_decoder", lambda: self.model)())
            self._rotary_modules = find_rotary_modules(self.model)
            self._streams.extend(torch.cuda.Stream(self._device) for _ in range(STREAMS))

    def process_image(self, image: Any, tokenized: TokenizedPrompt) -> ProcessedImage:
        """Process an image with the prompt's prefix; suffixes are tokenised separately.

        The ids of images of one size are made once.
        """
        opened, part = open_image(image), self._image_part
        with _refusals():
            output = part.run(opened)
        known = output and self._texts.get((tokenized, size_key(opened, output)))
        if known:
            own, text = known
            pixels = {name: self.pinned(output[name]) for name in own}
            return replace(text, inputs=text.inputs | pixels)
        processor, recorder = part.with_output(output)
        ids, inputs = self.process(tokenized.text, opened, processor)
        names = part.learn(recorder, opened, ids, inputs) if recorder else None
        if names is None and output is not None:  # not what the processor does with this image
            ids, inputs = self.process(tokenized.text, opened)
        inputs = {name: self.pinned(value) for name, value in inputs.items()}
        length, tail = ids.shape[1], len(tokenized.tail)
        if ids[0, length - tail :].tolist() != tokenized.tail:
            return ProcessedImage(ids, inputs, opened)
        for name in PER_TOKEN_INPUTS.keys() & inputs.keys():
            inputs[name] = inputs[name][:, : length - tail]
        ids = ids[:, : length - tail]
        made = ProcessedImage(ids, inputs, positions=self._positions(ids, inputs))
        if recorder and names:
            if len(self._texts) >= KEPT_TEXTS:
                self._texts.clear()
            others = {name: value for name, value in inputs.items() if name not in names}
            key = tokenized, size_key(opened, recorder.output)
            self._texts[key] = names, replace(made, inputs=others)
        return made

    def _positions(self, ids: Any, inputs: dict[str, Any]) -> Any:
        """Compute positions (A, 1, P) with several axes as the model would, but on the host.

        In its pass, a model waits for the device to compute them.
        """
        find = getattr(self.model.base_model, "get_rope_index", None)
        if find is None:
            return None
        names = inspect.signature(find).parameters.keys() & inputs.keys()
        # Its signature is not part of any interface; the model then computes them itself.
        try:
            positions, _ = find(ids, **{name: inputs[name] for name in names})
        except Exception:
            return None
        return self.pinned(positions)

    def process(self, text: str, opened: Any, processor: Any = None) -> tuple[Any, dict[str, Any]]:
        """Make a prompt's ids (1, L) with the image's tokens, and the model's other inputs."""
        with _refusals():
            inputs = (processor or self.processor).apply_chat_template(
                conversation(text, opened),
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
                **self.vocabulary.template_options,
            )
        ids = inputs.pop("input_ids")
        return ids, {k: v for k, v in inputs.items() if k not in ("attention_mask", "labels")}

    def whole_prompt(
        self, group: CaptionGroup, index: int, more: Sequence[int] = ()
    ) -> tuple[Any, dict[str, Any]]:
        """The ids (1, L) of one caption's prompt, and the model's other inputs.

        Unless the processor builds the prompt, ``more`` ids follow it.
        """
        torch = require("torch", "hf")
        image, pair = group.image, group.pairs[index]
        if image.opened is not None:
            text = group.tokenized.render(pair.caption, pair.references)
            image = ProcessedImage(*self.process(text, image.opened))
            return image.ids.to(self._device), self.model_inputs([image])
        suffix = torch.tensor([[*group.suffixes[index], *more]])
        ids = torch.cat([image.ids, suffix], dim=1)
        return ids.to(self._device), self.model_inputs([image], longer=suffix.shape[1])

    def sample(
        self, group: CaptionGroup, index: int, draws: int, most: int = MAX_NEW_TOKENS
    ) -> list[list[int]]:
        """Draw answers of at most ``most`` tokens to one caption of a group, at temperature 1.

        The prompt runs once; the draws share its keys and values, and continue as one batch.
        """
        ids, inputs = self.whole_prompt(group, index)
        at_once = max(1, self.tokens_that_fit() // (ids.shape[1] + most))
        answers: list[list[int]] = []
        while draws > len(answers):
            answers += self._draw(ids, inputs, min(at_once, draws - len(answers)), most)
        return answers

    def _draw(self, ids: Any, inputs: dict[str, Any], draws: int, most: int) -> list[list[int]]:
        """Draw answers to the prompt ``ids`` (1, L) in one batch."""
        torch, transformers = require("torch", "hf"), require_transformers()
        settings = getattr(self.model, "generation_config", None)
        ends = getattr(settings, "eos_token_id", None) or self.vocabulary.tokenizer.eos_token_id
        eos = torch.tensor(ends, device=self._device).flatten()
        precise = widest_float(self._device)
        drawn = ids[:, :0].expand(draws, 0)
        with self.lock, torch.inference_mode():
            cache = transformers.DynamicCache(config=self.text_config)
            _, logits = self.run(ids, inputs, cache, keep=1)
            delta = self.rope_delta(1)
            cache.reorder_cache(torch.zeros(draws, dtype=torch.long, device=self._device))
            logits = logits.expand(draws, -1, -1)
            while True:
                p = logits[:, -1].to(precise).softmax(-1)
                token = torch.multinomial(p, 1, generator=self.generator)
                drawn = torch.cat([drawn, token], dim=1)
                ended = torch.isin(drawn, eos)
                if drawn.shape[1] == most or ended.any(dim=1).all():
                    break
                inputs = {}
                if delta is not None:
                    place = delta + cache.get_seq_length()
                    inputs["position_ids"] = place.expand(3, draws, 1)
                _, logits = self.run(token, inputs, cache, keep=1)
        lengths = (ended.cumsum(1) == 0).sum(1).tolist()
        return [row[:end] for row, end in zip(drawn.tolist(), lengths, strict=True)]

    def generate(self, group: CaptionGroup, index: int, most: int = MAX_NEW_TOKENS) -> list[int]:
        """Generate the answer to one caption of a group greedily."""
        torch = require("torch", "hf")
        ids, inputs = self.whole_prompt(group, index)
        with self.lock, torch.inference_mode():
            out = self.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                **inputs,
                max_new_tokens=most,
                do_sample=False,
                repetition_penalty=1.0,  # some models' defaults penalise a second zero
                return_dict_in_generate=True,
            )
        return [int(token) for token in out.sequences[0, ids.shape[1] :]]

    def start(self, groups: list[CaptionGroup], hidden: bool = True) -> Answers:
        """Submit groups whose images share a shape and whose prompt is the same.

        The result waits for the answers of each group. Without ``hidden``, packed captions have
        states of width 0, because fetching them takes long. Threads run one at a time.
        """
        torch = require("torch", "hf")
        with self.lock, torch.inference_mode(), self._next_stream():
            batch = PackedBatch(self, groups, hidden=hidden)
            if self.packed and groups[0].image.opened is None and batch.captions_per_chunk():
                if self.one_pass and batch.are_few():
                    with suppress(torch.OutOfMemoryError):
                        return batch.at_once()
                    self.one_pass = False  # two passes need less memory at once
                return batch.over_prefixes()
            answers = [read_separately(self, group) for group in groups]
            return lambda: answers

    def _next_stream(self) -> AbstractContextManager[None]:
        """Let a GPU work on a batch concurrently with the one before it."""
        if not self._streams:
            return nullcontext()
        torch = require("torch", "hf")
        self._streams.rotate()
        self._streams[0].wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._streams[0])  # type: ignore[no-any-return]

    def run(
        self, ids: Any, inputs: dict[str, Any], cache: Any, keep: Any, mask: Any = None
    ) -> tuple[Any, Any]:
        """Run the model; returns the states (B, R, D) before the head and the logits (B, R, V).

        ``keep`` is the number of last positions to read, or a tensor of M places among all B·L:
        then only these go through the head, as (1, M, D).
        """
        torch = require("torch", "hf")
        ids = self.send(ids)
        if mask is None:
            before = 0 if cache is None else cache.get_seq_length()
            mask = torch.ones(len(ids), before + ids.shape[1], dtype=torch.long, device=ids.device)
        head = self.model.get_output_embeddings()
        rows = None if isinstance(keep, int) else keep
        shapes = [getattr(value, "shape", None) for value in (ids, *inputs.values())]
        plans = self._device.type != "cuda" or recurs(self.name, *shapes)
        with (
            head_input(head, rows) as seen,
            use_fused_rotation(self._rotary_modules),
            nullcontext() if plans else without_plans(),
        ):
            logits = self.model(
                input_ids=ids,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=cache is not None,
                logits_to_keep=keep if rows is None else 0,
                **inputs,
            ).logits
        return seen[0], logits

    def run_rows(
        self, ids: Any, inputs: dict[str, Any], cache: Any, keep: NDArray[np.int64], mask: Any
    ) -> tuple[Any, Any]:
        """Run the model; returns states (*keep, D) and logits (*keep, V)."""
        rows = self.send(require("torch", "hf").from_numpy(keep.ravel()))
        states, logits = self.run(ids, inputs, cache, keep=rows, mask=mask)
        return states.reshape(*keep.shape, -1), logits.reshape(*keep.shape, -1)

    def model_inputs(self, images: Sequence[ProcessedImage], longer: int = 0) -> dict[str, Any]:
        """Join the inputs of several images on the device, padded for ``longer`` tokens of text."""
        torch = require("torch", "hf")
        inputs = {}
        for name in images[0].inputs:
            values = [image.inputs[name] for image in images]
            if values[0].is_floating_point():  # pixels are joined on the device, which is faster
                value = torch.cat([self.send(value) for value in values])
            else:
                value = torch.cat(values)
                # Models read sizes on the host; on the device, that would wait for its queue.
                value = value if name == "image_sizes" else self.send(value)
            if longer and name in PER_TOKEN_INPUTS:
                more = value[:, -1:].expand(-1, longer, *value.shape[2:])
                more = more if PER_TOKEN_INPUTS[name] else torch.zeros_like(more)
                value = torch.cat([value, more], dim=1)
            inputs[name] = value
        return inputs

    def rope_delta(self, batch: int) -> Any:
        """How far multimodal positions lag behind the token count (B, 1), or None."""
        delta = getattr(self.model.base_model, "rope_deltas", None)
        return None if delta is None else delta.reshape(batch, 1).to(self._device).clone()

    def axis_positions(self, images: Sequence[ProcessedImage]) -> tuple[Any, Any] | None:
        """Positions (A, B, P) on the device, and how far they lag behind the token count (B, 1)."""
        if any(image.positions is None for image in images):
            return None
        positions = require("torch", "hf").cat([image.positions for image in images], dim=1)
        delta = positions.amax(dim=(0, 2))[:, None] + 1 - positions.shape[2]
        return self.send(positions), self.send(delta)

    def logp(self, logits: Any, tokenized: TokenizedPrompt) -> Any:
        """Compute log-probabilities (..., I) of the wanted ids from logits (..., V)."""
        logits = logits.float()
        chosen = logits[..., self.ids(tokenized).wanted]
        return (chosen - logits.logsumexp(-1, keepdim=True)).to(widest_float(chosen.device))

    def unless_ended(self, logits: Any, tokenized: TokenizedPrompt) -> Any:
        """Compute log-probabilities (..., I), NaN where the likeliest token is not a digit."""
        torch = require("torch", "hf")
        # torch.isin sorts many digits (Llama 3 has 1,110), which waits for the device.
        digit = (logits.argmax(-1)[..., None] == self.ids(tokenized).all_digits).any(-1)
        return self.logp(logits, tokenized).where(digit[..., None], torch.nan)

    def first_decimals(self, logp: Any, tokenized: TokenizedPrompt) -> Any:
        """Find the likeliest answer (C, S) after each of the S decimal stems, by (C, R, I)."""
        torch = require("torch", "hf")
        places = self.decimal_stems(tokenized).values()
        first = torch.stack([logp[:, place] for place in places], dim=1)
        return (first.exp() @ self.ids(tokenized).answer_of).argmax(-1)

    def decimal_stems(self, tokenized: TokenizedPrompt) -> dict[int, int]:
        """The stems after which a second decimal is read, with their places."""
        return tokenized.decimal_stems if self.second_decimal else {}

    def ids(self, tokenized: TokenizedPrompt) -> _Ids:
        """Cache a prompt's ids as tensors on the device: a copy would wait for its queue."""
        torch = require("torch", "hf")
        if tokenized not in self._id_tensors:
            groups = tokenized.answers[0]
            self._id_tensors[tokenized] = _Ids(
                torch.tensor(tokenized.wanted, device=self._device),
                torch.from_numpy(tokenized.answer_of)
                .to(widest_float(self._device))
                .to(self._device),
                torch.tensor([group[0] for group in groups], device=self._device),
                torch.tensor([i for group in groups for i in group], device=self._device),
            )
        return self._id_tensors[tokenized]

    def head_rows(self, tokenized: TokenizedPrompt) -> Any:
        """The scaled rows of the head for the wanted ids (I, D), in float32."""
        if tokenized not in self._head_rows:
            weight = self.model.get_output_embeddings().weight
            self._head_rows[tokenized] = weight[tokenized.wanted].float() * self.logit_scale
        return self._head_rows[tokenized]

    def attends_to_all(self) -> bool:
        """Whether every layer is plain causal attention over all tokens."""
        config = self.text_config
        kinds = getattr(config, "layer_types", None) or ["full_attention"]
        return (
            set(kinds) == {"full_attention"}
            and getattr(config, "sliding_window", None) is None
            and not getattr(config, "cross_attention_layers", None)
        )

    def max_packed_tokens(self) -> int:
        """The maximum tokens of captions per pass if memory is not short."""
        return MAX_PACKED_TOKENS if self.attends_to_all() else MAX_MASKED_TOKENS

    def max_suffix(self, image: ProcessedImage, tokenized: TokenizedPrompt) -> int:
        """The maximum tokens after an image's prefix, without the forced stems."""
        most = getattr(self.text_config, "max_position_embeddings", None) or 1 << 30
        used = image.ids.shape[1] - (len(tokenized.tail) if image.opened is not None else 0)
        longest = max(map(len, tokenized.stems), default=0) + bool(self.decimal_stems(tokenized))
        return int(most - used - longest)

    def images_that_fit(self, image: ProcessedImage) -> int:
        """How many images like this one a batch may have."""
        half = self.tokens_that_fit() // 2  # the other half is for captions
        most = PREFIX_TOKENS.get(self._device.type, PREFIX_TOKENS["cpu"])
        return max(1, min(most, half) // int(image.ids.shape[1]))

    def tokens_that_fit(self) -> int:
        tokens = tokens_that_fit(self.text_config, self.dtype.itemsize, self._device)
        return tokens // max(1, len(self._streams))  # streams do not share memory

    def pinned(self, tensor: Any) -> Any:
        """Convert and pin a tensor for the copy to the device; called in preparing threads."""
        torch = require("torch", "hf")
        gpu = self._device.type == "cuda"
        if gpu and tensor.is_floating_point() and tensor.dtype != self.dtype:  # in one copy
            return torch.empty(tensor.shape, dtype=self.dtype, pin_memory=True).copy_(tensor)
        tensor = tensor.to(self.dtype) if tensor.is_floating_point() else tensor
        return tensor.pin_memory() if gpu else tensor

    def send(self, tensor: Any) -> Any:
        """Copy to the device without waiting for its queue."""
        if tensor.is_cuda:
            return tensor
        return self.pinned(tensor).to(self._device, non_blocking=True)
