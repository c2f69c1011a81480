"""Images on the device: decoding, styles rendered ahead, augmentation.

    python -m training.images        render the training images in the styles of config.toml

Images are kept as uint8 (n, side, side, 3). Each is rendered in a few of the styles, which take
turns: image i is drawn in style i, i + 1, ...
"""

from __future__ import annotations

import io
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from discode.shift import render
from training import common

CHUNK = 64
WORKERS = 16


def files(split: str) -> list[bytes]:
    """Return a split's image files."""
    data = np.load(common.BUILD / f"{split}.npz")
    raw, offset = data["bytes"].tobytes(), data["offset"]
    return [raw[a:b] for a, b in pairwise(offset)]


def decode(split: str) -> Tensor:
    """Return a split as uint8 (n, side, side, 3)."""
    packed = files(split)
    side = common.config()["data"]["image_size"]
    pixels = np.empty((len(packed), side, side, 3), np.uint8)

    def put(number: int) -> None:
        pixels[number] = np.asarray(Image.open(io.BytesIO(packed[number])).convert("RGB"))

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(put, range(len(packed))))
    return torch.from_numpy(pixels)


def _render(job: tuple[Path, int, list[str], list[bytes]]) -> None:
    path, first, styles, packed = job
    pixels = np.load(path, mmap_mode="r+")
    for number, (style, file) in enumerate(zip(styles, packed, strict=True), start=first):
        pixels[number] = np.asarray(render(Image.open(io.BytesIO(file)), style, seed=number))


def rendered(turn: int) -> Tensor:
    """Return the training images re-rendered, in another style each turn; kept on disk."""
    cache = common.BUILD / f"train_{turn}.npy"
    if not cache.exists():
        config = common.config()
        styles, side = config["augment"]["styles"], config["data"]["image_size"]
        packed = files("train")
        part = Path(f"{cache}.part.npy")
        np.lib.format.open_memmap(part, "w+", np.uint8, (len(packed), side, side, 3))
        drawn = [styles[(number + turn) % len(styles)] for number in range(len(packed))]
        jobs = [
            (part, i, drawn[i : i + CHUNK], packed[i : i + CHUNK])
            for i in range(0, len(packed), CHUNK)
        ]
        with ProcessPoolExecutor(WORKERS) as pool:
            list(pool.map(_render, jobs))
        part.replace(cache)
    return torch.from_numpy(np.load(cache))


def normal(pixels: Tensor) -> Tensor:
    """Return what the model sees (B, 3, H, W) of uint8 pixels (B, H, W, 3)."""
    return (pixels.permute(0, 3, 1, 2).float() - 127) / 128


def _rough(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Blur, posterise or recolour a share of images (B, 3, H, W) in 0 ... 1."""
    b, device = len(x), x.device
    kind = torch.rand(b, 1, 1, 1, device=device, generator=generator) / share
    blurred = F.interpolate(F.avg_pool2d(x, 4), scale_factor=4.0, mode="bilinear")
    levels = torch.randint(3, 8, (b, 1, 1, 1), device=device, generator=generator)
    flat = (F.avg_pool2d(x, 5, 1, 2) * levels).round() / levels
    mix = torch.rand(b, 3, 3, device=device, generator=generator)
    mixed = torch.einsum("bij,bjhw->bihw", mix / mix.sum(2, keepdim=True), x)
    for mark, changed in ((1.0, mixed), (2 / 3, flat), (1 / 3, blurred)):
        x = torch.where(kind < mark, changed, x)
    return x


def augment(
    pixels: Tensor, crop: float, generator: torch.Generator, *, rough: float = 0.0
) -> Tensor:
    """Crop, flip and recolour uint8 images (B, H, W, 3); returns what the model sees."""
    b, device = len(pixels), pixels.device

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(b, *shape, device=device, generator=generator) * (high - low) + low

    x = pixels.permute(0, 3, 1, 2).float() / 255
    side = uniform(crop, 1).sqrt()
    aspect = torch.exp(uniform(-0.2, 0.2))
    wide, high = (side * aspect.sqrt()).clamp(max=1), (side / aspect.sqrt()).clamp(max=1)
    theta = torch.zeros(b, 2, 3, device=device)
    theta[:, 0, 0] = wide * torch.where(uniform(0, 1) < 0.5, -1.0, 1.0)
    theta[:, 1, 1] = high
    theta[:, 0, 2] = uniform(-1, 1) * (1 - wide)
    theta[:, 1, 2] = uniform(-1, 1) * (1 - high)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    x = F.grid_sample(x, grid, align_corners=False, padding_mode="reflection")
    grey = x.mean(1, keepdim=True)
    x = grey + (x - grey) * uniform(0.6, 1.4, 1, 1, 1)
    level = x.mean((1, 2, 3), keepdim=True)
    x = (x - level) * uniform(0.6, 1.4, 1, 1, 1) + level * uniform(0.7, 1.3, 1, 1, 1)
    x = torch.where(uniform(0, 1, 1, 1, 1) < 0.08, x.mean(1, keepdim=True), x)
    if rough:
        x = _rough(x.clamp(0, 1), rough, generator)
    x = (x.clamp(0, 1) * 255 - 127) / 128
    return x.contiguous(memory_format=torch.channels_last)


if __name__ == "__main__":
    for number in range(common.config()["augment"]["renderings"]):
        rendered(number)
        print("rendered", number, flush=True)
