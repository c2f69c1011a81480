"""A campaign's database: SQLite by path, PostgreSQL by URL; its transactions, and its backup."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from discode._files import replacing, use_write_ahead_log
from discode.benchmarks._parsing import Entry
from discode.errors import InputError, StoreError, require
from mceval._checks import Checks
from mceval._tables import SCHEMA_VERSION, Base, Campaign
from mceval.rules import Rules

T = TypeVar("T")
P = ParamSpec("P")
BUSY_SECONDS = 30
LOCK = {"key_share": True}
"""How rows are locked (FOR NO KEY UPDATE), so that two answers that refer to the same image do not
wait for each other."""
_RETRIES = 11
# PostgreSQL's codes for conflicts with another transaction, after which a retry helps
_RETRY_STATES = ("40001", "40P01", "55P03")


class _FairLock:
    """A lock that is granted in order of arrival; with Python's own, some threads wait long."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tickets: deque[object] = deque()
        """First the holder's ticket, then those of waiting threads."""

    def __enter__(self) -> None:
        ticket = object()
        with self._changed:
            self._tickets.append(ticket)
            try:
                self._changed.wait_for(lambda: self._tickets[0] is ticket)
            except BaseException:  # Ctrl-C while waiting
                self._tickets.remove(ticket)
                self._changed.notify_all()
                raise

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._tickets.popleft()
            self._changed.notify_all()


class Database:
    """A campaign's database.

    ``read`` is a read-only transaction. ``run`` may write and is retried after conflicts with other
    processes, so its function must have no effects outside the session.

    >>> with Database("sqlite://") as db:
    ...     db.create(Rules(), name="doctest")
    ...     db.run(lambda session: session.get_one(Campaign, 1).name)
    'doctest'
    """

    def __init__(self, url: str) -> None:
        parsed = _parse(url)
        self.sqlite = parsed.drivername == "sqlite"
        name = parsed.database if self.sqlite else ""
        self.file = Path(name) if name and name != ":memory:" else None
        """SQLite's file; ``None`` for a database in memory or on a server."""
        self.engine = _sqlite(parsed, self.file) if self.sqlite else _postgresql(parsed)
        self._writing = self.engine.execution_options(immediate=True)
        self._settings: list[CampaignSettings] = []
        # SQLite has one writer. In one process, taking turns is fairer than its busy loop.
        self._turn: Any = _FairLock() if self.sqlite else nullcontext()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _session(self, engine: Engine) -> Session:
        return Session(engine, expire_on_commit=False, info={"settings": self._settings})

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Yield a session that is rolled back at the end."""
        with self._as_store_errors(), self._session(self.engine) as session:
            yield session

    def run(self, work: Callable[[Session], T]) -> T:
        """Run ``work(session)`` in a transaction and return its result."""
        attempt = 0
        while True:
            try:
                with self._turn, self._session(self._writing) as session:
                    result = work(session)
                    session.commit()
                    return result
            except (IntegrityError, OperationalError) as error:
                if attempt == _RETRIES or not _try_again(error):
                    raise self._store_error(error) from error
                time.sleep(0.002 * 2**attempt)
                attempt += 1

    def create(
        self,
        rules: Rules,
        *,
        name: str = "mceval",
        checks: Checks | None = None,
        lease_seconds: float = 900.0,
        pay_per_hour: float = 0.0,
        instructions: str = "",
        now: float = 0.0,
    ) -> None:
        """Create the tables and the campaign's row; refused if the database has a campaign.

        With ``pay_per_hour`` 0, pay is neither promised nor reported.
        """
        entry = Entry({"pay_per_hour": pay_per_hour, "lease_seconds": lease_seconds}, "a campaign")
        entry.number("pay_per_hour", 0, 1e6)
        entry.number("lease_seconds", 1, 1e6)
        with self._as_store_errors():
            if inspect(self.engine).has_table("campaign"):
                raise InputError(
                    f"{self.label} already contains a campaign; choose another database, or "
                    "continue with discode mceval candidates"
                )
            Base.metadata.create_all(self.engine)
        row = Campaign(
            id=1, version=SCHEMA_VERSION, name=name, rules=to_json(rules),
            checks=to_json(checks or Checks()), lease_seconds=lease_seconds,
            pay_per_hour=pay_per_hour, instructions=instructions, created=now,
        )  # fmt: skip
        self.run(lambda session: session.add(row))

    @property
    def label(self) -> str:
        """The URL without a password."""
        return self.engine.url.render_as_string(hide_password=True)

    def check(self) -> None:
        """Check that the database has a campaign of a known version; upgrade an older one."""
        with self._as_store_errors():
            version = None
            if inspect(self.engine).has_table("campaign"):
                with self.engine.connect() as connection:
                    version = _version(connection)
            if version is None:
                raise InputError(
                    f"{self.label} contains no campaign; create one with discode mceval init"
                )
            if version > SCHEMA_VERSION:
                raise StoreError(
                    f"{self.label} has schema {version}, and this discode supports up to "
                    f"{SCHEMA_VERSION}; upgrade discode"
                )
            if version < SCHEMA_VERSION:
                with self._turn, self._writing.begin() as connection:
                    _upgrade(connection)

    @contextmanager
    def _as_store_errors(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise self._store_error(error) from error

    def _store_error(self, error: DBAPIError) -> StoreError:
        why = " ".join(str(error.orig).split()) or type(error.orig).__name__
        return StoreError(f"database {self.label}: {why}")


def transaction(
    work: Callable[Concatenate[Session, P], T],
) -> Callable[Concatenate[Database, P], T]:
    """Turn a function of a session into a function of a database that runs in one transaction.

    >>> @transaction
    ... def rename(session: Session, name: str) -> None:
    ...     session.get_one(Campaign, 1).name = name
    >>> with Database("sqlite://") as db:
    ...     db.create(Rules())
    ...     rename(db, "photographs")
    """

    @wraps(work)
    def run(db: Database, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return db.run(lambda session: work(session, *args, **kwargs))

    return run


def _version(connection: Connection, *, lock: bool = False) -> int | None:
    """Read the version of the campaign's tables, assuming no other columns."""
    query = "SELECT version FROM campaign WHERE id = 1"
    if lock and connection.dialect.name != "sqlite":  # the whole file is locked already
        query += " FOR UPDATE"
    version: int | None = connection.scalar(text(query))
    return version


def _upgrade(connection: Connection) -> None:
    """Add and fill the tables and columns that the earlier version lacked."""
    if (_version(connection, lock=True) or 0) >= SCHEMA_VERSION:
        return  # already done by another process
    Base.metadata.create_all(connection)
    before = inspect(connection)
    write = connection.dialect.identifier_preparer.quote
    for table in Base.metadata.sorted_tables:
        known = {column["name"] for column in before.get_columns(table.name)}
        for column in table.columns:
            if column.name not in known:
                kind = column.type.compile(connection.dialect)
                connection.execute(
                    text(f"ALTER TABLE {write(table.name)} ADD COLUMN {write(column.name)} {kind}")
                )
    # Before version 5, only the start of the reason showed why an image was discarded.
    connection.execute(
        text(
            "UPDATE image SET discarded_by = CASE WHEN reason LIKE 'no consensus%' THEN "
            "'no_consensus' WHEN reason LIKE 'skipped by%' THEN 'skipped' WHEN reason LIKE "
            "'flagged by%' THEN 'flagged' WHEN reason LIKE 'taken down%' THEN 'taken_down' "
            "ELSE 'captions' END WHERE state = 'discarded' AND discarded_by IS NULL"
        )
    )
    # Before version 3, the threshold of near-duplicates was not stored.
    rules = {"near": None} | json.loads(connection.scalar(text("SELECT rules FROM campaign")))
    connection.execute(
        text("UPDATE campaign SET version = :version, rules = :rules WHERE id = 1"),
        {"version": SCHEMA_VERSION, "rules": json.dumps(rules, sort_keys=True)},
    )


def open_database(url: str) -> Database:
    """Open the database of an existing campaign."""
    db = Database(url)
    if db.file is not None and not db.file.is_file():
        raise InputError(f"no campaign at {db.file}; create one with discode mceval init")
    try:
        db.check()
    except BaseException:
        db.close()
        raise
    return db


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


@dataclass(frozen=True)
class CampaignSettings:
    """The settings of a campaign, fixed when it is created."""

    name: str
    rules: Rules
    checks: Checks
    lease_seconds: float
    pay_per_hour: float
    """0 if no pay was promised."""
    instructions: str


def settings_of(session: Session) -> CampaignSettings:
    """The campaign's settings, read once per process."""
    cached: list[CampaignSettings] = session.info["settings"]
    if not cached:
        row = session.get_one(Campaign, 1)
        settings = CampaignSettings(
            row.name, from_json(Rules, row.rules), from_json(Checks, row.checks),
            row.lease_seconds, row.pay_per_hour, row.instructions,
        )  # fmt: skip
        cached.append(settings)
    return cached[0]


def to_json(settings: Rules | Checks) -> str:
    """Serialise rules or checks as JSON, keys sorted."""
    return json.dumps(asdict(settings), sort_keys=True)


def from_json(kind: type[T], text: str) -> T:
    """Read the output of :func:`to_json`; unknown keys are ignored.

    >>> from_json(Rules, '{"people": 5, "of_another_version": 1}').people
    5
    """
    values: dict[str, Any] = json.loads(text)
    known = signature(kind).parameters
    return kind(**{name: value for name, value in values.items() if name in known})


def rules_of(session: Session) -> Rules:
    """The campaign's rules."""
    return settings_of(session).rules


def checks_of(session: Session) -> Checks:
    """The campaign's checks of people."""
    return settings_of(session).checks


def _parse(url: str) -> URL:
    """Parse a URL for SQLAlchemy: a bare path is SQLite, PostgreSQL uses psycopg."""
    if "://" not in url:
        return URL.create("sqlite", database=url)
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise InputError(f"database {url!r} is not a path or a URL: {error}") from error
    if parsed.drivername in ("postgres", "postgresql"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "postgresql+psycopg"):
        raise InputError(
            f"unknown database {parsed.drivername!r}; use a path, sqlite:// or postgresql://"
        )
    return parsed


def _postgresql(url: URL) -> Engine:
    require("psycopg", "postgres")
    return create_engine(url, pool_size=20, max_overflow=100, pool_pre_ping=True)


def _sqlite(url: URL, file: Path | None) -> Engine:
    if file is None:
        engine = create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        if not file.resolve().parent.is_dir():
            raise InputError(f"cannot open {file}: there is no folder {file.parent}")
        engine = create_engine(
            url,
            pool_size=20,
            max_overflow=200,
            connect_args={"check_same_thread": False, "timeout": BUSY_SECONDS},
        )

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, record: object) -> None:
        connection.isolation_level = None  # BEGIN is sent below
        use_write_ahead_log(connection)
        # secure_delete: erased data is overwritten in the file
        for line in ("foreign_keys=ON", "synchronous=FULL", "secure_delete=ON"):
            connection.execute(f"PRAGMA {line}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        # A writing transaction takes its lock first: one that began by reading may be refused.
        immediate = connection.get_execution_options().get("immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine


def _try_again(error: DBAPIError) -> bool:
    if isinstance(error, IntegrityError):
        return True  # a unique constraint: the next attempt sees the conflicting row
    state = getattr(error.orig, "sqlstate", None)
    return state in _RETRY_STATES or "locked" in str(error.orig)
