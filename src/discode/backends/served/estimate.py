"""What is sent to a server: a picture as a data URL, and a guess at how many tokens that is."""

from __future__ import annotations

import base64
import io
import math
import threading
from dataclasses import astuple, dataclass

from PIL import ExifTags, Image

from discode.backends.served.client import Prices
from discode.images import ImageSource, SharedImage, image_bytes, open_image

_MIME = {"JPEG": "image/jpeg", "PNG": "image/png"}
_TILE, _SHORT, _LONG = 512, 768, 2048  # how OpenAI's models cut a picture
ANSWER_TOKENS = 6
"""Tokens that an answer such as "0.75" takes, its end included; for estimates."""


def data_url(image: ImageSource, image_size: int | None = None) -> tuple[str, int, int]:
    """Return a picture as a data URL, with its width and height.

    A JPEG or PNG file goes as it is, unless its longer side exceeds ``image_size``, it is turned by
    EXIF, or it is transparent; what must be changed is sent as JPEG where it was one, else as PNG.
    """
    seen = open_image(image)  # also tells whether it is a picture at all
    kind, data, plain = "PNG", b"", False
    if isinstance(image, SharedImage) and isinstance(image.source, Image.Image):
        image = image.source
    if not isinstance(image, Image.Image):
        data = image_bytes(image)
        with Image.open(io.BytesIO(data)) as opened:
            kind = opened.format or ""
            plain = (
                kind in _MIME
                and opened.mode in ("RGB", "L")
                and "transparency" not in opened.info
                and opened.getexif().get(ExifTags.Base.Orientation, 1) == 1
            )
    longer = max(seen.size)
    if image_size is not None and longer > image_size:
        ratio = image_size / longer
        size = (max(1, round(seen.width * ratio)), max(1, round(seen.height * ratio)))
        seen, plain = seen.resize(size, Image.Resampling.LANCZOS), False
    if not plain:
        kind = "JPEG" if kind == "JPEG" else "PNG"
        file = io.BytesIO()
        seen.save(file, kind, quality=95) if kind == "JPEG" else seen.save(file, kind)
        data = file.getvalue()
    return f"data:{_MIME[kind]};base64,{base64.b64encode(data).decode()}", *seen.size


class Picture:
    """A picture that several requests show: encoded when the first wants it, once.

    ``uses`` counts down; behind the last one the text is let go.
    """

    def __init__(self, image: ImageSource, image_size: int | None) -> None:
        self._image, self._image_size = image, image_size
        self._lock, self._url = threading.Lock(), b""
        self.uses = 0

    def url(self) -> bytes:
        """Return the data URL."""
        with self._lock:
            self._url = self._url or data_url(self._image, self._image_size)[0].encode()
            return self._url

    def used(self) -> None:
        """Count one use."""
        with self._lock:
            self.uses -= 1
            if self.uses <= 0:
                self._url = b""


def text_tokens(text: str) -> int:
    """Return about how many tokens a text is, with what a chat template puts around it."""
    return math.ceil(len(text.encode()) / 4) + 12


def picture_tokens(width: int, height: int) -> int:
    """Return about how many tokens a picture is: OpenAI's rule of tiles; others' differ.

    >>> picture_tokens(500, 375), picture_tokens(1024, 1024)
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
    """Pairs that would be NaN without being sent."""

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def cost(self, prices: Prices | None) -> float | None:
        """Return what it would cost, where prices are known."""
        return None if prices is None else prices.cost(self.read, self.written)
