"""The embedded judge: DINOv2 ViT-S/14, a few layers of SmolLM2, and a match adapter.

One sequence per image: the instruction, 65 image tokens, then any number of captions, each of
which sees the instruction, the image and itself:

    instruction | image | caption END "0." "1." | caption END "0." "1." | ...

The token at END tells P("0.") and P("1."), the one at "0." the digits after it. The instruction
comes first, so its keys and values are constants of the model, and all captions share the image.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training import common, parts

WIDTH, FEED, HEAD = 576, 1536, 64
SIDE: int = common.config()["data"]["image_size"]
PATCH, SEEN, BLOCKS, SIX = 14, 384, 12, 6
"""The tower's patches in pixels, width, blocks and heads."""
GRID = SIDE // PATCH
IMAGE = (GRID // 2) ** 2 + 1
"""Tokens of an image: one for every four patches, and one for the whole."""
MATCH = 384  # MiniLM's width: the adapter speaks its language


class Block(nn.Module):
    """A block of the tower: attention and a feed-forward, each scaled per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(SEEN, eps=1e-6) for _ in range(2))
        self.qkv, self.proj = nn.Linear(SEEN, 3 * SEEN), nn.Linear(SEEN, SEEN)
        self.fc1, self.fc2 = nn.Linear(SEEN, 4 * SEEN), nn.Linear(4 * SEEN, SEEN)
        self.scale1, self.scale2 = (nn.Parameter(torch.ones(SEEN)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Run the block on (B, T, 384)."""
        b, t, _ = x.shape
        each = self.qkv(self.norm1(x)).view(b, t, 3, SIX, HEAD).permute(2, 0, 3, 1, 4)
        q, k, v = each.unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, SEEN)
        x = x + self.scale1 * self.proj(attended)
        out: Tensor = x + self.scale2 * self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return out


class Tower(nn.Module):
    """DINOv2 ViT-S/14: (B, 3, 224, 224) to (B, 257, 384), the class token before the patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, SEEN, PATCH, PATCH)
        self.first = nn.Parameter(torch.zeros(SEEN))
        self.place = nn.Parameter(torch.zeros(GRID * GRID, SEEN))
        self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
        self.norm = nn.LayerNorm(SEEN, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Look at images, (u - mean) / deviation of ImageNet."""
        x = self.patch(x).flatten(2).transpose(1, 2) + self.place
        x = torch.cat([self.first.to(x.dtype).expand(len(x), 1, -1), x], dim=1)
        for block in self.blocks:
            x = block(x)
        seen: Tensor = self.norm(x)
        return seen


def rms(x: Tensor, weight: Tensor) -> Tensor:
    """Root-mean-square norm."""
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), 1e-5)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on (B, heads, T, 64)."""
    a, b = x[..., : HEAD // 2], x[..., HEAD // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Layer(nn.Module):
    """A layer of SmolLM2: grouped-query attention and a gated feed-forward."""

    def __init__(self, dropout: float) -> None:
        super().__init__()

        def linear(rows: int, columns: int) -> nn.Linear:
            return nn.Linear(rows, columns, bias=False)

        kv = parts.KV_HEADS * HEAD
        self.q, self.k, self.v = linear(WIDTH, WIDTH), linear(WIDTH, kv), linear(WIDTH, kv)
        self.o = linear(WIDTH, WIDTH)
        self.gate, self.up, self.down = (
            linear(WIDTH, FEED),
            linear(WIDTH, FEED),
            linear(FEED, WIDTH),
        )
        self.norm1, self.norm2 = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))
        self.dropout = nn.Dropout(dropout)

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return q (B, 9, T, 64), positions applied."""
        q = self.q(rms(x, self.norm1)).view(*x.shape[:2], -1, HEAD).transpose(1, 2)
        return rotate(q, cos, sin).to(q.dtype)

    def keys(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return k and v (B, 3, T, 64), positions applied."""
        h = rms(x, self.norm1)
        k = self.k(h).view(*x.shape[:2], -1, HEAD).transpose(1, 2)
        v = self.v(h).view(*x.shape[:2], -1, HEAD).transpose(1, 2)
        return rotate(k, cos, sin).to(v.dtype), v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add what was attended (B, T, 576) and the feed-forward."""
        x = x + self.dropout(self.o(attended))
        h = rms(x, self.norm2)
        out: Tensor = x + self.dropout(self.down(F.silu(self.gate(h)) * self.up(h)))
        return out

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor,
        front: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Run the layer on (B, T, 576) with an additive mask (B, 1, T, F + T).

        ``front`` is keys and values (1, 3, F, 64) of what all rows share and see first.
        """
        b, t, _ = x.shape
        q, (k, v) = self.queries(x, cos, sin), self.keys(x, cos, sin)
        if front is not None:
            k = torch.cat([front[0].expand(b, -1, -1, -1), k], dim=2)
            v = torch.cat([front[1].expand(b, -1, -1, -1), v], dim=2)
        group = parts.HEADS // parts.KV_HEADS
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.finish(x, attended.transpose(1, 2).reshape(b, t, WIDTH))


class CaptionJudge(nn.Module):
    """The whole model, with random weights until others are loaded or :meth:`begin` is called."""

    def __init__(self, layers: int, *, dropout: float = 0.0, vision_dropout: float = 0.0) -> None:
        super().__init__()
        self.vision = Tower()
        self.embedding = nn.Embedding(len(common.load_json("tokenizer.json")["tokens"]), WIDTH)
        self.layers = nn.ModuleList([Layer(dropout) for _ in range(layers)])
        self.norm = nn.Parameter(torch.ones(WIDTH))
        self.project_whole = nn.Linear(2 * SEEN, WIDTH)
        self.project = nn.Linear(4 * SEEN, WIDTH)
        self.place = nn.Parameter(torch.zeros(IMAGE, WIDTH))
        self.align = nn.Linear(2 * SEEN, MATCH)
        self.meaning = nn.Linear(WIDTH, MATCH)
        self.match = nn.Linear(MATCH + 1, WIDTH, bias=False)
        self.vision_dropout = nn.Dropout(vision_dropout)
        inverse = 1.0 / (100000.0 ** (torch.arange(0, HEAD, 2).float() / HEAD))
        self.register_buffer("inverse", inverse, persistent=False)
        self.inverse: Tensor

    @torch.no_grad()
    def begin(self) -> None:
        """Load the pretrained parts, and scale what is new to them."""
        language = np.load(common.BUILD / "embedding.npz")
        self.embedding.weight.copy_(torch.from_numpy(language["embedding"]))
        self.norm.copy_(torch.from_numpy(language["norm"]))
        for number, layer in enumerate(self.layers):
            for name, value in parts.language_layer(number).items():
                target = getattr(layer, name)
                weight = target.weight if isinstance(target, nn.Linear) else target
                weight.copy_(torch.from_numpy(value))
        nn.init.normal_(self.match.weight, std=0.02)
        self.vision.load_state_dict(parts.tower(GRID))
        std = self.embedding.weight.std().item()
        for linear in (self.project_whole, self.project):
            nn.init.normal_(linear.weight, std=std / math.sqrt(linear.in_features))
            nn.init.zeros_(linear.bias)
        nn.init.normal_(self.align.weight, std=1 / math.sqrt(self.align.in_features))
        nn.init.zeros_(self.align.bias)

    def image(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Turn normalised pixels (B, 3, 224, 224) into tokens (B, 65, 576) and e (B, 384)."""
        seen = self.vision(pixels)
        b, half = len(seen), GRID // 2
        whole = torch.cat([seen[:, 0], seen[:, 1:].mean(1)], dim=-1)
        squares = seen[:, 1:].reshape(b, half, 2, half, 2, SEEN).transpose(2, 3)
        squares = squares.reshape(b, half * half, 4 * SEEN)
        first = self.project_whole(self.vision_dropout(whole))[:, None]
        tokens = torch.cat([first, self.project(self.vision_dropout(squares))], dim=1) + self.place
        return tokens, F.normalize(self.align(self.vision_dropout(whole)).float(), dim=-1)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin (B, 1, T, 32) for positions (B, T)."""
        angle = positions[..., None].float() * self.inverse
        return angle.cos()[:, None].to(dtype), angle.sin()[:, None].to(dtype)

    def adapt(self, end: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        """Match captions with the image: END states (B, N, 576) and e (B, 384).

        Returns what is added after each caption (B, N, 576), and its meaning (B, N, 384).
        """
        meaning = F.normalize(self.meaning(rms(end, self.norm)).float(), dim=-1)
        product = meaning * e[:, None]
        features = torch.cat([product * 8, product.sum(-1, keepdim=True) * 4], dim=-1)
        return self.match(features), meaning

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits over the vocabulary; the head is the embedding."""
        return F.linear(hidden, self.embedding.weight)
