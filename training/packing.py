"""Captions of a picture in one sequence: layout, mask, and reading the answers back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from training.model import PICTURE, CaptionJudge, rms


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
    """A batch of pictures, each with S scored and C written captions.

    ``scored``: (ids (B, S, M), lengths (B, S)) groups of one slot size M each; ``written``
    likewise, for the captioning loss.
    """

    scored: list[tuple[Tensor, Tensor]]
    written: tuple[Tensor, Tensor] | None = None


@dataclass
class Answers:
    """What the model says of B pictures with S captions each."""

    stem: Tensor  # (B, S, 2) log P("0."), log P("1.")
    digits: Tensor  # (B, S, 10) log P(digit | "0.")
    digits_one: Tensor  # (B, S, 10) log P(digit | "1.")
    meaning: Tensor  # (B, S, 384)
    picture: Tensor  # (B, 384) the picture's own meaning
    caption_loss: Tensor | None

    def joint(self) -> Tensor:
        """Return log P over 0.0 ... 1.0 (B, S, 11), off-scale mass left out."""
        return torch.cat([self.stem[..., :1] + self.digits, self.stem[..., 1:]], dim=-1)


def segment(ids: Tensor, lengths: Tensor, special: Special) -> tuple[Tensor, Tensor, Tensor]:
    """Append END and both stems: tokens, steps and roles (B, N, M + 3).

    ``roles``: 0 a caption token or END, 1 the first stem, 2 the second, -1 padding.
    """
    b, n, m = ids.shape
    slot = torch.arange(m + 3, device=ids.device).expand(b, n, m + 3)
    length = lengths[..., None]
    tokens = F.pad(ids, (0, 3))
    for offset, token in ((0, special.end), (1, special.stems[0]), (2, special.stems[1])):
        tokens = torch.where(slot == length + offset, token, tokens)
    roles = torch.where(slot <= length, 0, torch.where(slot <= length + 2, slot - length, -1))
    # Both stems stand at the same position: each is what follows END.
    steps = torch.where(slot == length + 2, length + 1, slot)
    return tokens, steps, roles


def run(model: CaptionJudge, pixels: Tensor, packed: Packed, special: Special) -> Answers:
    """Run the model over a packed batch."""
    picture, e = model.picture(pixels)
    dtype = torch.bfloat16 if torch.is_autocast_enabled(pixels.device.type) else torch.float32
    b, device = len(pixels), pixels.device
    tokens, steps, roles, groups, ends = [], [], [], [], []
    prefix = len(special.instruction) + PICTURE
    at, number = prefix, 0
    for ids, lengths in packed.scored:
        t, s, r = segment(ids, lengths, special)
        n, slots = t.shape[1:]
        ends.append(at + torch.arange(n, device=device) * slots + lengths)
        groups.append((number + torch.arange(n, device=device))[:, None].expand(n, slots).flatten())
        tokens.append(t.flatten(1))
        steps.append(s.flatten(1))
        roles.append(r.flatten(1))
        at, number = at + n * slots, number + n
    if packed.written is not None:
        ids, lengths = packed.written
        n, slots = ids.shape[1], ids.shape[2] + 2
        slot = torch.arange(slots, device=device).expand(b, n, slots)
        t = F.pad(ids, (1, 1))
        t = torch.where(
            slot == 0, special.start, torch.where(slot == lengths[..., None] + 1, special.end, t)
        )
        tokens.append(t.flatten(1))
        steps.append(slot.flatten(1))
        roles.append(torch.where(slot <= lengths[..., None] + 1, 0, -1).flatten(1))
        groups.append((number + torch.arange(n, device=device))[:, None].expand(n, slots).flatten())
        write_at = at
        at += n * slots
    total = at + (-at) % 16  # SDPA likes multiples
    pad = total - at
    token, step = F.pad(torch.cat(tokens, 1), (0, pad)), F.pad(torch.cat(steps, 1), (0, pad))
    role = F.pad(torch.cat(roles, 1), (0, pad), value=-1)
    group = F.pad(torch.cat(groups), (0, pad), value=-1)

    front = model.embedding(special.instruction).expand(b, -1, -1)
    x = torch.cat([front.to(dtype), picture.to(dtype), model.embedding(token).to(dtype)], dim=1)
    positions = torch.cat([torch.arange(prefix, device=device).expand(b, -1), prefix + step], dim=1)
    cos, sin = model.angles(positions, dtype)
    mask = _mask(prefix, role, group, dtype)

    end = torch.cat(ends, dim=1)  # (B, S) places of END
    depth = len(model.layers)
    for layer in model.layers[: depth - 2]:
        x = layer(x, cos, sin, mask)
    added, meaning = model.adapt(_gather(x, end), e)
    for offset in range(3):
        x = x.scatter_add(
            1, (end + offset)[..., None].expand(-1, -1, x.shape[-1]), added.to(x.dtype)
        )
    for layer in model.layers[depth - 2 :]:
        x = layer(x, cos, sin, mask)
    x = rms(x, model.norm)

    def says(places: Tensor) -> Tensor:
        return model.logits(_gather(x, places)).float().log_softmax(-1)

    stem = says(end)[..., list(special.stems)]
    caption_loss = None
    if packed.written is not None:
        written = x[:, write_at:at].reshape(b, n, slots, -1)[:, :, :-1]
        wanted = token[:, write_at - prefix : at - prefix].view(b, n, slots)[:, :, 1:]
        real = (torch.arange(slots - 1, device=device) <= lengths[..., None]).float()
        loss = F.cross_entropy(
            model.logits(written).float().flatten(0, -2), wanted.flatten(), reduction="none"
        )
        caption_loss = (loss.view(real.shape) * real).sum() / real.sum()
    return Answers(
        stem,
        says(end + 1)[..., special.digits],
        says(end + 2)[..., special.digits],
        meaning,
        e,
        caption_loss,
    )


def _gather(x: Tensor, places: Tensor) -> Tensor:
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


def _mask(prefix: int, role: Tensor, group: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the additive mask (B, 1, L, L): the prefix, and one's own caption so far."""
    b, length = role.shape[0], prefix + role.shape[1]
    device = role.device
    order = torch.arange(length, device=device)
    causal = order[:, None] >= order[None, :]
    whose = torch.cat([torch.full((prefix,), -2, device=device), group])
    near = causal & ((whose[None, :] == -2) | (whose[:, None] == whose[None, :]))
    roles = torch.cat([torch.zeros(b, prefix, dtype=role.dtype, device=device), role], dim=1)
    seen = near[None] & (roles[:, None, :] >= 0)
    seen &= ~((roles[:, :, None] == 2) & (roles[:, None, :] == 1))  # the stems are alternatives
    seen |= torch.eye(length, dtype=torch.bool, device=device)  # padding sees itself, not nothing
    mask = torch.zeros(b, 1, length, length, dtype=dtype, device=device)
    return mask.masked_fill_(~seen[:, None], -1e4)
