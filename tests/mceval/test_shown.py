"""What people see of an image and what is published: its pixels, one frame, no metadata."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import ImageCms, PngImagePlugin

from discode.errors import ImageError
from discode.images import demo_path, open_image
from mceval._shown import shown_copy, without_metadata
from tests.helpers.samples import encoded

SECRET = b"51.4778 north of home"
PHOTO = Pillow.open(demo_path() / "coffee.jpg").convert("RGB").resize((97, 61))
ICC = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def exif(orientation: int = 1) -> Pillow.Exif:
    """EXIF as a phone writes it, with a place."""
    tags = Pillow.Exif()
    tags[0x010E] = SECRET.decode()
    tags[0x0112] = orientation
    tags.get_ifd(0x8825)[1] = "N"
    tags.get_ifd(0x8825)[2] = (51.0, 28.0, 40.0)
    return tags


def saved(kind: str, image: Pillow.Image = PHOTO, **options: Any) -> bytes:
    return encoded(image, kind, **options)


def texts() -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    info.add_text("Comment", SECRET.decode())
    info.add_itxt("XML:com.adobe.xmp", f"<x>{SECRET.decode()}</x>")
    return info


FRAMES = [PHOTO, PHOTO.transpose(Pillow.Transpose.ROTATE_180)]
FILES = {
    "jpeg": saved("JPEG", exif=exif(), xmp=b"<x>" + SECRET, comment=SECRET, icc_profile=ICC),
    "progressive": saved("JPEG", exif=exif(), progressive=True, quality=70),
    "restarts": saved("JPEG", exif=exif(), restart_marker_rows=1),
    "turned": saved("JPEG", exif=exif(6)),
    "cmyk": saved("JPEG", PHOTO.convert("CMYK"), exif=exif()),
    "grey": saved("JPEG", PHOTO.convert("L"), exif=exif()),
    "a film behind it": saved("JPEG", exif=exif()) + b"MotionPhoto_Data" + SECRET,
    "mpo": saved("MPO", save_all=True, append_images=FRAMES[1:], exif=exif()),
    "png": saved("PNG", pnginfo=texts(), exif=exif(), icc_profile=ICC),
    "png turned": saved("PNG", exif=exif(8)),
    "apng": saved("PNG", save_all=True, append_images=FRAMES[1:], pnginfo=texts()),
    "palette": saved("PNG", PHOTO.quantize(20), pnginfo=texts()),
    "webp": saved("WEBP", exif=exif(), xmp=SECRET, icc_profile=ICC, lossless=True),
    "webp turned": saved("WEBP", exif=exif(3), lossless=True),
    "webp in motion": saved("WEBP", save_all=True, append_images=FRAMES[1:], exif=exif()),
    "gif": saved("GIF", PHOTO.quantize(9), comment=SECRET),
    "gif in motion": saved("GIF", save_all=True, append_images=FRAMES[1:], comment=SECRET),
    "tiff": saved("TIFF", exif=exif()),
    "bmp": saved("BMP"),
}


@pytest.mark.parametrize("name", FILES)
def test_the_same_pixels_without_the_metadata(name: str) -> None:
    data = FILES[name]
    assert SECRET in data or name in ("bmp", "png turned", "webp in motion") or b"51" in data
    made = shown_copy(data)
    assert SECRET not in made.data
    with Pillow.open(io.BytesIO(made.data)) as opened:
        assert getattr(opened, "n_frames", 1) == 1
        left = dict(opened.getexif())
        assert set(left) <= {0x0112}
        assert not opened.getexif().get_ifd(0x8825)
        assert "xmp" not in opened.info
        assert "comment" not in opened.info
        assert made.media_type == Pillow.MIME[opened.format or ""]
        if name in ("jpeg", "png", "webp"):
            assert opened.info["icc_profile"] == ICC
    np.testing.assert_array_equal(np.asarray(open_image(made.data)), np.asarray(open_image(data)))


def test_what_has_no_metadata_stays_as_it_is() -> None:
    for kind in ("JPEG", "PNG", "WEBP"):
        data = saved(kind)
        assert shown_copy(data).data == data


def test_what_need_not_be_decoded_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*args: object) -> None:
        pytest.fail("decoded")

    monkeypatch.setattr("mceval._shown.open_image", decode)
    for name in ("jpeg", "progressive", "mpo", "turned", "png", "apng", "webp"):
        assert shown_copy(FILES[name]).data
    assert without_metadata(FILES["tiff"]) is None


def test_broken_files() -> None:
    """Cut anywhere, a file gives a copy or one line, and never the metadata."""
    for name in ("jpeg", "progressive", "png", "webp", "tiff", "gif"):
        data = FILES[name]
        for end in range(0, len(data), max(1, len(data) // 60)):
            try:
                made = shown_copy(data[:end])
            except ImageError:
                continue
            assert SECRET not in made.data
    with pytest.raises(ImageError):
        shown_copy(b"%!PS-Adobe-3.0 EPSF-3.0\n")
