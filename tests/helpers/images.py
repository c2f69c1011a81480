"""Folders of small images, and captions of them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

from tests.helpers.campaigns import WRITERS


def image_folders(root: Path, domains: dict[str, int], seed: int = 0) -> dict[str, Path]:
    """Make images of noise, each unlike the others; the folder of each domain."""
    rng = np.random.default_rng(seed)
    for name, count in domains.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            cells = rng.integers(0, 255, (12, 12, 3), dtype=np.uint8)
            image = Image.fromarray(cells).resize((48, 48), Image.Resampling.NEAREST)
            image.save(root / name / f"{i:03d}.png")
    return {name: root / name for name in domains}


def caption_files(root: Path, domains: dict[str, int], target: Path) -> list[Path]:
    """Write a caption file for each writer; a lower writer's captions are better."""
    files = []
    for writer in WRITERS:
        path = target / f"{writer}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["image", "caption"])
            for name, count in domains.items():
                for i in range(count):
                    rows.writerow([root / name / f"{i:03d}.png", f"{writer} sees <{name}> & {i}"])
        files.append(path)
    return files
