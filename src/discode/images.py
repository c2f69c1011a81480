"""Images: opened safely, told apart by digest, read once for all their captions."""

from __future__ import annotations

import hashlib
import io
import os
import re
import warnings
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from discode.errors import ImageError, InputError

MAX_PIXELS = 89_478_485
"""Larger images are refused, where Pillow begins to warn of decompression bombs."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
IMAGE_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "MPO", "PNG", "TIFF", "WEBP")
"""The formats that are opened, whatever a file is called. Pillow knows more, and hands some of them
to other programs: an EPS to Ghostscript."""
KEPT_BYTES = 64 << 20
"""Bytes of image files that the pairs of a batch share in memory; beyond, files are read again."""


class SharedImage:
    """An image of several pairs: its file is read when it is first needed, and once.

    Made by :func:`~discode.pairs.share_images`. Backends treat it as any other image:
    :func:`open_image`, :func:`image_bytes` and :func:`image_digest` take it. ``budget`` holds one
    number, the bytes that all images of the batch may still keep in memory.
    """

    __slots__ = ("_budget", "_data", "_digest", "source")

    def __init__(
        self, source: str | os.PathLike[str] | Image.Image, budget: list[int] | None = None
    ) -> None:
        self.source = source
        self._budget = [KEPT_BYTES] if budget is None else budget
        self._data: bytes | None = None
        self._digest: str | None = None

    def __str__(self) -> str:
        return _name(self.source)

    def digest(self) -> str:
        """Return :func:`image_digest` of the source, computed once."""
        if self._digest is None:
            if isinstance(self.source, Image.Image):
                self._digest = image_digest(self.source)
            else:
                self._digest = hashlib.sha256(self.data()).hexdigest()
        return self._digest

    def data(self) -> bytes:
        """Return the bytes of the file."""
        if self._data is not None:
            return self._data
        if isinstance(self.source, Image.Image):
            raise ImageError("an open image has no file; give a path or its bytes")
        data = image_bytes(self.source)
        if self._digest is not None and hashlib.sha256(data).hexdigest() != self._digest:
            raise ImageError(f"{self} changed while it was being read")
        if len(data) <= self._budget[0]:
            self._budget[0] -= len(data)
            self._data = data
        return data


ImageSource = str | os.PathLike[str] | bytes | Image.Image | SharedImage
"""A path, the bytes of an image file, an open image, or one that pairs of a batch share."""


def image_digest(image: ImageSource) -> str:
    """Return the SHA-256 of an image: of its file's bytes, or of the pixels of an open one."""
    if isinstance(image, SharedImage):
        return image.digest()
    if isinstance(image, Image.Image):
        seen = open_image(image)
        return hashlib.sha256(f"{seen.size} ".encode() + seen.tobytes()).hexdigest()
    return hashlib.sha256(image_bytes(image)).hexdigest()


def open_image(image: ImageSource) -> Image.Image:
    """Decode an image to upright RGB, or raise :class:`ImageError`.

    Transparency is laid on white, rotation from EXIF is applied, and of an animation the
    first frame is taken.
    """
    given = image
    if isinstance(image, SharedImage) and isinstance(image.source, Image.Image):
        given = image.source  # there is no file to read
    try:
        with warnings.catch_warnings():  # Pillow warns of what is refused below
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = given if isinstance(given, Image.Image) else open_formats(image_bytes(given))
        if not opened.width or not opened.height:
            raise ImageError(f"{_name(image)} has no pixels")
        if opened.width * opened.height > MAX_PIXELS:
            raise ImageError(f"{opened.width}x{opened.height} pixels are over {MAX_PIXELS}")
        # A copy of a large photograph is a hundred megabytes: none is made without need.
        turned = opened.getexif().get(ExifTags.Base.Orientation, 1) != 1
        upright = ImageOps.exif_transpose(opened) if turned else opened
        if upright.mode.startswith("I") or upright.mode == "F":
            upright = _eight_bits(upright)
        if "A" in upright.getbands() or "transparency" in upright.info:
            rgba = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
        if upright.mode != "RGB" or upright is given:
            return upright.convert("RGB")
        upright.load()
        return upright
    except ImageError:
        raise
    # Pillow raises a different error for every way a file can be broken.
    except Exception as error:
        why: object = "it is not an image" if isinstance(error, UnidentifiedImageError) else error
        if isinstance(error, Image.DecompressionBombError):
            why = f"its pixels are over {MAX_PIXELS}"
        raise ImageError(f"cannot decode {_name(image)}: {why}") from error


def open_formats(data: bytes) -> Image.Image:
    """Return a file of one of the :data:`IMAGE_FORMATS`, opened by Pillow and not decoded yet.

    Every file that is given to Pillow passes here.

    >>> open_formats((demo_path() / "cat.jpg").read_bytes()).format
    'JPEG'
    """
    Image.init()
    known = [name for name in IMAGE_FORMATS if name in Image.OPEN]  # AVIF came with Pillow 11.3
    return Image.open(io.BytesIO(data), formats=known)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scale an image of more than eight bits; Pillow would clip it to white."""
    values = np.asarray(image, np.float64)
    top = 65535.0 if image.mode.startswith("I;16") or values.max() > 255 else 255.0
    return Image.fromarray((values.clip(0, top) / top * 255).round().astype(np.uint8))


def _name(image: ImageSource) -> str:
    shown = isinstance(image, str | os.PathLike | SharedImage)
    return str(image) if shown else f"<{type(image).__name__}>"


def image_bytes(image: str | os.PathLike[str] | bytes | SharedImage) -> bytes:
    """Return the bytes of an image file, or raise :class:`ImageError`."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, SharedImage):
        return image.data()
    if re.match(r"\w+://", str(image)):
        raise ImageError(f"{image} is a URL; nothing is downloaded, give a local file")
    try:
        if Path(image).exists() and not Path(image).is_file():
            raise ImageError(f"cannot read {image}: it is not a regular file")  # a pipe would hang
        return Path(image).read_bytes()
    except ImageError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ImageError(f"cannot read {image}: {getattr(error, 'strerror', error)}") from error


def demo_path() -> Path:
    """Return the folder of the photographs that ship with the package, and their captions.

    >>> (demo_path() / "cat.jpg").is_file()
    True
    """
    folder = Path(__file__).parent / "data" / "demo"
    if not folder.is_dir():
        raise InputError("this installation lacks the demo data; reinstall discode")
    return folder
