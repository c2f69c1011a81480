"""Small copies of images for the page, the ones that are looked at first, within a budget."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass, field

from PIL import Image

from discode.errors import ImageError
from discode.images import open_image

SIDE = 288
"""Pixels of a thumbnail's longer side."""
_QUALITY = 50


@dataclass
class ThumbnailBook:
    """The thumbnails of a page, by the path of their image, as base64 of WebP.

    Attributes:
        budget: Bytes that all thumbnails together may take.
        numbers: Path to the thumbnail's number.
        encoded: The thumbnails.
        unreadable: Images that could not be opened.
        left_out: Images for which there was no room.
    """

    budget: int
    numbers: dict[str, int] = field(default_factory=dict)
    encoded: list[str] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)

    @property
    def notes(self) -> list[str]:
        """Which images are not in the page, in sentences."""
        budget = f"the budget of {self.budget / 2**20:g} MB"
        lines = {
            f"{len(self.left_out)} images are left out: they are beyond {budget}": self.left_out,
            f"{len(self.unreadable)} images are missing or damaged": self.unreadable,
        }
        return [line for line, images in lines.items() if images]

    def fill(self, paths: Iterable[str]) -> None:
        """Add thumbnails in the order given until the budget is spent."""
        room = self.budget - sum(map(len, self.encoded))
        for path in paths:
            if path in self.numbers or path in self.unreadable:
                continue
            try:
                text = encode_thumbnail(path) if room > 0 else ""
            except ImageError:
                self.unreadable.add(path)
                continue
            if not 0 < len(text) <= room:
                self.left_out.add(path)
                room = 0
                continue
            room -= len(text)
            self.numbers[path] = len(self.encoded)
            self.encoded.append(text)


def encode_thumbnail(path: str) -> str:
    """Return a small copy of an image as base64 of WebP, without any of its metadata."""
    small = open_image(path)
    small.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR)
    file = io.BytesIO()
    small.save(file, "WEBP", quality=_QUALITY, method=2)
    return base64.b64encode(file.getvalue()).decode("ascii")
