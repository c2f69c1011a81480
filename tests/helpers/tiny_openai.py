"""CLIP as OpenAI's checkpoints name it, for the test that reads such a checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Block(nn.Module):
    """OpenAI's residual attention block, from the paper's description."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, 4)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 64), "c_proj": nn.Linear(64, width)})

    def forward(self, x: Any, mask: Any = None) -> Any:
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=mask)[0]
        y = self.mlp["c_fc"](self.ln_2(x))
        return x + self.mlp["c_proj"](y * torch.sigmoid(1.702 * y))


class OpenAI(nn.Module):
    """CLIP with OpenAI's names; sizes as in tiny_encoders."""

    def __init__(self) -> None:
        super().__init__()
        width = 32
        self.visual: Any = nn.Module()
        self.visual.conv1 = nn.Conv2d(3, width, 8, 8, bias=False)
        self.visual.class_embedding = nn.Parameter(torch.randn(width))
        self.visual.positional_embedding = nn.Parameter(torch.randn(5, width))
        self.visual.ln_pre, self.visual.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.visual.transformer = nn.Module()
        self.visual.transformer.resblocks = nn.ModuleList(Block(width) for _ in range(2))
        self.visual.proj = nn.Parameter(torch.randn(width, 16))
        self.transformer: Any = nn.Module()
        self.transformer.resblocks = nn.ModuleList(Block(width) for _ in range(2))
        self.token_embedding = nn.Embedding(54, width)
        self.positional_embedding = nn.Parameter(torch.randn(32, width))
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.randn(width, 16))
        self.logit_scale = nn.Parameter(torch.zeros(()))
        for weight in self.parameters():
            if weight.ndim:
                nn.init.normal_(weight, std=0.3)

    def image(self, pixels: Any) -> Any:
        x = self.visual.conv1(pixels).flatten(2).permute(2, 0, 1)
        x = torch.cat([self.visual.class_embedding.expand(1, x.shape[1], -1), x])
        x = self.visual.ln_pre(x + self.visual.positional_embedding[:, None])
        for block in self.visual.transformer.resblocks:
            x = block(x)
        return self.visual.ln_post(x[0]) @ self.visual.proj

    def text(self, ids: Any) -> Any:
        x = self.token_embedding(ids).transpose(0, 1)
        x = x + self.positional_embedding[: len(x), None]
        mask = torch.full((len(x), len(x)), -torch.inf).triu(1)
        for block in self.transformer.resblocks:
            x = block(x, mask)
        return self.ln_final(x)[ids.argmax(1), torch.arange(len(ids))] @ self.text_projection
