"""Open a campaign's database (SQLite by path, PostgreSQL by URL) and run its transactions."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from discode._files import use_write_ahead_log
from discode.benchmarks._parsing import Entry
from discode.errors import InputError, StoreError, require
from mceval._checks import Checks
from mceval._tables import SCHEMA_VERSION, Base, Campaign
from mceval.rules import Rules

T = TypeVar("T")
P = ParamSpec("P")
BUSY_SECONDS = 30
LOCK = {"key_share": True}
"""How rows are locked (FOR NO KEY UPDATE): two answers to one image, each of which refers to its
row, must not wait for each other."""
_RETRIES = 11
# PostgreSQL's codes for "another transaction was first; try again"
_RETRY_STATES = ("40001", "40P01", "55P03")


class _FairLock:
    """A lock that is granted in the order of asking; with Python's own, some threads wait long."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tickets: deque[object] = deque()
        """Of the holder, and then of those who wait."""

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

    ``read`` is a transaction that changes nothing, ``run`` one that may: the function is called
    again if another process interfered, so it must do nothing but work on the session.

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
        """Return ``work(session)`` after its commit."""
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
        """Create the tables and the campaign's row; a second campaign is refused.

        With ``pay_per_hour`` 0, no pay is promised to anybody or reported.
        """
        entry = Entry({"pay_per_hour": pay_per_hour, "lease_seconds": lease_seconds}, "a campaign")
        entry.number("pay_per_hour", 0, 1e6)
        entry.number("lease_seconds", 1, 1e6)
        with self._as_store_errors():
            if inspect(self.engine).has_table("campaign"):
                raise InputError(
                    f"{self.label} holds a campaign already; give another database, or go on with "
                    "discode mceval candidates"
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
        """Raise unless there is a campaign of a version we know; bring an older one up to date."""
        with self._as_store_errors():
            if not inspect(self.engine).has_table("campaign"):
                raise InputError(f"{self.label} holds no campaign; discode mceval init makes one")
            with self.engine.connect() as connection:
                version = _version(connection)
            if version is None or version > SCHEMA_VERSION:
                what = "no campaign" if version is None else f"schema {version}"
                raise StoreError(f"{self.label}: {what}; this discode knows {SCHEMA_VERSION}")
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
    """Make a function of a session one of a campaign's database, in a transaction of its own.

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
    """Return the version of the campaign's tables, read without assuming their columns."""
    query = "SELECT version FROM campaign WHERE id = 1"
    if lock and connection.dialect.name != "sqlite":  # there, the whole file is locked already
        query += " FOR UPDATE"
    version: int | None = connection.scalar(text(query))
    return version


def _upgrade(connection: Connection) -> None:
    """Add the tables and columns that an earlier version did not have, and fill them."""
    if (_version(connection, lock=True) or 0) >= SCHEMA_VERSION:
        return  # another process was first
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
    # Before version 5, only the beginning of the reason said why an image was discarded.
    connection.execute(
        text(
            "UPDATE image SET discarded_by = CASE WHEN reason LIKE 'no consensus%' THEN "
            "'no_consensus' WHEN reason LIKE 'skipped by%' THEN 'skipped' WHEN reason LIKE "
            "'flagged by%' THEN 'flagged' WHEN reason LIKE 'taken down%' THEN 'taken_down' "
            "ELSE 'captions' END WHERE state = 'discarded' AND discarded_by IS NULL"
        )
    )
    # Which images were taken for duplicates was not kept before version 3.
    rules = {"near": None} | json.loads(connection.scalar(text("SELECT rules FROM campaign")))
    connection.execute(
        text("UPDATE campaign SET version = :version, rules = :rules WHERE id = 1"),
        {"version": SCHEMA_VERSION, "rules": json.dumps(rules, sort_keys=True)},
    )


def open_database(url: str) -> Database:
    """Return the database of a campaign that exists."""
    db = Database(url)
    if db.file is not None and not db.file.is_file():
        raise InputError(f"no campaign at {db.file}; discode mceval init makes one")
    try:
        db.check()
    except BaseException:
        db.close()
        raise
    return db


@dataclass(frozen=True)
class CampaignSettings:
    """The settings with which a campaign was begun; they do not change."""

    name: str
    rules: Rules
    checks: Checks
    lease_seconds: float
    pay_per_hour: float
    """0 where none was promised."""
    instructions: str


def settings_of(session: Session) -> CampaignSettings:
    """Return the campaign's settings, read once per process."""
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
    """Return rules or checks as JSON, keys sorted."""
    return json.dumps(asdict(settings), sort_keys=True)


def from_json(kind: type[T], text: str) -> T:
    """Return the rules or checks that :func:`to_json` wrote; keys that are not known are left out.

    >>> from_json(Rules, '{"people": 5, "of_another_version": 1}').people
    5
    """
    values: dict[str, Any] = json.loads(text)
    known = signature(kind).parameters
    return kind(**{name: value for name, value in values.items() if name in known})


def rules_of(session: Session) -> Rules:
    """Return the campaign's rules."""
    return settings_of(session).rules


def checks_of(session: Session) -> Checks:
    """Return when people of the campaign count as careless."""
    return settings_of(session).checks


def _parse(url: str) -> URL:
    """Return a URL for SQLAlchemy: a bare path is SQLite, PostgreSQL uses psycopg."""
    if "://" not in url:
        return URL.create("sqlite", database=url)
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise InputError(f"database {url!r} is neither a path nor a URL: {error}") from error
    if parsed.drivername in ("postgres", "postgresql"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "postgresql+psycopg"):
        raise InputError(
            f"database {parsed.drivername!r} is not known; give a path, sqlite:// or postgresql://"
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
            raise InputError(f"cannot open {file}: {file.parent} is not a folder")
        engine = create_engine(
            url,
            pool_size=20,
            max_overflow=200,
            connect_args={"check_same_thread": False, "timeout": BUSY_SECONDS},
        )

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, record: object) -> None:
        connection.isolation_level = None  # we send BEGIN ourselves
        use_write_ahead_log(connection)
        # secure_delete: what is erased is overwritten in the file
        for line in ("foreign_keys=ON", "synchronous=FULL", "secure_delete=ON"):
            connection.execute(f"PRAGMA {line}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        # A transaction that will write says so first: one that began by reading may be refused.
        immediate = connection.get_execution_options().get("immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine


def _try_again(error: DBAPIError) -> bool:
    if isinstance(error, IntegrityError):
        return True  # a unique constraint: somebody was first, which the next attempt sees
    state = getattr(error.orig, "sqlstate", None)
    return state in _RETRY_STATES or "locked" in str(error.orig)
