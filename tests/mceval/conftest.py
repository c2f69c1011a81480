"""Databases for the tests: SQLite always, PostgreSQL where it is installed."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="campaigns want discode[mceval]")

from discode.mceval.database import Database
from discode.mceval.tables import Base
from tests.helpers import postgres


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a PostgreSQL database that is ours alone."""
    pytest.importorskip("psycopg", reason="PostgreSQL wants discode[postgres]")
    if postgres.programs() is None:
        pytest.skip("PostgreSQL is not installed")
    if os.getuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    with postgres.server() as url:
        yield url


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    with Database(str(tmp_path / "campaign.db")) as db:
        yield db


@pytest.fixture(params=["sqlite", "postgres"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database of each kind."""
    if request.param == "sqlite":
        with Database(str(tmp_path / "campaign.db")) as made:
            yield made
        return
    with Database(request.getfixturevalue("postgres_url")) as made:
        Base.metadata.drop_all(made.engine)
        yield made
