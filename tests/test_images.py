"""Images: read once for all their captions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    opened = Path.open

    def counted(self: Path, *args: Any, **options: Any) -> Any:
        seen.append(self.name)
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


def test_only_listed_formats_reach_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An EPS called .jpg is not an image: Pillow would run Ghostscript on it."""
    from PIL import EpsImagePlugin

    from discode.backends.served.estimate import data_url

    def ran(*args: object, **options: object) -> None:
        pytest.fail("Ghostscript was called")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ran)
    path = tmp_path / "harmless.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    Image.open(path).close()  # Pillow itself takes it
    for given in (path, path.read_bytes(), SharedImage(path)):
        with pytest.raises(ImageError, match="it is not an image"):
            open_image(given)
    with pytest.raises(ImageError, match="it is not an image"):
        data_url(path)


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
