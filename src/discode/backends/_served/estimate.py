"""What a server is sent: images as data URLs, and an estimate of tokens and cost."""

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
"""Tokens that an answer such as "0.75" takes, its end included; for estimates."""


def data_url(image: ImageSource, image_size: int | None = None) -> tuple[str, int, int]:
    """Return an image as a data URL, with its width and height.

    A JPEG or PNG file is sent as it is, unless its longer side exceeds ``image_size``, EXIF says
    that it is rotated, or it is transparent. What must be changed is encoded anew: a JPEG as JPEG,
    everything else as PNG.
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
    """An image that several requests share: encoded once, when the first one needs it.

    ``uses`` counts down; after the last use the data URL is dropped. ``kept_by`` are the servers
    that have answered about it.
    """

    def __init__(self, image: ImageSource, image_size: int | None, digest: str) -> None:
        self.digest = digest
        self._image, self._image_size = image, image_size
        self._encoding: asyncio.Task[tuple[bytes, str]] | None = None
        self.uses = 0
        self.kept_by: set[object] = set()

    async def url(self) -> tuple[bytes, str]:
        """Return the data URL, and its own digest: the name that servers keep it by."""
        if self._encoding is None:
            self._encoding = asyncio.create_task(asyncio.to_thread(self._encode))
        return await self._encoding

    def _encode(self) -> tuple[bytes, str]:
        url = data_url(self._image, self._image_size)[0].encode()
        return url, hashlib.sha256(url).hexdigest()

    def release(self) -> None:
        """Note that one request is done with it."""
        self.uses -= 1
        if self.uses <= 0:
            self._encoding = None


def text_tokens(text: str) -> int:
    """Estimate the tokens of a text, with those that a chat template puts around it."""
    return math.ceil(len(text.encode()) / 4) + 12


def image_tokens(width: int, height: int) -> int:
    """Estimate the tokens of an image by OpenAI's rule of tiles; other models count otherwise.

    >>> image_tokens(500, 375), image_tokens(1024, 1024)
    (255, 765)
    """
    ratio = min(1.0, _LONG / max(width, height))
    ratio = min(ratio, _SHORT / min(width, height))
    tiles = math.ceil(width * ratio / _TILE) * math.ceil(height * ratio / _TILE)
    return 85 + 170 * tiles


@dataclass(frozen=True)
class Estimate:
    """What a run would send."""

    requests: int
    images: int
    bytes: int
    read: int
    written: int
    unusable: int = 0
    """Pairs that cannot be sent and would be NaN."""

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def cost(self, prices: Prices | None) -> float | None:
        """Return what it would cost, or None without prices."""
        return None if prices is None else prices.cost(self.read, self.written)
