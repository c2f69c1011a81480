"""Matrix products of a language model in 8-bit floats (e4m3), with torch, scaled by rows.

``x Wᵀ`` becomes ``s_x s_W (x / s_x)₈ (W / s_W)₈ᵀ``, where s scales the largest entry of each row to
448, the largest number of the format. The products are summed in higher precision. The vision
tower, the embeddings and the head are not changed.
"""

from __future__ import annotations

from typing import Any

import torch

from discode.backends._local.gpu.fused import find_kernels
from discode.errors import InputError

LARGEST = 448.0
"""The largest number of the format."""


class Fp8Linear(torch.nn.Module):
    """A linear layer (N, K) in 8-bit floats; layers with the same input round it once."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, linear: Any, device: Any, last_input: list[Any]) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight, scale = quantize_rows(linear.weight.to(device))
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale.T.contiguous())
        self.bias = None if linear.bias is None else linear.bias.to(device)
        self._last_input = last_input

    def forward(self, x: Any) -> Any:
        """Compute x Wᵀ + b for x (..., K)."""
        if not self._last_input or self._last_input[0] is not x:
            self._last_input[:] = x, *quantize_rows(x.reshape(-1, self.in_features))
        _, rows, scale = self._last_input
        if x.is_cuda:
            out = torch._scaled_mm(
                rows, self.weight.T, scale, self.scale, out_dtype=x.dtype, use_fast_accum=True
            )
        else:
            out = ((rows.float() @ self.weight.T.float()) * scale * self.scale).to(x.dtype)
        out = out if self.bias is None else out + self.bias
        return out.reshape(*x.shape[:-1], self.out_features)


def quantize_rows(x: Any) -> tuple[Any, Any]:
    """Convert x (M, K) to 8-bit floats, with the scales (M, 1) of its rows in float32.

    >>> rows, scale = quantize_rows(torch.tensor([[1.0, -2.0, 0.5]]))
    >>> (rows.float() * scale).tolist()
    [[1.0, -2.0, 0.5]]
    """
    if x.is_cuda and (kernels := find_kernels()):
        rows, scale = kernels.scale_to_fp8(x, LARGEST)
        return rows, scale
    scale = x.float().abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / LARGEST
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


def use_fp8(model: Any, device: Any) -> int:
    """Replace the linear layers of a model's language model; returns their number.

    Each is moved to ``device`` in 8 bits, so the model need not fit there in 16.
    """
    decoder, last_input, done = model.get_decoder(), list[Any](), 0
    for module in list(decoder.modules()):
        for name, child in module.named_children():
            if type(child) is torch.nn.Linear and not (child.in_features | child.out_features) % 16:
                setattr(module, name, Fp8Linear(child, device, last_input))
                done += 1
    return done


def check_fp8(device: str, dtype: str) -> None:
    """Raise unless a device supports these products."""
    if not device.startswith("cuda") or torch.cuda.get_device_capability(device) < (8, 9):
        raise InputError(
            "quantize=fp8 needs an NVIDIA GPU of compute capability 8.9 or more (Ada, Hopper, "
            "Blackwell); try quantize=8bit"
        )
    if dtype != "bfloat16":
        raise InputError(f"quantize=fp8 needs dtype=bfloat16, not {dtype}")
