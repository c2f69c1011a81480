"""Typical scores of the embedded judge: python perf/typical.py CAPTIONS.jsonl IMAGES [...]

CAPTIONS.jsonl has a line per image, ``{"image": ..., "split": "dev", "captions": [...]}``, as
training reads it; the folder IMAGES has some of the images. The first caption of every dev image is
scored with its image and with another one. Further pairs of arguments are further sets.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import discode

METHODS = ("smoothing", "discode", "paper")


def main(arguments: list[str]) -> None:
    """Print a row per set and method: mean of own and other captions, own above 0.5 and 0.8."""
    print("| set | method | own | other | own above 0.5 | own above 0.8 | bimodal |")
    print("| --- " * 7 + "|")
    judge = discode.load("embedded")
    for file, folder in zip(arguments[::2], map(Path, arguments[1::2]), strict=True):
        rows = map(json.loads, Path(file).read_text(encoding="utf-8").splitlines())
        captions = {
            folder / Path(row["image"]).name: row["captions"][0]
            for row in rows
            if row["split"] == "dev"
        }
        images = sorted(image for image in captions if image.is_file())
        own = [discode.Pair(str(image), captions[image]) for image in images]
        other = [
            discode.Pair(str(image), captions[images[number - 7]])
            for number, image in enumerate(images)
        ]
        readings = judge.read(own), judge.read(other)
        for method in METHODS:
            mine, others = (discode.decode(read, method) for read in readings)
            above = [f"{100 * np.mean(mine.value > least):.1f} %" for least in (0.5, 0.8)]
            cells = [f"{mine.mean():.3f}", f"{others.mean():.3f}", *above]
            cells.append(f"{mine.counts()['bimodal'] + others.counts()['bimodal']}")
            print(f"| {folder.name}, {len(images)} images | {method} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
