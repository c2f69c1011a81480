"""What a batch holds: pictures, captions, targets. A batch is a function of its number.

So a teacher can label the very batches, crops included, that students learn from later, and a run
that was stopped goes on without remembering where its dice were.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from training import common
from training.labels import Labels
from training.packing import Packed, Special


@dataclass
class Captions:
    """Padded token ids (n, slots) and lengths (n,)."""

    ids: Tensor
    lengths: Tensor

    @classmethod
    def load(cls, name: str, slots: int, device: str) -> Captions:
        """Read a list of captions of text.npz."""
        data = np.load(common.BUILD / "text.npz")
        return cls.pad(data[name], data[f"{name}_offset"], slots, device)

    @classmethod
    def pad(cls, flat: np.ndarray, offset: np.ndarray, slots: int, device: str) -> Captions:
        """Pad ragged captions to ``slots``, cutting what is longer."""
        lengths = np.minimum(np.diff(offset), slots)
        ids = np.zeros((len(lengths), slots), np.int64)
        inside = np.arange(slots) < lengths[:, None]
        ids[inside] = flat[(offset[:-1, None] + np.arange(slots))[inside]]
        return cls(torch.from_numpy(ids).to(device), torch.from_numpy(lengths).long().to(device))

    def __getitem__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.ids[rows], self.lengths[rows]


def special_tokens(device: str) -> Special:
    """Return the ids around a caption."""
    ids = {token: i for i, token in enumerate(common.load_json("tokenizer.json")["tokens"])}
    instruction = torch.from_numpy(np.load(common.BUILD / "text.npz")["instruction"]).long()
    start = torch.tensor([ids[common.START]])
    return Special(
        torch.cat([start, instruction]).to(device),
        ids[common.START],
        ids[common.END],
        (ids[common.STEMS[0]], ids[common.STEMS[1]]),
        torch.tensor([ids[str(d)] for d in range(10)], device=device),
    )


@dataclass
class Batch:
    """B images with S captions each."""

    images: Tensor  # (B,)
    packed: Packed
    target: Tensor  # (B, S, 11)
    true: Tensor  # (B, S) numbers of true captions, -1 for made-up ones
    generator: torch.Generator  # what else is drawn for this batch, its crops, is drawn from this


class Sampler:
    """Draws batches."""

    def __init__(
        self, config: dict[str, Any], labels: Labels, captions: Captions, wrong: Captions
    ) -> None:
        self.config, self.labels = config, labels
        self.device = labels.device
        self.captions = len(captions.ids)
        self.all = Captions(
            torch.cat([captions.ids, wrong.ids]), torch.cat([captions.lengths, wrong.lengths])
        )
        text = np.load(common.BUILD / "text.npz")
        self.wrong_source = torch.from_numpy(text["wrong_source"]).long().to(self.device)
        self.wrong_penalty = torch.from_numpy(text["wrong_penalty"]).to(self.device)
        self.each = config["data"]["perturbations"] * 5  # wrong captions an image, in a row
        self.stop = common.load_json("tokenizer.json")["tokens"].index(".")

    def _hard(self, images: Tensor, n: int, generator: torch.Generator) -> Tensor:
        ranks = self.labels.hard.shape[1]
        u = torch.rand(len(images), n, device=self.device, generator=generator)
        rank = ((u * math.log(ranks)).exp().long() - 1).clamp(0, ranks - 1)
        return self.labels.hard[images[:, None], rank]

    def rate(self, images: Tensor, captions: Tensor) -> Tensor:
        """Rate true and wrong captions (B, N) on 0 ... 10."""
        wrong = captions - self.captions
        is_wrong = wrong >= 0
        source = self.wrong_source[wrong.clamp(min=0)]
        spoiled = (self.labels.own[source] - self.wrong_penalty[wrong.clamp(min=0)]).clamp(min=0)
        return torch.where(
            is_wrong, spoiled, self.labels.of(images, captions.clamp(max=self.captions - 1))
        )

    def draw(self, number: int) -> Batch:
        """Return batch ``number``."""
        kinds, device = self.config["batch"], self.device
        g = torch.Generator(device=device).manual_seed(number)
        images = torch.randperm(self.labels.images, device=device, generator=g)[: kinds["images"]]
        b = len(images)

        def choose(count: int, n: int) -> Tensor:
            """Draw n different numbers below ``count`` for each image."""
            return torch.rand(b, count, device=device, generator=g).argsort(1)[:, :n]

        random = (b, kinds["random"])
        captions = torch.cat(
            [
                images[:, None] * 5 + choose(5, kinds["own"]),
                self._hard(images, kinds["hard"], g),
                torch.randint(0, self.captions, random, device=device, generator=g),
                self.captions
                + images[:, None] * self.each
                + choose(self.each, kinds["wrong_word"]),
            ],
            dim=1,
        )
        target = self.labels.soft(self.rate(images, captions))
        (long, long_length), long_target = self._long(images, captions, kinds["own"], g)
        written = images * 5 + torch.randint(0, 5, (b,), device=device, generator=g)
        ids, lengths = self.all[captions]
        packed = Packed(
            torch.cat([F.pad(ids, (0, long.shape[-1] - ids.shape[-1])), long], dim=1),
            torch.cat([lengths, long_length], dim=1),
            self.all[written],
            kinds["room"],
        )
        true = F.pad(torch.where(captions < self.captions, captions, -1), (0, 1), value=-1)
        return Batch(images, packed, torch.cat([target, long_target], dim=1), true, g)

    def _long(
        self, images: Tensor, captions: Tensor, own: int, g: torch.Generator
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Join two or three captions to a long one, sometimes with a wrong part."""
        b, slots = len(images), self.config["data"]["long_tokens"]
        pick = torch.rand(b, own, device=self.device, generator=g).argsort(1)[:, :3]
        chosen = captions.gather(1, pick)
        any_ = torch.randint(0, captions.shape[1], (b, 1), device=self.device, generator=g)
        spoil = torch.rand(b, device=self.device, generator=g) < 0.5
        place = torch.randint(0, 3, (b,), device=self.device, generator=g)
        other = captions.gather(1, any_)
        for k in range(3):
            chosen[:, k] = torch.where(spoil & (place == k), other[:, 0], chosen[:, k])
        parts = 2 + (torch.rand(b, device=self.device, generator=g) < 0.5).long()
        rating = self.rate(images, chosen)
        used = torch.arange(3, device=self.device) < parts[:, None]
        mean = (rating * used).sum(1) / parts
        least = rating.masked_fill(~used, 99).amin(1)
        ids = torch.zeros(b, slots + 32, dtype=torch.long, device=self.device)
        at = torch.zeros(b, dtype=torch.long, device=self.device)
        for k in range(3):
            token, length = self.all[chosen[:, k]]
            length = torch.where(used[:, k], length, 0)
            inside = torch.arange(token.shape[1], device=self.device) < length[:, None]
            where = torch.where(
                inside, at[:, None] + torch.arange(token.shape[1], device=self.device), slots + 31
            )
            ids.scatter_(1, where.clamp(max=slots + 31), torch.where(inside, token, 0))
            at = at + length
            if k < 2:
                more = (k + 1 < parts) & (at < slots)
                ids.scatter_(1, torch.where(more, at, slots + 31)[:, None], self.stop)
                at = at + more.long()
        target = self.labels.soft(0.4 * mean + 0.6 * least)[:, None]
        return (ids[:, None, :slots], at.clamp(max=slots)[:, None]), target
