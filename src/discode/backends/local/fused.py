"""Norms, rotations and attention with fewer passes over GPU memory than in transformers.

On a large GPU a fifth of the time for a prefix goes into norms and rotations, which take five to
eight kernels each in transformers. Here they take one and three. Nothing is assumed about a model:
what gives the same numbers on a probe is replaced, the rest is left alone. And where transformers
copies keys and values for each group of heads, captions read them in place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from discode.errors import require

ROTATION = "apply_rotary_pos_emb"
"""The name of the function that rotates queries and keys in the modules of transformers."""


def fuse_norms(model: Any) -> int:
    """Let root-mean-square norms run as one kernel each; return how many do.

    ``weight · x / sqrt(mean(x²) + eps)`` is computed in float32 and rounded once; transformers
    rounds before the weight and again after it.
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
            if _nearly_equal(norm(probe), module(probe)):
                module.forward = norm
                done += 1
    return done


class _Norm:
    """The forward function of a norm."""

    def __init__(self, weight: Any, eps: float | None) -> None:
        self._run = require("torch", "hf").nn.functional.rms_norm
        self._weight, self._eps = weight, eps

    def __call__(self, hidden_states: Any) -> Any:
        return self._run(hidden_states, self._weight.shape, self._weight, self._eps)


def rotate(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> tuple[Any, Any]:
    """Rotate queries and keys (B, H, L, D) by cos and sin (B, L, D), with three kernels each."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return _rotated(q, cos, sin), _rotated(k, cos, sin)


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return out


RotaryModules = dict[ModuleType, Any]
"""Modules of transformers, and the function that each one rotates with."""


def find_rotary_modules(model: Any) -> RotaryModules:
    """Return the Python modules of a model whose rotation equals :func:`rotate`."""
    torch = require("torch", "hf")
    owners = {sys.modules[type(module).__module__] for module in model.modules()}
    q = torch.linspace(-2, 3, 48).reshape(1, 2, 3, 8)
    angles = torch.linspace(0, 2, 12).reshape(1, 3, 4).repeat(1, 1, 2)
    given = q, q[:, :1] + 1, angles.cos(), angles.sin()
    found = {}
    for owner in owners:
        theirs: Any = getattr(owner, ROTATION, None)
        try:
            rotated = theirs(*given)
        except (TypeError, ValueError, RuntimeError):
            continue  # it has none, or another kind
        if all(
            _nearly_equal(ours, other) for ours, other in zip(rotate(*given), rotated, strict=True)
        ):
            found[owner] = theirs
    return found


@contextmanager
def use_fused_rotation(owners: RotaryModules) -> Iterator[None]:
    """Use :func:`rotate` in these modules within the context.

    Other threads may do so at the same time: the functions are equal, and the last to leave puts
    back that of transformers.
    """
    try:
        for owner in owners:
            setattr(owner, ROTATION, rotate)
        yield
    finally:
        for owner, function in owners.items():
            setattr(owner, ROTATION, function)


def grouped_attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **settings: Any
) -> tuple[Any, None]:
    """Let G query heads attend to each key head, without copying the keys and values.

    ``query`` is (B, G·H, Q, D), ``key`` and ``value`` (B, H, K, D), the result (B, Q, G·H, D).
    ``settings`` are what transformers passes to every attention; only the scaling is used.
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
def use_grouped_attention(config: Any) -> Iterator[None]:
    """Use :func:`grouped_attention` within the context; for one thread at a time."""
    transformers = require("transformers", "hf")
    transformers.AttentionInterface.register(grouped_attention.__name__, grouped_attention)
    before = config._attn_implementation
    config._attn_implementation = grouped_attention.__name__
    try:
        yield
    finally:
        config._attn_implementation = before


def _nearly_equal(ours: Any, theirs: Any) -> bool:
    """Whether two results agree up to the rounding of their type."""
    torch = require("torch", "hf")
    if not isinstance(theirs, torch.Tensor) or ours.shape != theirs.shape:
        return False
    apart = (ours.float() - theirs.float()).abs().max()
    return bool(apart <= 4 * torch.finfo(ours.dtype).eps * theirs.float().abs().max())
