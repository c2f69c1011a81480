"""The head of a model: logits in float32, and its input states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from discode.backends._local.gpu.fused import has_wide_products
from discode.errors import require

HEAD_BLOCK = 1 << 14
"""Rows of the head that are converted to float32 at once."""


def widen_head(head: Any) -> None:
    """Make a head return float32: its logits are near 20, where bfloat16 has steps of 0.125.

    A model's later operations on logits then use float32, too. If 16-bit floats cannot be
    multiplied into float32, the weights are converted in blocks over the vocabulary. A quantised
    head is not changed.
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

    # A head whose inputs and weights accelerate moves has its original forward there.
    setattr(head, "_old_forward" if hasattr(head, "_old_forward") else "forward", forward)


@contextmanager
def head_input(head: Any, rows: Any) -> Iterator[list[Any]]:
    """Collect the inputs of a head, call by call, limited to ``rows`` if they are given."""
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
