"""Captions that a model writes: its captioning loss makes it a captioner, if a weak one.

People's captions, those with a wrong word and random ones leave the middle of the scale empty; what
a machine writes is fluent, often nearly right, and fills it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from discode.backends._embedded.tokenizer import byte_alphabet
from training import images
from training.model import IMAGE, CaptionJudge, rms
from training.packing import Special


@torch.no_grad()
def write(
    model: CaptionJudge, pixels: Tensor, special: Special, temperature: float, longest: int = 24
) -> tuple[Tensor, Tensor]:
    """Write a caption of each uint8 image: ids (B, longest) and lengths (B,); 0 is the likeliest.

    Words are drawn from the likeliest nine tenths.
    """
    device = pixels.device
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        seen, _ = model.image(images.normal(pixels))
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        b, start = len(pixels), len(special.instruction)
        caches: list[tuple[Tensor, Tensor]] = []
        front = model.embedding(special.instruction)[None].to(dtype)
        x = seen.to(dtype)
        front_at = model.angles(torch.arange(start, device=device)[None], dtype)
        at = model.angles(torch.arange(start, start + IMAGE, device=device)[None], dtype)
        hidden = torch.full((start, start), -1e4, dtype=dtype, device=device).triu(1)[None, None]
        causal = torch.full((IMAGE, start + IMAGE), -1e4, dtype=dtype, device=device)
        causal = causal.triu(start + 1)[None, None]
        for layer in model.layers:
            keys = layer.keys(front, *front_at)  # type: ignore[operator]  # a Layer, not a Tensor
            mine = layer.keys(x, *at)  # type: ignore[operator]  # as above
            caches.append(_longer(tuple(part.expand(b, -1, -1, -1) for part in keys), mine))
            x, front = layer(x, *at, causal, keys), layer(front, *front_at, hidden)
        token = torch.full((b,), special.start, device=device)
        ids = torch.zeros(b, longest, dtype=torch.long, device=device)
        lengths = torch.zeros(b, dtype=torch.long, device=device)
        going = torch.ones(b, dtype=torch.bool, device=device)
        for step in range(longest + 1):
            x = model.embedding(token)[:, None].to(dtype)
            at = model.angles(torch.full((1, 1), start + IMAGE + step, device=device), dtype)
            for number, layer in enumerate(model.layers):
                mine = layer.keys(x, *at)  # type: ignore[operator]  # as above
                mask = x.new_zeros(1, 1, 1, caches[number][0].shape[2] + 1)
                x = layer(x, *at, mask, caches[number])
                caches[number] = _longer(caches[number], mine)
            token = _drawn(model.logits(rms(x[:, 0], model.norm)).float(), temperature)
            going &= token != special.end
            if step == longest or not going.any():
                break
            ids[:, step] = torch.where(going, token, 0)
            lengths += going
    return ids, lengths


def _longer(cache: tuple[Tensor, ...], more: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return torch.cat([cache[0], more[0]], dim=2), torch.cat([cache[1], more[1]], dim=2)


def _drawn(logits: Tensor, temperature: float) -> Tensor:
    """Draw the next tokens (B,) from their likeliest nine tenths."""
    if temperature == 0:
        return logits.argmax(-1)
    ordered, which = (logits / temperature).softmax(-1).topk(200)
    ordered = ordered * ((ordered.cumsum(-1) - ordered) < 0.9)
    return which.gather(1, torch.multinomial(ordered, 1))[:, 0]


def spelt(ids: Tensor, lengths: Tensor, tokens: list[str]) -> list[str]:
    """Return the texts of captions."""
    back = {letter: byte for byte, letter in byte_alphabet().items()}
    texts = []
    for row, length in zip(ids.tolist(), lengths.tolist(), strict=True):
        letters = "".join(tokens[i] for i in row[:length])
        raw = bytes(back[letter] for letter in letters if letter in back)
        texts.append(raw.decode("utf-8", errors="replace").strip())
    return texts
