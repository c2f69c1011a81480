"""Captions of an image in one sequence: layout, mask, and reading the answers back.

    instruction | image | written caption | caption END "0." "1." | caption END "0." "1." | ...

Captions follow each other without gaps, so a batch costs the tokens it has. The instruction is the
same for all images: it is computed once per batch, and every image sees its keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from training.model import IMAGE, CaptionJudge, rms


@dataclass(frozen=True)
class Special:
    """Ids of the tokens around a caption."""

    instruction: Tensor  # (I,)
    start: int
    end: int
    stems: tuple[int, int]
    digits: Tensor  # (10,)


@dataclass
class Packed:
    """A batch of images, each with S captions to score and perhaps one to write.

    ``ids`` (B, S, M) and ``lengths`` (B, S); ``written`` (ids (B, M'), lengths (B,)) is for the
    captioning loss. ``room`` is how many tokens the captions of an image get, as many as needed
    where None; a caption that finds no room is not ``kept``.
    """

    ids: Tensor
    lengths: Tensor
    written: tuple[Tensor, Tensor] | None = None
    room: int | None = None


@dataclass
class Answers:
    """What the model says of B images with S captions each."""

    stem: Tensor  # (B, S, 2) log P("0."), log P("1.")
    digits: Tensor  # (B, S, 10) log P(digit | "0.")
    digits_one: Tensor  # (B, S, 10) log P(digit | "1.")
    meaning: Tensor  # (B, S, 384)
    image: Tensor  # (B, 384) the image's own meaning
    tokens: Tensor  # (B, 65, 576) what the language model sees of the image
    kept: Tensor  # (B, S) 1 where the caption found room, else 0
    caption_loss: Tensor | None

    def joint(self) -> Tensor:
        """Return log P over 0.0 ... 1.0 (B, S, 11), off-scale mass left out."""
        return torch.cat([self.stem[..., :1] + self.digits, self.stem[..., 1:]], dim=-1)


@dataclass
class Layout:
    """Where everything stands after the prefix of instruction and image, T tokens."""

    tokens: Tensor  # (B, T)
    steps: Tensor  # (B, T) position within its caption
    roles: Tensor  # (B, T) 0 a caption token or END, 1 and 2 the stems, -1 padding
    owner: Tensor  # (B, T) whose token it is
    ends: Tensor  # (B, S) places of END, counted from the first token after the prefix
    kept: Tensor  # (B, S)


def segment(ids: Tensor, lengths: Tensor, special: Special) -> tuple[Tensor, Tensor, Tensor]:
    """Append END and both stems: tokens, steps and roles (B, N, M + 3).

    ``roles``: 0 a caption token or END, 1 the first stem, 2 the second.
    """
    b, n, m = ids.shape
    slot = torch.arange(m + 3, device=ids.device).expand(b, n, m + 3)
    length = lengths[..., None]
    tokens = F.pad(ids, (0, 3))
    for offset, token in ((0, special.end), (1, special.stems[0]), (2, special.stems[1])):
        tokens = torch.where(slot == length + offset, token, tokens)
    # Both stems stand at the same position: each is what follows END.
    steps = torch.where(slot == length + 2, length + 1, slot)
    return tokens, steps, (slot - length).clamp(min=0)


def lay_out(packed: Packed, special: Special) -> Layout:
    """Put the captions of each image one after another."""
    ids, lengths = packed.ids, packed.lengths
    tokens, steps, roles = segment(ids, lengths, special)
    sizes, slots = lengths + 3, ids.shape[-1] + 3
    if packed.written is not None:  # START, the caption, END: a segment of its own, the first
        text, length = packed.written
        slot = torch.arange(slots, device=ids.device).expand(len(ids), slots)
        text = F.pad(text, (1, slots - 1 - text.shape[1]))
        text = torch.where(slot == 0, special.start, text)
        text = torch.where(slot == length[:, None] + 1, special.end, text)
        tokens = torch.cat([text[:, None], tokens], dim=1)
        steps = torch.cat([slot[:, None], steps], dim=1)
        roles = torch.cat([torch.zeros_like(slot)[:, None], roles], dim=1)
        sizes = torch.cat([length[:, None] + 2, sizes], dim=1)
    until = sizes.cumsum(1)  # (B, N) where each segment ends
    room = packed.room or int(until[:, -1].max()) + 15 >> 4 << 4  # SDPA likes multiples
    place = torch.arange(room, device=ids.device).expand(len(ids), room).contiguous()
    owner = torch.searchsorted(until, place, right=True)
    real = owner < until.shape[1]
    owner = owner.clamp(max=until.shape[1] - 1)
    slot = (place - (until - sizes).gather(1, owner)).clamp(max=slots - 1)
    index = owner * slots + slot
    first = tokens.shape[1] - ids.shape[1]
    return Layout(
        torch.where(real, tokens.flatten(1).gather(1, index), 0),
        steps.flatten(1).gather(1, index),
        torch.where(real, roles.flatten(1).gather(1, index), -1),
        owner,
        ((until - sizes)[:, first:] + lengths).clamp(max=room - 3),
        (until[:, first:] <= room).float(),
    )


def run(model: CaptionJudge, pixels: Tensor, packed: Packed, special: Special) -> Answers:
    """Run the model over a packed batch."""
    image, e = model.image(pixels)
    dtype = torch.bfloat16 if torch.is_autocast_enabled(pixels.device.type) else torch.float32
    b, device, start = len(pixels), pixels.device, len(special.instruction)
    layout = lay_out(packed, special)
    front = model.embedding(special.instruction)[None].to(dtype)
    front_at = model.angles(torch.arange(start, device=device)[None], dtype)
    causal = torch.full((start, start), -1e4, dtype=dtype, device=device).triu(1)[None, None]
    x = torch.cat([image.to(dtype), model.embedding(layout.tokens).to(dtype)], dim=1)
    image_at = torch.arange(start, start + IMAGE, device=device).expand(b, -1)
    at = model.angles(torch.cat([image_at, start + IMAGE + layout.steps], dim=1), dtype)
    mask = F.pad(_mask(layout, dtype), (start, 0))

    end = IMAGE + layout.ends
    depth = len(model.layers)
    meaning = torch.empty(0)
    for number, layer in enumerate(model.layers):
        if number == depth - 2:
            added, meaning = model.adapt(_gather(x, end), e)
            added = added * layout.kept[..., None]
            for offset in range(3):
                x = x.scatter_add(
                    1, (end + offset)[..., None].expand(-1, -1, x.shape[-1]), added.to(x.dtype)
                )
        keys = layer.keys(front, *front_at)  # type: ignore[operator]  # a Layer, not a Tensor
        if number < depth - 1:
            front = layer(front, *front_at, causal)
        x = layer(x, *at, mask, keys)
    x = rms(x, model.norm)

    def says(places: Tensor) -> Tensor:
        return model.logits(_gather(x, places)).float().log_softmax(-1)

    caption_loss = None
    if packed.written is not None:
        lengths = packed.written[1]
        n = packed.written[0].shape[1] + 1  # from START, each token tells the next, the last END
        real = (torch.arange(n, device=device) <= lengths[:, None]).float()
        loss = F.cross_entropy(
            model.logits(x[:, IMAGE : IMAGE + n]).float().flatten(0, 1),
            layout.tokens[:, 1 : n + 1].flatten(),
            reduction="none",
        )
        caption_loss = (loss.view(real.shape) * real).sum() / real.sum()
    return Answers(
        says(end)[..., list(special.stems)],
        says(end + 1)[..., special.digits],
        says(end + 2)[..., special.digits],
        meaning,
        e,
        image,
        layout.kept,
        caption_loss,
    )


def _gather(x: Tensor, places: Tensor) -> Tensor:
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


def _mask(layout: Layout, dtype: torch.dtype) -> Tensor:
    """Return the additive mask (B, 1, T, T): the image, and one's own caption so far."""
    b, device = len(layout.roles), layout.roles.device
    length = IMAGE + layout.roles.shape[1]
    order = torch.arange(length, device=device)
    whose = F.pad(layout.owner, (IMAGE, 0), value=-2)
    roles = F.pad(layout.roles, (IMAGE, 0))
    seen = (whose[:, None, :] == -2) | (whose[:, :, None] == whose[:, None, :])
    seen &= (order[:, None] >= order[None, :]) & (roles[:, None, :] >= 0)
    seen &= ~((roles[:, :, None] == 2) & (roles[:, None, :] == 1))  # the stems are alternatives
    seen |= torch.eye(length, dtype=torch.bool, device=device)  # padding sees itself, not nothing
    mask = torch.zeros(b, 1, length, length, dtype=dtype, device=device)
    return mask.masked_fill_(~seen[:, None], -1e4)
