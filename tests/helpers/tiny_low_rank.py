"""CLIP with low-rank updates under the names of PAC-S++'s files, applied beside the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import conv2d, linear

from tests.helpers.tiny_openai import OpenAI

RANK = 4


class Attention(nn.Module):
    """Self-attention of (T, N, 32) in four heads; each projection has its update beside it."""

    def __init__(self, plain: nn.MultiheadAttention) -> None:
        super().__init__()
        self.in_proj_weight, self.in_proj_bias = plain.in_proj_weight, plain.in_proj_bias
        self.in_proj_weight_lora_A = nn.Parameter(torch.randn(RANK, 32))
        self.in_proj_weight_lora_B = nn.Parameter(torch.randn(96, RANK))
        self.out_proj: Any = with_update(plain.out_proj)

    def forward(self, x: Any, *_: Any, attn_mask: Any = None, **__: Any) -> tuple[Any]:
        update = linear(linear(x, self.in_proj_weight_lora_A), self.in_proj_weight_lora_B) / RANK
        mixed = linear(x, self.in_proj_weight, self.in_proj_bias) + update
        q, k, v = (part.view(*x.shape[:2], 4, 8).permute(1, 2, 0, 3) for part in mixed.chunk(3, -1))
        logits = q @ k.transpose(-1, -2) / 8**0.5
        if attn_mask is not None:
            logits = logits + attn_mask
        found = (logits.softmax(-1) @ v).permute(2, 0, 1, 3).flatten(2)
        out = self.out_proj
        return (out(found) + linear(linear(found, out.lora_A), out.lora_B) / RANK,)


class Patches(nn.Module):
    """The patch embedding, 8 x 8 pixels, with its update."""

    def __init__(self, plain: nn.Conv2d) -> None:
        super().__init__()
        self.weight = plain.weight
        self.lora_A = nn.Parameter(torch.randn(RANK * 8, 3 * 8))
        self.lora_B = nn.Parameter(torch.randn(32 * 8, RANK * 8))

    def forward(self, pixels: Any) -> Any:
        update = (self.lora_B @ self.lora_A).reshape(32, 3, 8, 8) / RANK
        return conv2d(pixels, self.weight, stride=8) + conv2d(pixels, update, stride=8)


def with_update(layer: Any) -> Any:
    layer.lora_A = nn.Parameter(torch.randn(RANK, layer.in_features))
    layer.lora_B = nn.Parameter(torch.randn(layer.out_features, RANK))
    return layer


def low_rank_clip() -> OpenAI:
    """A CLIP that computes with its updates, except in the perceptrons: there they are idle."""
    model = OpenAI()
    model.visual.conv1 = Patches(model.visual.conv1)
    for block in (*model.visual.transformer.resblocks, *model.transformer.resblocks):
        block.attn = Attention(block.attn)
        for name in ("c_fc", "c_proj"):
            with_update(block.mlp[name])
    for name, weight in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(weight, std=0.3)
    return model.eval()
