"""Small copies of images for the page, the most interesting first, within a budget."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

from PIL import Image

from discode.errors import ImageError, count_of
from discode.images import open_image

SIDE = 288
"""Pixels of a thumbnail's longer side."""
_QUALITY = 50


def make_thumbnails(paths: Sequence[str], budget: int) -> tuple[dict[str, str], list[str]]:
    """Make thumbnails by image path, and describe the images without one.

    They are made in the order of ``paths`` until together they have ``budget`` characters.
    """
    thumbnails: dict[str, str] = {}
    damaged, room = 0, budget
    for path in paths:
        try:
            text = encode_thumbnail(path) if room > 0 else ""
        except ImageError:
            damaged += 1
            continue
        if not 0 < len(text) <= room:
            room = 0
            continue
        room -= len(text)
        thumbnails[path] = text
    left_out = len(paths) - len(thumbnails) - damaged
    lines = {
        f"{count_of(left_out, 'image')} left out: the budget is {budget / 2**20:g} MB": left_out,
        f"{count_of(damaged, 'image')} missing or damaged": damaged,
    }
    return thumbnails, [line for line, count in lines.items() if count]


def encode_thumbnail(path: str) -> str:
    """Encode a small copy of an image as base64 of WebP, without metadata."""
    small = open_image(path)
    small.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR)
    file = io.BytesIO()
    small.save(file, "WEBP", quality=_QUALITY, method=2)
    return base64.b64encode(file.getvalue()).decode("ascii")
