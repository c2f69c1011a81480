"""Databases of earlier versions still open, and those of later ones are refused."""

from __future__ import annotations

import random
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import inspect, select, text

from discode._files import use_write_ahead_log
from discode.errors import StoreError
from mceval._report import domain_rows, flag_rows, person_rows
from mceval._tables import SCHEMA_VERSION, Base, Campaign, Image
from mceval.database import Database, open_database
from mceval.queue import undo
from mceval.rules import Rules
from tests.helpers.campaigns import at_once, check_rules, fill, invite_people, work_all

VERSION_1 = Path(__file__).with_name("version1.sql")
"""A campaign of version 1 as SQLite's dump: three images, one discarded by a flag, one answer."""


def old(path: Path) -> Path:
    with sqlite3.connect(path) as made:
        made.executescript(VERSION_1.read_text(encoding="utf-8"))
    made.close()
    return path


def columns(db: Database) -> dict[str, set[str]]:
    found = inspect(db.engine)
    return {name: {c["name"] for c in found.get_columns(name)} for name in found.get_table_names()}


def test_a_campaign_of_version_1_goes_on(tmp_path: Path) -> None:
    path = old(tmp_path / "old.db")
    with open_database(str(path)) as db:
        assert columns(db) == {
            table.name: set(table.columns.keys()) for table in Base.metadata.sorted_tables
        }
        with db.read() as session:
            assert session.get_one(Campaign, 1).version == SCHEMA_VERSION
            assert [row.answers for row in person_rows(session)] == [0, 1, 0]
            (flag,) = flag_rows(session)
        assert (flag.reason, flag.state, flag.set_aside) == ("a face", "discarded", "")
        assert undo(db, flag.person, 3.0) is None, "from before it was known which task it was"
        with db.read() as session:
            assert session.get_one(Image, flag.image).state in ("active", "pool")
        work_all(db, [2, 3, *invite_people(db, 2)], random.Random(0))
        check_rules(db, settled=False)
    with open_database(str(path)) as db, db.read() as session:
        assert len(session.scalars(select(Image).where(Image.state == "done")).all()) == 2


def test_why_an_image_was_discarded_is_read_from_an_old_sentence_once(tmp_path: Path) -> None:
    for by, reason in (
        ("no_consensus", "no consensus: 2 to 1"),
        ("skipped", "skipped by 5 people: no consensus"),
        ("flagged", "flagged by 1 people: a face"),
        ("taken_down", "taken down: skipped by mistake"),
        ("captions", "fewer than three of its captions differ"),
    ):
        path = old(tmp_path / f"{by}.db")
        with sqlite3.connect(path) as made:
            made.execute("UPDATE image SET reason = ? WHERE state = 'discarded'", (reason,))
        made.close()
        with open_database(str(path)) as db, db.read() as session:
            rows = session.execute(select(Image.state, Image.discarded_by).order_by(Image.id)).all()
            (domain,) = domain_rows(session)
        assert [tuple(row) for row in rows] == [
            ("active", None), ("discarded", by), ("active", None)
        ]  # fmt: skip
        assert domain.discarded == {by: 1}


def test_two_processes_open_an_old_database_at_once(tmp_path: Path) -> None:
    path = str(old(tmp_path / "old.db"))
    at_once(lambda _: open_database(path).close(), range(6))


def test_whoever_opens_a_database_waits_for_another_that_does(tmp_path: Path) -> None:
    """SQLite refuses at once without a timeout, and also where two would wait for each other."""
    path = tmp_path / "shared.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE numbers (number)")
        other.execute("BEGIN EXCLUSIVE")
        with closing(sqlite3.connect(path, timeout=0, check_same_thread=False)) as db:
            with pytest.raises(sqlite3.OperationalError):
                use_write_ahead_log(db, seconds=0)
            opening = threading.Thread(target=use_write_ahead_log, args=(db,))
            opening.start()
            other.execute("ROLLBACK")
            opening.join()
            assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_columns_that_are_missing_are_added(db: Database) -> None:
    fill(db, Rules(flags=1), {"a": (1, 2)})
    wanted = columns(db)
    with db.engine.begin() as connection:
        for table in ("pass_void", "ruling", "finding", "login"):
            connection.execute(text(f"DROP TABLE {table}"))
        connection.execute(text("ALTER TABLE person DROP COLUMN token_expires"))
        connection.execute(text("ALTER TABLE pass DROP COLUMN task"))
        connection.execute(text("UPDATE campaign SET version = 1"))
    db.check()
    assert columns(db) == wanted
    people = invite_people(db, 3)
    work_all(db, people, random.Random(0))
    check_rules(db)


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    path = old(tmp_path / "later.db")
    with sqlite3.connect(path) as made:
        made.execute("UPDATE campaign SET version = 99")
    made.close()
    with pytest.raises(StoreError):
        open_database(str(path))
