"""What the server does about images: missing ones are told, large ones are decoded once."""

from __future__ import annotations

import hashlib
import io
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow
from sqlalchemy import select

from discode.images import open_image
from mceval._intake import DomainSource, add_gold, add_images, difference_hash
from mceval._shown import copies_folder
from mceval._tables import Image
from mceval._web.images import CampaignImages
from mceval.database import Database
from mceval.rules import Rules
from tests.helpers.campaigns import at_once, scalars


def rows(db: Database) -> list[Image]:
    return list(scalars(db, select(Image).order_by(Image.id)))


def frames(seed: int) -> list[Pillow.Image]:
    rng = np.random.default_rng(seed)
    return [
        Pillow.fromarray(rng.integers(0, 255, (20, 20, 3), np.uint8)).resize((60, 60))
        for _ in range(3)
    ]


def test_an_animation_is_shown_as_the_frame_that_was_hashed(
    sqlite: Database, tmp_path: Path
) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    for i, suffix in enumerate((".gif", ".webp", ".png")):
        first, *rest = frames(i)
        first.save(folder / f"{i}{suffix}", save_all=True, append_images=rest, duration=50)
    sqlite.create(Rules())
    add_images(sqlite, [DomainSource("a", folder, 3)], now=0.0)
    images = CampaignImages(sqlite)
    for row in rows(sqlite):
        assert row.state == "pool"
        shown = images.by_id(row.id)
        with Pillow.open(io.BytesIO(shown.data)) as opened:
            assert getattr(opened, "n_frames", 1) == 1
        assert difference_hash(open_image(shown.data)).tobytes().hex() == row.dhash


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of files that were decoded to be shown."""
    found: list[int] = []

    def decode(data: bytes) -> Pillow.Image:
        found.append(len(data))
        return open_image(data)

    monkeypatch.setattr("mceval._shown.open_image", decode)
    return found


def with_a_tiff(db: Database, folder: Path) -> Image:
    """Begin a campaign with a large TIFF, and one as gold question."""
    folder.mkdir()
    frames(0)[0].resize((900, 900)).save(folder / "large.tif")
    frames(1)[0].resize((300, 300)).save(folder.parent / "gold.tif")
    (folder.parent / "gold.csv").write_text("image,right,wrong\ngold.tif,noise,a dog\n")
    db.create(Rules())
    add_images(db, [DomainSource("a", folder, 1)], now=0.0)
    add_gold(db, folder.parent / "gold.csv", 0.0)
    return rows(db)[0]


def test_a_large_image_is_decoded_at_intake(
    db: Database, tmp_path: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request of any server decodes it, and people see what was hashed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    row = with_a_tiff(db, tmp_path / "a")
    for _ in range(2):
        server = CampaignImages(db)
        for one in rows(db):
            assert server.by_id(one.id).media_type == "image/png"
    assert decoded == []
    (tmp_path / "a" / "large.tif").unlink()  # the copy is of the image that people judge
    shown = CampaignImages(db).by_id(row.id)
    assert difference_hash(open_image(shown.data)).tobytes().hex() == row.dhash
    folder = copies_folder(db)
    assert folder is not None
    assert {path.stem for path in folder.iterdir()} == {one.digest for one in rows(db)}


def test_where_copies_cannot_be_kept(sqlite: Database, tmp_path: Path, decoded: list[int]) -> None:
    """Then a server keeps its own, for as long as it runs."""
    folder = copies_folder(sqlite)
    assert folder is not None
    folder.write_text("not a folder")
    row = with_a_tiff(sqlite, tmp_path / "a")
    server = CampaignImages(sqlite)
    assert server.by_id(row.id) == server.by_id(row.id)
    assert len(decoded) == 1
    with Database("sqlite://") as memory:
        assert copies_folder(memory) is None


def test_an_older_campaign_decodes_a_large_image_once(
    sqlite: Database, tmp_path: Path, decoded: list[int]
) -> None:
    """Six requests at the same time: one decoding, and no second copy in memory."""
    row = with_a_tiff(sqlite, tmp_path / "a")
    folder = copies_folder(sqlite)
    assert folder is not None
    shutil.rmtree(folder)
    images = CampaignImages(sqlite)
    got: list[str] = []
    begin = threading.Barrier(6)

    def look(_: int) -> None:
        begin.wait()
        got.append(hashlib.sha256(images.by_id(row.id).data).hexdigest())

    at_once(look, range(6))
    assert len(decoded) == 1
    assert len(got) == 6
    assert len(set(got)) == 1
    assert CampaignImages(sqlite).by_id(row.id).media_type == "image/png"
    assert len(decoded) == 1, "nor does the next server"
