"""Back up a campaign while people work: SQLite's online backup, checked before it has its name."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from discode._files import replacing
from discode.errors import InputError, StoreError
from mceval.database import BUSY_SECONDS, Database


def backup_campaign(db: Database, target: Path) -> int:
    """Copy a campaign into a new file, as it is at one moment; people may go on meanwhile.

    A copy of the file alone would lack what is in the file beside it ("-wal"): the newest answers.

    Returns:
        How many answers the copy has.
    """
    path = db.file
    if path is None:
        where = db.label.replace("+psycopg", "")
        raise InputError(
            f"{where} is not a file; PostgreSQL is backed up with pg_dump --format=custom "
            f"--file={target} '{where}'"
        )
    if target.exists():
        raise InputError(f"{target} exists already; give a new file")
    try:
        with (
            replacing(target) as temp,
            closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as source,
            closing(sqlite3.connect(temp)) as copy,
        ):
            source.backup(copy)
            (verdict,) = copy.execute("PRAGMA integrity_check").fetchone()
            if verdict != "ok":
                raise StoreError(f"{path} is damaged, and so is its copy: {verdict}")
            # One file: without this, reading it would begin another file beside it.
            copy.execute("PRAGMA journal_mode=DELETE")
            (answers,) = copy.execute("SELECT count(*) FROM answer").fetchone()
        target.chmod(0o600)  # it holds people's names
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be backed up: {error}") from error
    return int(answers)
