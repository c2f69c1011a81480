"""ReadingStore: readings of models, kept in one SQLite file.

A batch is one transaction, so a killed process loses at most the batch in flight, and the file
can be read while it is written (write-ahead log). Failures are not kept: a rerun asks again. A row
that does not match its digest counts as absent, and the next answer takes its place; rows from
before there were digests are taken as they are.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from discode._files import use_write_ahead_log
from discode._pairs import check_characters
from discode._scales import Scale, get_scale
from discode.errors import InputError, StoreError, install_hint
from discode.readings._base import ROW_COLUMNS, Identity, ReadingColumn, Readings
from discode.readings._sampled import draws_of

LOG = logging.getLogger("discode")
SCHEMA_VERSION = 1  # the column `digest` may be missing, and every statement names its columns: so
# an older discode reads and writes what this one wrote, even while both have it open
APPLICATION_ID = 0x64697363  # "disc": distinguishes our files from other SQLite files
_VARIABLES = 500  # keys per query; for a long time SQLite allowed 999 at most

_SCHEMA = """
CREATE TABLE asks (        -- who was asked, and how
  id INTEGER PRIMARY KEY,
  model TEXT NOT NULL, revision TEXT NOT NULL, dtype TEXT NOT NULL,
  prompt TEXT NOT NULL, scale TEXT NOT NULL,
  UNIQUE (model, revision, dtype, prompt, scale)
);
CREATE TABLE heads (       -- rows of a model's output head for the answers
  id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, weight BLOB NOT NULL, bias BLOB NOT NULL
);
CREATE TABLE readings (
  key TEXT PRIMARY KEY,
  ask INTEGER NOT NULL REFERENCES asks (id),
  image TEXT NOT NULL, caption TEXT NOT NULL, refs TEXT NOT NULL,
  {columns}, head INTEGER REFERENCES heads (id),
  digest BLOB              -- of all the other columns; NULL in rows from before it
) WITHOUT ROWID;
"""
_SQL_TYPES = {np.bool_: "INTEGER", np.str_: "TEXT"}
_NAMES = [
    "key",
    "ask",
    "image",
    "caption",
    "refs",
    *(column.name for column in ROW_COLUMNS),
    "head",
]
DIGEST_BYTES = 8
"""Of a row's digest: one damaged row in 10^19 passes for whole."""


@dataclass(frozen=True)
class RunKey:
    """Which model is asked, and how: the part of a reading's key that a whole run shares."""

    identity: Identity
    prompt: str
    scale: Scale

    def __post_init__(self) -> None:
        if self.scale.unique_name != self.scale.name:
            raise InputError(
                f"scale {self.scale.name!r} is not the one of that name; a store keeps only the "
                "name, so use a scale that its name brings back, such as unit, five or 1-7"
            )

    def fields(self) -> tuple[str, str, str, str, str]:
        who = self.identity
        return who.model, who.revision, who.dtype, self.prompt, self.scale.name


@dataclass(frozen=True)
class PairKey:
    """What is asked about: the part of a reading's key that is the pair's own."""

    image: str
    """SHA-256 of the image."""
    caption: str
    references: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_characters(self.caption, *self.references)


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.resolve().parent, os.W_OK)


def reading_key(run: RunKey, pair: PairKey) -> str:
    """Return the key of a reading: SHA-256 of all parts as JSON, so that none runs into another."""
    parts = [*run.fields(), pair.image, pair.caption, list(pair.references)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _row_digest(row: Sequence[Any]) -> bytes:
    """Return the digest of a row's columns, with their types: damage can make text of a number."""
    parts, marks = [], []
    for cell in row:
        if isinstance(cell, str):
            part = cell.encode(errors="surrogateescape")
        else:
            part = cell if isinstance(cell, bytes) else str(cell).encode()
        parts.append(part)
        marks.append(f"{type(cell).__name__} {len(part)}")
    whole = "\n".join(marks).encode() + b"".join(parts)
    return hashlib.blake2b(whole, digest_size=DIGEST_BYTES).digest()


class ReadingStore:
    """A SQLite file of readings.

    >>> with ReadingStore(":memory:") as store:
    ...     len(store)
    0
    """

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True) -> None:
        self.path = str(path)
        self._damaged: set[str] = set()  # keys of the rows found so
        self._lock = threading.RLock()
        memory = self.path == ":memory:"
        if not memory:
            file = Path(self.path)
            if not create and not file.exists():
                raise StoreError(f"no reading store at {self.path}")
            if not file.parent.is_dir():
                raise StoreError(f"cannot create {self.path}: {file.parent} is not a folder")
        with self._use():
            frozen = not memory and Path(self.path).exists() and not _writable(Path(self.path))
            target = self.path
            if frozen:
                # Where nothing waits in the write-ahead log, the file alone is the whole store;
                # otherwise its log must be read, too.
                log = Path(f"{self.path}-wal")
                waiting = log.exists() and log.stat().st_size > 0
                how = "mode=ro" if waiting else "immutable=1"
                target = f"{Path(self.path).resolve().as_uri()}?{how}"
            # autocommit: transactions are begun by hand, one per batch
            self._db = sqlite3.connect(
                target, timeout=30.0, isolation_level=None, uri=frozen, check_same_thread=False
            )
        # Damage can make a text unreadable: then its row is damaged, and the others are not.
        self._db.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
        self._db.row_factory = sqlite3.Row
        try:
            with self._use():
                self._prepare(use_log=not (memory or frozen), create=create)
                self._has_digests = self._find_digests()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self, *, use_log: bool, create: bool) -> None:
        db = self._db
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if (tables and application != APPLICATION_ID) or (not tables and not create):
            raise StoreError(f"{self.path} is an SQLite file, but not a reading store of discode")
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} was written by a newer discode (schema {version}, this one reads up "
                f"to {SCHEMA_VERSION}); update discode, and {install_hint()}"
            )
        if use_log:
            use_write_ahead_log(db)
            # In WAL mode NORMAL loses nothing when the process dies. A power cut can lose the
            # last transactions, but does not damage the file.
            db.execute("PRAGMA synchronous = NORMAL")
        if not tables:
            with self.transaction():
                # Another process may have made the tables since we looked.
                if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    columns = ", ".join(map(_declared, ROW_COLUMNS))
                    for statement in _SCHEMA.format(columns=columns).split(";\n"):
                        db.execute(statement)
                    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _find_digests(self) -> bool:
        return any(row[1] == "digest" for row in self._db.execute("PRAGMA table_info(readings)"))

    @contextmanager
    def _use(self) -> Iterator[None]:
        try:
            with self._lock:  # one connection, used by one thread at a time
                yield
        except sqlite3.OperationalError as error:  # a full disk, a lock: the file itself is whole
            raise StoreError(
                f"cannot use the reading store {self.path}: {error}; existing readings are "
                "intact; check disk space, permissions and other processes, and run it again"
            ) from error
        # SQLite quotes a damaged schema in its messages.
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StoreError(
                f"cannot use the reading store {self.path}: {error}; if it is damaged, "
                "`sqlite3 FILE .recover` may save its rows, or start a new one"
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make everything written inside one transaction: all of it is kept, or nothing."""
        with self._use():
            if self._db.in_transaction:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk has ended it already
                    self._db.execute("ROLLBACK")
                raise

    def __enter__(self) -> ReadingStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def __del__(self) -> None:
        # A judge that opened its store by name does not close it: the connection ends here.
        if hasattr(self, "_db"):
            self._db.close()

    def __len__(self) -> int:
        with self._use():
            return int(self._db.execute("SELECT count(*) FROM readings").fetchone()[0])

    @property
    def damaged(self) -> int:
        """How many readings were found not to match their digest; they count as absent."""
        return len(self._damaged)

    def is_damaged(self, run: RunKey, pair: PairKey) -> bool:
        """Return whether a reading was looked for, and was found damaged."""
        return reading_key(run, pair) in self._damaged

    def has_hidden(self) -> bool:
        with self._use():
            query = "SELECT EXISTS (SELECT 1 FROM readings WHERE hidden IS NOT NULL)"
            return bool(self._db.execute(query).fetchone()[0])

    def has_references(self, identity: Identity) -> bool:
        """Return whether any reading of a model is of a pair with references."""
        with self._use():
            query = (
                "SELECT EXISTS (SELECT 1 FROM readings JOIN asks ON ask = id "
                "WHERE (model, revision, dtype) = (?, ?, ?) AND refs != '[]')"
            )
            who = identity.model, identity.revision, identity.dtype
            return bool(self._db.execute(query, who).fetchone()[0])

    def run_keys(self) -> list[tuple[RunKey, int]]:
        """Return which models were asked and how, each with its number of readings."""
        with self._use():
            rows = self._db.execute(
                "SELECT model, revision, dtype, prompt, scale, count(key) FROM asks "
                "LEFT JOIN readings ON ask = id GROUP BY id ORDER BY id"
            ).fetchall()
        try:
            "".join(text for row in rows for text in row[:5]).encode()
        except (TypeError, ValueError) as error:  # no text, or not UTF-8
            raise StoreError(
                f"{self.path} is damaged: it cannot be read which models were asked: {error}"
            ) from error
        return [
            (RunKey(Identity(*row[:3]), row[3], get_scale(row[4])), int(row[5])) for row in rows
        ]

    def put(self, run: RunKey, pairs: Sequence[PairKey], readings: Readings) -> None:
        """Write a batch in one transaction; failed rows are left out."""
        if len(pairs) != len(readings):
            raise InputError(f"{len(pairs)} pairs but {len(readings)} readings")
        with self.transaction():
            self._put(run, pairs, readings)

    def _put(self, run: RunKey, pairs: Sequence[PairKey], readings: Readings) -> None:
        db = self._db
        if not self._has_digests:  # an old store; inside a transaction, as others may do the same
            if not self._find_digests():
                db.execute("ALTER TABLE readings ADD COLUMN digest BLOB")
            self._has_digests = True
        head = None
        if readings.hidden is not None:
            weight, bias = _blob(readings.head), _blob(readings.bias)
            digest = _head_digest(weight, bias)
            db.execute(
                "INSERT INTO heads VALUES (NULL, ?, ?, ?) ON CONFLICT (digest) DO UPDATE SET "
                "weight = excluded.weight, bias = excluded.bias "  # one that was damaged
                "WHERE (weight, bias) IS NOT (excluded.weight, excluded.bias)",
                (digest, weight, bias),
            )
            head = db.execute("SELECT id FROM heads WHERE digest = ?", (digest,)).fetchone()[0]
        db.execute("INSERT OR IGNORE INTO asks VALUES (NULL, ?, ?, ?, ?, ?)", run.fields())
        run_id = db.execute(
            "SELECT id FROM asks WHERE (model, revision, dtype, prompt, scale) = (?, ?, ?, ?, ?)",
            run.fields(),
        ).fetchone()[0]

        def values(row: int, pair: PairKey) -> tuple[Any, ...]:
            references = json.dumps(pair.references, ensure_ascii=False)
            cells = [_cell(column, getattr(readings, column.name), row) for column in ROW_COLUMNS]
            key = reading_key(run, pair)
            return key, run_id, pair.image, pair.caption, references, *cells, head

        # A reading counts when at least one stem has all its answers.
        complete = np.any(np.all(~np.isnan(readings.answer_logp), axis=2), axis=1).tolist()
        rows = [values(row, pair) for row, pair in enumerate(pairs) if complete[row]]
        if self._damaged:
            mended = [(row[0],) for row in rows if row[0] in self._damaged]
            db.executemany("DELETE FROM readings WHERE key = ?", mended)
        # What is kept stays as it is, unless the new reading has hidden states or more draws.
        verb = "REPLACE" if head is not None or draws_of(readings).any() else "IGNORE"
        db.executemany(
            f"INSERT OR {verb} INTO readings ({', '.join(_NAMES)}, digest) "
            f"VALUES ({', '.join('?' * (len(_NAMES) + 1))})",
            ((*row, _row_digest(row)) for row in rows),
        )

    def get(
        self, run: RunKey, pairs: Sequence[PairKey], *, hidden: bool = False
    ) -> tuple[Readings, list[int]]:
        """Return the readings that are here, and which pairs (their numbers) they belong to.

        With ``hidden``, readings without hidden states count as missing; so do damaged ones.
        """
        numbers: dict[str, list[int]] = {}
        for number, pair in enumerate(pairs):
            numbers.setdefault(reading_key(run, pair), []).append(number)
        keys = list(numbers)
        rows = []
        with self._use():
            for start in range(0, len(keys), _VARIABLES):
                part = keys[start : start + _VARIABLES]
                rows += self._db.execute(
                    f"SELECT {self._columns()} FROM readings "
                    f"WHERE key IN ({', '.join('?' * len(part))})",
                    part,
                ).fetchall()
            # In a damaged file a key may lead to the row of another one.
            rows = self._whole([row for row in rows if row["key"] in numbers])
            if hidden:
                rows = self._with_head([row for row in rows if row["hidden"] is not None])
            readings = self._build(run.scale, rows, hidden=hidden)
        order = [
            (number, place) for place, row in enumerate(rows) for number in numbers[row["key"]]
        ]
        order.sort()
        return readings.take([place for _, place in order]), [number for number, _ in order]

    def _columns(self) -> str:
        return f"{', '.join(_NAMES)}, {'digest' if self._has_digests else 'NULL AS digest'}"

    def _whole(self, rows: Sequence[Any]) -> list[Any]:
        """Return the rows that match their digests; the others are remembered."""
        whole = []
        for row in rows:
            if row["digest"] in (None, _row_digest(row[: len(_NAMES)])):
                whole.append(row)
            else:
                self._report(row)
        return whole

    def _with_head(self, rows: Sequence[Any]) -> list[Any]:
        """Return the rows whose output head is whole."""
        broken = set()
        for head in {row["head"] for row in rows}:
            query = "SELECT weight, bias, digest FROM heads WHERE id = ?"
            stored = self._db.execute(query, (head,)).fetchone()
            if stored is None or _head_digest(stored["weight"], stored["bias"]) != stored["digest"]:
                broken.add(head)
        for row in rows:
            if row["head"] in broken:
                self._report(row)
        return [row for row in rows if row["head"] not in broken]

    def _report(self, row: Any) -> None:
        if not self._damaged:
            LOG.warning(
                "%s is damaged: a reading does not match its digest (key %.12s...); such readings "
                "count as absent",
                self.path,
                row["key"],
            )
        self._damaged.add(row["key"])

    def _build(self, scale: Scale, rows: Sequence[Any], *, hidden: bool = False) -> Readings:
        try:
            return self._decode_rows(scale, rows, hidden)
        # A blob of another length, a number in its place, or what no log-probability can be.
        except (TypeError, ValueError) as error:
            raise StoreError(
                f"{self.path} is damaged: a reading cannot be decoded: {error}"
            ) from error

    def _decode_rows(self, scale: Scale, rows: Sequence[Any], hidden: bool) -> Readings:
        sizes = {"b": len(scale.stems), "k": len(scale.answers)}
        values: dict[str, Any] = {}
        for column in ROW_COLUMNS:
            cells = [row[column.name] for row in rows]
            shape = tuple(sizes.get(axis, -1) for axis in column.axes[1:])
            if column.name == "hidden" and not hidden:
                continue
            if column.dtype in _SQL_TYPES:
                values[column.name] = np.array(cells, column.dtype)
            elif any(cell is not None for cell in cells):
                empty: Any = np.full(shape, np.nan) if -1 not in shape else None
                values[column.name] = np.stack(
                    [
                        empty if cell is None else _array(cell, column.dtype).reshape(shape)
                        for cell in cells
                    ]
                )
            elif not column.optional:
                values[column.name] = np.empty((0, *shape))
        if hidden and rows:
            if len({row["head"] for row in rows}) > 1:
                raise StoreError(f"{self.path} holds hidden states of one model under two heads")
            query = "SELECT weight, bias FROM heads WHERE id = ?"
            weight, bias = self._db.execute(query, (rows[0]["head"],)).fetchone()
            values["head"] = _array(weight, np.float32).reshape(sizes["k"], -1)
            values["bias"] = _array(bias, np.float32)
        return Readings(scale, **values)

    def batches(self, run: RunKey, size: int = 1000) -> Iterator[tuple[list[PairKey], Readings]]:
        """Yield the whole readings of one run key, without hidden states, by the order of keys."""
        after = ""
        while True:
            with self._use():
                rows = self._db.execute(
                    f"SELECT {self._columns()} FROM readings JOIN asks ON ask = id "
                    "WHERE (model, revision, dtype, prompt, scale) = (?, ?, ?, ?, ?) AND key > ? "
                    "ORDER BY key LIMIT ?",
                    (*run.fields(), after, size),
                ).fetchall()
            if not rows:
                return
            after = rows[-1]["key"]
            rows = self._whole(rows)
            pairs = [
                PairKey(row["image"], row["caption"], tuple(json.loads(row["refs"])))
                for row in rows
            ]
            yield pairs, self._build(run.scale, rows)


def _head_digest(weight: bytes, bias: bytes) -> str:
    return hashlib.sha256(weight + bias).hexdigest()


def _declared(column: ReadingColumn) -> str:
    kind = _SQL_TYPES.get(column.dtype, "BLOB")
    return f"{column.name} {kind}{'' if column.optional else ' NOT NULL'}"


def _cell(column: ReadingColumn, array: Any, row: int) -> Any:
    """Return one value as it is stored; NULL where an optional one holds nothing."""
    if column.dtype in _SQL_TYPES:
        return str(array[row]) if column.dtype is np.str_ else int(array[row])
    if column.optional and (array is None or np.isnan(array[row]).all()):
        return None
    return _blob(array[row])


def _array(cell: bytes, dtype: type[np.generic]) -> Any:
    return np.frombuffer(cell, np.dtype(dtype).newbyteorder("<"))


def _blob(array: Any) -> bytes:
    kind = "<f4" if array.dtype == np.float32 else "<f8"
    return np.ascontiguousarray(array, dtype=kind).tobytes()
