"""Triton kernels for what torch runs as several: each reads its inputs once and rounds once.

Used by :mod:`discode.backends.local.gpu.fused`, on machines with a GPU and Triton only.
"""

# Triton reads annotations, and takes its own only.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-not-found, import-untyped, assignment"

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # the module can be imported all the same, but its kernels cannot be run
    triton = SimpleNamespace(jit=lambda kernel: kernel)

BLOCK = 4096


@triton.jit
def _gate(gate, up, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(gate + at, at < count, 0).to(tl.float32)
    y = tl.load(up + at, at < count, 0).to(tl.float32)
    tl.store(out + at, x * tl.sigmoid(x) * y, at < count)


def gate_and_multiply(gate: Any, up: Any) -> Any:
    """Return ``silu(gate) · up``; both are contiguous."""
    out = torch.empty_like(up)
    with torch.cuda.device_of(out):
        _gate[triton.cdiv(up.numel(), BLOCK),](gate, up, out, up.numel(), BLOCK, num_warps=8)
    return out


@triton.jit
def _quick_gelu(given, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(given + at, at < count, 0).to(tl.float32)
    tl.store(out + at, x * tl.sigmoid(1.702 * x), at < count)


def quick_gelu(given: Any) -> Any:
    """Return ``x · sigmoid(1.702 x)`` for contiguous x."""
    out = torch.empty_like(given)
    with torch.cuda.device_of(out):
        _quick_gelu[triton.cdiv(out.numel(), BLOCK),](given, out, out.numel(), BLOCK, num_warps=8)
    return out


@triton.jit
def _rotate(
    given, out, cos, sin, heads, half,
    given_batch, given_head, given_place,
    out_batch, out_head, out_place,
    cos_batch, cos_place, HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    place, batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    head, lane = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None]
    here, inside = lane < half, (head < heads) & (lane < half)
    turn = batch * cos_batch + place * cos_place + lane
    first_cos = tl.load(cos + turn, here, 0).to(tl.float32)
    second_cos = tl.load(cos + turn + half, here, 0).to(tl.float32)
    first_sin = tl.load(sin + turn, here, 0).to(tl.float32)
    second_sin = tl.load(sin + turn + half, here, 0).to(tl.float32)
    source = given + batch * given_batch + place * given_place + head * given_head + lane
    first = tl.load(source, inside, 0).to(tl.float32)
    second = tl.load(source + half, inside, 0).to(tl.float32)
    target = out + batch * out_batch + place * out_place + head * out_head + lane
    tl.store(target, first * first_cos - second * first_sin, inside)
    tl.store(target + half, second * second_cos + first * second_sin, inside)


def rotate_each(given: Any, cos: Any, sin: Any) -> Any:
    """Rotate queries or keys (B, H, L, D) by cos and sin (B or 1, L, D); D is contiguous in all."""
    batch, heads, length, size = given.shape
    out = torch.empty_like(given)
    cos, sin = cos.expand(batch, -1, -1), sin.expand(batch, -1, -1)
    with torch.cuda.device_of(out):
        _rotate[length, batch](
            given, out, cos, sin, heads, size // 2,
            *given.stride()[:3], *out.stride()[:3], *cos.stride()[:2],
            triton.next_power_of_2(heads), triton.next_power_of_2(size // 2),
        )  # fmt: skip
    return out


@triton.jit
def _join(
    own, own_sum, before, before_sum, back, out, heads, size, length, width,
    own_caption, own_head, own_place, sum_caption, sum_head, sum_place,
    before_batch, before_head, before_place, lse_batch, lse_head, lse_place,
    HEADS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    place, batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    head, lane = tl.arange(0, HEADS), tl.arange(0, SIZE)[None]
    inside = (head[:, None] < heads) & (lane < size)
    there = tl.load(back + batch * length + place)
    caption, step = there // width, there % width
    at = caption * sum_caption + step * sum_place + head * sum_head
    mine = tl.load(own_sum + at, head < heads, 0)
    at = batch * lse_batch + place * lse_place + head * lse_head
    share = tl.sigmoid(tl.load(before_sum + at, head < heads, 0) - mine)[:, None]
    at = caption * own_caption + step * own_place + head[:, None] * own_head + lane
    x = tl.load(own + at, inside, 0).to(tl.float32)
    at = batch * before_batch + place * before_place + head[:, None] * before_head + lane
    y = tl.load(before + at, inside, 0).to(tl.float32)
    at = ((batch * length + place) * heads + head[:, None]) * size + lane
    tl.store(out + at, x + share * (y - x), inside)


def join_attention(own: Any, own_sum: Any, before: Any, before_sum: Any, back: Any) -> Any:
    """Join attention to captions (C, H, S, D) and to prefixes (B, H, Q, D), to (B, Q, H, D).

    Each comes with the log of its softmax sums; ``back`` (B, Q) are places among all C·S.
    """
    batch, heads, length, size = before.shape
    out = before.new_empty(batch, length, heads, size)
    with torch.cuda.device_of(out):
        _join[length, batch](
            own, own_sum, before, before_sum, back, out, heads, size, length, own.shape[2],
            *(n for x in (own, own_sum, before, before_sum) for n in x.stride()[:3]),
            triton.next_power_of_2(heads), triton.next_power_of_2(size),
        )  # fmt: skip
    return out


@triton.jit
def _quantize_rows(given, out, scale, size, stride, largest, SIZE: tl.constexpr):
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, SIZE)
    x = tl.load(given + row * stride + lane, lane < size, 0).to(tl.float32)
    unit = tl.maximum(tl.max(tl.abs(x), 0), 1e-12) / largest
    tl.store(scale + row, unit)
    tl.store(out + row * size + lane, (x / unit).to(tl.float8e4nv), lane < size)


def scale_to_fp8(given: Any, largest: float) -> tuple[Any, Any]:
    """Return x (M, K) in 8-bit floats whose rows reach ``largest``, and their scales (M, 1)."""
    rows, size = given.shape
    out = torch.empty(rows, size, device=given.device, dtype=torch.float8_e4m3fn)
    scale = torch.empty(rows, 1, device=given.device)
    width = triton.next_power_of_2(size)
    with torch.cuda.device_of(out):
        _quantize_rows[rows,](given, out, scale, size, given.stride(0), largest, width, num_warps=8)
    return out, scale
