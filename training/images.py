"""Images on the device: decoding, styles rendered ahead, augmentation.

    python -m training.images        render the training images in the styles of config.toml

Images are kept as uint8 (n, side, side, 3), and again so for each style that a run trains with.
"""

from __future__ import annotations

import io
import math
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from discode.paper.styles import render
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


def _render(job: tuple[Path, int, str, list[bytes]]) -> None:
    path, first, style, packed = job
    pixels = np.load(path, mmap_mode="r+")
    for number, file in enumerate(packed, start=first):
        pixels[number] = np.asarray(render(Image.open(io.BytesIO(file)), style, seed=number))


def rendered(style: str) -> Tensor:
    """Return the training images in a style; kept on disk."""
    cache = common.BUILD / f"train_{style}.npy"
    if not cache.exists():
        side = common.config()["data"]["image_size"]
        packed = files("train")
        part = Path(f"{cache}.part.npy")
        np.lib.format.open_memmap(part, "w+", np.uint8, (len(packed), side, side, 3))
        jobs = [(part, i, style, packed[i : i + CHUNK]) for i in range(0, len(packed), CHUNK)]
        with ProcessPoolExecutor(WORKERS) as pool:
            list(pool.map(_render, jobs))
        part.replace(cache)
    return torch.from_numpy(np.load(cache))


def normal(pixels: Tensor) -> Tensor:
    """Return what the model sees (B, 3, H, W) of uint8 pixels (B, H, W, 3)."""
    return (pixels.permute(0, 3, 1, 2).float() - 127) / 128


def roughen(x: Tensor, generator: torch.Generator) -> Tensor:
    """Smear, posterise, recolour a little, roughen or dim images (B, 3, H, W) in 0 ... 1.

    What happens to each image is drawn: nothing here knows what is in it, follows its contours, or
    is one of the styles that are held out.
    """
    b, side, device = len(x), x.shape[-1], x.device

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        size = (b, *(shape or (1, 1, 1)))
        return torch.rand(size, device=device, generator=generator) * (high - low) + low

    def noise(factor: int, channels: int) -> Tensor:
        small = (b, channels, side // factor, side // factor)
        drawn = torch.randn(small, device=device, generator=generator)
        return F.interpolate(drawn, (side, side), mode="bilinear") if factor > 1 else drawn

    def shifted(dx: Tensor, dy: Tensor) -> Tensor:  # by fields of pixels (B, H, W)
        step = torch.linspace(-1 + 1 / side, 1 - 1 / side, side, device=device)
        grid = torch.stack([step + 2 / side * dx, step[:, None] + 2 / side * dy], dim=-1)
        return F.grid_sample(x, grid, align_corners=False, padding_mode="reflection")

    def coarse(factor: int) -> Tensor:
        return F.interpolate(F.avg_pool2d(x, factor), (side, side), mode="bilinear")

    # Four ways to lose detail: low-pass, median, motion, and pixels that wander; or none.
    near = F.unfold(F.pad(x, (1, 1, 1, 1), "reflect").flatten(0, 1)[:, None], 3)
    median = near.median(1).values.view_as(x)
    angle, reach = uniform(0, math.pi, 1, 1), uniform(2, 6, 1, 1)
    flat = torch.zeros(b, side, side, device=device)
    moved = torch.zeros_like(x)
    for step in torch.linspace(-1, 1, 7).tolist():
        dx, dy = step * reach * angle.cos(), step * reach * angle.sin()
        moved += shifted(flat + dx, flat + dy) / 7
    far = uniform(1, 4, 1, 1, 1)
    field = noise(4, 2) * far
    wandered = shifted(field[:, 0], field[:, 1])
    kind = uniform(0, 1)
    ways = (coarse(2), coarse(4), median, moved, wandered)
    for number, changed in enumerate(ways):
        x = torch.where((kind >= 0.16 * number) & (kind < 0.16 * (number + 1)), changed, x)
    levels = uniform(3, 10).round()
    x = torch.where(uniform(0, 1) < 0.3, (F.avg_pool2d(x, 3, 1, 1) * levels).round() / levels, x)
    grey = x.mean(1, keepdim=True)
    x = (grey + (x - grey) * uniform(0.7, 1.7)).clamp(0, 1)
    grain = torch.where(uniform(0, 1) < 0.5, noise(1, 3), noise(2, 1).expand(-1, 3, -1, -1))
    x = torch.where(uniform(0, 1) < 0.5, x + grain * uniform(0.01, 0.08), x)
    dim = 0.35 + (x - x.mean((1, 2, 3), keepdim=True)) * uniform(0.3, 0.6)
    return torch.where(uniform(0, 1) < 0.2, dim + noise(1, 3) * uniform(0.03, 0.09), x).clamp(0, 1)


def augment(
    pixels: Tensor, crop: float, generator: torch.Generator, rough: Tensor | None = None
) -> Tensor:
    """Crop, flip and recolour uint8 images (B, H, W, 3); returns what the model sees.

    ``rough`` is the rows that are made rough besides.
    """
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
    if rough is not None and len(rough):
        x[rough] = roughen(x[rough].clamp(0, 1), generator)
    x = (x.clamp(0, 1) * 255 - 127) / 128
    return x.contiguous(memory_format=torch.channels_last)


if __name__ == "__main__":
    every = common.settings()["runs"].values()
    for name in sorted(
        {name for run in every for name in run.get("augment", {}).get("styles", {})}
    ):
        rendered(name)
        print("rendered", name, flush=True)
