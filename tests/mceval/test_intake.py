from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow
from sqlalchemy import select

from discode.errors import InputError
from discode.mceval.candidates import add_captions
from discode.mceval.database import Database, open_database
from discode.mceval.intake import (
    DomainSource,
    SeenHashes,
    add_gold,
    add_images,
    difference_hash,
    list_images,
)
from discode.mceval.rules import Rules
from discode.mceval.tables import Domain, Image
from tests.helpers.campaigns import check_rules, invite_people, work_all
from tests.helpers.images import caption_files, image_folders


def images(db: Database) -> list[Image]:
    with db.read() as session:
        return list(session.scalars(select(Image).order_by(Image.id)).all())


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
    with sqlite.read() as session:
        assert session.scalars(select(Domain.quota)).all() == [2, 2]


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
    hashes = [np.packbits(rng.random(256) < 0.5) for _ in range(150)]
    hashes += [row ^ np.packbits(np.arange(256) < k) for k in range(12) for row in hashes[:3]]
    seen, kept = SeenHashes(6), list[np.ndarray]()
    for i, row in enumerate(hashes):
        near = [int(np.unpackbits(row ^ other).sum()) <= 6 for other in kept]
        assert bool(seen.match_or_add(row, str(i))) == any(near)
        if not any(near):
            kept.append(row)
    off = SeenHashes(-1)
    assert not off.match_or_add(hashes[0], "a")
    assert not off.match_or_add(hashes[0], "b")
    with pytest.raises(InputError, match="near=-2"):
        SeenHashes(-2)


def test_real_images_of_different_things_look_different(data: Path) -> None:
    """Sketches on white paper are alike in most cells; none of PACS's may be lost for that."""
    if not (data / "pacs_sample").is_dir():
        pytest.skip("no pacs_sample")
    lost = total = 0
    for domain in ("sketch", "photo"):
        seen = SeenHashes(6)
        for file in sorted((data / "pacs_sample" / domain).rglob("*.*")):
            total += 1
            lost += bool(
                seen.match_or_add(difference_hash(Pillow.open(file).convert("RGB")), file.name)
            )
    assert total > 200
    assert lost <= 0.01 * total


def test_lists_and_tables(tmp_path: Path) -> None:
    places = image_folders(tmp_path, {"a": 3})
    listed = tmp_path / "list.txt"
    listed.write_text("a/002.png\n\n a/000.png \n")
    assert [one.source for one in list_images(DomainSource("a", listed, 1))] == [
        "a/000.png",
        "a/002.png",
    ]
    table = tmp_path / "list.jsonl"
    rows = [{"image": "a/001.png", "source": "https://x/1"}, {"image": "a/000.png"}]
    table.write_text("\n".join(map(json.dumps, rows)))
    found = list_images(DomainSource("a", table, 1))
    assert [one.source for one in found] == ["a/000.png", "https://x/1"]
    assert found[1].path == places["a"] / "001.png"


def test_gold_questions(sqlite: Database, tmp_path: Path) -> None:
    image_folders(tmp_path, {"g": 6})
    sqlite.create(Rules())
    rows = [{"image": f"g/{i:03d}.png", "right": "noise", "wrong": "a dog"} for i in range(6)]
    path = tmp_path / "gold.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert add_gold(sqlite, path, 0.0) == 6
    assert {row.gold for row in images(sqlite)} == {0, 1}
    for change, match in (
        ({"wrong": "Noise "}, "the same caption"),
        ({"image": "g/none.png"}, "gold.jsonl line 1"),
        ({"right": ""}, "right must be text"),
    ):
        path.write_text(json.dumps(rows[0] | change))
        with pytest.raises(InputError, match=match):
            add_gold(sqlite, path, 0.0)
    path.write_text("")
    with pytest.raises(InputError, match="no gold questions"):
        add_gold(sqlite, path, 0.0)


def test_bad_domains(sqlite: Database, tmp_path: Path) -> None:
    sqlite.create(Rules())
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no images"):
        list_images(DomainSource("a", tmp_path / "empty", 1))
    with pytest.raises(InputError, match="no such folder or list"):
        list_images(DomainSource("a", tmp_path / "none", 1))
    for name in ("", "a/b", "..\\x"):
        with pytest.raises(InputError, match="is not a name"):
            DomainSource(name, tmp_path, 1)
    with pytest.raises(InputError, match="1 or more"):
        DomainSource("a", tmp_path, 0)
    with pytest.raises(InputError, match="each once"):
        add_images(sqlite, [], now=0.0)


def test_invalid_databases(sqlite: Database, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no campaign at"):
        open_database(str(tmp_path / "none.db"))
    with pytest.raises(InputError, match="'mysql' is not known"):
        Database("mysql://x")
    with pytest.raises(InputError, match="is not a folder"):
        Database(str(tmp_path / "no" / "x.db"))
    with pytest.raises(InputError, match="lease_seconds"):
        sqlite.create(Rules(), lease_seconds=0)
    sqlite.create(Rules())
    with pytest.raises(InputError, match="holds a campaign already"):
        sqlite.create(Rules())
    (tmp_path / "other.db").write_bytes(b"this is no database at all, but long enough for one")
    from discode.errors import StoreError

    with pytest.raises(StoreError, match="not a database"):
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
    with pytest.raises(InputError, match="each once"):
        add_images(sqlite, [sources[0], sources[0]], now=1.0)
    counts = add_images(sqlite, sources[:1], now=1.0)
    assert counts == {"a": {"pool": 3, "duplicate": 2}}
    reasons = {row.source: row.reason for row in images(sqlite) if row.state == "duplicate"}
    assert reasons == {
        "a/copy.png": "the same file as a/000.png", "a/like.jpg": "looks like a/001.png"
    }  # fmt: skip
    assert add_images(sqlite, sources[:1], now=2.0) == {"a": {}}, "nothing is added twice"
    with sqlite.read() as session:
        assert session.scalars(select(Domain.quota)).all() == [5]
    for number in range(3, 6):
        (more / f"00{number}.png").rename(places["a"] / f"00{number}.png")
    for path in caption_files(tmp_path, {"a": 6}, tmp_path):
        add_captions(sqlite, path.stem, path, 3.0)
    work_all(sqlite, people, random.Random(0))
    check_rules(sqlite)
    assert sum(row.state == "done" for row in images(sqlite)) == 5


def test_a_larger_quota_takes_effect_at_once(sqlite: Database, tmp_path: Path) -> None:
    places = image_folders(tmp_path, {"a": 4})
    sqlite.create(Rules())
    add_images(sqlite, [DomainSource("a", places["a"], 2)], now=0.0)
    for path in caption_files(tmp_path, {"a": 4}, tmp_path):
        add_captions(sqlite, path.stem, path, 0.0)
    assert sum(row.state == "active" for row in images(sqlite)) == 2
    assert add_images(sqlite, [DomainSource("a", places["a"], 3)], now=1.0) == {"a": {}}
    assert sum(row.state == "active" for row in images(sqlite)) == 3
