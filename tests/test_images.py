"""Images: read once for all their captions, within limits, as people have them."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

import discode
from discode import images
from discode._pairs import Pair, share_images
from discode.backends._embedded.backend import CPU_QUOTA
from discode.errors import HttpError, ImageError, InputError
from discode.images import SharedImage, as_image, image_bytes, image_digest, open_image
from tests.helpers.samples import encoded

AVIF = "avif" in features.get_supported()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose bytes are read from now on, but for the container's limit of cores."""
    seen: list[str] = []
    opened = Path.open

    def counted(self: Path, *args: Any, **options: Any) -> Any:
        seen.extend([self.name] * (self != CPU_QUOTA))
        return opened(self, *args, **options)

    monkeypatch.setattr(Path, "open", counted)
    return seen


@pytest.mark.parametrize("store", [True, False])
def test_twenty_captions_read_a_file_once(
    image: Path, shipped: Path, tmp_path: Path, reads: list[str], store: bool
) -> None:
    judge = discode.load("embedded", threads=1, store=tmp_path / "r.db" if store else None)
    reads.clear()
    judge.score(image, [f"caption {number}" for number in range(20)])
    assert reads == [image.name]


def test_a_shared_image_is_any_image(image: Path, reads: list[str]) -> None:
    shared = SharedImage(image)
    digest = image_digest(shared)
    assert image_bytes(shared) == image.read_bytes()
    assert open_image(shared).size == (8, 8)
    assert reads == [image.name] * 2  # the second is the test's own
    assert digest == image_digest(image)
    with Image.open(image) as opened:
        assert image_digest(SharedImage(opened)) == image_digest(opened)
        assert open_image(SharedImage(opened)).size == (8, 8)
    assert share_images([Pair(b"bytes", "a cat")])[0].image == b"bytes"


def test_beyond_the_limit_a_file_is_read_again_and_must_be_the_same(
    image: Path,
) -> None:
    shared = SharedImage(image, [0])
    image_digest(shared)
    assert open_image(shared).size == (8, 8)
    Image.new("RGB", (8, 8), "blue").save(image)
    with pytest.raises(ImageError, match="changed while"):
        open_image(shared)


def test_only_listed_formats_reach_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An EPS called .jpg is not an image: Pillow would run Ghostscript on it."""
    from PIL import EpsImagePlugin

    from discode.backends._served.estimate import data_url

    def ran(*args: object, **options: object) -> None:
        pytest.fail("Ghostscript was called")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ran)
    path = tmp_path / "harmless.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    Image.open(path).close()  # Pillow itself takes it
    for refuse, source in (
        (open_image, path), (open_image, path.read_bytes()), (open_image, SharedImage(path)),
        (data_url, path),
    ):  # fmt: skip
        with pytest.raises(ImageError):
            refuse(source)


def test_no_other_way_to_pillow() -> None:
    """Every file is opened through open_formats, which names the formats."""
    source = Path(discode.__file__).parent
    opening = [
        f"{path.name}: {line.strip()}"
        for path in sorted(source.rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if "Image.open(" in line or "Pillow.open(" in line
    ]
    assert opening == ["images.py: return Image.open(io.BytesIO(data), formats=known)"]


def undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(image: object) -> None:
        pytest.fail("it was decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", never)


@pytest.mark.parametrize(
    ("mode", "form"), [("RGBA", "PNG"), ("RGB", "WEBP"), ("RGB", "AVIF"), ("F", "TIFF")]
)
def test_what_does_not_fit_the_memory_is_refused_by_its_header(
    monkeypatch: pytest.MonkeyPatch, mode: str, form: str
) -> None:
    if form == "AVIF" and not AVIF:
        pytest.skip("this Pillow has no AVIF")
    image = encoded(Image.new(mode, (64, 64)), form)
    assert open_image(image).size == (64, 64)
    undecoded(monkeypatch)
    monkeypatch.setattr(images, "MAX_MEMORY", 64 * 64 * 8 - 1)  # 4 a pixel, and 4 of the result
    with pytest.raises(ImageError, match="64x64"):
        open_image(image)
    from discode._serve.requests import check_image

    with pytest.raises(HttpError):  # nor does the service decode it
        check_image(image)


def test_a_tile_larger_than_its_image_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A TIFF of 8x8 pixels may have a tile of a gigabyte, which the decoder makes room for."""

    def tiled(side: int) -> bytes:
        data = zlib.compress(bytes(16 * 16))
        tags = {256: 8, 257: 8, 258: 8, 259: 8, 262: 1, 277: 1, 322: side, 323: side, 324: 134,
                325: len(data)}  # fmt: skip
        entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items()]
        return b"II*\0\b\0\0\0" + struct.pack("<H", 10) + b"".join(entries) + bytes(4) + data

    assert open_image(tiled(16)).size == (8, 8)
    undecoded(monkeypatch)
    with pytest.raises(ImageError):
        open_image(tiled(16384))


@pytest.mark.parametrize("progressive", [False, True])
def test_a_large_jpeg_is_decoded_smaller(
    monkeypatch: pytest.MonkeyPatch, progressive: bool
) -> None:
    gradient = Image.linear_gradient("L").resize((640, 480)).convert("RGB")
    turned = Image.Exif()
    turned[0x0112] = 6
    image = encoded(gradient, "JPEG", quality=95, progressive=progressive, exif=turned)
    whole = open_image(image)
    assert whole.size == (480, 640)
    decoder = 6 if progressive else 0
    monkeypatch.setattr(images, "MAX_MEMORY", 640 * 480 * (decoder + 2))
    small = open_image(image)
    assert small.size == (240, 320)
    want = np.asarray(whole.reduce(2), np.int16)
    assert abs(np.asarray(small, np.int16) - want).max() <= 3
    monkeypatch.setattr(images, "MAX_PIXELS", 640 * 480 // 2)
    assert open_image(image).size == (240, 320)
    # What a user has opened is not changed behind their back, so it cannot be made smaller.
    with Image.open(io.BytesIO(image)) as opened, pytest.raises(ImageError):
        open_image(opened)
    monkeypatch.setattr(images, "MAX_PIXELS", 640 * 480 // 2 - 1)
    with pytest.raises(ImageError):
        open_image(image)


def test_files_that_have_no_end_are_failed_rows(
    shipped: Path, tmp_path: Path, image: Path, reads: list[str]
) -> None:
    sparse, pipe = tmp_path / "sparse.png", tmp_path / "pipe.png"
    sparse.touch()
    os.truncate(sparse, images.MAX_FILE + 1)  # a hole: it takes no room
    os.mkfifo(pipe)
    odd = [sparse, pipe, tmp_path, Path("/dev/zero"), Path("/proc/self/status"), image]
    judge = discode.load("embedded", threads=1)
    reads.clear()
    scores = judge.score(odd, ["a cat"] * len(odd))
    assert np.isnan(scores.value).tolist() == [True] * 5 + [False]
    assert all(odd[row].name in reason for row, reason in scores.errors.items())
    assert reads == ["status", image.name]


def test_pillow_keeps_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    """libtiff writes to the process's standard error, and Pillow to its log."""
    good = encoded(Image.effect_noise((32, 32), 50).convert("RGB"), "TIFF", compression="tiff_lzw")
    for place in range(8, 200, 5):
        with contextlib.suppress(ImageError):
            open_image(good[:place] + b"\xff" + good[place + 1 :])
    assert capfd.readouterr() == ("", "")


def test_images_are_taken_as_people_have_them(image: Path) -> None:
    data, digest = image.read_bytes(), image_digest(image)
    written = io.BytesIO()
    written.write(data)  # it stands at its end now
    for source in (data, bytearray(data), memoryview(data), written, io.BytesIO(data)):
        assert image_digest(as_image(source)) == digest
    with image.open("rb") as file:
        assert image_digest(as_image(file)) == digest
    assert open_image(written).size == (8, 8)
    with image.open(encoding="latin-1") as text:
        for odd in (text, None, 5, [data], {"image": data}):
            with pytest.raises(InputError):
                as_image(odd)  # type: ignore[arg-type]  # that is the point


def test_a_url_is_refused_with_what_to_do() -> None:
    for url in ("https://example.org/cat.jpg", "data:image/png;base64," + "A" * 9999):
        with pytest.raises(ImageError, match="is a URL") as caught:
            open_image(url)
        assert len(str(caught.value)) < 500


def _picture(kind: str) -> bytes:
    photo = Image.open(images.demo_path() / "astronaut.jpg").convert("RGB")
    if kind == "alpha":
        photo.putalpha(128)
    if kind == "plain below":  # whose end is zeros that the picture needs
        page = Image.new("RGB", (1000, 1000), "white")
        page.paste(photo, (0, 0))
        return encoded(page, "WEBP", quality=100, method=0)
    if kind.startswith("AVIF"):
        exif = b"Exif\0\0II*\0\x08\0\0\0" + bytes(300) if "Exif" in kind else b""
        return encoded(photo, "AVIF", exif=exif)
    return encoded(photo, "WEBP", lossless=kind == "lossless")


KINDS = ["lossy", "lossless", "alpha", "plain below"]
KINDS += ["AVIF", "AVIF, Exif"] if AVIF else []


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_whose_end_is_zeros_is_no_picture(kind: str) -> None:
    data = _picture(kind)
    assert open_image(data).width
    for end in (len(data) // 2, len(data) * 3 // 4):
        with pytest.raises(ImageError):
            open_image(data[:end] + bytes(len(data) - end))


@pytest.mark.skipif(not AVIF, reason="this Pillow has no AVIF")
def test_an_avif_may_end_in_exif_that_ends_in_zeros() -> None:
    exif = b"II*\0\x08\0\0\0" + bytes(300)
    data = encoded(Image.open(images.demo_path() / "cat.jpg"), "AVIF", exif=b"Exif\0\0" + exif)
    assert open_image(data + b"\0\0\x01\x3cfree" + exif).width  # as some writers place it
    with pytest.raises(ImageError):
        open_image(data + b"\0\0\x01\x3cfree" + bytes(308))
