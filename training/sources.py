"""Sources of images: folders with images and any number of captions per image.

A folder is Flickr8k as published (``images/``, ``Flickr8k.token.txt``, the split lists), or holds a
``captions.jsonl`` with one image per line: {"image": path, "split": "train" or "dev",
"captions": [...]}, perhaps with "wrong" ones, too. A source goes by its folder's name;
``config.toml`` gives shares by that name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from discode.backends._embedded.tokenizer import normalise

SPLITS = ("train", "dev", "test")
MOST = 6
"""Captions of an image that are used."""
DRAWN = ("icons", "emoji", "stamps", "charts", "plots")
"""Sources of few images with names or titles for captions."""


@dataclass(frozen=True)
class Item:
    """An image, its normalised captions, some that are known to be wrong, some that people rated.

    Ratings are on 0 ... 10.
    """

    path: Path
    captions: tuple[str, ...]
    wrong: tuple[str, ...] = ()
    rated: tuple[tuple[str, float], ...] = ()


def flickr8k_captions(folder: Path) -> dict[str, list[str]]:
    """Return file name to its five normalised captions."""
    captions: dict[str, list[str]] = {}
    for line in (folder / "Flickr8k.token.txt").read_text(encoding="utf-8").splitlines():
        key, text = line.split("\t")
        captions.setdefault(key.partition("#")[0], []).append(normalise(text))
    return captions


def _flickr8k(folder: Path) -> dict[str, list[Item]]:
    """Read Flickr8k; items of its test split have no captions, since nothing may use them."""
    captions = flickr8k_captions(folder)
    items: dict[str, list[Item]] = {}
    for split in SPLITS:
        names = (folder / f"Flickr_8k.{split}Images.txt").read_text().split()
        items[split] = [
            Item(folder / "images" / name, () if split == "test" else tuple(captions[name]))
            for name in names
        ]
    return items


def _listed(folder: Path) -> dict[str, list[Item]]:
    items: dict[str, list[Item]] = {split: [] for split in SPLITS}
    for line in (folder / "captions.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        texts = dict.fromkeys(text for text in map(normalise, row["captions"]) if text)
        if texts:
            wrong = tuple(map(normalise, row.get("wrong", ())))
            items[row["split"]].append(Item(folder / row["image"], tuple(texts), wrong))
    return items


def read(folder: Path) -> dict[str, list[Item]]:
    """Return a source's images by split."""
    if (folder / "Flickr8k.token.txt").exists():
        return _flickr8k(folder)
    return _listed(folder)
