"""Pixels of any mode and library as RGB of 8 bits.

Samples have 8 bits, 16 bits, or are floats from 0 to 1 or from 0 to 255. Anything else is refused,
and so is a picture that is darker than a sixteenth of its range (12 bits in 16), or, of floats from
0 to 1, not above 1/255 (divided by 255 twice), unless it is all black: its range is another, and
read as black it would get a score.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discode._arrays import as_numpy
from discode.errors import BadDataError, ImageError, InputError

TILE = 1 << 20
"""Pixels converted at a time, which keeps intermediate results small."""
UNKNOWN_BELOW = 1 / 16
"""Where all pixels are below this share of a range, it may be another."""
LEVEL = 1 / 256
"""One grey level of a range."""
SIXTEEN_BITS = 65535
FAINTEST = (1 + LEVEL) / 255
"""Floats from 0 to 1 whose largest is not above this were, most likely, divided by 255 twice."""
_TRANSPARENT = ("LA", "La", "PA", "RGBA", "RGBa")


def to_rgb(image: Image.Image, *, sixteen_bits: bool) -> Image.Image:
    """Return the pixels as RGB, laid on white where they are transparent.

    Raises:
        ImageError: They are not of a depth that is read.
    """
    if image.mode == "F":
        return _scaled(image, (1, 255))
    if image.mode.startswith("I"):
        return _scaled(image, (0, SIXTEEN_BITS) if sixteen_bits else (255, SIXTEEN_BITS))
    if sixteen_bits:  # of which Pillow keeps the upper 8
        ends = zip(image.getbands(), np.atleast_2d(image.getextrema()), strict=True)
        _check_range((0, 255), 0, max(high for band, (_, high) in ends if band != "A"))
    if image.mode in _TRANSPARENT or "transparency" in image.info:
        return _on_white(image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _check_range(whites: tuple[float, ...], low: float, high: float) -> float:
    """Return the smallest white that holds the brightest pixel.

    >>> _check_range((1, 255), 0.0, 0.9), _check_range((1, 255), 0.0, 250.0)
    (1, 255)
    """
    # A grey level beyond is rounding, as of an image that was resized in floats.
    white = next((white for white in whites if high <= white * (1 + LEVEL)), None)
    dark = white is not None and white > whites[0] and high < white * UNKNOWN_BELOW
    dark |= white == 1 and 0 < high <= FAINTEST
    if white is None or dark or not low >= -white * LEVEL:
        raise ImageError(f"its pixels go from {low:g} to {high:g}; save it with 8 bits")
    return white


def _tiles(size: tuple[int, int]) -> Iterator[tuple[int, int, int, int]]:
    width, height = size
    rows = max(1, TILE // width)
    for y in range(0, height, rows):
        for x in range(0, width, TILE):
            yield x, y, min(x + TILE, width), min(y + rows, height)


def _on_white(image: Image.Image) -> Image.Image:
    rgb = Image.new("RGB", image.size)
    for box in _tiles(image.size):
        part = image.crop(box)
        # Pillow has no way from this mode to RGBA but by another.
        part = (part.convert("LA") if part.mode == "La" else part).convert("RGBA")
        white = Image.new("RGBA", part.size, "white")
        rgb.paste(Image.alpha_composite(white, part).convert("RGB"), box)
    return rgb


def _scaled(image: Image.Image, whites: tuple[float, ...]) -> Image.Image:
    """Scale an image of one deep channel; Pillow would clip it to white."""
    parts = (np.asarray(image.crop(box)) for box in _tiles(image.size))
    ends = np.array([[part.min(), part.max()] for part in parts])
    white = _check_range(whites, float(ends[:, 0].min()), float(ends[:, 1].max()))
    clear = image.info.get("transparency")
    rgb = Image.new("RGB", image.size)
    for box in _tiles(image.size):
        values = np.asarray(image.crop(box), np.float64)
        grey = ((values / (white or 1)).clip(0, 1) * 255).round().astype(np.uint8)
        if isinstance(clear, int):
            grey[values == clear] = 255
        rgb.paste(Image.fromarray(grey).convert("RGB"), box)
    return rgb


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
    shape = array.shape if array.ndim == 3 else (0, *array.shape, 1) if array.ndim == 2 else (0,)
    channels = {"HWC": shape[-1], "CHW": shape[0]}
    fits = [name for name, n in channels.items() if n in (1, 3, 4) and layout in (None, name)]
    if len(fits) > 1:
        raise InputError(
            f"an array of shape {array.shape} may be HWC or CHW; say which: "
            'discode.images.from_array(image, layout="CHW")'
        )
    if not fits or not array.size:
        raise InputError(
            f"an array of shape {array.shape} is not an image with layout={layout}; give (H, W), "
            "(H, W, C) or (C, H, W) with 1, 3 or 4 channels, and 'HWC' or 'CHW'"
        )
    pixels = _eight_bits(np.moveaxis(array, 0, 2) if fits == ["CHW"] else array, top)
    return Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)


def _eight_bits(array: NDArray[Any], top: float | None) -> NDArray[np.uint8]:
    kind = array.dtype
    if kind == np.uint8 and top is None:
        return np.ascontiguousarray(array)
    if kind == np.bool_:
        array, top = array.astype(np.uint8), 1
    elif not np.issubdtype(kind, np.number) or np.iscomplexobj(array):
        raise InputError(f"an image cannot be made of {kind}; give uint8, or floats from 0 to 1")
    low, high = float(array.min()), float(array.max())
    white = 1.0 if top is None else float(top)
    if top is None and not np.issubdtype(kind, np.floating):
        white = float(SIXTEEN_BITS)
        if kind != np.uint16 or 0 < high < white * UNKNOWN_BELOW:
            raise _no_range(f"{kind} up to {high:g}")
    if not math.isfinite(white) or white <= 0:
        raise InputError(f"top={top} is not allowed; give the value of white, such as 255")
    if not (math.isfinite(low) and math.isfinite(high)):
        raise BadDataError("the image has pixels that are NaN or infinite")
    if low < -white * LEVEL:
        raise InputError(
            f"the image has pixels from {low:g} to {high:g}; undo its normalisation first "
            "(x * std + mean), so that black is 0 and white is 1"
        )
    if high > white * (1 + LEVEL):
        raise _no_range(f"{kind} up to {high:g}")
    if top is None and white == 1 and 0 < high <= FAINTEST:
        raise BadDataError(
            f"the image's largest value is {high:.2g}: divided by 255 twice? If it is this dark, "
            "give discode.images.from_array(image, top=1)"
        )
    values: Any = array.astype(np.float64) / white * 255
    return np.asarray(values.round().clip(0, 255), np.uint8)


def _no_range(what: str) -> InputError:
    return InputError(
        f"the image is {what}; give uint8 (0 to 255) or floats from 0 to 1, or say what white is: "
        "discode.images.from_array(image, top=255)"
    )
