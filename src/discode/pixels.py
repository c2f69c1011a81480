"""Pixels of any mode, depth and library as RGB of 8 bits: by their true range, or refused.

A picture of more than 8 bits seldom says what its white is. The range that the file states counts;
otherwise the smallest that holds the brightest pixel, out of those in use for its mode. Where that
pixel is darker than a sixteenth of the range (12 bits in 16, floats up to 1.3), the range is
unknown and the picture is refused: read as black it would get a score.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discode.arrays import as_numpy
from discode.errors import BadDataError, ImageError, InputError

TILE = 1 << 20
"""Pixels are converted by so many at a time, so that intermediate results stay small."""
UNKNOWN_BELOW = 1 / 16
"""Of a range that the file does not state: where all pixels are below, it may be another."""
LEVEL = 1 / 256
"""One grey level of a range."""
SIXTEEN_BITS = 65535
_TRANSPARENT = ("LA", "La", "PA", "RGBA", "RGBa")
# Tags of TIFF
_BITS, _WHITE_IS, _LARGEST, _FORMAT, _LOWEST, _HIGHEST = 258, 262, 281, 339, 340, 341


@dataclass(frozen=True)
class Depth:
    """What an image file says of its samples before it is decoded.

    Attributes:
        ranges: For images of one deep channel, the values that may stand for white, ascending.
        stated: The one that the file names.
        black: The value that it names for black.
        inverted: Whether 0 is white and Pillow leaves that to us.
        reduced: Whether Pillow keeps the upper 8 of 16 bits.
    """

    ranges: tuple[float, ...] = ()
    stated: float | None = None
    black: float = 0.0
    inverted: bool = False
    reduced: bool = False

    @classmethod
    def of(cls, opened: Image.Image, data: bytes = b"") -> Depth:
        """Return what an image says that was opened and not decoded; ``data`` is its file's."""
        mode = opened.mode
        tags = getattr(opened, "tag_v2", None) or {}
        if not mode.startswith("I") and mode != "F":
            return cls(reduced=";16" in _raw_mode(opened))
        bits, kind = _number(tags, _BITS), _number(tags, _FORMAT)
        if mode == "F":
            ranges: tuple[float, ...] = (1, 255, SIXTEEN_BITS)
        elif mode.startswith("I;16") or opened.format == "PNG":
            ranges = (0, SIXTEEN_BITS)
        elif bits == 16 and kind == 2:  # signed
            ranges = (0, SIXTEEN_BITS // 2)
        else:
            ranges = (255, SIXTEEN_BITS, 2**31 - 1)
        stated, black = _number(tags, _HIGHEST), 0.0
        largest = _number(tags, _LARGEST)
        if stated is not None:
            black = _number(tags, _LOWEST) or 0.0
        # This one is a statistic, unless it tells a number of bits.
        elif largest is not None and largest >= 1 and math.log2(largest + 1).is_integer():
            stated = largest
        elif bits is not None and bits < 16:
            stated = 2**bits - 1
        elif significant := _significant_bits(data):
            stated = 2**significant - 1
        if stated is not None and not stated > black:
            stated, black = None, 0.0
        return cls(ranges, stated, black, _number(tags, _WHITE_IS) == 0)

    def white(self, low: float, high: float) -> float:
        """Return the value of white, or raise :class:`ImageError` where it is not known.

        >>> Depth((1, 255)).white(0.0, 0.9), Depth((1, 255)).white(0.0, 250.0)
        (1, 255)
        >>> Depth((0, 65535)).white(0, 4000)
        Traceback (most recent call last):
        discode.errors.ImageError: its brightest pixel is 4000, and the file does not say of what; \
save it with 8 bits, or over the whole range of 65535
        """
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ImageError("it has pixels that are NaN or infinite")
        known = self.stated is not None and high <= self.stated
        tops = (self.stated,) if known else self.ranges
        # A grey level beyond is rounding, as of an image that was resized in floats.
        white = next((top for top in tops if top is not None and high <= top * (1 + LEVEL)), None)
        if white is None:
            raise ImageError(f"its brightest pixel is {high:g}; save it with 8 bits")
        if low < self.black - white * LEVEL:
            raise ImageError(f"it has pixels below black, down to {low:g}; save it with 8 bits")
        if not known and white > self.ranges[0] and high < white * UNKNOWN_BELOW:
            raise ImageError(
                f"its brightest pixel is {high:g}, and the file does not say of what; save it "
                f"with 8 bits, or over the whole range of {white}"
            )
        return white


def to_rgb(image: Image.Image, depth: Depth) -> Image.Image:
    """Return the pixels as RGB, laid on white where they are transparent.

    Raises:
        ImageError: The range of its pixels is not known.
    """
    if depth.ranges:
        return _scaled(image, depth)
    if depth.reduced:
        ends = zip(image.getbands(), np.atleast_2d(image.getextrema()), strict=True)
        if max(high for band, (_, high) in ends if band != "A") < 256 * UNKNOWN_BELOW:
            raise ImageError(
                "its 16-bit colours are all below a sixteenth of their range; save it with 8 bits"
            )
    if image.mode in _TRANSPARENT or "transparency" in image.info:
        return _on_white(image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _tiles(size: tuple[int, int]) -> Iterator[tuple[int, int, int, int]]:
    width, height = size
    rows = max(1, TILE // width)
    for y in range(0, height, rows):
        for x in range(0, width, TILE):
            yield x, y, min(x + TILE, width), min(y + rows, height)


def _on_white(image: Image.Image) -> Image.Image:
    made = Image.new("RGB", image.size)
    for box in _tiles(image.size):
        part = image.crop(box)
        # Pillow has no way from this mode to RGBA but by another.
        part = (part.convert("LA") if part.mode == "La" else part).convert("RGBA")
        white = Image.new("RGBA", part.size, "white")
        made.paste(Image.alpha_composite(white, part).convert("RGB"), box)
    return made


def _scaled(image: Image.Image, depth: Depth) -> Image.Image:
    """Scale an image of one deep channel; Pillow would clip it to white."""
    ends = np.array(
        [
            [part.min(), part.max()]
            for part in (np.asarray(image.crop(b)) for b in _tiles(image.size))
        ]
    )
    low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
    white = depth.white(low, high)
    clear = image.info.get("transparency")
    made = Image.new("RGB", image.size)
    for box in _tiles(image.size):
        values = np.asarray(image.crop(box), np.float64)
        share = (values - depth.black) / ((white - depth.black) or 1)
        grey = (share.clip(0, 1) * 255).round().astype(np.uint8)
        if depth.inverted:
            grey = 255 - grey
        if isinstance(clear, int):
            grey[values == clear] = 255
        made.paste(Image.fromarray(grey).convert("RGB"), box)
    return made


def _raw_mode(opened: Image.Image) -> str:
    """Return how the file stores a pixel, as Pillow names it: "RGB;16B"."""
    tiles = getattr(opened, "tile", None)
    arguments = tiles[0][3] if tiles else ""
    return str(arguments if isinstance(arguments, str) else arguments[0] if arguments else "")


def _number(tags: Any, tag: int) -> float | None:
    """Return the (first) number of a tag, None where there is none."""
    value = tags.get(tag)
    value = value[0] if isinstance(value, tuple) and value else value
    try:
        return float(value)
    except (TypeError, ValueError, ZeroDivisionError):  # a rational may be one of 0
        return None


def _significant_bits(data: bytes) -> int | None:
    """Return the significant bits of a grey PNG (sBIT), where its file tells them."""
    place = 8 if data.startswith(b"\x89PNG") else len(data)
    while place + 9 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        if kind == b"IDAT":
            break
        if kind == b"sBIT":
            return data[place + 8] if 8 <= data[place + 8] <= 16 else None
        place += 12 + length
    return None


def from_array(image: Any, *, layout: str | None = None, top: float | None = None) -> Image.Image:
    """Return an array or tensor as an image, to be scored like any other.

    Args:
        image: (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels (grey, RGB, RGBA).
        layout: "HWC" or "CHW"; by the shape if None, which must leave no doubt.
        top: The value of white; if None 1 for floats, 255 for uint8, 65535 for uint16.

    >>> from_array(np.zeros((3, 20, 10), np.float32)).size
    (10, 20)
    >>> from_array(np.zeros((3, 5, 3)))
    Traceback (most recent call last):
    discode.errors.InputError: an array of shape (3, 5, 3) may be HWC or CHW; say which: \
discode.images.from_array(image, layout="CHW")
    """
    array = as_numpy(image)
    array = array[..., None] if array.ndim == 2 else array
    if layout not in (None, "HWC", "CHW"):
        raise InputError(f"layout={layout!r} is not allowed; allowed: 'HWC', 'CHW'")
    if array.ndim != 3 or not array.size:
        raise InputError(
            f"an array of shape {np.shape(image)} is no image; give (H, W), (H, W, C) or (C, H, W)"
        )
    fits = {name: array.shape[at] in (1, 3, 4) for name, at in (("HWC", 2), ("CHW", 0))}
    fits["CHW"] &= np.ndim(image) != 2
    if layout is None and all(fits.values()):
        raise InputError(
            f"an array of shape {array.shape} may be HWC or CHW; say which: "
            'discode.images.from_array(image, layout="CHW")'
        )
    layout = layout or next((name for name in fits if fits[name]), "HWC")
    if not fits[layout]:
        raise InputError(
            f"an array of shape {array.shape} has no 1, 3 or 4 channels; give (H, W, C) or "
            "(C, H, W)"
        )
    pixels = _eight_bits(array if layout == "HWC" else np.moveaxis(array, 0, 2), top)
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def _eight_bits(array: NDArray[Any], top: float | None) -> NDArray[np.uint8]:
    kind = array.dtype
    if kind == np.bool_:
        array, top = array.astype(np.uint8), 1
    elif kind == np.uint8 and top is None:
        return np.ascontiguousarray(array)
    elif top is None and kind == np.uint16:
        top = SIXTEEN_BITS
        if 0 < array.max() < top * UNKNOWN_BELOW:
            raise _no_range(f"uint16 only up to {array.max()}")
    elif top is None and not np.issubdtype(kind, np.floating):
        raise _no_range(f"{kind}")
    white = 1.0 if top is None else float(top)
    if not (np.issubdtype(kind, np.number) or kind == np.bool_) or np.iscomplexobj(array):
        raise InputError(f"an image cannot be made of {kind}; give uint8, or floats from 0 to 1")
    if not math.isfinite(white) or white <= 0:
        raise InputError(f"top={top} is not allowed; give the value of white, such as 255")
    low, high = float(array.min()), float(array.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise BadDataError("the image has pixels that are NaN or infinite")
    if low < -white * LEVEL:
        raise InputError(
            f"the image has pixels from {low:g} to {high:g}; undo its normalisation first "
            "(x * std + mean), so that black is 0 and white is 1"
        )
    if high > white * (1 + LEVEL):
        raise _no_range(f"{kind} up to {high:g}")
    values: Any = array.astype(np.float64) / white * 255
    return np.asarray(values.round().clip(0, 255), np.uint8)


def _no_range(what: str) -> InputError:
    return InputError(
        f"the image is {what}; give uint8 (0 to 255) or floats from 0 to 1, or say what white is: "
        "discode.images.from_array(image, top=255)"
    )
