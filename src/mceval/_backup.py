"""Back up a campaign while people work: SQLite's online backup, verified."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from discode._files import replacing
from discode.errors import InputError, StoreError
from mceval.database import BUSY_SECONDS, Database


def backup_campaign(db: Database, target: Path) -> int:
    """Copy a consistent snapshot of a campaign into a new file, while people work.

    The newest answers are in a second file ("-wal"), so copying the main file is not enough.

    Returns:
        The number of answers in the copy.
    """
    path = db.file
    if path is None:
        where = db.label.replace("+psycopg", "")
        raise InputError(
            f"{where} is not a file; for PostgreSQL, use pg_dump --format=custom "
            f"--file={target} '{where}'"
        )
    if target.exists():
        raise InputError(f"{target} already exists; choose a new file")
    try:
        with (
            replacing(target) as temp,
            closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as source,
            closing(sqlite3.connect(temp)) as copy,
        ):
            source.backup(copy)
            (verdict,) = copy.execute("PRAGMA integrity_check").fetchone()
            if verdict != "ok":
                raise StoreError(f"{path} is damaged: {verdict}")
            # Without this, opening the copy would create a second file.
            copy.execute("PRAGMA journal_mode=DELETE")
            (answers,) = copy.execute("SELECT count(*) FROM answer").fetchone()
        target.chmod(0o600)  # it holds people's names
    except sqlite3.Error as error:
        raise StoreError(f"cannot back up {path}: {error}") from error
    return int(answers)
