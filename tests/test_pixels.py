"""Pixels of every mode and depth: their true range, or a reason; and arrays as images."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from discode import _pixels as pixels
from discode._pairs import as_pairs
from discode.errors import ImageError, InputError
from discode.images import from_array, open_image
from tests.helpers.samples import encoded

GREYS = np.arange(256, dtype=np.uint8)[None].repeat(2, 0)
"""Every grey level: what a ramp of any depth must be read as."""
RAMP = GREYS.astype(np.float64) / 255


def deep(top: float, kind: Any) -> Image.Image:
    values = RAMP * top if np.issubdtype(kind, np.floating) else (RAMP * top).round()
    return Image.fromarray(values.astype(kind))


def tiff(image: Image.Image) -> bytes:
    return encoded(image, "TIFF")


def png(samples: np.ndarray) -> bytes:
    """A PNG of 16 bits (H, W, C), which Pillow does not write in colour."""
    height, width, channels = samples.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    head = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def same(image: Image.Image, want: Any) -> bool:
    return np.array_equal(np.asarray(image), np.asarray(want))


SIXTEEN = (RAMP * 65535).round().astype(np.uint16)
TWELVE = (RAMP * 4095).round().astype(np.uint16)


@pytest.mark.parametrize(
    "image",
    [
        *(tiff(deep(top, np.float32)) for top in (1, 1.00001, 255)),
        *(tiff(deep(top, np.int32)) for top in (255, 65535)),
        tiff(deep(65535, np.uint16)),
        png(SIXTEEN[..., None]),
        png(np.stack([SIXTEEN] * 3, -1)),
        deep(1, np.float32),
        deep(255, np.float32),
        deep(65535, np.uint16),
        deep(255, np.int32),
        Image.fromarray(GREYS).convert("I;16").point(lambda grey: grey * 257),
    ],
)
def test_deep_pixels_are_scaled_by_their_range(image: Any) -> None:
    assert same(open_image(image), np.stack([GREYS] * 3, -1))


def with_pixel(value: float) -> bytes:
    odd = RAMP.astype(np.float32)
    odd[0, 0] = value
    return tiff(Image.fromarray(odd))


@pytest.mark.parametrize(
    "image",
    [
        *map(with_pixel, (np.nan, np.inf, -np.inf, -0.5)),
        *(tiff(deep(top, np.float32)) for top in (1 / 255, 1.3, 3000, 65535, 1e9)),
        tiff(deep(4095, np.uint16)),
        # Its white is 0.
        tiff(deep(65535, np.uint16)).replace(
            struct.pack("<HHIHH", 262, 3, 1, 1, 0), struct.pack("<HHIHH", 262, 3, 1, 0, 0)
        ),
        png(TWELVE[..., None]),
        png(np.stack([TWELVE] * 3, -1)),
        png(np.stack([TWELVE, SIXTEEN], -1)),  # grey and alpha
        deep(4095, np.int32),
        deep(2**31 - 1, np.int32),
        Image.fromarray(np.full((2, 2), -5, np.int32)),
        b"II*\0" + bytes(20),
    ],
)
def test_other_depths_are_refused(image: Any) -> None:
    with pytest.raises(ImageError, match=r"^cannot decode <\w+>: "):
        open_image(image)


@pytest.mark.parametrize(
    ("mode", "pixel", "seen"),
    [
        ("1", 1, (255, 255, 255)),
        ("L", 90, (90, 90, 90)),
        ("LA", (90, 0), (255, 255, 255)),
        ("La", (0, 0), (255, 255, 255)),
        ("P", 0, (10, 20, 30)),
        ("PA", (0, 0), (255, 255, 255)),
        ("RGBA", (0, 0, 0, 51), (204, 204, 204)),
        ("RGBa", (0, 0, 0, 0), (255, 255, 255)),
        ("RGBX", (1, 2, 3, 0), (1, 2, 3)),
        ("CMYK", (0, 255, 255, 0), (255, 0, 0)),
        ("YCbCr", (76, 85, 255), (254, 0, 0)),
        ("HSV", (0, 255, 255), (255, 0, 0)),
        ("I;16", 51400, (200, 200, 200)),
        ("I;16B", 51400, (200, 200, 200)),
        ("F", 0.5, (128, 128, 128)),
    ],
)
def test_every_mode_is_seen_as_it_is_meant(mode: str, pixel: Any, seen: object) -> None:
    image = Image.new(mode, (3, 2), pixel)
    if mode in ("P", "PA"):
        image.putpalette([10, 20, 30])
    before = image.tobytes()
    assert np.asarray(open_image(image)).reshape(-1, 3).tolist() == [list(seen)] * 6  # type: ignore[call-overload]
    assert image.mode == mode
    assert image.tobytes() == before  # what was given is left alone


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_an_animation_the_first_frame_counts(form: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue", "lime")]
    moving = encoded(frames[0], form, save_all=True, append_images=frames[1:])
    red, green, blue = (high for _, high in open_image(moving).getextrema())  # type: ignore[misc]
    assert red > 250
    assert max(green, blue) < 5  # WebP is lossy


def test_transparency_of_a_palette_is_white() -> None:
    image = Image.new("P", (3, 1))
    image.putdata([0, 1, 2])
    image.putpalette([0, 0, 0, 200, 100, 0, 0, 100, 200])
    for clear, seen in (
        (1, [[0, 0, 0], [255, 255, 255], [0, 100, 200]]),
        (bytes([255, 0, 51]), [[0, 0, 0], [255, 255, 255], [204, 224, 244]]),
    ):
        assert np.asarray(open_image(encoded(image, transparency=clear)))[0].tolist() == seen


def test_a_part_at_a_time_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    glass = Image.fromarray(rng.integers(0, 256, (37, 53, 4), np.uint8))
    palette = glass.convert("RGB").quantize(16)
    palette.info["transparency"] = 3
    images = [glass, glass.convert("LA"), palette, deep(1, np.float32)]
    white = Image.new("RGBA", glass.size, "white")
    want = Image.alpha_composite(white, glass).convert("RGB")
    assert same(open_image(glass), want)
    whole = [np.asarray(open_image(image)) for image in images]
    for size in (1, 40, 150):
        monkeypatch.setattr(pixels, "TILE", size)
        assert all(map(same, map(open_image, images), whole))


def test_a_transparent_grey_of_sixteen_bits_is_white() -> None:
    image = encoded(deep(65535, np.uint16), transparency=int(SIXTEEN[0, 100]))
    seen = np.asarray(open_image(image))[0, :, 0]
    assert seen[100] == 255
    assert np.array_equal(np.delete(seen, 100), np.delete(GREYS[0], 100))


COLOURS = np.random.default_rng(0).integers(0, 256, (6, 7, 3), np.uint8)


def test_arrays_are_images() -> None:
    turned, half = COLOURS.transpose(2, 0, 1), (COLOURS / 255).astype(np.float16)
    floats, deep_colours = COLOURS / np.float32(255), COLOURS.astype(np.uint16) * 257
    for array in (COLOURS, turned, floats, half, turned / 255, deep_colours):
        assert same(from_array(array), COLOURS)
        assert same(open_image(array), COLOURS)


def test_arrays_with_one_or_four_channels() -> None:
    assert same(from_array(COLOURS[..., 0]), COLOURS[..., 0])
    assert same(from_array(COLOURS[..., :1]), COLOURS[..., 0])
    assert from_array(COLOURS[..., 0] > 127).getextrema() == (0, 255)
    clear = np.dstack([COLOURS, np.zeros((6, 7), np.uint8)])
    assert open_image(clear).getextrema() == ((255, 255),) * 3
    assert same(from_array(np.float64(COLOURS), top=255), COLOURS)
    assert same(from_array(np.int64(COLOURS), top=255), COLOURS)
    # Three rows, or three channels: only the caller knows.
    odd = COLOURS[:3]
    assert same(from_array(odd, layout="HWC"), odd)
    assert from_array(odd.transpose(0, 2, 1), layout="CHW").size == (7, 3)
    assert from_array(COLOURS[:3, :, 0]).size == (7, 3)  # two dimensions leave no doubt


@pytest.mark.parametrize(
    ("array", "options"),
    [
        (COLOURS[:3], {}), (COLOURS[:1], {}), (COLOURS[None], {}), (COLOURS[..., :2], {}),
        (COLOURS[:0], {}), (np.float32(COLOURS), {}), (np.int64(COLOURS), {}),
        (COLOURS.astype(np.uint16), {}), (COLOURS / 127.5 - 1, {}),
        (COLOURS / 255**2, {}), (np.float32(COLOURS) / 255**2, {}),
        (np.where(COLOURS > 9, np.nan, 0.0), {}), (np.full((4, 5), np.inf), {}),
        (COLOURS * 1j, {}), (COLOURS.astype(str), {}), (COLOURS, {"layout": "CWH"}),
        (COLOURS, {"top": 0}), (COLOURS, {"layout": "CHW"}),
    ],
)  # fmt: skip
def test_arrays_that_are_refused(array: np.ndarray, options: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        from_array(array, **options)
    assert "\n" not in str(caught.value)


def test_an_array_divided_twice_is_a_failed_row() -> None:
    """Its pixels would all be black; a black image is one, and so is what the user insists on."""
    twice = np.float32(COLOURS) / 255**2
    pair, _ = as_pairs([(twice, "a cat"), (COLOURS, "a cat")])
    assert "from_array" in str(pair.problem)
    assert from_array(np.zeros((4, 5))).getextrema() == (0, 0)
    assert from_array(twice, top=1).getextrema() == ((0, 1),) * 3
    assert from_array(np.full((4, 5), 2 / 255)).getextrema() == (2, 2)


def test_tensors_are_images() -> None:
    torch = pytest.importorskip("torch", reason="tensors want torch")
    channels_first = torch.from_numpy(COLOURS.transpose(2, 0, 1).copy())
    floats = (channels_first / 255).requires_grad_()
    for tensor in (channels_first, floats, floats.half(), floats.double() * 1.0):
        assert same(from_array(tensor), COLOURS)
    # bfloat16 has 8 bits, of which the first is not kept.
    rounded = np.asarray(from_array(floats.bfloat16()), np.int16)
    assert abs(rounded - COLOURS).max() <= 1
