"""Vision towers with fewer kernels: for patches, and for the attention of several images.

Qwen-VL and its relatives join the patches of all images to one sequence, whose parts (images, or
windows of them) attend to themselves. transformers runs one kernel per part and layer, and waits
for the device in each layer to learn their lengths; here it waits once per pass.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

from discode.backends._local.gpu.fused import nearly_equal, use_attention
from discode.errors import require


def join_sequences(model: Any) -> int:
    """Attend to all parts of one length in one kernel; returns how many layers were replaced.

    Nothing is assumed about a model: a layer is replaced only if this gives the same numbers.
    """
    torch = require("torch", "hf")
    parts, done = _Parts(), 0
    for layer in model.modules():
        size = getattr(layer, "head_dim", 0)
        weight = getattr(getattr(layer, "qkv", None), "weight", None)
        if "forward" in vars(layer) or weight is None or not size or not hasattr(layer, "config"):
            continue
        if "cu_seqlens" not in inspect.signature(layer.forward).parameters:
            continue
        ours = partial(_attend_to_parts, layer.config, layer.forward, parts)
        wide = weight.is_floating_point() and weight.itemsize > 1  # not quantised
        dtype = weight.dtype if wide else torch.bfloat16
        probe = torch.linspace(-2, 3, 14 * weight.shape[1]).sin().reshape(14, -1)
        turn = torch.ones(14, size), torch.zeros(14, size)
        ends = torch.tensor([0, 4, 10, 14], dtype=torch.int32, device=weight.device)
        places = tuple(x.to(weight.device, dtype) for x in turn)
        given = {"cu_seqlens": ends, "position_embeddings": places}
        probe = probe.to(weight.device, dtype)
        with torch.inference_mode(), suppress(TypeError, ValueError, RuntimeError):
            if nearly_equal(ours(probe, **given), layer(probe, **given)):
                layer.forward = ours
                done += 1
    parts.seen.clear()
    return done


def multiply_patches(model: Any) -> int:
    """Embed patches by a matrix product where a convolution has one place; returns the number.

    So do Qwen-VL's models, whose patches have three dimensions; torch convolves those slowly.
    """
    torch = require("torch", "hf")
    done = 0
    for layer in model.modules():
        if type(layer) is not torch.nn.Conv3d or "forward" in vars(layer):
            continue
        plain = layer.padding == (0, 0, 0) and layer.dilation == (1, 1, 1)
        if plain and layer.stride == layer.kernel_size and layer.groups == 1:
            layer.forward = partial(_multiply_patches, layer, layer.forward)
            done += 1
    return done


def _multiply_patches(layer: Any, convolve: Any, patches: Any) -> Any:
    if patches.shape[2:] != layer.kernel_size:
        return convolve(patches)
    product = require("torch", "hf").nn.functional.linear(
        patches.flatten(1), layer.weight.flatten(1), layer.bias
    )
    return product[:, :, None, None, None]


class _Parts:
    """The places of parts of sequences, by length, for the ends of parts seen last."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, list[tuple[int, Any]]]] = []

    def by_length(self, ends: Any) -> list[tuple[int, Any]]:
        """The length and the places (N, length) of parts; no places if all have one length.

        ``ends`` (M + 1,) is the same tensor in all layers of a pass, or one of two.
        """
        for known, groups in self.seen:
            if known is ends:
                return groups
        torch = require("torch", "hf")
        starts: dict[int, list[int]] = {}
        places = ends.tolist()
        for start, end in pairwise(places):
            starts.setdefault(end - start, []).append(start)
        groups = [(length, None) for length in starts]
        if len(starts) > 1:
            groups = [
                (length, (torch.tensor(some)[:, None] + torch.arange(length)).to(ends.device))
                for length, some in starts.items()
            ]
        self.seen = [*self.seen[-1:], (ends, groups)]
        return groups


def _attend_to_parts(config: Any, forward: Any, parts: _Parts, states: Any, **given: Any) -> Any:
    """Run a layer as if its patches were one part, with an attention that knows the parts."""
    groups = parts.by_length(given["cu_seqlens"])
    given["cu_seqlens"] = require("torch", "hf").tensor([0, len(states)])
    with use_attention(config, partial(_attention_by_length, groups)):
        return forward(states, **given)


def _attention_by_length(
    groups: list[tuple[int, Any]], _: Any, query: Any, key: Any, value: Any, *__: Any, **more: Any
) -> tuple[Any, None]:
    """Attend within parts; queries, keys and values are (1, H, L, D), the result (1, L, H, D)."""
    torch = require("torch", "hf")
    attend = torch.nn.functional.scaled_dot_product_attention
    out = torch.empty_like(query.transpose(1, 2))
    for length, places in groups:
        if places is None:
            parts = (x[0].unflatten(1, (-1, length)) for x in (query, key, value))
        else:
            parts = (x[0][:, places] for x in (query, key, value))
        some = attend(*(x.transpose(0, 1) for x in parts), scale=more["scaling"])
        some = some.transpose(1, 2)  # (N, length, H, D)
        if places is None:
            return some.flatten(0, 1)[None], None
        out[0, places] = some
    return out, None
