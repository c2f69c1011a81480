"""Images as data URLs, and estimates of tokens and cost."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import math
from dataclasses import astuple, dataclass

from PIL import ExifTags, Image

from discode.backends._served.client import Prices
from discode.images import ImageSource, SharedImage, image_bytes, open_formats, open_image

_MIME = {"JPEG": "image/jpeg", "PNG": "image/png"}
_TILE, _SHORT, _LONG = 512, 768, 2048  # how OpenAI's models cut an image into tiles
ANSWER_TOKENS = 6
"""Estimated tokens of an answer such as "0.75", including its end."""


def data_url(image: ImageSource, image_size: int | None = None) -> tuple[str, int, int]:
    """Encode an image as a data URL; also returns its width and height.

    A JPEG or PNG file is sent unchanged unless its longer side exceeds ``image_size``, EXIF marks
    it as rotated, or it is transparent. Otherwise it is re-encoded: a JPEG as JPEG, everything
    else as PNG.
    """
    rgb = open_image(image)  # raises where it is not an image
    kind, data, as_it_is = "PNG", b"", False
    if isinstance(image, SharedImage) and isinstance(image.source, Image.Image):
        image = image.source
    if not isinstance(image, Image.Image):
        data = image_bytes(image)
        with open_formats(data) as stored:
            kind = stored.format or ""
            as_it_is = (
                kind in _MIME
                and stored.mode in ("RGB", "L")
                and "transparency" not in stored.info
                and stored.getexif().get(ExifTags.Base.Orientation, 1) == 1
            )
    longer = max(rgb.size)
    if image_size is not None and longer > image_size:
        ratio = image_size / longer
        size = (max(1, round(rgb.width * ratio)), max(1, round(rgb.height * ratio)))
        rgb, as_it_is = rgb.resize(size, Image.Resampling.LANCZOS), False
    if not as_it_is:
        kind = "JPEG" if kind == "JPEG" else "PNG"
        file = io.BytesIO()
        rgb.save(file, kind, quality=95) if kind == "JPEG" else rgb.save(file, kind)
        data = file.getvalue()
    return f"data:{_MIME[kind]};base64,{base64.b64encode(data).decode()}", *rgb.size


class EncodedImage:
    """An image shared by several requests: encoded once, when the first one needs it.

    ``uses`` counts down; after the last use the data URL is dropped. ``kept_by`` are the servers
    that have received it.
    """

    def __init__(self, image: ImageSource, image_size: int | None, digest: str) -> None:
        self.digest = digest
        self._image, self._image_size = image, image_size
        self._encoding: asyncio.Task[tuple[bytes, str]] | None = None
        self.uses = 0
        self.kept_by: set[object] = set()

    async def url(self) -> tuple[bytes, str]:
        """The data URL and its digest, under which servers cache it."""
        if self._encoding is None:
            self._encoding = asyncio.create_task(asyncio.to_thread(self._encode))
        return await self._encoding

    def _encode(self) -> tuple[bytes, str]:
        url = data_url(self._image, self._image_size)[0].encode()
        return url, hashlib.sha256(url).hexdigest()

    def release(self) -> None:
        """Note that one request no longer needs it."""
        self.uses -= 1
        if self.uses <= 0:
            self._encoding = None


def text_tokens(text: str) -> int:
    """Estimate the tokens of a text, including the chat template."""
    return math.ceil(len(text.encode()) / 4) + 12


def image_tokens(width: int, height: int) -> int:
    """Estimate the tokens of an image by OpenAI's tiling rule; other models differ.

    >>> image_tokens(500, 375), image_tokens(1024, 1024)
    (255, 765)
    """
    ratio = min(1.0, _LONG / max(width, height))
    ratio = min(ratio, _SHORT / min(width, height))
    tiles = math.ceil(width * ratio / _TILE) * math.ceil(height * ratio / _TILE)
    return 85 + 170 * tiles


@dataclass(frozen=True)
class Estimate:
    """Estimated size of a run."""

    requests: int
    images: int
    bytes: int
    read: int
    written: int
    unusable: int = 0
    """Pairs that cannot be sent and will be NaN."""

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def cost(self, prices: Prices | None) -> float | None:
        return None if prices is None else prices.cost(self.read, self.written)
