"""Small copies of images for the page, the ones that are looked at first, within a budget."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable
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

    def fill(self, paths: Iterable[str], progress: Callable[[int], None] | None = None) -> None:
        """Add thumbnails in the order given until the budget is spent."""
        used = sum(map(len, self.encoded))
        for path in paths:
            if path in self.numbers or path in self.unreadable:
                continue
            if used >= self.budget:
                self.left_out.add(path)
                continue
            try:
                text = encode_thumbnail(path)
            except ImageError:
                self.unreadable.add(path)
                continue
            if used + len(text) > self.budget:
                self.left_out.add(path)
                used = self.budget
                continue
            used += len(text)
            self.numbers[path] = len(self.encoded)
            self.encoded.append(text)
            if progress is not None:
                progress(1)


def encode_thumbnail(path: str) -> str:
    """Return a small copy of an image as base64 of WebP, without any of its metadata."""
    small = open_image(path)
    small.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR)
    file = io.BytesIO()
    small.save(file, "WEBP", quality=_QUALITY, method=2)
    return base64.b64encode(file.getvalue()).decode("ascii")
