"""What a batch holds: images, captions, targets. A batch is a function of its number.

So a run that was stopped goes on without remembering where its dice were.
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
from training.labels import Labels, soft
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


def join(
    one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], slots: int
) -> tuple[Tensor, Tensor]:
    """Put captions after captions: ids (..., M) and lengths (...) each; cut at ``slots``."""
    (a, length), (b, more) = one, other
    place = torch.arange(slots, device=a.device).expand(*a.shape[:-1], slots)
    a = F.pad(a, (0, max(0, slots - a.shape[-1])))[..., :slots]
    rest = b.gather(-1, (place - length[..., None]).clamp(0, b.shape[-1] - 1))
    return torch.where(place < length[..., None], a, rest), (length + more).clamp(max=slots)


@dataclass
class Batch:
    """B images with S captions each."""

    images: Tensor  # (B,)
    packed: Packed
    clean: Packed  # the same captions without words around them: what teachers rate
    target: Tensor  # (B, S, 11)
    true: Tensor  # (B, S) numbers of true captions, -1 for made-up ones
    spoiled: Tensor  # (B, S, S) whether the second is the first spoiled, or another's that is alike
    generator: torch.Generator  # what else is drawn for this batch, its crops, is drawn from this


class Sampler:
    """Draws batches."""

    def __init__(self, config: dict[str, Any], labels: Labels) -> None:
        self.config, self.labels, self.device = config, labels, labels.device
        slots = config["data"]["caption_tokens"]
        true, wrong = (Captions.load(name, slots, self.device) for name in ("train", "wrong"))
        self.captions = len(true.ids)
        self.all = Captions(
            torch.cat([true.ids, wrong.ids]), torch.cat([true.lengths, wrong.lengths])
        )
        self.extra = Captions.load("extra", slots, self.device)
        text = np.load(common.BUILD / "text.npz")
        self.before = torch.from_numpy(text["extra_before"]).to(self.device)
        self.wrong_first = torch.from_numpy(text["wrong_first"]).long().to(self.device)
        self.wrong_source = torch.from_numpy(text["wrong_source"]).long().to(self.device)
        self.wrong_penalty = torch.from_numpy(text["wrong_penalty"]).float().to(self.device)
        self.stop = common.load_json("tokenizer.json")["tokens"].index(".")
        self.quota = self._quota()

    def _quota(self) -> list[tuple[Tensor, int]]:
        """Return each source's images, and how many of them a batch holds."""
        about, size = common.load_json("images.json"), self.config["batch"]["images"]
        source = torch.tensor(about["train_source"], device=self.device)
        shares = [self.config["shares"].get(name, 0.0) for name in about["sources"]]
        pools = [torch.nonzero(source == number)[:, 0] for number in range(len(shares))]
        shares = [share if len(pool) else 0.0 for share, pool in zip(shares, pools, strict=True)]
        edges = np.rint(np.cumsum(shares) / sum(shares) * size).astype(int)
        counts = np.diff(edges, prepend=0).tolist()
        return [(pool, n) for pool, n in zip(pools, counts, strict=True) if n]

    def _hard(self, images: Tensor, n: int, generator: torch.Generator) -> Tensor:
        ranks = self.labels.hard.shape[1]
        u = torch.rand(len(images), n, device=self.device, generator=generator)
        rank = ((u * math.log(ranks)).exp().long() - 1).clamp(0, ranks - 1)
        return self.labels.hard[images[:, None], rank].long()

    def rate(self, images: Tensor, captions: Tensor) -> Tensor:
        """Rate true and wrong captions (B, N) on 0 ... 10."""
        wrong = (captions - self.captions).clamp(min=0)
        spoiled = (self.labels.own[self.wrong_source[wrong]] - self.wrong_penalty[wrong]).clamp(0)
        true = self.labels.of(images, captions.clamp(max=self.captions - 1))
        return torch.where(captions >= self.captions, spoiled, true)

    def _some(
        self, first: Tensor, count: Tensor, n: int, images: Tensor, g: torch.Generator
    ) -> Tensor:
        """Draw n different captions of each image's own list; hard ones where it is too short."""
        start = (
            torch.rand(len(images), 1, device=self.device, generator=g) * count[:, None]
        ).long()
        step = torch.arange(n, device=self.device)
        chosen = first[:, None] + (start + step) % count.clamp(min=1)[:, None]
        return torch.where(step < count[:, None], chosen, self._hard(images, n, g))

    def draw(self, number: int) -> Batch:
        """Return batch ``number``."""
        kinds, device, labels = self.config["batch"], self.device, self.labels
        g = torch.Generator(device=device).manual_seed(number)
        images = torch.cat(
            [
                pool[torch.randperm(len(pool), device=device, generator=g)[:n]]
                for pool, n in self.quota
            ]
        )
        b, first, count = len(images), labels.first[images], labels.count[images]
        wrong, wrongs = self.wrong_first[images], self.wrong_first.diff()[images]
        random = (b, kinds["random"])
        own = self._some(first, count, kinds["own"], images, g)
        whole = own[:, : kinds["near"]]  # the first is the image's own, others may be hard ones
        rank = torch.randint(0, labels.near.shape[1], whole.shape, device=device, generator=g)
        near = labels.near[whole, rank]
        captions = torch.cat(
            [
                own,
                near,
                self._hard(images, kinds["hard"], g),
                torch.randint(0, self.captions, random, device=device, generator=g),
                self._some(self.captions + wrong, wrongs, kinds["wrong_word"], images, g),
            ],
            dim=1,
        )
        long, long_rating = self._long(images, captions, kinds["own"], g)
        rating = torch.cat([self.rate(images, captions), long_rating], dim=1)
        target = soft(rating, labels.spread(images))
        slots = self.config["data"]["long_tokens"]
        ids, lengths = self.all[captions]
        short = F.pad(ids, (0, slots - ids.shape[-1])), lengths
        written = first + (torch.rand(b, device=device, generator=g) * count).long()

        def pack(captions: tuple[Tensor, Tensor]) -> Packed:
            ids = torch.cat([captions[0], long[0]], dim=1)
            lengths = torch.cat([captions[1], long[1]], dim=1)
            return Packed(ids, lengths, self.all[written], kinds["room"])

        true = F.pad(torch.where(captions < self.captions, captions, -1), (0, 1), value=-1)
        made = (captions - self.captions).clamp(min=0)
        origin = torch.where(captions >= self.captions, self.wrong_source[made], -2)
        mine, theirs = (labels.owner[c] == images[:, None] for c in (whole, near))
        places = slice(kinds["own"], kinds["own"] + kinds["near"])
        origin[:, places] = torch.where(mine & ~theirs, whole, -2)
        spoiled = F.pad(captions[:, :, None] == origin[:, None], (0, 1, 0, 1))
        return Batch(images, pack(self._around(short, g)), pack(short), target, true, spoiled, g)

    def _around(self, captions: tuple[Tensor, Tensor], g: torch.Generator) -> tuple[Tensor, Tensor]:
        """Put words before or after a share of the captions."""
        ids, lengths = captions
        which = torch.randint(
            0, len(self.extra.ids), lengths.shape, device=self.device, generator=g
        )
        chosen = torch.rand(lengths.shape, device=self.device, generator=g)
        chosen, extra = chosen < self.config["batch"]["extra"], self.extra[which]
        slots = ids.shape[-1]
        front, back = join(extra, captions, slots), join(captions, extra, slots)
        before = self.before[which]
        joined = torch.where(before[..., None], front[0], back[0])
        length = torch.where(before, front[1], back[1])
        return torch.where(chosen[..., None], joined, ids), torch.where(chosen, length, lengths)

    def _long(
        self, images: Tensor, captions: Tensor, own: int, g: torch.Generator
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Join two or three captions to a long one, sometimes with a wrong part."""
        b, slots, device = len(images), self.config["data"]["long_tokens"], self.device
        chosen = captions.gather(
            1, torch.rand(b, own, device=device, generator=g).argsort(1)[:, :3]
        )
        other = captions.gather(
            1, torch.randint(0, captions.shape[1], (b, 1), device=device, generator=g)
        )
        place = torch.randint(0, 6, (b, 1), device=device, generator=g)  # in half of them, nowhere
        chosen = torch.where(torch.arange(3, device=device) == place, other, chosen)
        parts = 2 + torch.randint(0, 2, (b, 1), device=device, generator=g)
        used = torch.arange(3, device=device) < parts
        rating = self.rate(images, chosen)
        mean = (rating * used).sum(1, keepdim=True) / parts
        least = rating.masked_fill(~used, 99).amin(1, keepdim=True)
        text = self.all[chosen[:, :1]]
        stop = torch.full((b, 1, 1), self.stop, device=device)
        for k in (1, 2):
            ids, length = self.all[chosen[:, k : k + 1]]
            text = join(text, (stop, used[:, k : k + 1].long()), slots)
            text = join(text, (ids, torch.where(used[:, k : k + 1], length, 0)), slots)
        return text, 0.4 * mean + 0.6 * least
