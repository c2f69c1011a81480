"""Pictures on the device: decoding, styles rendered ahead, augmentation."""

from __future__ import annotations

import io
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from discode.shift import render
from training import common


def files(split: str) -> list[bytes]:
    """Return a split's JPEG files."""
    data = np.load(common.BUILD / f"{split}.npz")
    raw, offset = data["jpeg"].tobytes(), data["offset"]
    return [raw[a:b] for a, b in pairwise(offset)]


def _pixels(file: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))


def _styled(job: tuple[bytes, str, int]) -> np.ndarray:
    file, style, seed = job
    return np.asarray(render(Image.open(io.BytesIO(file)), style, seed=seed))


def decode(split: str) -> Tensor:
    """Return a split as uint8 (n, 3, side, side)."""
    with ThreadPoolExecutor(16) as pool:
        return _stack(list(pool.map(_pixels, files(split))))


def styled(split: str, style: str, workers: int = 16) -> Tensor:
    """Return a split re-rendered; kept on disk, since several runs share it."""
    cache = common.BUILD / f"{split}_{style}.npy"
    if not cache.exists():
        jobs = [(file, style, seed) for seed, file in enumerate(files(split))]
        with ProcessPoolExecutor(workers) as pool:
            rows = list(pool.map(_styled, jobs, chunksize=16))
        temp = Path(f"{cache}.part.npy")
        np.save(temp, np.stack(rows))
        temp.replace(cache)
    return _stack(np.load(cache))


def _stack(rows: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.stack(rows).transpose(0, 3, 1, 2)))


def normal(pixels: Tensor) -> Tensor:
    """Return what the model sees of uint8 pixels."""
    return (pixels.float() - 127) / 128


def augment(pixels: Tensor, crop: float, generator: torch.Generator) -> Tensor:
    """Crop, flip and recolour uint8 pictures (B, 3, H, W); returns what the model sees."""
    b, device = len(pixels), pixels.device

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(b, *shape, device=device, generator=generator) * (high - low) + low

    x = pixels.float() / 255
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
    return (x.clamp(0, 1) * 255 - 127) / 128


if __name__ == "__main__":
    # python -m training.pictures train|test: render the styles ahead of the runs that share them
    import sys

    for style in sys.argv[2:] or common.config()["augment"]["styles"]:
        styled(sys.argv[1], style)
        print("rendered", sys.argv[1], style, flush=True)
