"""Triton kernels that replace several of torch's: each reads its inputs once and rounds once.

Used by :mod:`discode.backends._local.gpu.fused` on machines with a GPU and Triton.
"""

# Triton reads annotations, and accepts only its own types.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-not-found, import-untyped, assignment"

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # the module can still be imported, but its kernels cannot run
    triton = SimpleNamespace(jit=lambda kernel: kernel)

BLOCK = 4096
ROWS, WARPS = 32, 4


@triton.jit
def _gate(gate, up, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(gate + at, at < count, 0).to(tl.float32)
    y = tl.load(up + at, at < count, 0).to(tl.float32)
    tl.store(out + at, x * tl.sigmoid(x) * y, at < count)


def gate_and_multiply(gate: Any, up: Any) -> Any:
    """Compute ``silu(gate) · up``; both are contiguous."""
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
    """Compute ``x · sigmoid(1.702 x)`` for contiguous x."""
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
def _attend(
    query, key, value, queries, keys, mask, before, before_sum, out,
    scale, group, asking, asked, length, count, size,
    query_batch, query_head, query_place, key_batch, key_head, key_place,
    value_batch, value_head, value_place, before_batch, before_head, before_place,
    sum_batch, sum_head, sum_place, out_batch, out_place,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    caption, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    row, lane = tl.program_id(2) * ROWS + tl.arange(0, ROWS), tl.arange(0, SIZE)[None]
    # All tokens of a caption are in one sequence: places within it are small numbers.
    batch = tl.load(queries + caption * asking) // length
    at = tl.load(queries + caption * asking + row, row < asking, -1)
    place = (at - batch * length).to(tl.int32)[:, None]
    here = (at >= 0)[:, None] & (lane < size)
    base = query + batch * query_batch + head * query_head
    q = tl.load(base + (place * query_place + lane), here, 0)
    front_key = key + batch * key_batch + head // group * key_head
    front_value = value + batch * value_batch + head // group * value_head
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    own = tl.zeros([ROWS, SIZE], tl.float32)
    for first in range(0, asked, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        to = tl.load(keys + caption * asked + column, column < asked, -1)
        there = (to >= 0)[:, None] & (lane < size)
        spot = (to - batch * count).to(tl.int32)[:, None]
        k = tl.load(front_key + (spot * key_place + lane), there, 0)
        v = tl.load(front_value + (spot * value_place + lane), there, 0)
        inside = (row < asking)[:, None] & (column < asked)[None]
        added = mask + caption * asking * asked + (row[:, None] * tl.multiple_of(asked, 8) + column)
        score = tl.dot(q, tl.trans(k)) * scale + tl.load(added, inside, -1e30).to(tl.float32)
        higher = tl.maximum(top, tl.max(score, 1))
        part = tl.exp(score - higher[:, None])
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(part, 1)
        own = own * shrink[:, None] + tl.dot(part.to(v.dtype), v)
        top = higher
    sums = before_sum + batch * sum_batch + head * sum_head
    z = tl.load(sums + (at - batch * length) * sum_place, at >= 0, 0)
    share = tl.sigmoid(z - top - tl.log(total))[:, None]
    own = own / total[:, None]
    base = before + batch * before_batch + head * before_head
    y = tl.load(base + (place * before_place + lane), here, 0).to(tl.float32)
    base = out + batch * out_batch + head * size
    tl.store(base + (place * out_place + lane), own + share * (y - own), here)


def attend_within(
    query: Any, key: Any, value: Any, grid: Any, before: Any, before_sum: Any, scale: float
) -> Any:
    """Let captions attend to themselves, and join the result with their attention to the prefix.

    ``query`` and ``before`` are (B, G·H, Q, D), ``key`` and ``value`` (B, H, K, D), ``before_sum``
    (B, G·H, Q) are the log softmax sums of ``before``, and ``grid`` locates the tokens of each
    caption. Returns (B, Q, G·H, D), zero for padding tokens.
    """
    batch, heads, length, size = query.shape
    captions, asking = grid.queries.shape
    rows = min(ROWS, max(16, triton.next_power_of_2(asking)))
    out = query.new_zeros(batch, length, heads, size)
    strides = [n for x in (query, key, value, before, before_sum) for n in x.stride()[:3]]
    with torch.cuda.device_of(out):
        _attend[captions, heads, triton.cdiv(asking, rows)](
            query, key, value, grid.queries, grid.keys, grid.mask, before, before_sum, out,
            scale, heads // key.shape[1], asking, grid.keys.shape[1], length, key.shape[2], size,
            *strides, out.stride(0), out.stride(1),
            rows, 64, max(16, triton.next_power_of_2(size)), num_warps=WARPS, num_stages=1,
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
    """Convert x (M, K) to 8-bit floats whose rows reach ``largest``; also returns scales (M, 1)."""
    rows, size = given.shape
    out = torch.empty(rows, size, device=given.device, dtype=torch.float8_e4m3fn)
    scale = torch.empty(rows, 1, device=given.device)
    width = triton.next_power_of_2(size)
    with torch.cuda.device_of(out):
        _quantize_rows[rows,](given, out, scale, size, given.stride(0), largest, width, num_warps=8)
    return out, scale
