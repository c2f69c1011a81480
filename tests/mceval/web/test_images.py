"""What the server does about images: missing ones are told, large ones are decoded once."""

from __future__ import annotations

import hashlib
import io
import itertools
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow
from sqlalchemy import select

from discode.errors import HttpError
from discode.images import open_image
from mceval.copies import copies_folder
from mceval.database import Database
from mceval.intake import DomainSource, add_gold, add_images, difference_hash
from mceval.people import invite
from mceval.rules import Rules
from mceval.tables import Image
from mceval.web.images import CampaignImages
from tests.helpers.annotating import Worker, images_in, kind, make_campaign, running


def rows(db: Database) -> list[Image]:
    with db.read() as session:
        return list(session.scalars(select(Image).order_by(Image.id)).all())


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

    monkeypatch.setattr("mceval.shown.open_image", decode)
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

    def ask() -> None:
        begin.wait()
        got.append(hashlib.sha256(images.by_id(row.id).data).hexdigest())

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(decoded) == 1
    assert len(got) == 6
    assert len(set(got)) == 1
    assert CampaignImages(sqlite).by_id(row.id).media_type == "image/png"
    assert len(decoded) == 1, "nor does the next server"


def test_missing_images_are_told(sqlite: Database, tmp_path: Path) -> None:
    made = images_in(tmp_path / "in", {"a": 4})
    make_campaign(sqlite, made, 2, gold=1)
    images = CampaignImages(sqlite)
    assert images.missing() == []
    made["a"][2].unlink()
    made["a"][3].unlink()
    made["a"][3].mkdir()
    assert images.missing() == ["a/2.png", "a/3.png"]
    (row,) = [row for row in rows(sqlite) if row.source == "a/2.png"]
    with pytest.raises(HttpError, match="cannot be read"):
        images.by_id(row.id)
    (tmp_path / "elsewhere").mkdir()
    moved = CampaignImages(sqlite, tmp_path / "elsewhere")
    assert len(moved.missing()) == 5


def test_reports_that_images_do_not_load_discard_none(sqlite: Database, tmp_path: Path) -> None:
    """Everybody whose page shows no image reports it, and the campaign goes on."""
    made = images_in(tmp_path / "in", {"a": 3})
    make_campaign(sqlite, made, 3)
    away = [path.rename(path.with_suffix(".away")) for path in made["a"]]
    later = [0.0]
    clock = itertools.count(1000.0).__next__
    with running(sqlite, clock=lambda: clock() + later[0]) as where:
        people = [Worker(where, one) for one in invite(sqlite, ["A", "B", "C"], "comparer", 0.0)]
        for worker in people:
            page = worker.join()
            while kind(page) == "compare":
                worker.post("/task", page, side="left")
                page = worker.post("/flag", page, reason="The image does not load")
        states = {row.state for row in rows(sqlite)}
        assert states == {"active"}, "none discarded, and no answer was taken"
        for path in away:
            path.rename(path.with_suffix(".png"))
        assert kind(people[0].http.get("/task")) == "wait", "there is nothing else for them"
        later[0] = 3600.0
        assert [worker.work() for worker in people] == [3, 3, 3], "and nobody is used up by it"
