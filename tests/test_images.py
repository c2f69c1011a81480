"""Images: read once for all their captions."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

import discode
from discode.errors import ImageError
from discode.images import SharedImage, image_bytes, image_digest, open_image
from discode.pairs import Pair, share_images


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose bytes are read from now on."""
    seen: list[str] = []
    read = Path.read_bytes

    def counted(self: Path) -> bytes:
        seen.append(self.name)
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", counted)
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
    assert share_images([Pair(b"bytes", "a cat")], [0])[0].image == b"bytes"


def test_beyond_the_limit_a_file_is_read_again_and_must_be_the_same(
    image: Path,
) -> None:
    shared = SharedImage(image, [0])
    image_digest(shared)
    assert open_image(shared).size == (8, 8)
    Image.new("RGB", (8, 8), "blue").save(image)
    with pytest.raises(ImageError, match="changed while"):
        open_image(shared)


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"none\.png"):
        open_image(SharedImage(tmp_path / "none.png"))
