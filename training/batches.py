"""What a batch holds: images, captions, targets. A batch is a function of its number.

So a run that was stopped goes on without remembering where its dice were.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
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
    target: Tensor  # (B, S, 11)
    true: Tensor  # (B, S) numbers of true captions, -1 for made-up ones
    spoiled: Tensor  # (B, S, S) whether the second is the first spoiled, or another's that is alike
    generator: torch.Generator  # what else is drawn for this batch, its crops, is drawn from this


@dataclass
class Pool:
    """Other captions that an image is trained with, and their ratings (images, P).

    First come those near by words (``near`` columns), which know the own caption they are near to,
    then hard ones, then ``machine`` columns of captions that machines wrote.
    """

    captions: Tensor  # numbers among all captions
    rating: Tensor
    source: Tensor  # (images, near) the own caption that one is near to, -2 where none
    machine: int = 0


class Lists:
    """All captions as one list: true, wrong, stated, written by machines; and whose they are."""

    def __init__(self, slots: int, device: str) -> None:
        names = ("train", "wrong", "statement", "machine")
        texts = [Captions.load(name, slots, device) for name in names]
        self.all = Captions(
            torch.cat([part.ids for part in texts]), torch.cat([part.lengths for part in texts])
        )
        edges = np.cumsum([0, *(len(part.ids) for part in texts)]).tolist()
        self.true: int = edges[1]  # how many are true; then where the others begin
        self.wrong, self.statement, self.machine = (int(edge) for edge in edges[1:4])
        data = np.load(common.BUILD / "text.npz")

        def get(name: str) -> Tensor:
            return torch.from_numpy(data[name]).to(device)

        self.wrong_first, self.wrong_source = get("wrong_first"), get("wrong_source").long()
        self.wrong_penalty = get("wrong_penalty").float()
        self.statement_first = get("statement_first")
        self.statement_rating = get("statement_rating").float()
        self.machine_owner = get("machine_owner").long()
        self.machine_penalty = get("machine_penalty").float()
        self.sided = get("sided")
        self.before = get("extra_before")
        self.extra = Captions.load("extra", slots, device)

    def add_machine(self, ids: Tensor, lengths: Tensor, owner: Tensor, penalty: Tensor) -> None:
        """Add captions that a model wrote."""
        ids = F.pad(ids, (0, self.all.ids.shape[1] - ids.shape[1]))
        self.all = Captions(torch.cat([self.all.ids, ids]), torch.cat([self.all.lengths, lengths]))
        self.machine_owner = torch.cat([self.machine_owner, owner])
        self.machine_penalty = torch.cat([self.machine_penalty, penalty])


class Sampler:
    """Draws batches."""

    def __init__(self, config: dict[str, Any], labels: Labels, lists: Lists | None = None) -> None:
        self.config, self.labels, self.device = config, labels, labels.device
        self.lists = lists or Lists(config["data"]["caption_tokens"], self.device)
        self.stop = common.load_json("tokenizer.json")["tokens"].index(".")
        self.ready = torch.ones(labels.images, dtype=torch.bool, device=self.device)
        self.pool = self.draw_pool()

    def _quota(self) -> list[tuple[Tensor, int]]:
        """Return each source's images that are there, and how many of them a batch holds."""
        about, size = common.load_json("images.json"), self.config["batch"]["images"]
        source = torch.tensor(about["train_source"], device=self.device)
        shares = [self.config["shares"].get(name, 0.0) for name in about["sources"]]
        pools = [
            torch.nonzero((source == number) & self.ready)[:, 0] for number in range(len(shares))
        ]
        shares = [share if len(pool) else 0.0 for share, pool in zip(shares, pools, strict=True)]
        edges = np.rint(np.cumsum(shares) / sum(shares) * size).astype(int)
        counts = np.diff(edges, prepend=0).tolist()
        return [(pool, n) for pool, n in zip(pools, counts, strict=True) if n]

    @cached_property
    def quota(self) -> list[tuple[Tensor, int]]:
        """Return what a batch is drawn from."""
        return self._quota()

    def arrived(self, ready: Tensor) -> None:
        """Draw from these images from now on."""
        self.ready = ready
        self.__dict__.pop("quota", None)

    def draw_pool(self) -> Pool:
        """Choose each image's other captions, once; ratings are by similarity alone."""
        kinds, labels, device = self.config["pool"], self.labels, self.device
        g = torch.Generator(device=device).manual_seed(0)
        images = torch.arange(labels.images, device=device)
        shape = (labels.images, kinds["near"])
        pick = torch.rand(shape, device=device, generator=g) * labels.count[:, None]
        source = labels.first[:-1, None] + pick.long()
        rank = torch.randint(0, labels.near.shape[1], shape, device=device, generator=g)
        near = labels.near[source, rank]
        other = labels.owner[near] != images[:, None]
        captions = torch.cat([near, self._hard(images, kinds["hard"], g)], dim=1)
        rating = torch.cat([labels.of(i, c) for i, c in _blocks(images, captions)])
        return Pool(captions, rating, torch.where(other, source, -2))

    def add_machine(self, rating: Tensor) -> None:
        """Give every image columns of the captions that machines wrote, hard ones where none did.

        ``rating`` is that of each of them, penalties left out.
        """
        pool, lists, n = self.pool, self.lists, self.config["pool"]["machine"]
        order = torch.randperm(len(rating), device=self.device)
        order = order[lists.machine_owner[order].argsort(stable=True)]
        count = torch.bincount(lists.machine_owner, minlength=len(pool.captions))
        step = torch.arange(n, device=self.device)
        place = (count.cumsum(0) - count)[:, None] + step % count.clamp(min=1)[:, None]
        which = order[place.clamp(max=len(order) - 1)]
        there = (count > 0)[:, None].expand(-1, n)
        rated = (rating - lists.machine_penalty)[which].clamp(0)
        columns = slice(self.config["pool"]["near"], self.config["pool"]["near"] + n)
        captions = torch.where(there, lists.machine + which, pool.captions[:, columns])
        rated = torch.where(there, rated, pool.rating[:, columns])
        self.pool = Pool(
            torch.cat([pool.captions, captions], 1),
            torch.cat([pool.rating, rated], 1),
            pool.source,
            n,
        )

    def _hard(self, images: Tensor, n: int, generator: torch.Generator) -> Tensor:
        ranks = self.labels.hard.shape[1]
        u = torch.rand(len(images), n, device=self.device, generator=generator)
        rank = ((u * math.log(ranks)).exp().long() - 1).clamp(0, ranks - 1)
        return self.labels.hard[images[:, None], rank].long()

    def _of_pool(
        self, images: Tensor, first: int, last: int, n: int, g: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw n different columns: the captions, their ratings and which columns they are."""
        random = torch.rand(len(images), last - first, device=self.device, generator=g)
        column = first + random.argsort(1)[:, :n]
        rows = images[:, None]
        return self.pool.captions[rows, column], self.pool.rating[rows, column], column

    def _some(
        self, edges: Tensor, n: int, images: Tensor, g: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Draw n different captions of each image's own list; say which of them there are."""
        first, count = edges[images, None], edges.diff()[images, None]
        start = (torch.rand(len(images), 1, device=self.device, generator=g) * count).long()
        step = torch.arange(n, device=self.device)
        chosen = first + (start + step) % count.clamp(min=1)
        return chosen.clamp(max=edges[-1] - 1).clamp(min=0), step < count

    def draw(self, number: int) -> Batch:
        """Return batch ``number``."""
        kinds, device, labels, lists = self.config["batch"], self.device, self.labels, self.lists
        g = torch.Generator(device=device).manual_seed(number)
        images = torch.cat(
            [
                pool[torch.randperm(len(pool), device=device, generator=g)[:n]]
                for pool, n in self.quota
            ]
        )
        b, first, count = len(images), labels.first[images], labels.count[images]
        near, hard = self.config["pool"]["near"], self.config["pool"]["hard"]
        total = self.pool.captions.shape[1]

        own, there = self._some(labels.first, kinds["own"], images, g)
        spare, spare_rating, _ = self._of_pool(images, near, near + hard, kinds["own"], g)
        beaten = torch.where(there, own, -2)  # what a machine wrote is to be below an own one
        own = torch.where(there, own, spare)
        own_rating = torch.where(there, labels.own[own], spare_rating)
        alike, alike_rating, column = self._of_pool(images, 0, near, kinds["near"], g)
        alike_to = self.pool.source[images[:, None], column]
        others, others_rating, _ = self._of_pool(images, near, near + hard, kinds["hard"], g)
        machine, machine_rating, _ = self._of_pool(
            images, total - self.pool.machine, total, kinds["machine"], g
        )
        shape = (b, kinds["random"])
        random = torch.randint(0, lists.true, shape, device=device, generator=g)
        wrong, there = self._some(lists.wrong_first, kinds["wrong_word"], images, g)
        wrong_of = torch.where(there, lists.wrong_source[wrong], -2)
        less = labels.own[lists.wrong_source[wrong]] - lists.wrong_penalty[wrong]
        spare, spare_rating, _ = self._of_pool(images, near, near + hard, kinds["wrong_word"], g)
        wrong = torch.where(there, lists.wrong + wrong, spare)
        wrong_rating = torch.where(there, less.clamp(0), spare_rating)
        stated, there = self._some(lists.statement_first, kinds["statement"], images, g)
        spare, spare_rating, _ = self._of_pool(images, near, near + hard, kinds["statement"], g)
        stated_rating = torch.where(there, lists.statement_rating[stated], spare_rating)
        stated = torch.where(there, lists.statement + stated, spare)

        captions = torch.cat([own, alike, others, machine, random, wrong, stated], dim=1)
        random_rating = labels.of(images, random)
        rating = torch.cat(
            [
                own_rating,
                alike_rating,
                others_rating,
                machine_rating,
                random_rating,
                wrong_rating,
                stated_rating,
            ],
            dim=1,
        )
        long, long_rating = self._long(captions, rating, kinds["own"], g)
        target = soft(torch.cat([rating, long_rating], dim=1), labels.spread(images))
        slots = self.config["data"]["long_tokens"]
        ids, lengths = self._around(_padded(lists.all[captions], slots), g)
        written = first + (torch.rand(b, device=device, generator=g) * count).long()
        packed = Packed(
            torch.cat([ids, long[0]], dim=1),
            torch.cat([lengths, long[1]], dim=1),
            lists.all[written],
            kinds["room"],
        )
        true = F.pad(torch.where(captions < lists.true, captions, -1), (0, 1), value=-1)
        nothing = torch.full_like(captions, -2)
        places = kinds["own"], kinds["own"] + kinds["near"]
        nothing[:, places[0] : places[1]] = alike_to
        below, start = min(kinds["below"], machine.shape[1]), places[1] + kinds["hard"]
        nothing[:, start : start + below] = beaten[:, :below]
        end = captions.shape[1] - kinds["statement"]
        nothing[:, end - kinds["wrong_word"] : end] = wrong_of
        spoiled = F.pad(captions[:, :, None] == nothing[:, None], (0, 1, 0, 1))
        return Batch(images, packed, target, true, spoiled, g)

    def _around(self, captions: tuple[Tensor, Tensor], g: torch.Generator) -> tuple[Tensor, Tensor]:
        """Put words before or after a share of the captions."""
        ids, lengths = captions
        which = torch.randint(
            0, len(self.lists.extra.ids), lengths.shape, device=self.device, generator=g
        )
        chosen = torch.rand(lengths.shape, device=self.device, generator=g)
        chosen, extra = chosen < self.config["batch"]["extra"], self.lists.extra[which]
        slots = ids.shape[-1]
        front, back = join(extra, captions, slots), join(captions, extra, slots)
        before = self.lists.before[which]
        joined = torch.where(before[..., None], front[0], back[0])
        length = torch.where(before, front[1], back[1])
        return torch.where(chosen[..., None], joined, ids), torch.where(chosen, length, lengths)

    def _long(
        self, captions: Tensor, ratings: Tensor, own: int, g: torch.Generator
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Join two or three captions to a long one, sometimes with a wrong part."""
        b, slots, device = len(captions), self.config["data"]["long_tokens"], self.device
        column = torch.rand(b, own, device=device, generator=g).argsort(1)[:, :3]
        other = torch.randint(0, captions.shape[1], (b, 1), device=device, generator=g)
        place = torch.randint(0, 6, (b, 1), device=device, generator=g)  # in half of them, nowhere
        column = torch.where(torch.arange(3, device=device) == place, other, column)
        chosen, rating = captions.gather(1, column), ratings.gather(1, column)
        parts = 2 + torch.randint(0, 2, (b, 1), device=device, generator=g)
        used = torch.arange(3, device=device) < parts
        mean = (rating * used).sum(1, keepdim=True) / parts
        least = rating.masked_fill(~used, 99).amin(1, keepdim=True)
        text = self.lists.all[chosen[:, :1]]
        stop = torch.full((b, 1, 1), self.stop, device=device)
        for k in (1, 2):
            ids, length = self.lists.all[chosen[:, k : k + 1]]
            text = join(text, (stop, used[:, k : k + 1].long()), slots)
            text = join(text, (ids, torch.where(used[:, k : k + 1], length, 0)), slots)
        return text, 0.4 * mean + 0.6 * least


def _padded(captions: tuple[Tensor, Tensor], slots: int) -> tuple[Tensor, Tensor]:
    ids, lengths = captions
    return F.pad(ids, (0, slots - ids.shape[-1])), lengths


def _blocks(images: Tensor, captions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images and their captions a few thousand at a time."""
    return zip(torch.split(images, 4096), torch.split(captions, 4096), strict=True)
