"""Databases for the tests: SQLite always, PostgreSQL where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy", reason="campaigns want discode-eval[mceval]")

from sqlalchemy import event

from mceval._tables import Base
from mceval.database import Database
from tests.helpers import postgres


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a PostgreSQL database that is ours alone."""
    pytest.importorskip("psycopg", reason="PostgreSQL wants discode-eval[postgres]")
    if not postgres.is_usable():
        pytest.skip("PostgreSQL is not installed, or cannot be run by this user")
    with postgres.server(durable=False) as url:
        yield url


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    with Database(str(tmp_path / "campaign.db")) as db:
        event.listen(db.engine, "connect", _hurry)
        yield db


def _hurry(connection: Any, record: object) -> None:
    """No test cuts the power: nothing need wait for the disk."""
    connection.execute("PRAGMA synchronous=OFF")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.full)])
def db(request: pytest.FixtureRequest) -> Iterator[Database]:
    """An empty database of each kind."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite")
        return
    with Database(request.getfixturevalue("postgres_url")) as made:
        Base.metadata.drop_all(made.engine)
        yield made
