"""Ask trained models, before they are a file, what dev images are asked (``questions.py``).

Models are selected on dev images alone; agreement with people is measured on the finished file by
``agreement.py``, and nothing is fed back.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from discode.backends._embedded.tokenizer import Bpe, normalise
from training import common, images, questions
from training.agreement import expected
from training.batches import Captions
from training.model import CaptionJudge
from training.packing import Answers, Packed, Special, run

GROUP, BATCH = 16, 64
"""Captions of an image at a time, and images at a time."""


@torch.no_grad()
def ask(
    model: CaptionJudge,
    pixels: Tensor,
    captions: tuple[Tensor, Tensor],
    special: Special,
    *,
    exact: bool = True,
) -> Answers:
    """Return what a model says of uint8 images with N captions each; in bf16 unless ``exact``."""
    device = pixels.device.type
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda" and not exact):
        return run(model, images.normal(pixels), Packed(*captions), special)


def read_pairs(
    model: CaptionJudge, pixels: Tensor, image: np.ndarray, captions: Captions, special: Special
) -> tuple[np.ndarray, np.ndarray]:
    """Read pairs of an image's number and a caption, the captions of an image together."""
    rows: list[np.ndarray] = []
    order = np.argsort(image, kind="stable")
    for same in np.split(order, np.flatnonzero(np.diff(image[order])) + 1):
        rows += [same[i : i + GROUP] for i in range(0, len(same), GROUP)]
    stems = np.empty((len(image), 2), np.float32)
    digits = np.empty((len(image), 10), np.float32)
    rows.sort(key=len)
    device = captions.ids.device
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        width = max(map(len, part))
        full = np.stack([np.resize(row, width) for row in part])
        shown = pixels[torch.from_numpy(image[full[:, 0]])].to(device)
        says = ask(model, shown, captions[torch.from_numpy(full).to(device)], special)
        s, d = says.stem.float().cpu().numpy(), says.digits.float().cpu().numpy()
        for row, a, b in zip(part, s, d, strict=True):
            stems[row], digits[row] = a[: len(row)], b[: len(row)]
    return stems, digits


def dev(name: str, special: Special) -> dict[str, dict[str, float]]:
    """Return a trained model's figures on dev images, by source; keep its answers.

    What it said is written as ``agreement dev`` writes it of a finished file.
    """
    asked, tokenizer = common.load_json("questions.json"), common.load_json("tokenizer.json")
    bpe = Bpe(tokenizer["tokens"], tokenizer["merges"])
    flat, offset = common.ragged([bpe.encode(" " + normalise(text)) for text in asked["text"]])
    slots, device = common.config()["data"]["long_tokens"], str(special.instruction.device)
    captions = Captions.pad(flat, offset, slots, device)
    pixels = images.rendered("dev")
    stem, digits = read_pairs(
        load(name, device), pixels, np.array(asked["image"]), captions, special
    )
    np.savez_compressed(common.BUILD / f"{name}_dev.npz", stem=stem, digits=digits)
    return questions.figures(expected(stem, digits), asked)


def load(name: str, device: str) -> CaptionJudge:
    """Return a trained model."""
    saved = torch.load(common.BUILD / f"{name}.pt", weights_only=True, map_location="cpu")
    model = CaptionJudge(saved["layers"])
    model.load_state_dict({key: value.float() for key, value in saved["weights"].items()})
    return model.to(device).eval().requires_grad_(False)
