"""Pseudo ratings: how well a caption fits an image, judged by the image's own captions.

S(image, caption) is the similarity of the caption to the image's references (MiniLM's cosine), mean
and maximum over the references averaged, leaving the caption itself out. The rating on 0 ... 10 is
what people say of captions with such an S, held to so many references: ``people.py`` fits that on
dev images. Own captions are good whatever they resemble: 8 to 9.5 by how much they tell
(``statements.py``). Test images and the judgments on them take no part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from training import common, parts
from training.sources import MOST

SAME_WORDS = 0.95
"""Cosine of tf-idf above which two captions say the same."""
UNALIKE = ("plots",)
"""Sources whose captions sound alike and mean different things: none is held against another's."""


class References:
    """The captions of a split, as references of its images, on one device."""

    def __init__(self, split: str, device: str) -> None:
        self.device = device
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
        about = common.load_json("images.json")
        unalike = [about["sources"][i] in UNALIKE for i in about[f"{split}_source"]]
        self.unalike = torch.tensor(unalike, device=device)  # (images,)

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
        cosine = self.meaning[references] @ self.meaning[captions].transpose(1, 2)
        mean = (cosine * usable).sum(1) / left.clamp(min=1)
        most = cosine.masked_fill(~usable, -1).amax(1)
        return torch.where(left > 0, 0.5 * (mean + most), 0.0), left

    def likeness(self, images: Tensor, meaning: Tensor, limit: int = MOST) -> tuple[Tensor, Tensor]:
        """Return S of one other caption's meaning (B, 384) per image (B,), and the references."""
        references, real = self._of(images, limit)
        cosine = (self.meaning[references] * meaning[:, None]).sum(-1)
        left = real.sum(1)
        most = cosine.masked_fill(~real, -1).amax(1)
        return 0.5 * ((cosine * real).sum(1) / left.clamp(min=1) + most), left

    def centre(self, images: Tensor) -> Tensor:
        """Return the mean meaning of the images' references (B, 384)."""
        references, real = self._of(images, MOST)
        total = (self.meaning[references] * real[..., None]).sum(1)
        return total / real.sum(1, keepdim=True).clamp(min=1)

    def table(self, images: Tensor, every: int = 1) -> Tensor:
        """Return S of every so many captions to the images (n, captions), own ones among them."""
        references, real = self._of(images, MOST)
        left = real.sum(1).clamp(min=1)[:, None]
        features = self.meaning.to(self.words.dtype)
        shape = len(images), len(features[::every])
        mean = torch.zeros(shape, dtype=features.dtype, device=self.device)
        most = torch.full_like(mean, -1)
        for slot in range(int(real.sum(1).max())):
            cosine = features[references[:, slot]] @ features[::every].T
            missing = ~real[:, slot, None]
            mean += cosine.masked_fill(missing, 0) / left
            torch.maximum(most, cosine.masked_fill_(missing, -1), out=most)
        return mean.add_(most).mul_(0.5)

    def nearest(self, ranks: int, every: int = 1, block: int = 256) -> Tensor:
        """Return the most similar of every so many captions of other images (images, ranks).

        The table of all similarities (billions) never exists: a block of images is compared,
        its nearest captions are kept, and its memory is used again.
        """
        owner = self.owner[::every]
        ranks = min(ranks, len(owner) - int(self.count.max()))
        result = torch.empty(self.images, ranks, dtype=torch.int32, device=self.device)
        for start in range(0, self.images, block):
            images = torch.arange(start, min(start + block, self.images), device=self.device)
            s = self.table(images, every).masked_fill_(owner == images[:, None], -1)
            s.masked_fill_(self.unalike[images, None] & self.unalike[owner], -1)
            result[start : start + block] = every * s.topk(ranks, dim=1).indices.int()
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
            s.masked_fill_(
                self.unalike[self.owner[rows], None] & self.unalike[self.owner[pool]], -1
            )
            result.append(pool[s.topk(min(ranks, len(pool)), dim=1).indices])
        return torch.cat(result)


class Labels(References):
    """Ratings of the training captions."""

    def __init__(self, settings: dict[str, Any], device: str) -> None:
        if not (common.BUILD / "train_meaning.npz").exists():  # large, and quickly made on a GPU
            parts.save_meanings("train", common.load_json("captions.json")["train"])
        super().__init__("train", device)
        self.settings = settings
        self.scale = torch.tensor(common.load_json("people.json")["scale"], device=device)
        own = np.load(common.BUILD / "text.npz")["own"]
        self.own = torch.from_numpy(own).float().to(device)
        self.hard = self.nearest(settings["hard_ranks"], settings["hard_every"])
        self.near = self.alike(settings["near_ranks"])

    def rate(self, s: Tensor, left: Tensor) -> Tensor:
        """Turn similarities, held to so many references, into ratings on 0 ... other_high."""
        powers = torch.stack([torch.ones_like(s), s, s * s], dim=-1)
        return (powers * self.scale[left]).sum(-1).clamp(0, float(self.settings["other_high"]))

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
