"""Prefixes: processed images, and the keys and values that a model computes for them.

A prompt begins with the image and the instruction, which are the same for all captions of an image.
They run once; every caption then attends to their keys and values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from discode._extras import require_transformers
from discode._pairs import Pair
from discode.backends._local.vocabulary import TokenizedPrompt
from discode.errors import require

if TYPE_CHECKING:
    from discode.backends._local.forward import Runner

LogpAndStates = tuple[NDArray[np.float64], NDArray[np.float32]]
"""Log-probabilities (N, R, I) of the wanted ids, and hidden states (N, R, D).

If a second decimal is read, the log-probabilities have one more position for each of the prompt's
``decimal_stems``: the one after its likeliest first decimal. They are NaN where the model would end
the number there."""
Answers = Callable[[], list[LogpAndStates]]
"""Waits for a submitted batch; returns the answers of each of its groups."""


@dataclass
class ProcessedImage:
    """A processed image: the ids of the prefix (1, P) and the model's other inputs.

    ``opened`` is set if the processor builds the prompt around each caption in its own way
    (PaliGemma): then each caption is processed together with the image, and ``ids`` are not used.
    ``positions`` (A, 1, P) are set if the rotary positions of images have several axes (Qwen-VL).
    """

    ids: Any
    inputs: dict[str, Any]
    opened: Any = None
    positions: Any = None

    def shape(self) -> tuple[Any, ...]:
        """A key that is equal for images that can share a batch."""
        return (
            self.ids.shape[1],
            *((name, tuple(x.shape), x.dtype) for name, x in sorted(self.inputs.items())),
        )


@dataclass
class CaptionGroup:
    """Captions of one image, ready for the model.

    ``rows`` are their rows in the batch; ``suffixes`` are the ids that follow the prefix, ending
    with the ``written`` ids that the model generated before its rating.
    """

    tokenized: TokenizedPrompt
    image: ProcessedImage
    pairs: list[Pair]
    rows: list[int]
    suffixes: list[list[int]]
    written: list[list[int]] = field(default_factory=list)

    def after(self, written: Mapping[int, list[int]]) -> CaptionGroup:
        """Select captions by index, followed by the ids that the model wrote."""
        return CaptionGroup(
            self.tokenized,
            self.image,
            [self.pairs[i] for i in written],
            [self.rows[i] for i in written],
            [self.suffixes[i] + ids for i, ids in written.items()],
            list(written.values()),
        )


@dataclass(frozen=True)
class Prefix:
    """The keys and values of some images' prefixes, all of the same length.

    ``delta`` (B, 1) is how far multimodal positions lag behind the token count, None if positions
    count every token.
    """

    cache: Any
    length: int
    delta: Any

    @classmethod
    def run(cls, runner: Runner, images: Sequence[ProcessedImage]) -> Prefix:
        """Run the prefixes of images that share a shape, up to the last layer's keys and values."""
        torch = require("torch", "hf")
        cache = _cache_class()(stop_after=runner.text_config.num_hidden_layers - 1)
        ids = torch.cat([image.ids for image in images])
        inputs, delta = runner.model_inputs(images), None
        positions = runner.axis_positions(images)
        if positions is not None:
            inputs["position_ids"], delta = positions
        with suppress(_PrefixDone):
            runner.run(ids, inputs, cache, keep=1)
        delta = runner.rope_delta(len(images)) if delta is None else delta
        return cls(cache, int(ids.shape[1]), delta)

    def crop(self) -> None:
        """Remove everything after the prefixes.

        After a failed pass, the later layers have nothing to remove.
        """
        for layer in self.cache.layers:
            if (longer := layer.get_seq_length() - self.length) > 0:
                layer.crop(-longer)


def new_cache() -> Any:
    """Make an empty cache that keeps the first states without a copy."""
    return _cache_class()()


class _PrefixDone(Exception):
    """Raised inside a model once a prefix's keys and values are complete."""


@functools.cache
def _cache_class() -> Any:
    """Define a cache class that keeps the first states; transformers' own class copies them.

    With ``stop_after``, a cache ends the pass after that layer's keys and values. It has no model
    configuration, so that every layer keeps the whole prefix.
    """
    transformers = require_transformers()

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
    """Whether a tensor uses all of its storage, so that keeping it holds no other memory."""
    return bool(tensor.untyped_storage().nbytes() == tensor.nbytes)
