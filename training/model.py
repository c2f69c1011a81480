"""The embedded judge: EfficientNet-Lite2, a few layers of SmolLM2, and a match adapter.

One sequence per image: the instruction, 65 image tokens, then any number of captions, each of
which sees the instruction, the image and itself:

    instruction | image | caption END "0." "1." | caption END "0." "1." | ...

The token at END tells P("0.") and P("1."), the one at "0." the digits after it. The instruction
comes first, so its keys and values are constants of the model, and all captions share the image.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training import common, parts

WIDTH, FEED, HEAD = 576, 1536, 64
SIDE: int = common.config()["data"]["image_size"]
IMAGE = (SIDE // 32) ** 2 + 1
"""Tokens of an image: one per patch of 32 pixels, and one for the whole."""
MATCH = 384  # MiniLM's width: the adapter speaks its language


class Vision(nn.Module):
    """EfficientNet-Lite2 without its classifier: (B, 3, 256, 256) to (B, 1280, 8, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.spec: list[dict[str, Any]] = common.load_json("vision.json")
        shapes = [conv["shape"] for conv in self.spec]
        self.weight = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])
        self.bias = nn.ParameterList([nn.Parameter(torch.zeros(shape[0])) for shape in shapes])

    def forward(self, x: Tensor) -> Tensor:
        """Run the convolutions."""
        saved = x
        for conv, weight, bias in zip(self.spec, self.weight, self.bias, strict=True):
            if conv["residual"] == "save":
                saved = x
            kernel, stride = conv["kernel"], conv["stride"]
            if stride == 2:  # TensorFlow's "same" padding, as the weights were trained with
                total = kernel - 2
                before, after = total // 2, total - total // 2
                x = F.conv2d(
                    F.pad(x, (before, after, before, after)), weight, bias, 2, 0, 1, conv["groups"]
                )
            else:
                x = F.conv2d(x, weight, bias, 1, kernel // 2, 1, conv["groups"])
            if conv["relu"]:
                x = F.relu6(x)
            if conv["residual"] == "add":
                x = x + saved
        return x


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
        self.vision = Vision()
        self.embedding = nn.Embedding(len(common.load_json("tokenizer.json")["tokens"]), WIDTH)
        self.layers = nn.ModuleList([Layer(dropout) for _ in range(layers)])
        self.norm = nn.Parameter(torch.ones(WIDTH))
        self.image_norm = nn.LayerNorm(1280)
        self.project_mean = nn.Linear(1280, WIDTH)
        self.project = nn.Sequential(nn.Linear(1280, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.place = nn.Parameter(torch.zeros(IMAGE, WIDTH))
        self.align = nn.Linear(1280, MATCH)
        self.meaning = nn.Linear(WIDTH, MATCH)
        self.match = nn.Linear(MATCH + 1, WIDTH, bias=False)
        self.vision_dropout = nn.Dropout(vision_dropout)
        inverse = 1.0 / (100000.0 ** (torch.arange(0, HEAD, 2).float() / HEAD))
        self.register_buffer("inverse", inverse, persistent=False)
        self.inverse: Tensor

    @torch.no_grad()
    def begin(self) -> None:
        """Load the pretrained parts, and scale what is new to them."""
        vision, language = (np.load(common.BUILD / f"{n}.npz") for n in ("vision", "embedding"))
        for number in range(len(self.vision.spec)):
            self.vision.weight[number].copy_(torch.from_numpy(vision[f"{number}.weight"]))
            self.vision.bias[number].copy_(torch.from_numpy(vision[f"{number}.bias"]))
        self.embedding.weight.copy_(torch.from_numpy(language["embedding"]))
        self.norm.copy_(torch.from_numpy(language["norm"]))
        for number, layer in enumerate(self.layers):
            for name, value in parts.language_layer(number).items():
                target = getattr(layer, name)
                weight = target.weight if isinstance(target, nn.Linear) else target
                weight.copy_(torch.from_numpy(value))
        std, last = self.embedding.weight.std().item(), self.project[2]
        assert isinstance(last, nn.Linear)
        scales = {self.project_mean: std / math.sqrt(1280), last: 2 * std / math.sqrt(WIDTH)}
        for linear, scale in scales.items():
            nn.init.normal_(linear.weight, std=scale)
            nn.init.zeros_(linear.bias)
        nn.init.normal_(self.match.weight, std=0.02)

    def image(self, pixels: Tensor, *, mirror: bool) -> tuple[Tensor, Tensor]:
        """Turn pixels (B, 3, 256, 256), (u - 127)/128, into tokens (B, 65, 576) and e (B, 384).

        A mirror image means the same: with ``mirror``, the summary is the mean of both.
        """
        if mirror:
            features, mirrored = self.vision(torch.cat([pixels, pixels.flip(-1)])).chunk(2)
            mean = (features.mean((2, 3)) + mirrored.mean((2, 3))) / 2
        else:
            features = self.vision(pixels)
            mean = features.mean((2, 3))
        mean = self.image_norm(mean)
        grid = self.image_norm(features.flatten(2).transpose(1, 2))
        first = self.project_mean(self.vision_dropout(mean))[:, None]
        tokens = torch.cat([first, self.project(self.vision_dropout(grid))], dim=1) + self.place
        return tokens, F.normalize(self.align(self.vision_dropout(mean)).float(), dim=-1)

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
