"""What a server is sent: images as data URLs, and what a run would cost."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
from PIL import Image

from discode.backends.served.estimate import data_url
from discode.pairs import Pair
from discode.prompts import FLEUR
from discode.scales import UNIT
from tests.helpers.chat_servers import Server, pairs_of, served


def test_images_as_data_urls(tmp_path: Path) -> None:
    photo = tmp_path / "photo.jpg"
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (40, 60, 3), dtype=np.uint8)).save(photo)
    url, *size = data_url(photo)
    assert base64.b64decode(url.removeprefix("data:image/jpeg;base64,")) == photo.read_bytes()
    assert size == [60, 40]
    url, *size = data_url(photo, 30)
    assert url.startswith("data:image/jpeg")
    assert size == [30, 20]
    clear = tmp_path / "clear.png"
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(clear)
    url, *_ = data_url(clear)
    image = Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,"))))
    assert image.getpixel((0, 0)) == (255, 255, 255)  # as open_image has it
    rotated = tmp_path / "rotated.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20)).save(rotated, exif=exif)
    assert data_url(rotated)[1:] == (20, 40)
    assert data_url(Image.new("RGB", (5, 6)))[0].startswith("data:image/png")
    bitmap = tmp_path / "x.bmp"
    Image.new("RGB", (5, 6)).save(bitmap)
    assert data_url(bitmap)[0].startswith("data:image/png")


def test_estimate_sends_nothing(server: Server, image: Path, tmp_path: Path) -> None:
    pairs = [*pairs_of(image, 3), Pair(image, "caption 0"), Pair(tmp_path / "no.png", "x")]
    found = served(server, prices="2,10").estimate(pairs, FLEUR, UNIT)
    assert (found.requests, found.images, found.unusable) == (3, 1, 1)
    text = len(FLEUR.render("caption 0", [], UNIT))
    assert found.bytes == 3 * (text + len(data_url(image)[0]))
    assert found.read > 3 * (text / 4 + 85)
    assert not server.paths
