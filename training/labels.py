"""Pseudo ratings: how well a caption fits a picture, judged by the picture's own captions.

S(image, caption) is the similarity of the caption to the image's references (0.8 MiniLM cosine +
0.2 tf-idf cosine), mean and maximum over the references averaged, leaving the caption itself out.
The rating t on 0 ... 10 is linear in S between a random caption and a good one; own captions are
ranked among themselves. Test images and human judgments take no part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from training import common


class Similarity:
    """Similarities of the training and dev captions, on one device."""

    def __init__(self, settings: dict[str, Any], device: str) -> None:
        data = np.load(common.BUILD / "minilm.npz")
        meaning = torch.from_numpy(data["q"].astype(np.float32) * data["scale"]).to(device)
        self.meaning = F.normalize(meaning, dim=-1)  # (captions, 384)
        sparse = np.load(common.BUILD / "tfidf.npz")
        words = torch.zeros(*sparse["shape"].tolist(), device=device)
        words[torch.from_numpy(sparse["row"]).long(), torch.from_numpy(sparse["column"]).long()] = (
            torch.from_numpy(sparse["value"]).to(device)
        )
        self.words, self.settings, self.device = words, settings, device

    def _similarity(self, first: int, last: int, captions: Tensor) -> Tensor:
        references = torch.arange(first * 5, last * 5, device=self.device)
        own = references.view(-1, 5, 1) == captions  # (n, 5, captions)
        left = 5 - own.sum(1)
        result = torch.zeros(last - first, len(captions), device=self.device)
        weight = self.settings["minilm_weight"]
        for features, share in ((self.meaning, weight), (self.words, 1 - weight)):
            cosine = (features[references] @ features[captions].T).view(-1, 5, len(captions))
            cosine = cosine.masked_fill(own, 0)
            result += share * 0.5 * (cosine.sum(1) / left + cosine.amax(1))
        return result

    def within(self, first: int, last: int) -> Tensor:
        """Return similarities of images ``first`` ... ``last`` to each other's captions."""
        captions = torch.arange(first * 5, last * 5, device=self.device)
        starts = range(first, last, 100)
        return torch.cat([self._similarity(i, min(i + 100, last), captions) for i in starts])


class Labels(Similarity):
    """Ratings of the captions."""

    def __init__(self, settings: dict[str, Any], images: int, dev_images: int, device: str) -> None:
        super().__init__(settings, device)
        self.images, self.dev_images = images, dev_images
        everything = torch.arange(images * 5, device=device)
        self.similarity = torch.cat(
            [self._similarity(i, min(i + 200, images), everything) for i in range(0, images, 200)]
        ).half()  # (images, captions)
        generator = torch.Generator(device=device).manual_seed(0)
        some = torch.randint(
            0, self.similarity.numel(), (200_000,), device=device, generator=generator
        )
        own = self.similarity.view(images, images, 5)[torch.arange(images), torch.arange(images)]
        own = own.float().flatten()  # (captions,)
        self.low = self.similarity.flatten()[some].float().quantile(0.85).item()
        self.high = own.quantile(0.85).item()
        rank = torch.searchsorted(own.sort().values, own) / own.numel()
        span = settings["own_high"] - settings["own_low"]
        self.own = settings["own_low"] + span * rank  # (captions,)
        self.hard = self._nearest(settings["hard_ranks"])  # (images, ranks)

    def _nearest(self, ranks: int) -> Tensor:
        ranks = min(ranks, self.images * 5 - 5)
        rows = []
        for i in range(0, self.images, 500):
            s = self.similarity[i : i + 500].clone()
            for row in range(len(s)):
                s[row, (i + row) * 5 : (i + row) * 5 + 5] = -1
            rows.append(s.topk(ranks, dim=1).indices)
        return torch.cat(rows)

    def rate(self, s: Tensor) -> Tensor:
        """Turn similarities into ratings on 0 ... other_high."""
        share = ((s - self.low) / (self.high - self.low)).clamp(0, 1)
        return share * float(self.settings["other_high"])

    def of(self, images: Tensor, captions: Tensor) -> Tensor:
        """Rate training captions (B, N) for training images (B,)."""
        rating = self.rate(self.similarity[images[:, None], captions].float())
        return torch.where(captions // 5 == images[:, None], self.own[captions], rating)

    def dev(self) -> Tensor:
        """Return similarities of all dev captions to all dev images (images, captions)."""
        return self.within(self.images, self.images + self.dev_images)

    def soft(self, rating: Tensor) -> Tensor:
        """Return a distribution over 0.0 ... 1.0 (..., 11) around ratings on 0 ... 10."""
        values = torch.arange(11, device=rating.device)
        spread = self.settings["spread"]
        return torch.softmax(-((rating[..., None] - values) ** 2) / (2 * spread**2), dim=-1)
