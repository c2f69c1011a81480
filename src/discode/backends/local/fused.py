"""The work between the matrix products, in fewer passes over memory.

On a large GPU a fifth of a prefix goes into normalising and rotating, which transformers writes as
five to eight kernels each. Here they are one and three. Nothing is assumed about a family: what
gives the same numbers on a probe is replaced, what does not is left alone. And where transformers
copies keys and values for every group of heads, captions read them where they lie.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from discode.errors import require

ROTATION = "apply_rotary_pos_emb"
"""What transformers' modules call the function that turns queries and keys."""


def fuse_norms(model: Any) -> int:
    """Let every root-mean-square norm run as one kernel; returns how many do.

    ``weight · x / sqrt(mean(x²) + eps)``, computed in float32 and rounded once, where transformers
    rounds before the weight and again behind it.
    """
    torch = require("torch", "hf")
    done = 0
    for module in model.modules():
        weight: Any = getattr(module, "weight", None)
        if not type(module).__name__.endswith("RMSNorm") or getattr(weight, "ndim", 0) != 1:
            continue
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        norm = _Norm(weight, eps)
        probe = torch.linspace(-2, 3, 2 * len(weight), device=weight.device, dtype=weight.dtype)
        probe = probe.reshape(1, 2, len(weight))
        with torch.inference_mode():
            if _alike(norm(probe), module(probe)):
                module.forward = norm
                done += 1
    return done


class _Norm:
    """A norm's forward."""

    def __init__(self, weight: Any, eps: float | None) -> None:
        self._run = require("torch", "hf").nn.functional.rms_norm
        self._weight, self._eps = weight, eps

    def __call__(self, hidden_states: Any) -> Any:
        return self._run(hidden_states, self._weight.shape, self._weight, self._eps)


def rotate(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> tuple[Any, Any]:
    """Turn queries and keys (B, H, L, D) by cos and sin (B, L, D): three kernels each, not five."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return _turned(q, cos, sin), _turned(k, cos, sin)


def _turned(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return out


Rotations = dict[ModuleType, Any]
"""transformers' modules, and the function each rotates with."""


def rotations(model: Any) -> Rotations:
    """Return transformers' modules behind a model whose rotation is :func:`rotate`."""
    torch = require("torch", "hf")
    owners = {sys.modules[type(module).__module__] for module in model.modules()}
    q = torch.linspace(-2, 3, 48).reshape(1, 2, 3, 8)
    angles = torch.linspace(0, 2, 12).reshape(1, 3, 4).repeat(1, 1, 2)
    given = q, q[:, :1] + 1, angles.cos(), angles.sin()
    found = {}
    for owner in owners:
        theirs: Any = getattr(owner, ROTATION, None)
        try:
            turned = theirs(*given)
        except (TypeError, ValueError, RuntimeError):
            continue  # it has none, or one of its own kind
        if all(_alike(ours, other) for ours, other in zip(rotate(*given), turned, strict=True)):
            found[owner] = theirs
    return found


@contextmanager
def rotating(owners: Rotations) -> Iterator[None]:
    """Use :func:`rotate` in these modules for a while.

    Models in other threads may meet here: what is exchanged are equal functions, and the last to
    leave puts back transformers' own.
    """
    try:
        for owner in owners:
            setattr(owner, ROTATION, rotate)
        yield
    finally:
        for owner, function in owners.items():
            setattr(owner, ROTATION, function)


def grouped(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **settings: Any
) -> tuple[Any, None]:
    """Attend with G query heads to each key head, none of which is copied.

    ``query`` is (B, G·H, Q, D), ``key`` and ``value`` (B, H, K, D), the result (B, Q, G·H, D).
    ``settings`` are what transformers hands to every attention; the scale is the one used.
    """
    attend = require("torch", "hf").nn.functional.scaled_dot_product_attention
    batch, heads, width, size = query.shape
    groups = heads // key.shape[1]
    out = query.new_empty(batch, width, heads, size)
    for group in range(groups):
        some = attend(
            query[:, group::groups], key, value, attention_mask, scale=settings["scaling"]
        )
        out[:, :, group::groups] = some.transpose(1, 2)
    return out, None


@contextmanager
def attending(config: Any) -> Iterator[None]:
    """Let a language model attend by :func:`grouped` for a while; one thread at a time."""
    transformers = require("transformers", "hf")
    transformers.AttentionInterface.register(grouped.__name__, grouped)
    before = config._attn_implementation
    config._attn_implementation = grouped.__name__
    try:
        yield
    finally:
        config._attn_implementation = before


def _alike(ours: Any, theirs: Any) -> bool:
    """Whether two results agree to the rounding of their type."""
    torch = require("torch", "hf")
    if not isinstance(theirs, torch.Tensor) or ours.shape != theirs.shape:
        return False
    apart = (ours.float() - theirs.float()).abs().max()
    return bool(apart <= 4 * torch.finfo(ours.dtype).eps * theirs.float().abs().max())
