"""Images on the device: decoding, styles rendered ahead, augmentation.

    python -m training.images        decode all images, render some in the styles of config.toml

It runs beside training, in processes of its own, and may begin before all parcels have come. Images
are kept as uint8 (n, side, side, 3). Those of training come in parcels, each a draw from all of
them, and some parcels again in each style: what was decoded, or rendered, is trained with.
"""

from __future__ import annotations

import io
import math
import os
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Thread

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from discode._paper.styles import render
from training import common

WORKERS = 14
FIRST = "train_00.npz"
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, which the tower was trained with."""


def parcel(name: str) -> tuple[np.ndarray, list[bytes]]:
    """Return the numbers of a parcel's images, and their files."""
    data = np.load(common.BUILD / name)
    raw, offset = data["bytes"].tobytes(), data["offset"]
    files = [raw[a:b] for a, b in pairwise(offset)]
    return data["number"] if "number" in data else np.arange(len(files)), files


def parcels() -> list[str]:
    """Return the names of all parcels, wherever they still are."""
    return [f"train_{i:02}.npz" for i in range(int(np.load(common.BUILD / FIRST)["parcels"]))]


def styles() -> list[str]:
    """Return the styles that any run trains with."""
    every = common.settings()["runs"].values()
    return sorted({name for run in every for name in run.get("augment", {}).get("styles", {})})


class Photos:
    """The training images, filled as parcels and their renderings arrive.

    ``styled[style]`` and ``row``: rendered images, and where in them each image is, or -1.
    """

    def __init__(self, styles: list[str], device: str) -> None:
        side = common.config()["data"]["image_size"]
        n = len(common.load_json("images.json")["train"])
        names = parcels()
        rendered = common.config()["augment"]["parcels"]
        self.wanted = [(name, "") for name in names]
        self.wanted += [(name, style) for name in names[:rendered] for style in styles]
        self.pixels = torch.zeros(n, side, side, 3, dtype=torch.uint8, device=device)
        self.ready = torch.zeros(n, dtype=torch.bool, device=device)
        size = sum(map(len, np.array_split(np.arange(n), len(names))[:rendered]))
        shape = (size if styles else 0, side, side, 3)
        self.styled = {
            style: torch.zeros(shape, dtype=torch.uint8, device=device) for style in styles
        }
        self.row = {style: torch.full((n,), -1, device=device) for style in styles}
        self.share = dict.fromkeys(styles, 0.0)  # of all images, rendered
        self.device = device
        self.arrived = 0  # parcels, renderings among them
        self._decoded: list[tuple[str, np.ndarray, Tensor]] = []
        self._thread = Thread(target=self._read, args=(list(self.wanted),), daemon=True)
        self._thread.start()

    def _read(self, wanted: list[tuple[str, str]]) -> None:
        while wanted:
            for name, style in wanted:
                file = common.BUILD / rendering(name, style)
                if file.exists():
                    wanted.remove((name, style))
                    numbers = np.load(common.BUILD / name)["number"]
                    self._decoded.append((style, numbers, torch.from_numpy(np.load(file))))
                    break
            else:
                time.sleep(0.5)

    def arrive(self) -> bool:
        """Take what has been read since; say whether there was something."""
        if not self._decoded:
            return False
        style, numbers, pixels = self._decoded.pop(0)
        self.arrived += 1
        at = torch.from_numpy(numbers).long().to(self.device)
        if style:
            start = int((self.row[style] >= 0).sum())
            self.styled[style][start : start + len(at)] = pixels.to(self.device)
            self.row[style][at] = start + torch.arange(len(at), device=self.device)
            self.share[style] += len(at) / len(self.ready)
        else:
            self.pixels[at] = pixels.to(self.device)
            self.ready[at] = True
        return True

    def wait(self, *, styles: bool = False, patience: float = 60) -> None:
        """Wait until all photographs are there, or none came for so many seconds.

        With ``styles``, wait for their renderings, too.
        """
        last, there = time.monotonic(), 0

        def missing() -> bool:
            late = styles and self.arrived < len(self.wanted)
            return late or not bool(self.ready.all())

        while missing() and time.monotonic() - last < patience:
            if not self.arrive():
                time.sleep(0.2)
            now = self.arrived if styles else int(self.ready.sum())
            if now > there:  # renderings may arrive while a lost parcel does not
                last, there = time.monotonic(), now
        if not self.ready.any():
            raise SystemExit("no image is decoded; run beside this: python -m training.images")


def rendering(name: str, style: str) -> str:
    """Return the file of a parcel's images, decoded ("") or in a style."""
    return f"{'_'.join(filter(None, (name.removesuffix('.npz'), style)))}.npy"


def _render(job: tuple[str, str]) -> None:
    name, style = job
    file = common.BUILD / rendering(name, style)
    if file.exists():
        return
    while not (common.BUILD / name).exists():
        time.sleep(1)
    pixels = []
    settings = common.config()["data"]
    side, measured = settings["image_size"], settings["measured_size"]
    for number, raw in zip(*parcel(name), strict=True):
        image = Image.open(io.BytesIO(raw)).convert("RGB")
        if style:
            image = image.resize((measured, measured), Image.Resampling.BICUBIC)
            image = render(image, style, seed=int(number))
        pixels.append(np.asarray(image.resize((side, side), Image.Resampling.BICUBIC)))
    part = Path(f"{file}.{os.getpid()}.npy")  # two processes may want the same images
    np.save(part, np.stack(pixels))
    part.replace(file)


def rendered(split: str, style: str = "") -> Tensor:
    """Return dev or test images, decoded or in a style; kept on disk."""
    job = f"{split}.npz", style
    _render(job)
    return torch.from_numpy(np.load(common.BUILD / rendering(*job)))


def render_all() -> None:
    """Decode all images, and render the first parcels in every style that a run trains with.

    A parcel is rendered when it comes, while others are decoded.
    """
    jobs = [(name, "") for name in (*parcels(), "dev.npz")]
    some = parcels()[: common.config()["augment"]["parcels"]]
    jobs += [(name, style) for name in some for style in styles()]
    decoding = max(1, WORKERS // 4)
    with ThreadPoolExecutor(2) as both:
        made = [
            both.submit(_all_of, [job for job in jobs if bool(job[1]) == styled], workers)
            for styled, workers in ((False, decoding), (True, max(1, WORKERS - decoding)))
        ]
        for some_made in made:
            some_made.result()
    print("made", len(jobs), "files of images", flush=True)


def _all_of(jobs: list[tuple[str, str]], workers: int) -> None:
    """Make files of images in so many processes; whoever trains beside them comes first."""
    with ProcessPoolExecutor(workers, initializer=os.nice, initargs=(10,)) as pool:
        list(pool.map(_render, jobs))


def normal(pixels: Tensor) -> Tensor:
    """Return what the model sees (B, 3, H, W) of uint8 pixels (B, H, W, 3)."""
    return seen(pixels.permute(0, 3, 1, 2).float() / 255)


def seen(x: Tensor) -> Tensor:
    """Return what the model sees of images (B, 3, H, W) in 0 ... 1: ImageNet's scale."""
    mean, deviation = x.new_tensor(MEAN), x.new_tensor(DEVIATION)
    return (x - mean[:, None, None]) / deviation[:, None, None]


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
    pixels: Tensor,
    crop: float,
    generator: torch.Generator,
    rough: Tensor | None = None,
    sided: Tensor | None = None,
) -> Tensor:
    """Crop, flip and recolour uint8 images (B, H, W, 3); returns what the model sees.

    ``rough`` is the rows that are made rough besides; ``sided`` says of each image (B,) whether its
    captions name a side, so that it is not flipped.
    """
    b, device = len(pixels), pixels.device

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(b, *shape, device=device, generator=generator) * (high - low) + low

    x = pixels.permute(0, 3, 1, 2).float() / 255
    side = uniform(crop, 1).sqrt()
    aspect = torch.exp(uniform(-0.2, 0.2))
    wide, high = (side * aspect.sqrt()).clamp(max=1), (side / aspect.sqrt()).clamp(max=1)
    theta = torch.zeros(b, 2, 3, device=device)
    flipped = uniform(0, 1) < 0.5
    if sided is not None:
        flipped &= ~sided
    theta[:, 0, 0] = wide * torch.where(flipped, -1.0, 1.0)
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
    return seen(x.clamp(0, 1))


if __name__ == "__main__":
    render_all()
