"""Norms, activations, rotations and attention with fewer passes over GPU memory.

In transformers, a large GPU spends a fifth of its time for a prefix on norms, activations and
rotations, with two to eight kernels each. Here each is one. Nothing is assumed about a model: a
module is replaced only if the replacement gives the same numbers on a probe.

Captions attend to the prefix of their image without a mask, and to themselves with a small one; the
two results are joined by their softmax sums. So no masked scores are computed between captions.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib import import_module
from threading import local
from types import ModuleType
from typing import Any

from discode._extras import require_transformers
from discode.backends._local.packing import CaptionGrid
from discode.errors import require

GATED = {"gate_proj", "up_proj", "down_proj", "act_fn"}
"""The parts of a gated feed-forward block of transformers."""

LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
"""The parts of a language model's layer with nothing between its two blocks."""

PLANNED_QUERIES = 4096
"""The fewest queries for cuDNN's attention."""
PLANNED_USES = 2
"""Uses of a shape after which cuDNN's attention is used for it: it plans for 50 ms for every new
one, and most photographs of a collection have one of a few sizes."""


def fuse_norms(model: Any) -> int:
    """Run root-mean-square norms as one kernel each; returns their number.

    ``weight · x / sqrt(mean(x²) + eps)`` is computed in float32 and rounded once; transformers
    rounds before and after the weight.
    """
    torch = require("torch", "hf")
    done = 0
    for module in model.modules():
        weight: Any = getattr(module, "weight", None)
        if not type(module).__name__.endswith("RMSNorm") or getattr(weight, "ndim", 0) != 1:
            continue
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        rms_norm = torch.nn.functional.rms_norm
        norm = partial(rms_norm, normalized_shape=weight.shape, weight=weight, eps=eps)
        probe = torch.linspace(-2, 3, 2 * len(weight), device=weight.device, dtype=weight.dtype)
        probe = probe.reshape(1, 2, len(weight))
        with torch.inference_mode():
            if nearly_equal(norm(probe), module(probe)):
                module.forward = norm
                done += 1
    return done


def fuse_activations(model: Any) -> int:
    """Run ``silu(gate) · up`` and CLIP's activation as one kernel each; returns their number."""
    torch, kernels = require("torch", "hf"), find_kernels()
    done = 0
    for module in model.modules() if kernels else ():
        if type(module).__name__ == "QuickGELUActivation":
            fused: Any = kernels.quick_gelu
            probe = torch.linspace(-9, 9, 64, device="cuda")
        elif {name for name, _ in module.named_children()} >= GATED:
            fused = partial(_gated_feed, kernels.gate_and_multiply, module)
            weight = module.gate_proj.weight
            wide = weight.is_floating_point() and weight.itemsize > 1  # not quantised
            probe = torch.linspace(-2, 3, 2 * module.gate_proj.in_features, device=weight.device)
            probe = probe.to(weight.dtype if wide else torch.bfloat16).reshape(1, 2, -1)
        else:
            continue
        with torch.inference_mode():
            if probe.is_cuda and nearly_equal(fused(probe), module(probe)):
                module.forward = fused
                done += 1
    return done


def _gated_feed(gate: Any, block: Any, x: Any) -> Any:
    return block.down_proj(gate(block.gate_proj(x), block.up_proj(x)))


def fuse_residuals(decoder: Any) -> int:
    """Add residuals within the last matrix product of a layer's blocks; returns their number.

    The state is then changed in place and rounded once per block. This is for language models:
    vision towers need the states between layers.
    """
    torch = require("torch", "hf")
    done = 0
    for layer in decoder.modules():
        if {name for name, _ in layer.named_children()} != LAYER:
            continue
        ends: list[Any] = [
            getattr(layer.self_attn, "o_proj", None), getattr(layer.mlp, "down_proj", None)
        ]  # fmt: skip
        if any(type(end) is not torch.nn.Linear or end.bias is not None for end in ends):
            continue
        if any("forward" in vars(module) for module in (layer, *ends)):
            continue  # moved between devices, or already replaced
        size = getattr(layer.self_attn, "head_dim", 0)
        probe = torch.linspace(-2, 3, 2 * len(ends[0].weight)).reshape(1, 2, -1).to(ends[0].weight)
        turn = torch.ones(1, 2, size).to(probe), torch.zeros(1, 2, size).to(probe)
        run = partial(layer, probe, attention_mask=None, position_embeddings=turn)
        waiting: list[Any] = []
        with torch.inference_mode(), suppress(TypeError, ValueError, RuntimeError):
            plain = run()
            for end in ends:
                end.forward = partial(_add_product, end, waiting)
            layer.forward = partial(_add_to_blocks, layer, waiting)
            if nearly_equal(run(), plain):
                done += 1
                continue
        for module in (layer, *ends):
            vars(module).pop("forward", None)
    return done


def _add_to_blocks(layer: Any, waiting: list[Any], hidden_states: Any, **settings: Any) -> Any:
    """Run a layer; the waiting residual is added by a block's last product, or after the block."""
    waiting[:] = [hidden_states.contiguous()]
    states = layer.self_attn(layer.input_layernorm(waiting[0]), **settings)[0]
    waiting[:] = [waiting[0] + states if waiting else states]
    states = layer.mlp(layer.post_attention_layernorm(waiting[0]))
    return waiting.pop() + states if waiting else states


def _add_product(linear: Any, waiting: list[Any], given: Any) -> Any:
    if not waiting:
        return require("torch", "hf").nn.functional.linear(given, linear.weight)
    states = waiting.pop()
    states.flatten(0, -2).addmm_(given.flatten(0, -2), linear.weight.T)
    return states


_uses: Counter[Any] = Counter()


def recurs(*shape: Any) -> bool:
    """Count a use of a shape, and say whether it was used often enough to plan for it."""
    if len(_uses) > 1 << 14:
        _uses.clear()
    _uses[shape] += 1
    return _uses[shape] > PLANNED_USES


def without_plans() -> Any:
    """Return a context in which torch's attention does not use cuDNN."""
    attention = require("torch", "hf").nn.attention
    kinds = attention.SDPBackend
    return attention.sdpa_kernel([kinds.FLASH_ATTENTION, kinds.EFFICIENT_ATTENTION, kinds.MATH])


@cache
def find_kernels() -> Any:
    """Import the module of Triton kernels; None if they cannot be built."""
    torch = require("torch", "hf")
    if not torch.cuda.is_available():
        return None
    # Triton compiles for this machine (a C compiler, a driver) and may fail in many ways.
    try:
        kernels = import_module("discode.backends._local.gpu.kernels")
        kernels.quick_gelu(torch.zeros(8, device="cuda"))
    except Exception:
        return None
    return kernels


@cache
def has_wide_products(dtype: Any) -> bool:
    """Whether torch multiplies 16-bit floats into float32 on the GPU, as it does since 2.8."""
    torch = require("torch", "hf")
    x = torch.linspace(-2, 3, 256, device="cuda").to(dtype).reshape(16, 16)
    try:
        product = torch.mm(x, x.T, out_dtype=torch.float32)
    except (TypeError, RuntimeError):
        return False
    return nearly_equal(product, x.float() @ x.float().T)


def rotate(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> tuple[Any, Any]:
    """Rotate queries and keys (B, H, L, D) by cos and sin (B, L, D), with few kernels."""
    plain = unsqueeze_dim == 1 and q.dtype == k.dtype == cos.dtype
    if q.is_cuda and plain and (kernels := find_kernels()):
        return kernels.rotate_each(q, cos, sin), kernels.rotate_each(k, cos, sin)
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return _rotated(q, cos, sin), _rotated(k, cos, sin)


def rotate_patches(q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    """Rotate queries and keys (L, H, D) of patches by cos and sin (L, D) in float32."""
    if q.is_cuda and (kernels := find_kernels()):
        turn = cos[None], sin[None]
        q, k = (kernels.rotate_each(x.transpose(0, 1)[None], *turn)[0] for x in (q, k))
        return q.transpose(0, 1), k.transpose(0, 1)
    cos, sin = cos.unsqueeze(-2).float(), sin.unsqueeze(-2).float()
    return _rotated(q.float(), cos, sin).to(q.dtype), _rotated(k.float(), cos, sin).to(k.dtype)


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return out


ROTATIONS: dict[str, Any] = {
    "apply_rotary_pos_emb": rotate,
    "apply_rotary_pos_emb_vision": rotate_patches,
}
"""Functions of transformers' modules that rotate queries and keys, and what replaces them."""

RotaryModules = dict[tuple[ModuleType, str], Any]
"""Modules of transformers with the name of a rotation, and the function there."""


def find_rotary_modules(model: Any) -> RotaryModules:
    """Find the Python modules of a model whose rotations equal ours."""
    torch = require("torch", "hf")
    owners = {sys.modules[type(module).__module__] for module in model.modules()}
    q = torch.linspace(-2, 3, 48).reshape(1, 2, 3, 8)
    angles = torch.linspace(0, 2, 12).reshape(1, 3, 4).repeat(1, 1, 2)
    tokens = q, q[:, :1] + 1, angles.cos(), angles.sin()
    patches = (q[0].transpose(0, 1), q[0].transpose(0, 1) + 1, angles[0].cos(), angles[0].sin())
    modules: RotaryModules = {}
    for owner in owners:
        for (name, ours), probe in zip(ROTATIONS.items(), (tokens, patches), strict=True):
            theirs: Any = getattr(owner, name, None)
            try:
                rotated = theirs(*probe)
            except (TypeError, ValueError, RuntimeError):
                continue  # it has none, or a different kind
            if all(map(nearly_equal, ours(*probe), rotated)):
                modules[owner, name] = theirs
    return modules


@contextmanager
def use_fused_rotation(owners: RotaryModules) -> Iterator[None]:
    """Use our rotations in these modules within the context.

    Threads may do so concurrently: the functions are equal, and the last one restores those of
    transformers.
    """
    try:
        for owner, name in owners:
            setattr(owner, name, ROTATIONS[name])
        yield
    finally:
        for (owner, name), function in owners.items():
            setattr(owner, name, function)


def split_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    prefixes: Any,
    grid: CaptionGrid,
    **settings: Any,
) -> tuple[Any, None]:
    """Let captions attend to their prefix and to themselves; join the two by their softmax sums.

    ``query`` is (B, G·H, Q, D); ``key`` and ``value`` (B, H, K, D) belong to the captions,
    ``prefixes`` is the cache of the prefixes; the result is (B, Q, G·H, D). transformers passes
    ``settings`` to every attention; only the scaling is used.
    """
    layer = prefixes.layers[module.layer_idx]
    front = layer.keys, layer.values
    return _attend_to_both(query, key, value, front, grid, settings["scaling"]), None


def _attend_to_both(
    query: Any, key: Any, value: Any, front: tuple[Any, Any], grid: CaptionGrid, scale: float
) -> Any:
    """Let captions attend to themselves and to the keys and values ``front`` of their prefix.

    With o and z the outputs and the logarithms of the softmax sums of the two parts, the whole is
    ``own + sigmoid(z_prefix - z_own) · (o_prefix - own)``.
    """
    torch = require("torch", "hf")
    before, before_sum = attend(query, *front, None, scale)
    plain = query.is_cuda and query.itemsize == 2 and query.shape[3] == value.shape[3]
    if plain and (kernels := find_kernels()):
        return kernels.attend_within(query, key, value, grid, before, before_sum, scale)
    parts = zip((query, key, value), (grid.queries, grid.keys, grid.keys), strict=True)
    q, k, v = (x.transpose(1, 2).flatten(0, 1)[at.clamp(0)].transpose(1, 2) for x, at in parts)
    own, own_sum = attend(q, k, v, grid.mask, scale)
    own, own_sum = (x.transpose(1, 2).flatten(0, 1)[grid.back] for x in (own, own_sum))
    share = (before_sum.transpose(1, 2) - own_sum).sigmoid()[..., None]
    before = before.transpose(1, 2).to(share.dtype)
    return torch.lerp(own.to(share.dtype), before, share).to(query.dtype)


class TreeAttention:
    """The attention of a pass over prefixes of P tokens and the captions after them.

    All tokens attend to previous ones; then the captions' results, which must not depend on other
    captions, are replaced. In the last layer only the captions' states are needed: there the
    prefixes end with their keys and values, which this object receives in place of a cache.
    """

    def __init__(self, prefix: int, grid: CaptionGrid) -> None:
        self._prefix, self._grid = prefix, grid
        self._front: tuple[Any, Any] | None = None

    def __call__(
        self, module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **settings: Any
    ) -> tuple[Any, None]:
        """Compute (B, L, G·H, D) for queries (B, G·H, L, D), keys and values (B, H, L, D)."""
        scale, first = settings["scaling"], self._prefix
        if self._front is not None:
            return _attend_to_both(query, key, value, self._front, self._grid, scale), None
        whole = require("torch", "hf").nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=True
        )
        front = key[:, :, :first], value[:, :, :first]
        q, k, v = (x[:, :, first:] for x in (query, key, value))
        out = whole.transpose(1, 2)
        out[:, first:] = _attend_to_both(q, k, v, front, self._grid, scale)
        return out, None

    def update(self, keys: Any, values: Any, *_: Any, **__: Any) -> None:
        """Keep the prefixes' keys and values of the last layer, and end their pass."""
        self._front = keys, values
        raise _LayerDone

    @contextmanager
    def leave_prefixes(self, last_layer: Any) -> Iterator[None]:
        """Run only captions through the rest of a model's last layer within the context."""

        def cut(layer: Any, args: Any, kwargs: Any) -> Any:
            places = {name: kwargs[name] for name in PLACES & kwargs.keys()}
            front, rest = slice(None, self._prefix), slice(self._prefix, None)
            cut_front, cut_rest = (
                kwargs | {name: _some_tokens(value, at) for name, value in places.items()}
                for at in (front, rest)
            )
            with suppress(_LayerDone):
                layer.forward(args[0][:, front], **cut_front | {"past_key_values": self})
            return (args[0][:, rest],), cut_rest

        hook = last_layer.register_forward_pre_hook(cut, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()


class _LayerDone(Exception):
    """Raised inside a model's last layer once a prefix's keys and values are complete."""


PLACES = {"position_ids", "position_embeddings"}
"""Inputs of transformers' layers per token besides its state."""


def _some_tokens(value: Any, at: slice) -> Any:
    """Select tokens in a tensor (..., L), or in each tensor (..., L, D) of a tuple."""
    if isinstance(value, tuple):
        return tuple(x[..., at, :] for x in value)
    return value if value is None else value[..., at]


def attend(query: Any, key: Any, value: Any, mask: Any, scale: float) -> tuple[Any, Any]:
    """Attend (B, G·H, Q, D) to (B, H, K, D); also returns the log softmax sums (B, G·H, Q).

    >>> import torch
    >>> out, sums = attend(*torch.zeros(3, 1, 1, 5, 8), None, 1.0)
    >>> sums.exp().round().tolist()
    [[[5.0, 5.0, 5.0, 5.0, 5.0]]]
    """
    torch = require("torch", "hf")
    width, size = query.shape[2:]
    half = query.dtype in (torch.bfloat16, torch.float16)
    fits = query.is_cuda and size == value.shape[3] and size % 8 == 0 and size <= 256
    if fits and half and mask is None:
        many = query.shape[0] * width >= PLANNED_QUERIES and recurs(query.shape, key.shape)
        if many and (planned := _planned_attention()):
            out, sums, *_ = planned(query, key, value, None, True, scale=scale)
            return out, sums.reshape(query.shape[:3])
        out, sums, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, scale=scale
        )
        return out, sums
    if key.shape[1] < query.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if fits and (half or query.dtype == torch.float32):
        bias = None if mask is None else mask.expand(-1, query.shape[1], -1, -1)
        out, sums, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, True, scale=scale
        )
        return out, sums[..., :width]
    exact = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(exact) * scale) @ key.to(exact).transpose(2, 3)
    if mask is not None:
        scores += mask
    sums = scores.logsumexp(-1, keepdim=True)
    return (scores.sub_(sums).exp_() @ value.to(exact)).to(query.dtype), sums[..., 0]


@cache
def _planned_attention() -> Any:
    """Find cuDNN's attention, which takes half the time on Hopper; None if it is not available."""
    torch = require("torch", "hf")
    attention = torch.ops.aten._scaled_dot_product_cudnn_attention
    q, k = (torch.ones(1, heads, 64, 64, device="cuda", dtype=torch.bfloat16) for heads in (4, 2))
    try:
        out, sums, *_ = attention(q, k, k, None, True, scale=0.01)
    except RuntimeError:
        return None
    exact = torch.full_like(sums, 0.64 + math.log(64))
    return attention if nearly_equal(out, q) and nearly_equal(sums, exact) else None


_used = local()
"""``attention`` is the one used by models that run in this thread."""


@contextmanager
def use_attention(config: Any, function: Any) -> Iterator[None]:
    """Use an attention within the context, for the model of this configuration, in this thread.

    transformers registers attentions by names that all models and threads share.
    """
    transformers = require_transformers()
    transformers.AttentionInterface.register(
        "discode", lambda *args, **settings: _used.attention(*args, **settings)
    )
    before, config._attn_implementation = config._attn_implementation, "discode"
    outer, _used.attention = getattr(_used, "attention", None), function
    try:
        yield
    finally:
        config._attn_implementation = before
        _used.attention = outer


def nearly_equal(ours: Any, theirs: Any) -> bool:
    """Whether two results agree up to the rounding of their type."""
    torch = require("torch", "hf")
    if not isinstance(theirs, torch.Tensor) or ours.shape != theirs.shape:
        return False
    apart = (ours.float() - theirs.float()).abs().max()
    return bool(apart <= 4 * torch.finfo(ours.dtype).eps * theirs.float().abs().max())
