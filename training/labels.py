"""Pseudo ratings: how well a caption fits an image, judged by the image's own captions.

S(image, caption) is the similarity of the caption to the image's references (0.8 MiniLM cosine +
0.2 tf-idf cosine), mean and maximum over the references averaged, leaving the caption itself out.
The rating on 0 ... 10 is linear in S between a random caption and a good one, where both marks
depend on how many references there were: one reference says less than five. Own captions are
ranked among themselves where enough references can tell; where not, they all get the mean rating
of own captions, and a wide target that says so. Test images and human judgments take no part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from training import common

MOST = 6
"""References looked at per image."""
SAME_WORDS = 0.95
"""Cosine of tf-idf above which two captions say the same."""


class References:
    """The captions of a split, as references of its images, on one device."""

    def __init__(self, split: str, minilm_weight: float, device: str) -> None:
        self.device, self.weight = device, minilm_weight
        dtype = torch.float16 if device == "cuda" else torch.float32
        data = np.load(common.BUILD / f"{split}_meaning.npz")
        meaning = torch.from_numpy(data["q"].astype(np.float32) * data["scale"]).to(device)
        self.meaning = F.normalize(meaning, dim=-1)  # (captions, 384)
        sparse = np.load(common.BUILD / f"{split}_words.npz")
        self.words = torch.zeros(*sparse["shape"].tolist(), device=device, dtype=dtype)
        at = [torch.from_numpy(sparse[name].astype(np.int64)) for name in ("row", "column")]
        self.words[at[0], at[1]] = torch.from_numpy(sparse["value"]).to(device, dtype)
        first = np.load(common.BUILD / "text.npz")[f"{split}_first"]
        self.first = torch.from_numpy(first).long().to(device)  # (images + 1,)
        self.count = self.first.diff()
        self.images = len(self.count)
        self.owner = torch.repeat_interleave(torch.arange(self.images, device=device), self.count)

    def _of(self, images: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """Return reference numbers (B, 6) and which of them are real."""
        slot = torch.arange(MOST, device=self.device)
        real = slot < self.count[images].clamp(max=limit)[:, None]
        return torch.where(real, self.first[images][:, None] + slot, 0), real

    def similarity(
        self, images: Tensor, captions: Tensor, limit: int = MOST
    ) -> tuple[Tensor, Tensor]:
        """Return S of captions (B, N) to images (B,), and how many references each was held to."""
        references, real = self._of(images, limit)
        usable = real[:, :, None] & (references[:, :, None] != captions[:, None])
        left = usable.sum(1)
        result = torch.zeros(captions.shape, device=self.device)
        for features, share in ((self.meaning, self.weight), (self.words, 1 - self.weight)):
            cosine = (features[references] @ features[captions].transpose(1, 2)).float()
            mean = (cosine * usable).sum(1) / left.clamp(min=1)
            most = cosine.masked_fill(~usable, -1).amax(1).clamp(min=-1)
            result += share * 0.5 * (mean + most)
        return torch.where(left > 0, result, 0.0), left

    def centre(self, images: Tensor) -> Tensor:
        """Return the mean meaning of the images' references (B, 384)."""
        references, real = self._of(images, MOST)
        total = (self.meaning[references] * real[..., None]).sum(1)
        return total / real.sum(1, keepdim=True).clamp(min=1)

    def table(self, images: Tensor) -> Tensor:
        """Return S of all captions to the images (n, captions); own captions are not left out."""
        references, real = self._of(images, MOST)
        left = real.sum(1).clamp(min=1)[:, None]
        dtype = self.words.dtype
        s = torch.zeros(len(images), len(self.owner), dtype=dtype, device=self.device)
        for features, share in (
            (self.meaning.to(dtype), self.weight),
            (self.words, 1 - self.weight),
        ):
            mean, most = torch.zeros_like(s), torch.full_like(s, -1)
            for slot in range(int(real.sum(1).max())):
                cosine = features[references[:, slot]] @ features.T
                missing = ~real[:, slot, None]
                mean += cosine.masked_fill(missing, 0) / left
                torch.maximum(most, cosine.masked_fill_(missing, -1), out=most)
            s.add_(mean.add_(most), alpha=share * 0.5)
        return s

    def nearest(self, ranks: int, block: int = 256) -> Tensor:
        """Return the most similar captions of other images (images, ranks), block by block.

        The table of all similarities (billions) never exists: a block of images is compared,
        its nearest captions are kept, and its memory is used again.
        """
        ranks = min(ranks, len(self.owner) - int(self.count.max()))
        result = torch.empty(self.images, ranks, dtype=torch.int32, device=self.device)
        for start in range(0, self.images, block):
            images = torch.arange(start, min(start + block, self.images), device=self.device)
            s = self.table(images).masked_fill_(self.owner == images[:, None], -1)
            result[start : start + block] = s.topk(ranks, dim=1).indices.int()
        return result

    def alike(self, ranks: int, some: int = 12_000, block: int = 2048) -> Tensor:
        """Return each caption's nearest by words among ``some`` of other images (captions, ranks).

        Captions of nearly the same words are left out: they may well be true.
        """
        pool = torch.arange(0, len(self.owner), -(-len(self.owner) // some), device=self.device)
        result = []
        for rows in torch.split(torch.arange(len(self.owner), device=self.device), block):
            s = self.words[rows] @ self.words[pool].T
            s.masked_fill_((s > SAME_WORDS) | (self.owner[rows, None] == self.owner[pool]), -1)
            result.append(pool[s.topk(min(ranks, len(pool)), dim=1).indices])
        return torch.cat(result)


class Labels(References):
    """Ratings of the training captions."""

    def __init__(self, settings: dict[str, Any], device: str) -> None:
        super().__init__("train", settings["minilm_weight"], device)
        self.settings = settings
        self.low, self.high = self._marks()
        enough = settings["own_references"]
        rows = torch.split(torch.arange(len(self.owner), device=device), 4096)
        pairs = [self.similarity(self.owner[part], part[:, None]) for part in rows]
        own, left = (torch.cat(column) for column in zip(*pairs, strict=True))
        known = left[:, 0] >= enough - 1
        order = own[known, 0].sort().values
        rank = torch.searchsorted(order, own[:, 0].contiguous()) / max(1, len(order))
        low, high = settings["own_low"], settings["own_high"]
        self.own = torch.where(known, low + (high - low) * rank, (low + high) / 2)
        self.hard = self.nearest(settings["hard_ranks"])
        self.near = self.alike(settings["near_ranks"])

    def _marks(self) -> tuple[Tensor, Tensor]:
        """Return S of a random and of a good caption, by the number of references (7,)."""
        generator = torch.Generator(device=self.device).manual_seed(0)
        low, high = torch.zeros(MOST + 1), torch.ones(MOST + 1)
        for limit in range(1, MOST + 1):
            images = torch.nonzero(self.count >= limit)[:, 0]
            held = torch.nonzero(self.count > limit)[:, 0][:4000]
            if limit > 1 and len(images) < 30:
                low[limit] = low[limit - 1]
            else:
                pick = torch.randint(
                    0, len(images), (4000,), device=self.device, generator=generator
                )
                shape = (4000, 25)
                captions = torch.randint(
                    0, len(self.owner), shape, device=self.device, generator=generator
                )
                s, left = self.similarity(images[pick], captions, limit)
                low[limit] = s[left == limit].quantile(0.85)
            if len(held) < (1 if limit == 1 else 30):
                high[limit] = high[limit - 1] if limit > 1 else 1.0
            else:  # a caption held to the references before it
                s, _ = self.similarity(held, self.first[held + 1][:, None] - 1, limit)
                high[limit] = s.quantile(0.85)
        return low.to(self.device), high.to(self.device)

    def rate(self, s: Tensor, left: Tensor) -> Tensor:
        """Turn similarities, held to so many references, into ratings on 0 ... other_high."""
        low, high = self.low[left], self.high[left]
        return ((s - low) / (high - low)).clamp(0, 1) * float(self.settings["other_high"])

    def of(self, images: Tensor, captions: Tensor) -> Tensor:
        """Rate training captions (B, N) for training images (B,)."""
        rating = self.rate(*self.similarity(images, captions))
        return torch.where(self.owner[captions] == images[:, None], self.own[captions], rating)

    def spread(self, images: Tensor) -> Tensor:
        """Return how wide the targets of images are (B,): few references leave doubt."""
        few = self.count[images] < self.settings["own_references"]
        return torch.where(few, self.settings["spread_few"], self.settings["spread"])


def soft(rating: Tensor, spread: Tensor) -> Tensor:
    """Return a distribution over 0.0 ... 1.0 (B, N, 11) around ratings (B, N) on 0 ... 10."""
    values = torch.arange(11, device=rating.device)
    width = 2 * spread[:, None, None] ** 2
    return torch.softmax(-((rating[..., None] - values) ** 2) / width, dim=-1)
