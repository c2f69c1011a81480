"""ReadingStore: what models said, kept in one SQLite file.

A batch is one transaction, so a killed process loses at most the batch in flight, and the file
can be read while it is written (write-ahead log). The key of a reading is everything that
could change it: model, revision, dtype, prompt text, scale (a :class:`RunKey`), the image's
SHA-256, caption, references (a :class:`PairKey`). Failures are not kept: a rerun asks again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from discode.errors import InputError, StoreError
from discode.pairs import check_characters
from discode.readings import Identity, Readings
from discode.scales import Scale, get_scale

SCHEMA_VERSION = 1
APPLICATION_ID = 0x64697363  # "disc": tells our files from other SQLite files
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
  answer_logp BLOB NOT NULL, stem_logp BLOB NOT NULL, lead_logp BLOB, second_logp BLOB,
  truncated INTEGER NOT NULL, how TEXT NOT NULL,
  hidden BLOB, head INTEGER REFERENCES heads (id)
) WITHOUT ROWID;
"""
_COLUMNS = (
    "key, ask, image, caption, refs, answer_logp, stem_logp, lead_logp, second_logp, "
    "truncated, how, hidden, head"
)


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
        """Return the columns of the ``asks`` table."""
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
    """Return whether the file and its folder, where the log goes, can be written."""
    return os.access(path, os.W_OK) and os.access(path.resolve().parent, os.W_OK)


def reading_key(run: RunKey, pair: PairKey) -> str:
    """Return the key of a reading: SHA-256 of all parts as JSON, so that none runs into another."""
    parts = [*run.fields(), pair.image, pair.caption, list(pair.references)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class ReadingStore:
    """A SQLite file of readings.

    >>> with ReadingStore(":memory:") as store:
    ...     len(store)
    0
    """

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True) -> None:
        self.path = str(path)
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
        try:
            with self._use():
                self._prepare(use_log=not (memory or frozen), create=create)
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
                f"to {SCHEMA_VERSION}); upgrade with: pip install --upgrade discode"
            )
        if use_log:
            db.execute("PRAGMA journal_mode = WAL")
            # In WAL mode NORMAL loses nothing when the process dies. A power cut can lose the
            # last transactions, but does not damage the file.
            db.execute("PRAGMA synchronous = NORMAL")
        if not tables:
            with self.transaction():
                # Another process may have made the tables since we looked.
                if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    for statement in _SCHEMA.split(";\n"):
                        db.execute(statement)
                    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def _use(self) -> Iterator[None]:
        try:
            with self._lock:  # one connection, used by one thread at a time
                yield
        except sqlite3.OperationalError as error:  # a full disk, a lock: the file itself is whole
            raise StoreError(
                f"cannot use the reading store {self.path}: {error}; what was kept before is not "
                "lost: see to the disk, the rights or the other process, and run it again"
            ) from error
        except sqlite3.Error as error:
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
            except BaseException:
                if self._db.in_transaction:  # a full disk has ended it already
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def __enter__(self) -> ReadingStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __del__(self) -> None:
        # A judge that opened its store by name does not close it: the connection ends here.
        if hasattr(self, "_db"):
            self._db.close()

    def __len__(self) -> int:
        with self._use():
            return int(self._db.execute("SELECT count(*) FROM readings").fetchone()[0])

    def has_hidden(self) -> bool:
        """Return whether any reading carries hidden states."""
        with self._use():
            query = "SELECT EXISTS (SELECT 1 FROM readings WHERE hidden IS NOT NULL)"
            return bool(self._db.execute(query).fetchone()[0])

    def run_keys(self) -> list[tuple[RunKey, int]]:
        """Return which models were asked and how, each with its number of readings."""
        with self._use():
            rows = self._db.execute(
                "SELECT model, revision, dtype, prompt, scale, count(key) FROM asks "
                "LEFT JOIN readings ON ask = id GROUP BY id ORDER BY id"
            ).fetchall()
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
        head = None
        if readings.hidden is not None:
            weight, bias = _blob(readings.head), _blob(readings.bias)
            digest = hashlib.sha256(weight + bias).hexdigest()
            db.execute("INSERT OR IGNORE INTO heads VALUES (NULL, ?, ?, ?)", (digest, weight, bias))
            head = db.execute("SELECT id FROM heads WHERE digest = ?", (digest,)).fetchone()[0]
        db.execute("INSERT OR IGNORE INTO asks VALUES (NULL, ?, ?, ?, ?, ?)", run.fields())
        run_id = db.execute(
            "SELECT id FROM asks WHERE (model, revision, dtype, prompt, scale) = (?, ?, ?, ?, ?)",
            run.fields(),
        ).fetchone()[0]

        def cell(array: Any, row: int) -> bytes | None:
            return None if array is None or np.isnan(array[row]).all() else _blob(array[row])

        # A reading counts when at least one stem has all its answers.
        complete = np.any(np.all(~np.isnan(readings.answer_logp), axis=2), axis=1).tolist()
        # What is kept stays as it is, unless hidden states come with the new reading.
        verb = "REPLACE" if head is not None else "IGNORE"
        db.executemany(
            f"INSERT OR {verb} INTO readings ({_COLUMNS}) VALUES ({', '.join('?' * 13)})",
            (
                (
                    reading_key(run, pair),
                    run_id,
                    pair.image,
                    pair.caption,
                    json.dumps(pair.references, ensure_ascii=False),
                    _blob(readings.answer_logp[row]),
                    _blob(readings.stem_logp[row]),
                    cell(readings.lead_logp, row),
                    cell(readings.second_logp, row),
                    bool(np.asarray(readings.truncated)[row]),
                    str(np.asarray(readings.how)[row]),
                    cell(readings.hidden, row),
                    head,
                )
                for row, pair in enumerate(pairs)
                if complete[row]
            ),
        )

    def get(
        self, run: RunKey, pairs: Sequence[PairKey], *, hidden: bool = False
    ) -> tuple[Readings, list[int]]:
        """Return the readings that are here, and which pairs (their numbers) they belong to.

        With ``hidden``, readings without hidden states count as missing.
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
                    f"SELECT {_COLUMNS} FROM readings WHERE key IN ({', '.join('?' * len(part))})",
                    part,
                ).fetchall()
            if hidden:
                rows = [row for row in rows if row[11] is not None]
            readings = self._build(run.scale, rows, hidden=hidden)
        order = [(number, place) for place, row in enumerate(rows) for number in numbers[row[0]]]
        order.sort()
        return readings.take([place for _, place in order]), [number for number, _ in order]

    def _build(self, scale: Scale, rows: Sequence[Any], *, hidden: bool = False) -> Readings:
        try:
            return self._decode_rows(scale, rows, hidden)
        except ValueError as error:  # a blob of another length, or what no log-probability can be
            raise StoreError(
                f"{self.path} is damaged: a reading cannot be decoded: {error}"
            ) from error

    def _decode_rows(self, scale: Scale, rows: Sequence[Any], hidden: bool) -> Readings:
        b, k = len(scale.stems), len(scale.answers)
        n = len(rows)
        weight = bias = states = None
        if hidden and rows:
            weight, bias = self._db.execute(
                "SELECT weight, bias FROM heads WHERE id = ?", (rows[0][12],)
            ).fetchone()
            if any(row[12] != rows[0][12] for row in rows):
                raise StoreError(f"{self.path} holds hidden states of one model under two heads")
            weight = np.frombuffer(weight, "<f4").reshape(k, -1)
            bias = np.frombuffer(bias, "<f4")
            states = np.stack([np.frombuffer(row[11], "<f4") for row in rows])

        def column(index: int, *shape: int) -> Any:
            if all(row[index] is None for row in rows):
                return None
            empty = np.full(shape, np.nan)
            return np.stack(
                [
                    empty if row[index] is None else np.frombuffer(row[index], "<f8").reshape(shape)
                    for row in rows
                ]
            )

        return Readings(
            scale,
            column(5, b, k) if n else np.empty((0, b, k)),
            column(6, b) if n else np.empty((0, b)),
            lead_logp=column(7, b),
            second_logp=column(8, k),
            truncated=np.array([row[9] for row in rows], bool),
            how=np.array([row[10] for row in rows], str),
            hidden=states,
            head=weight,
            bias=bias,
        )

    def batches(self, run: RunKey, size: int = 1000) -> Iterator[tuple[list[PairKey], Readings]]:
        """Yield all readings of one run key, without hidden states, in the order of their keys."""
        after = ""
        while True:
            with self._use():
                rows = self._db.execute(
                    f"SELECT {_COLUMNS} FROM readings JOIN asks ON ask = id "
                    "WHERE (model, revision, dtype, prompt, scale) = (?, ?, ?, ?, ?) AND key > ? "
                    "ORDER BY key LIMIT ?",
                    (*run.fields(), after, size),
                ).fetchall()
            if not rows:
                return
            pairs = [PairKey(row[2], row[3], tuple(json.loads(row[4]))) for row in rows]
            yield pairs, self._build(run.scale, rows)
            after = rows[-1][0]


def _blob(array: Any) -> bytes:
    kind = "<f4" if array.dtype == np.float32 else "<f8"
    return np.ascontiguousarray(array, dtype=kind).tobytes()
