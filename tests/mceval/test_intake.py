from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow
from sqlalchemy import select

from discode.errors import InputError
from discode.images import open_image
from mceval._candidates import add_captions
from mceval._intake import (
    AddedGold,
    DomainSource,
    SeenHashes,
    add_gold,
    add_images,
    difference_hash,
    list_images,
)
from mceval._tables import Domain, Image
from mceval.database import Database, open_database
from mceval.rules import Rules
from tests.helpers.campaigns import check_rules, invite_people, scalars, work_all
from tests.helpers.images import caption_files, image_folders
from tests.helpers.samples import encoded


def images(db: Database) -> list[Image]:
    return list(scalars(db, select(Image).order_by(Image.id)))


def test_what_cannot_be_used_is_listed_with_its_reason(sqlite: Database, tmp_path: Path) -> None:
    places = image_folders(tmp_path, {"a": 5, "b": 3})
    first = places["a"] / "000.png"
    (places["a"] / "deep").mkdir()
    (places["a"] / "deep" / "copy.png").write_bytes(first.read_bytes())
    Pillow.open(places["a"] / "001.png").convert("RGB").save(places["b"] / "like.jpg", quality=80)
    (places["b"] / "broken.png").write_bytes(b"\x89PNG not at all")
    (places["b"] / "empty.jpg").touch()
    (places["b"] / "notes.txt").write_text("not an image")
    sqlite.create(Rules())
    sources = [DomainSource(name, path, 2) for name, path in places.items()]
    counts = add_images(sqlite, sources, now=1.0)
    assert counts == {
        "a": {"pool": 5, "duplicate": 1},
        "b": {"pool": 3, "duplicate": 1, "unreadable": 2},
    }
    reasons = {row.source: row.reason for row in images(sqlite) if row.state != "pool"}
    assert reasons["a/deep/copy.png"] == "the same file as a/000.png"
    assert reasons["b/like.jpg"] == "looks like a/001.png"
    assert "cannot" in reasons["b/broken.png"]
    assert reasons["b/empty.jpg"]
    kept = next(row for row in images(sqlite) if row.source == "a/000.png")
    assert kept.digest == hashlib.sha256(first.read_bytes()).hexdigest()
    assert scalars(sqlite, select(Domain.quota)) == [2, 2]


def test_the_order_is_random_and_its_own(tmp_path: Path) -> None:
    """The order follows from seed and pixels: files renamed and listed anew keep their places."""
    places = image_folders(tmp_path / "x", {"a": 12})
    renamed = tmp_path / "y" / "a"
    renamed.mkdir(parents=True)
    for i, file in enumerate(sorted(places["a"].iterdir(), reverse=True)):
        (renamed / f"z{i:02d}.png").write_bytes(file.read_bytes())
    orders = []
    for seed, path in ((0, places["a"]), (0, renamed), (1, renamed)):
        with Database("sqlite://") as db:
            db.create(Rules(seed=seed))
            add_images(db, [DomainSource("a", path, 5)], now=0.0)
            orders.append([row.digest for row in sorted(images(db), key=lambda row: row.rank)])
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert set(orders[0]) == set(orders[2])


def test_difference_hashes_against_brute_force() -> None:
    rng = np.random.default_rng(0)
    full = np.full(32, 255, np.uint8)
    hashes = [np.packbits(rng.random(256) < 0.5) for _ in range(150)]
    hashes += [row ^ np.packbits(np.arange(256) < k) for k in range(12) for row in hashes[:3]]
    masks = [full, *(np.packbits(rng.random(256) < share) for share in (0.02, 0.1, 0.3, 0.4))]
    seen, kept = SeenHashes(6), list[tuple[np.ndarray, np.ndarray]]()
    for i, row in enumerate(hashes):
        mask = masks[i % len(masks)]
        near = []
        for other, told in kept:
            bits = int(np.unpackbits(mask | told).sum())
            limit = 6 * min(1, bits / 128)
            near.append(bits >= 8 and int(np.unpackbits(row ^ other).sum()) <= limit)
        assert bool(seen.match_or_add(np.concatenate([row, mask]), str(i))) == any(near)
        if not any(near):
            kept.append((row, mask))
    old = SeenHashes(6)  # of an earlier version: 32 bytes
    assert not old.match_or_add(hashes[0], "a")
    assert old.match_or_add(hashes[0], "b") == "a"
    off = SeenHashes(-1)
    assert not off.match_or_add(hashes[0], "a")
    assert not off.match_or_add(hashes[0], "b")


def real_images(data: Path) -> dict[str, list[Pillow.Image]]:
    """Line drawings and others: 400 of each of three quickdraw words, 140 of PACS's domains."""
    for name in ("pacs_sample", "quickdraw_sample"):
        if not (data / name).is_dir():
            pytest.skip(f"no {name}")
    found = {}
    for file in sorted((data / "quickdraw_sample").glob("*.bin")):
        cells = np.frombuffer(file.read_bytes(), np.uint8).reshape(-1, 28, 28)
        found[file.stem] = [Pillow.fromarray(255 - cell).convert("RGB") for cell in cells[:400]]
    for domain in ("sketch", "photo"):
        files = sorted((data / "pacs_sample" / domain).rglob("*.*"))
        found[domain] = [open_image(file) for file in files]
    return found


@pytest.mark.data
def test_drawings_are_not_lost_and_copies_are_found(data: Path) -> None:
    """Sketches on white paper are alike in most cells; 19 of these 1,340 used to be lost."""
    lost = total = 0
    for name, drawn in real_images(data).items():
        seen = SeenHashes(6)
        for i, image in enumerate(drawn):
            total += 1
            lost += bool(seen.match_or_add(difference_hash(image), str(i)))
        if name in ("sketch", "photo"):  # the others are 28 pixels wide: JPEG makes them another
            found = sum(
                _is_copy(image, open_image(encoded(image, "JPEG", quality=75))) for image in drawn
            )
            assert found >= 0.95 * len(drawn)
    assert total >= 1480
    assert lost == 0


def _is_copy(image: Pillow.Image, other: Pillow.Image) -> bool:
    seen = SeenHashes(6)
    seen.match_or_add(difference_hash(image), "original")
    return seen.match_or_add(difference_hash(other), "copy") == "original"


def test_lists_and_tables(tmp_path: Path) -> None:
    places = image_folders(tmp_path, {"a": 3})
    listed = tmp_path / "list.txt"
    listed.write_text("a/002.png\n\n a/000.png \n")
    assert [source for source, _ in list_images(DomainSource("a", listed, 1))] == [
        "a/000.png",
        "a/002.png",
    ]
    table = tmp_path / "list.jsonl"
    rows = [{"image": "a/001.png", "source": "https://x/1"}, {"image": "a/000.png"}]
    table.write_text("\n".join(map(json.dumps, rows)))
    assert list_images(DomainSource("a", table, 1)) == [
        ("a/000.png", places["a"] / "000.png"), ("https://x/1", places["a"] / "001.png")
    ]  # fmt: skip


def test_gold_questions(sqlite: Database, tmp_path: Path) -> None:
    image_folders(tmp_path, {"g": 6})
    sqlite.create(Rules())
    rows = [{"image": f"g/{i:03d}.png", "right": "noise", "wrong": "a dog"} for i in range(6)]
    path = tmp_path / "gold.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert add_gold(sqlite, path, 0.0) == AddedGold(6)
    assert images(sqlite)[0].source == "g/000.png"
    assert {row.gold for row in images(sqlite)} == {0, 1}
    for change in ({"wrong": "Noise "}, {"image": "g/none.png"}, {"right": ""}):
        path.write_text(json.dumps(rows[0] | change))
        with pytest.raises(InputError, match=r"gold\.jsonl line 1"):
            add_gold(sqlite, path, 0.0)
    path.write_text("")
    with pytest.raises(InputError):
        add_gold(sqlite, path, 0.0)


def test_gold_on_images_that_are_met_twice(sqlite: Database, tmp_path: Path) -> None:
    places = image_folders(tmp_path, {"a": 3})
    sqlite.create(Rules())
    add_images(sqlite, [DomainSource("a", places["a"], 2)], now=0.0)
    (tmp_path / "own").mkdir()
    Pillow.new("RGB", (9, 9), "red").save(tmp_path / "own" / "red.png")
    path = tmp_path / "gold.csv"
    rows = ["a/000.png,noise,a dog", "a/000.png,noise,a cat", "own/red.png,red,blue"]
    path.write_text("image,right,wrong\n" + "\n".join(rows))
    added = add_gold(sqlite, path, 0.0)
    assert added == AddedGold(3, in_domains=("a/000.png",), repeated=("a/000.png",))
    assert len(list(added.warnings())) == 2
    assert {row.source for row in images(sqlite) if row.state == "gold"} == {
        "a/000.png", "own/red.png",
    }  # fmt: skip
    path.write_text("image,right,wrong\n" + "\n".join([rows[2], rows[2]]))
    with pytest.raises(InputError, match=r"line 3: .*line 2"):
        add_gold(sqlite, path, 0.0)


def test_odd_files_in_a_list(sqlite: Database, tmp_path: Path) -> None:
    """Pipes and devices hang nothing, names that are no text are listed, twice is once."""
    places = image_folders(tmp_path, {"a": 3})
    os.mkfifo(tmp_path / "pipe.png")
    latin = os.fsdecode(b"caf\xe9.png")
    (places["a"] / latin).write_bytes((places["a"] / "000.png").read_bytes())
    listed = tmp_path / "list.txt"
    names = ["a/001.png"] * 3 + ["pipe.png", "/dev/zero", "a/no\0thing.png", "a/002.png"]
    listed.write_text("\n".join(names))
    sqlite.create(Rules())
    sources = [DomainSource("folder", places["a"], 1), DomainSource("list", listed, 1)]
    counts = add_images(sqlite, sources, now=0.0)
    assert counts == {
        "folder": {"pool": 3, "unreadable": 1},
        "list": {"duplicate": 2, "unreadable": 3},
    }
    reasons = {row.source: row.reason for row in images(sqlite) if row.state == "unreadable"}
    assert "UTF-8" in reasons.pop("folder/caf\\udce9.png")
    assert "not a regular file" in reasons["pipe.png"]
    assert "not a regular file" in reasons["/dev/zero"]


def test_bad_domains(sqlite: Database, tmp_path: Path) -> None:
    sqlite.create(Rules())
    (tmp_path / "empty").mkdir()
    for name in ("empty", "none"):
        with pytest.raises(InputError, match=name):
            list_images(DomainSource("a", tmp_path / name, 1))
    for name in ("", "a/b", "..\\x", "..", ".", ".hidden", " a", "all", "All", "a\u202eb", "a\0"):
        with pytest.raises(InputError):
            DomainSource(name, tmp_path, 1)
    with pytest.raises(InputError):
        DomainSource("a", tmp_path, 0)
    with pytest.raises(InputError):
        add_images(sqlite, [], now=0.0)


def test_invalid_databases(sqlite: Database, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        open_database(str(tmp_path / "none.db"))
    with pytest.raises(InputError):
        Database("mysql://x")
    with pytest.raises(InputError):
        Database(str(tmp_path / "no" / "x.db"))
    with pytest.raises(InputError):
        sqlite.create(Rules(), lease_seconds=0)
    sqlite.create(Rules())
    with pytest.raises(InputError):
        sqlite.create(Rules())
    (tmp_path / "other.db").write_bytes(b"this is no database at all, but long enough for one")
    from discode.errors import StoreError

    with pytest.raises(StoreError):
        open_database(str(tmp_path / "other.db"))


def test_images_are_added_to_a_running_campaign(sqlite: Database, tmp_path: Path) -> None:
    """As if they had been there from the beginning: the same order, the same duplicates."""
    places = image_folders(tmp_path, {"a": 6})
    more = tmp_path / "more"
    more.mkdir()
    for number in range(3, 6):
        (places["a"] / f"00{number}.png").rename(more / f"00{number}.png")
    sqlite.create(Rules())
    add_images(sqlite, [DomainSource("a", places["a"], 4)], now=0.0)
    for path in caption_files(tmp_path, {"a": 3}, tmp_path):
        add_captions(sqlite, path.stem, path, 0.0)
    people = invite_people(sqlite, 3)
    work_all(sqlite, people, random.Random(0))
    (more / "copy.png").write_bytes((places["a"] / "000.png").read_bytes())
    Pillow.open(places["a"] / "001.png").convert("RGB").save(more / "like.jpg", quality=80)
    sources = [DomainSource("a", more, 5), DomainSource("new", more / "..", 1)]
    with pytest.raises(InputError):
        add_images(sqlite, [sources[0], sources[0]], now=1.0)
    counts = add_images(sqlite, sources[:1], now=1.0)
    assert counts == {"a": {"pool": 3, "duplicate": 2}}
    reasons = {row.source: row.reason for row in images(sqlite) if row.state == "duplicate"}
    assert reasons == {
        "a/copy.png": "the same file as a/000.png", "a/like.jpg": "looks like a/001.png"
    }  # fmt: skip
    assert add_images(sqlite, sources[:1], now=2.0) == {"a": {}}, "nothing is added twice"
    assert scalars(sqlite, select(Domain.quota)) == [5], "it takes effect at once"
    for path in caption_files(Path(), {"a": 6}, tmp_path):  # by source
        add_captions(sqlite, path.stem, path, 3.0)
    work_all(sqlite, people, random.Random(0))
    check_rules(sqlite)
    assert sum(row.state == "done" for row in images(sqlite)) == 5
