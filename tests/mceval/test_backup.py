"""A backup that is made while people work has everything that was confirmed before it."""

from __future__ import annotations

import random
import shlex
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from sqlalchemy import func, select

from discode.errors import InputError, StoreError
from mceval._tables import Answer, Base
from mceval.database import Database, backup_campaign, open_database
from mceval.rules import Rules
from tests.helpers import postgres
from tests.helpers.campaigns import check_rules, fill, invite_people, scalar, work_all, work_once


def answers(db: Database) -> int:
    return scalar(db, select(func.count(Answer.id))) or 0


def test_a_copy_of_the_file_alone_loses_answers_and_a_backup_does_not(tmp_path: Path) -> None:
    with Database(str(tmp_path / "camp.db")) as db:
        fill(db, Rules(), {"a": (4, 6)})
        work_all(db, invite_people(db, 4), random.Random(0), limit=15)
        given = answers(db)
        assert given >= 15
        shutil.copy(tmp_path / "camp.db", tmp_path / "copied.db")
        assert backup_campaign(db, tmp_path / "saved.db") == given
    with open_database(str(tmp_path / "saved.db")) as saved:
        assert answers(saved) == given
        check_rules(saved)
    assert (tmp_path / "saved.db").stat().st_mode & 0o077 == 0, "it holds people's names"
    with pytest.raises(InputError):  # not even its tables were in that file
        open_database(str(tmp_path / "copied.db"))


def test_while_people_work(tmp_path: Path) -> None:
    """Each backup is one moment: at least what was confirmed before, and in itself whole."""
    with Database(str(tmp_path / "camp.db")) as db:
        fill(db, Rules(), {"a": (30, 30)})
        people = invite_people(db, 3, 1)
        done = 0

        def work() -> None:
            nonlocal done
            rng, now = random.Random(1), 1000.0
            while not stop.is_set() and sum(work_once(db, one, now, rng) for one in people):
                now += 10
                done = answers(db)

        stop = threading.Event()
        thread = threading.Thread(target=work)
        thread.start()
        try:
            for i in range(4):
                before = done
                made = backup_campaign(db, tmp_path / f"{i}.db")
                assert made >= before
                with open_database(str(tmp_path / f"{i}.db")) as saved:
                    assert answers(saved) == made
                    check_rules(saved)
        finally:
            stop.set()
            thread.join()


def test_what_cannot_be_backed_up(tmp_path: Path) -> None:
    (tmp_path / "there.db").touch()
    for url, name in (("camp.db", "there.db"), ("camp.db", "no/x.db"), ("sqlite://", "x.db")):
        where = url if "://" in url else str(tmp_path / url)
        with Database(where) as db, pytest.raises(InputError):
            backup_campaign(db, tmp_path / name)
    assert not list(tmp_path.glob("x*"))


def test_postgresql_is_told_how(postgres_url: str, tmp_path: Path) -> None:
    with (
        Database(postgres_url) as db,
        pytest.raises(InputError, match="pg_dump --format=custom") as told,
    ):
        backup_campaign(db, tmp_path / "x.db")
    where = postgres.programs()
    if where is None or not (where / "pg_dump").is_file():
        pytest.skip("pg_dump is not installed")
    _, pg_dump, *rest = str(told.value).partition("pg_dump")
    command = shlex.split(f"{where / pg_dump}{''.join(rest)}")
    with Database(postgres_url) as db:
        Base.metadata.drop_all(db.engine)
        fill(db, Rules(), {"a": (1, 1)})
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    assert (tmp_path / "x.db").read_bytes().startswith(b"PGDMP")


def test_a_damaged_campaign_is_not_backed_up(tmp_path: Path) -> None:
    path = tmp_path / "camp.db"
    with Database(str(path)) as db:
        fill(db, Rules(), {"a": (20, 60)})
    data = bytearray(path.read_bytes())
    for place in range(8 * 4096, 12 * 4096):
        data[place] ^= 0xA5
    path.write_bytes(data)
    with Database(str(path)) as db, pytest.raises(StoreError):
        backup_campaign(db, tmp_path / "saved.db")
    assert not (tmp_path / "saved.db").exists()
