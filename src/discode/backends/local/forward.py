"""A local model, asked: one forward for many captions, or one for each, to the same answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discode.backends.local.fused import Rotations, attending, fuse_norms, rotating, rotations
from discode.backends.local.generate import TOKENS, Written
from discode.backends.local.load import Loaded, first_line
from discode.backends.local.memory import tokens_that_fit
from discode.backends.local.packing import Layout, masks, stack
from discode.backends.local.vocabulary import Asked, Vocabulary, conversation
from discode.errors import BackendError, require
from discode.images import open_image
from discode.pairs import Pair
from discode.prompts import Prompt
from discode.scales import Scale

Floats = NDArray[np.float64]
Answers = tuple[Floats, NDArray[np.float32]]
"""Log-probabilities (N, R, I) of the wanted ids, and hidden states (N, R, D)."""
LOG = logging.getLogger("discode")
ALONG = {"token_type_ids": False, "mm_token_type_ids": False, "cross_attention_mask": True}
"""Inputs that run along the tokens, and whether text goes on with the last one's value."""
TOKENS_AT_ONCE = 8192
"""Packed tokens of a chunk, unless memory is short: more gain nothing, and longer rows see more
that they must not."""
PICTURES_AT_ONCE = 8
"""Prefixes of a batch, unless memory is short; likewise."""


@dataclass
class Picture:
    """A picture, processed: the prefix's ids (1, P) and what else the model wants.

    ``opened`` is kept where the processor builds the prompt around a caption in its own way
    (PaliGemma): then every caption is processed with the picture, and ``ids`` mean nothing.
    """

    ids: Any
    extras: dict[str, Any]
    opened: Any = None

    def shape(self) -> tuple[Any, ...]:
        """What must be equal for pictures to share a batch."""
        return (
            self.ids.shape[1],
            *((name, tuple(x.shape), x.dtype) for name, x in sorted(self.extras.items())),
        )


@dataclass
class Work:
    """Captions of one picture, ready for the model.

    ``rows`` are their places in the batch; ``suffixes`` their ids behind the prefix.
    """

    asked: Asked
    picture: Picture
    pairs: list[Pair]
    rows: list[int]
    suffixes: list[list[int]]


class Engine:
    """A loaded model and its processor."""

    def __init__(self, loaded: Loaded, captions_at_once: int | None) -> None:
        torch = require("torch", "hf")
        self.model, self.processor, self.name = loaded.model, loaded.processor, loaded.name
        self.vocabulary = Vocabulary(loaded.processor)
        self.captions_at_once = captions_at_once
        self.packed = True
        self._device, self._dtype = loaded.device, loaded.dtype
        self._float = getattr(torch, loaded.dtype)
        self._text_config = loaded.model.config.get_text_config()
        self._logit_scale = 0.0  # the head's rows are not used until calibrate() has seen them work
        self._rows: dict[Asked, Any] = {}
        self._rotations: Rotations = {}
        self._lock = (
            loaded.lock
        )  # a model keeps state of its forward, and its hooks see all of them
        if self._device.type == "cuda":  # elsewhere the products are what takes time
            fuse_norms(self.model)
            self._rotations = rotations(self.model)

    def picture(self, image: Any, asked: Asked) -> Picture:
        """Process a picture with the prompt's head; what follows it is tokenised apart."""
        opened = open_image(image)
        ids, extras = self._process(asked.text, opened)
        extras = {name: self._packed_up(value) for name, value in extras.items()}
        length, tail = ids.shape[1], len(asked.tail)
        if ids[0, length - tail :].tolist() != asked.tail:
            return Picture(ids, extras, opened)
        for name in ALONG.keys() & extras.keys():
            extras[name] = extras[name][:, : length - tail]
        return Picture(ids[:, : length - tail], extras)

    def _process(self, text: str, opened: Any) -> tuple[Any, dict[str, Any]]:
        """Return a prompt's ids (1, L) with the picture's tokens, and what else the model wants."""
        try:
            inputs = self.processor.apply_chat_template(
                conversation(text, opened),
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
            )
        # A processor refuses pictures in its own ways (too narrow, too small).
        except Exception as error:
            why = first_line(error)
            raise BackendError(f"the model's processor refuses the picture: {why}") from error
        ids = inputs.pop("input_ids")
        return ids, {k: v for k, v in inputs.items() if k not in ("attention_mask", "labels")}

    def write(self, work: Work, place: int) -> Written:
        """Let the model write an answer to one of a picture's captions, greedily."""
        torch = require("torch", "hf")
        picture, pair = work.picture, work.pairs[place]
        if picture.opened is not None:
            text = work.asked.render(pair.caption, pair.references)
            ids, extras = self._process(text, picture.opened)
            extras = self._extras([Picture(ids, extras)])
        else:
            suffix = torch.tensor([work.suffixes[place]])
            ids = torch.cat([picture.ids, suffix], dim=1)
            extras = self._extras([picture], longer=suffix.shape[1])
        ids = ids.to(self._device)
        with self._lock, torch.inference_mode():
            said = self.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                **extras,
                max_new_tokens=TOKENS,
                do_sample=False,
                repetition_penalty=1.0,  # some models' own settings penalise a second zero
                return_dict_in_generate=True,
                output_logits=True,
                output_hidden_states=True,
            )
        tokens = said.sequences[0, ids.shape[1] :].tolist()
        logits = torch.cat(said.logits).float()
        states = [step[-1][0, -1].float().cpu().numpy() for step in said.hidden_states]
        pieces = [self.vocabulary.piece(tokens, step) for step in range(len(tokens))]
        return Written(tokens, pieces, logits.log_softmax(-1).cpu().numpy(), states)

    def forward(self, works: list[Work]) -> list[Answers]:
        """Return the answers of each picture's captions; pictures of one shape, asked alike.

        One caller at a time: others wait.
        """
        torch = require("torch", "hf")
        with self._lock, torch.inference_mode():
            if self.packed and works[0].picture.opened is None and self._chunk(works):
                return self._packed(works)
            return [_stacked(self._one_by_one(work)) for work in works]

    def _one_by_one(self, work: Work) -> list[Answers]:
        if work.picture.opened is not None:
            return [self._stepwise(work.picture, pair, work.asked) for pair in work.pairs]
        return [self._plain(work.picture, suffix, work.asked) for suffix in work.suffixes]

    def _packed(self, works: list[Work], size: int | None = None) -> list[Answers]:
        pictures, suffixes = [w.picture for w in works], [w.suffixes for w in works]
        asked = works[0].asked
        torch, transformers = require("torch", "hf"), require("transformers", "hf")
        cache = transformers.DynamicCache()  # without a config: every layer keeps the whole prefix
        ids = torch.cat([picture.ids for picture in pictures])
        self._run(ids, self._extras(pictures), cache, keep=1)
        prefix = ids.shape[1]
        delta = self._rope_delta(len(pictures))
        parts: list[tuple[Any, Any, list[NDArray[np.int64]]]] = []
        start, most = 0, max(map(len, suffixes))
        size = size or min(self._chunk(works), most)
        while start < most:
            try:
                chunk = [several[start : start + size] for several in suffixes]
                parts.append(self._suffixes(chunk, asked, cache, prefix, delta))
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
                for layer in cache.layers:  # those behind the one that failed have no more
                    if layer.get_seq_length() > prefix:
                        layer.crop(prefix - layer.get_seq_length())
                torch.cuda.empty_cache()
                size = self.captions_at_once = size // 2
                LOG.warning("discode: out of memory; going on with %d captions at once", size)
                continue
            start += size
        # The device has been given all its work before anybody waits for it.
        fetched = [(logp.cpu().numpy(), states.cpu().numpy(), at) for logp, states, at in parts]
        return [
            (
                np.concatenate([logp[row][at[row]] for logp, _, at in fetched]),
                np.concatenate([states[row][at[row]] for _, states, at in fetched]),
            )
            for row in range(len(pictures))
        ]

    def _suffixes(
        self,
        chunk: list[list[list[int]]],
        asked: Asked,
        cache: Any,
        prefix: int,
        delta: Any,
    ) -> tuple[Any, Any, list[NDArray[np.int64]]]:
        """Run a chunk of captions of every picture over the prefixes' cache.

        Returns log-probabilities (B, places, I) and states (B, places, D), still on the device, and
        for every picture which of the places its captions' answers (N, R) are at.
        """
        torch = require("torch", "hf")
        layouts = [Layout.of(several, asked.stems) for several in chunk]
        *rows, keep = stack(layouts)
        places = np.unique(np.concatenate([places.ravel() for places in keep]))
        tokens, steps, owner, branch = self._send(torch.from_numpy(np.stack(rows)))
        where = self._send(torch.from_numpy(places))
        position = prefix + steps
        if delta is not None:
            position = (position + delta).expand(3, *position.shape)
        mask = self._mask(owner, branch, steps, prefix)
        with attending(self._text_config):
            states, logits = self._run(
                tokens, {"position_ids": position}, cache, keep=where, mask=mask
            )
        cache.crop(-tokens.shape[1])
        at = [np.searchsorted(places, wanted) for wanted in keep]
        return self._logp(states, logits, asked), states.float(), at

    def _packed_up(self, tensor: Any) -> Any:
        """Make ready for the way to the device, in the thread that has the time."""
        tensor = tensor.to(self._float) if tensor.is_floating_point() else tensor
        return tensor.pin_memory() if self._device.type == "cuda" else tensor

    def _send(self, tensor: Any) -> Any:
        """Copy to the device without waiting for what it is busy with."""
        return self._packed_up(tensor).to(self._device, non_blocking=True)

    def _mask(self, owner: Any, branch: Any, steps: Any, prefix: int) -> Any:
        """Return the mask, or one for each kind of layer where the model has several."""
        config = self._text_config
        window = getattr(config, "sliding_window", None)
        bounds: dict[str, dict[str, int | None]] = {
            "full_attention": {},
            "sliding_attention": {"window": window},
            "chunked_attention": {"chunk": getattr(config, "attention_chunk_size", None)},
        }
        kinds = set(getattr(config, "layer_types", None) or ())
        made = {
            kind: masks(owner, branch, steps, prefix, self._float, **bounds[kind])
            for kind in (kinds & bounds.keys())
            or ({"full_attention"} if window is None else {"sliding_attention"})
        }
        return made if len(kinds) > 1 else next(iter(made.values()))

    def _plain(self, picture: Picture, suffix: list[int], asked: Asked) -> Answers:
        """Read one caption, one forward a stem: logp (R, I), states (R, D)."""
        torch = require("torch", "hf")
        logp, states = [], []
        for number, stem in enumerate(asked.stems):
            behind = torch.tensor([[*suffix, *stem]])
            extras = self._extras([picture], longer=behind.shape[1])
            state, logits = self._run(
                torch.cat([picture.ids, behind], dim=1), extras, None, keep=len(stem) + 1
            )
            first = 1 if number else 0  # what stands before all stems is read once
            logp.append(self._logp(state, logits, asked)[0, first:].cpu().numpy())
            states.append(state[0, first:].float().cpu().numpy())
        return np.concatenate(logp), np.concatenate(states)

    def _stepwise(self, picture: Picture, pair: Pair, asked: Asked) -> Answers:
        """Read one caption by way of its own prompt; the stems follow over its cache."""
        torch, transformers = require("torch", "hf"), require("transformers", "hf")
        text = asked.render(pair.caption, pair.references)
        ids, extras = self._process(text, picture.opened)
        cache = transformers.DynamicCache()
        state, logits = self._run(ids, self._extras([Picture(ids, extras)]), cache, keep=1)
        parts = [(state, logits)]
        for stem in asked.stems:
            if stem:
                parts.append(self._run(torch.tensor([stem]), {}, cache, keep=len(stem)))
                cache.crop(-len(stem))
        logp = [self._logp(*part, asked)[0].cpu().numpy() for part in parts]
        states = [state[0].float().cpu().numpy() for state, _ in parts]
        return np.concatenate(logp), np.concatenate(states)

    def _run(
        self, ids: Any, extras: dict[str, Any], cache: Any, keep: Any, mask: Any = None
    ) -> tuple[Any, Any]:
        """Run the model; returns the states (B, R, D) before the head and the logits (B, R, V)."""
        torch = require("torch", "hf")
        ids = ids.to(self._device)
        if mask is None:
            before = 0 if cache is None else cache.get_seq_length()
            mask = torch.ones(len(ids), before + ids.shape[1], dtype=torch.long, device=ids.device)
        with _before(self.model.get_output_embeddings()) as seen, rotating(self._rotations):
            logits = self.model(
                input_ids=ids,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=cache is not None,
                logits_to_keep=keep,
                **extras,
            ).logits
        return seen[0], logits

    def _extras(self, pictures: list[Picture], longer: int = 0) -> dict[str, Any]:
        """Return pixels and the like of several pictures, on the device; text ids are padded."""
        torch = require("torch", "hf")
        extras = {}
        for name in pictures[0].extras:
            value = torch.cat([self._send(picture.extras[name]) for picture in pictures])
            if longer and name in ALONG:
                more = value[:, -1:].expand(-1, longer, *value.shape[2:])
                value = torch.cat([value, more if ALONG[name] else torch.zeros_like(more)], dim=1)
            extras[name] = value
        return extras

    def _rope_delta(self, batch: int) -> Any:
        """Return how far multimodal positions lag behind the token count (B, 1), or None."""
        delta = getattr(self.model.base_model, "rope_deltas", None)
        return None if delta is None else delta.reshape(batch, 1).to(self._device).clone()

    def _logp(self, states: Any, logits: Any, asked: Asked) -> Any:
        """Return log-probabilities (B, R, I) of the wanted ids, their logits in float32."""
        logz = logits.float().logsumexp(-1, keepdim=True)
        if self._logit_scale:
            chosen = states.float() @ self.rows(asked).T
        else:
            chosen = logits[..., asked.wanted].float()
        return (chosen - logz).double()

    def rows(self, asked: Asked) -> Any:
        """Return the head's rows for the wanted ids, in float32."""
        if asked not in self._rows:
            weight = self.model.get_output_embeddings().weight
            self._rows[asked] = weight[asked.wanted].float() * self._logit_scale
        return self._rows[asked]

    def _chunk(self, works: list[Work]) -> int:
        """Return how many captions of each picture run at once, 0 where not even one may."""
        longest = max(len(suffix) for work in works for suffix in work.suffixes)
        longest += sum(map(len, works[0].asked.stems))
        tokens = min(TOKENS_AT_ONCE, self._tokens_that_fit())
        size = self.captions_at_once or max(1, tokens // (len(works) * longest))
        # Llama 4 counts places in the sequence, whatever the positions say, in steps of this size.
        step = getattr(self._text_config, "floor_scale", None)
        if step and getattr(self._text_config, "attn_temperature_tuning", False):
            size = min(size, (step - 1 - works[0].picture.ids.shape[1] % step) // longest)
        return int(size)

    def room(self, picture: Picture, asked: Asked) -> int:
        """Return how many tokens may stand behind a picture's prefix, stems left out."""
        most = getattr(self._text_config, "max_position_embeddings", None) or 1 << 30
        used = picture.ids.shape[1] - (len(asked.tail) if picture.opened is not None else 0)
        return int(most - used - max(map(len, asked.stems)))

    def pictures_at_once(self, picture: Picture) -> int:
        """Return how many prefixes like this one run at once."""
        half = self._tokens_that_fit() // 2  # the captions want their share
        return max(1, min(PICTURES_AT_ONCE, half // int(picture.ids.shape[1])))

    def _tokens_that_fit(self) -> int:
        return tokens_that_fit(self._text_config, self._float.itemsize, self._device)

    @property
    def linear(self) -> bool:
        """Whether logits are the head's rows times the state; known once calibrated."""
        return self._logit_scale != 0

    def calibrate(self, prompt: Prompt, scale: Scale) -> bool:
        """Look at the head, and return whether packed equals plain for this very model.

        A picture and captions that need no data are read both ways. Where the logits are the head's
        rows times the state, to a factor, they are recomputed in float32 from then on; where not (a
        soft cap, a quantised head), they are taken as they come.
        """
        torch = require("torch", "hf")
        shades = np.linspace(0, 255, 96 * 64 * 3).astype(np.uint8).reshape(64, 96, 3)
        asked = self.vocabulary.asked(prompt, scale, references=False)
        picture = self.picture(Image.fromarray(shades), asked)
        pairs = [Pair("", text) for text in ("a dog", "two men on a red boat", "x")]
        with self._lock, torch.inference_mode():
            ids, extras = self._process(asked.text, Image.fromarray(shades))
            states, logits = self._run(ids, self._extras([Picture(ids, extras)]), None, keep=1)
            self._logit_scale = self._factor(
                states.float(), logits[..., asked.wanted].float(), asked
            )
            if picture.opened is not None:
                return False  # the processor has its own way: nothing can be shared
            suffixes = [asked.suffix(pair.caption, ()) for pair in pairs]
            work = Work(asked, picture, pairs, [0, 1, 2], suffixes)
            try:
                packed = self._packed([work], size=2)[0][0]  # two, then one over the same prefix
            # Whatever a family's code cannot do with a packed sequence, the plain path can.
            except Exception as error:
                LOG.warning(
                    "discode: %s cannot be packed (%s); one forward a pair",
                    self.name,
                    first_line(error),
                )
                return False
            plain = _stacked(self._one_by_one(work))[0]
        apart, allowed = self.apart(packed, plain)
        if apart <= allowed:
            return True
        LOG.warning(
            "discode: packed and plain differ by %.2g for %s (%.2g is rounding); one forward each",
            apart,
            self.name,
            allowed,
        )
        return False

    def apart(self, packed: Floats, plain: Floats) -> tuple[float, float]:
        """Return how far log-probabilities lie apart, root mean square, and how far they may.

        Each of a model's 2 L blocks rounds what it adds, so that its logits are uncertain by about
        ``eps · sqrt(2 L)`` of their spread; twice that is allowed, and 1e-4 in any case. A caption
        that sees its neighbour, or a position one off, shifts them by a good part of the spread.
        """
        eps = float(require("torch", "hf").finfo(self._float).eps)
        rounding = 2 * eps * (2 * self._text_config.num_hidden_layers) ** 0.5 * float(plain.std())
        return float(np.sqrt(((packed - plain) ** 2).mean())), max(1e-4, rounding)

    def _factor(self, states: Any, logits: Any, asked: Asked) -> float:
        """Return f where logits = f · states · rows to rounding, or 0."""
        head = self.model.get_output_embeddings()
        weight = getattr(head, "weight", None)
        if (
            weight is None
            or not weight.is_floating_point()
            or getattr(head, "bias", None) is not None
        ):
            return 0.0
        product = states @ weight[asked.wanted].float().T
        factor = float((product * logits).sum() / (product * product).sum())
        rest = float((factor * product - logits).abs().max() / logits.abs().max())
        return factor if rest < {"float32": 1e-4}.get(self._dtype, 2e-2) else 0.0


def _stacked(answers: list[Answers]) -> Answers:
    """Join answers of single captions, (R, I) and (R, D)."""
    return np.stack([logp for logp, _ in answers]), np.stack([states for _, states in answers])


@contextmanager
def _before(module: Any) -> Iterator[list[Any]]:
    """Collect what goes into a module."""
    seen: list[Any] = []
    hook = module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        yield seen
    finally:
        hook.remove()
