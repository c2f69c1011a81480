"""Images: opened safely, told apart by digest; the demo's photographs."""

from __future__ import annotations

import hashlib
import io
import os
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from discode.errors import ImageError, InputError

ImageSource = str | os.PathLike[str] | bytes | Image.Image
"""A path, the bytes of an image file, or a picture already opened."""

MAX_PIXELS = 89_478_485
"""Pictures beyond this are refused, where Pillow begins to warn of bombs."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def image_digest(image: ImageSource) -> str:
    """Return the SHA-256 of a picture: of its file's bytes, or of what is seen of an open one."""
    if isinstance(image, Image.Image):
        seen = open_image(image)
        return hashlib.sha256(f"{seen.size} ".encode() + seen.tobytes()).hexdigest()
    return hashlib.sha256(image_bytes(image)).hexdigest()


def picture_key(image: ImageSource) -> Any:
    """Return what tells the pictures of a batch apart, without reading any."""
    return id(image) if isinstance(image, Image.Image) else image


class Digests:
    """Digests of pictures of one batch, each taken once: captions of a picture come together."""

    def __init__(self) -> None:
        self._known: dict[Any, str] = {}

    def of(self, image: ImageSource) -> str:
        """Return :func:`image_digest` of a picture; a path is read once, an open one seen once."""
        key = picture_key(image)
        if key not in self._known:
            self._known[key] = image_digest(image)
        return self._known[key]


def open_image(image: ImageSource) -> Image.Image:
    """Decode a picture to upright RGB, or raise :class:`ImageError`.

    Transparency is laid on white, rotation from EXIF is applied, and of an animation the
    first frame is taken.
    """
    try:
        with warnings.catch_warnings():  # Pillow warns of what is refused below
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = (
                image
                if isinstance(image, Image.Image)
                else Image.open(io.BytesIO(image_bytes(image)))
            )
        if not opened.width or not opened.height:
            raise ImageError(f"{_label(image)} has no pixels")
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
        if upright.mode != "RGB" or upright is image:
            return upright.convert("RGB")
        upright.load()
        return upright
    except ImageError:
        raise
    # Pillow raises a different error for every way a file can be broken.
    except Exception as error:
        why: object = "it is no picture" if isinstance(error, UnidentifiedImageError) else error
        if isinstance(error, Image.DecompressionBombError):
            why = f"its pixels are over {MAX_PIXELS}"
        raise ImageError(f"cannot decode {_label(image)}: {why}") from error


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scale a picture of more than eight bits; Pillow would clip it to white."""
    values = np.asarray(image, np.float64)
    top = 65535.0 if image.mode.startswith("I;16") or values.max() > 255 else 255.0
    return Image.fromarray((values.clip(0, top) / top * 255).round().astype(np.uint8))


def _label(image: ImageSource) -> str:
    return str(image) if isinstance(image, str | os.PathLike) else f"<{type(image).__name__}>"


def image_bytes(image: str | os.PathLike[str] | bytes) -> bytes:
    """Return the bytes of an image file, or raise :class:`ImageError`."""
    if isinstance(image, bytes):
        return image
    if re.match(r"\w+://", str(image)):
        raise ImageError(f"{image} is a URL; nothing is downloaded, give a local file")
    try:
        if Path(image).exists() and not Path(image).is_file():
            raise ImageError(f"cannot read {image}: it is no regular file")  # a pipe would hang
        return Path(image).read_bytes()
    except ImageError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ImageError(f"cannot read {image}: {getattr(error, 'strerror', error)}") from error


def demo_path() -> Path:
    """Return the folder of the shipped photographs and their captions.

    >>> (demo_path() / "cat.jpg").is_file()
    True
    """
    folder = Path(__file__).parent / "data" / "demo"
    if not folder.is_dir():
        raise InputError("this installation lacks the demo data; reinstall discode")
    return folder
