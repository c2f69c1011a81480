"""The store: keys, resuming, killing, damage."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import discode
from discode._pairs import Pair
from discode._scales import FIVE, TEN, UNIT, Scale
from discode.errors import InputError, StoreError
from discode.images import demo_path
from discode.readings import Identity, Readings
from discode.readings._store import SCHEMA_VERSION, PairKey, ReadingStore, RunKey, reading_key
from tests.helpers.fake_model import random_logp

RUN_KEY = RunKey(Identity("model", "rev", "bf16"), "Rate {caption}", TEN)
PAIR_KEY = PairKey("0" * 64, "a dog", ("ref",))


def some(n: int, seed: int = 0) -> Readings:
    return Readings.of(random_logp(np.random.default_rng(seed), n, 10), TEN)


def test_every_part_changes_the_key() -> None:
    runs = [
        RUN_KEY,
        replace(RUN_KEY, identity=replace(RUN_KEY.identity, model="other")),
        replace(RUN_KEY, identity=replace(RUN_KEY.identity, revision="other")),
        replace(RUN_KEY, identity=replace(RUN_KEY.identity, dtype="fp32")),
        replace(RUN_KEY, prompt="Judge {caption}"),
        replace(RUN_KEY, scale=FIVE),
    ]
    pairs = [
        replace(PAIR_KEY, image="1" * 64),
        replace(PAIR_KEY, caption="a dog "),
        replace(PAIR_KEY, references=()),
        replace(PAIR_KEY, references=("ref", "")),
        replace(PAIR_KEY, references=("re", "f")),
    ]
    keys = [reading_key(run, PAIR_KEY) for run in runs] + [
        reading_key(RUN_KEY, pair) for pair in pairs
    ]
    assert len(set(keys)) == len(runs) + len(pairs)
    # Parts cannot run into each other.
    assert reading_key(RUN_KEY, PairKey("i", "ab")) != reading_key(RUN_KEY, PairKey("ia", "b"))


def test_put_get_round_trip_is_exact(tmp_path: Path) -> None:
    run = replace(RUN_KEY, scale=UNIT)
    rng = np.random.default_rng(0)
    answers = random_logp(rng, 6, 10).reshape(3, 2, 10)
    answers[1, 1, 3] = -np.inf
    readings = Readings(
        UNIT,
        answers,
        np.log([[0.9, 0.05], [0.5, 0.4], [np.nan, np.nan]]),
        lead_logp=np.array([[-0.1, -3.0], [np.nan, np.nan], [-1.0, -1.0]]),
        second_logp=np.log(np.array([[0.05] * 10, [np.nan] * 10, [0.01] * 10])),
        truncated=np.array([True, False, False]),
        how=np.array(["generated", "forced", "forced"]),
    )
    pairs = [PairKey(str(i), "x") for i in range(3)]
    with ReadingStore(tmp_path / "r.db") as store:
        store.put(run, pairs, readings)
    with ReadingStore(tmp_path / "r.db") as store:
        back, places = store.get(
            run, [pairs[2], PairKey("none", "x"), pairs[0], pairs[1], pairs[2]]
        )
    assert places == [0, 2, 3, 4]
    want = readings.take([2, 0, 1, 2])
    for name in ("answer_logp", "stem_logp", "lead_logp", "second_logp", "truncated"):
        assert np.array_equal(getattr(back, name), getattr(want, name), equal_nan=True), name
    assert back.how is not None
    assert back.how.tolist() == ["forced", "generated", "forced", "forced"]


def test_hidden_states_are_kept_with_their_head(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    plain = some(2)
    hidden = Readings(
        TEN,
        plain.answer_logp,
        plain.stem_logp,
        hidden=rng.normal(size=(2, 5)).astype(np.float32),
        head=rng.normal(size=(10, 5)).astype(np.float32),
    )
    pairs = [PairKey("a", "x"), PairKey("b", "x")]
    with ReadingStore(tmp_path / "r.db") as store:
        store.put(RUN_KEY, pairs, plain)
        assert store.get(RUN_KEY, pairs, hidden=True)[1] == []  # has none yet
        store.put(RUN_KEY, pairs, hidden)
        back, places = store.get(RUN_KEY, pairs, hidden=True)
        assert places == [0, 1]
        assert np.array_equal(np.asarray(back.hidden), np.asarray(hidden.hidden))
        assert np.array_equal(np.asarray(back.head), np.asarray(hidden.head))
        store.put(RUN_KEY, pairs, plain)  # a poorer reading does not overwrite a richer one
        assert store.get(RUN_KEY, pairs, hidden=True)[1] == [0, 1]


def test_threads_share_a_store(tmp_path: Path) -> None:
    with ReadingStore(tmp_path / "r.db") as store, ThreadPoolExecutor(8) as pool:

        def work(i: int) -> int:
            pairs = [PairKey(f"{i}-{j}", "x") for j in range(5)]
            store.put(RUN_KEY, pairs, some(5, seed=i))
            return len(store.get(RUN_KEY, pairs)[1])

        assert list(pool.map(work, range(40))) == [5] * 40
        assert len(store) == 200


def test_failures_are_not_kept_even_without_a_reason(tmp_path: Path) -> None:
    with ReadingStore(tmp_path / "r.db") as store:
        nan = Readings(TEN, np.full((1, 1, 10), np.nan), np.full((1, 1), np.nan))
        mixed = Readings.concat(TEN, [nan, some(1), Readings.failed(TEN, ["no"])])
        store.put(RUN_KEY, THREE, mixed)
        assert len(store) == 1


def test_readable_while_written(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with ReadingStore(path) as writer, ReadingStore(path) as reader:
        writer.put(RUN_KEY, [PairKey("a", "x")], some(1))
        with writer.transaction():
            writer.put(RUN_KEY, [PairKey("b", "x")], some(1))
            assert len(reader) == 1
        assert len(reader) == 2


def test_many_keys_in_one_get(tmp_path: Path) -> None:
    pairs = [PairKey(str(i), "x") for i in range(2500)]
    with ReadingStore(tmp_path / "r.db") as store:
        store.put(RUN_KEY, pairs, some(2500))
        back, places = store.get(RUN_KEY, pairs[::-1])
    assert places == list(range(2500))
    assert np.array_equal(back.answer_logp, some(2500).answer_logp[::-1])


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    ReadingStore(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()
    with pytest.raises(StoreError, match="newer discode"):
        ReadingStore(path)


def test_foreign_and_damaged_files_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.db"
    db = sqlite3.connect(foreign)
    db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(StoreError, match="not a reading store"):
        ReadingStore(foreign)
    junk = tmp_path / "junk.db"
    junk.write_bytes(os.urandom(8192))
    with pytest.raises(StoreError, match="cannot use"):
        ReadingStore(junk)
    path = tmp_path / "torn.db"
    pairs = [PairKey(str(i), "x" * 200) for i in range(500)]
    with ReadingStore(path) as store:
        store.put(RUN_KEY, pairs, some(500))
    content = bytearray(path.read_bytes())
    content[4096 * 3 :] = os.urandom(len(content) - 4096 * 3)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"), ReadingStore(path) as store:
        store.get(RUN_KEY, pairs)


def test_a_full_disk_is_no_damage(tmp_path: Path) -> None:
    with ReadingStore(tmp_path / "a.db") as store:
        store.put(RUN_KEY, [PAIR_KEY], some(1))
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")  # as SQLite meets a full disk
        keys = [PairKey("0" * 64, f"{number} {'x' * 500}") for number in range(200)]
        with pytest.raises(StoreError, match="disk is full; existing readings") as error:
            store.put(RUN_KEY, keys, some(200))
        assert "recover" not in str(error.value)
        assert len(store) == 1
        store._db.execute("PRAGMA max_page_count = 100000")  # room was made: all is well again
        store.put(RUN_KEY, keys, some(200))
        assert len(store) == 201


def test_a_scale_of_ones_own_is_not_kept_under_anothers_name(tmp_path: Path) -> None:
    mine = Scale("ten", tuple("abcdefghij"), tuple(map(float, range(10))), "a", "j", 0.1)
    with pytest.raises(InputError, match="not the one of that name"):
        RunKey(RUN_KEY.identity, RUN_KEY.prompt, mine)


@pytest.mark.parametrize("cell", ["x'00'", "7", "'text'"])
def test_a_blob_that_is_none_or_too_short_is_damage(tmp_path: Path, cell: str) -> None:
    with ReadingStore(tmp_path / "r.db") as store:
        store.put(RUN_KEY, [PairKey("a", "x")], some(1))
        store._db.execute(f"UPDATE readings SET answer_logp = {cell}, digest = NULL")  # an old row
        with pytest.raises(StoreError, match="damaged"):
            store.get(RUN_KEY, [PairKey("a", "x")])


@pytest.mark.parametrize("cell", ["x'00'", "CAST(x'ff' AS TEXT)"])
def test_who_was_asked_may_be_damaged_too(tmp_path: Path, cell: str) -> None:
    with ReadingStore(tmp_path / "r.db") as store:
        store.put(RUN_KEY, [PairKey("a", "x")], some(1))
        store._db.execute(f"UPDATE asks SET prompt = {cell}")
        with pytest.raises(StoreError, match="damaged: it cannot be read which models"):
            store.run_keys()


THREE = [PairKey(name, "ein Hund, 🐕") for name in "abc"]


@pytest.mark.parametrize(
    "change",
    [
        "answer_logp = zeroblob(80)",
        "stem_logp = answer_logp",
        "second_logp = answer_logp",
        "truncated = 1",
        "truncated = 'x'",
        "how = 'generated'",
        "how = CAST(how AS BLOB)",
        "how = CAST(x'ff' AS TEXT)",  # not UTF-8
        "caption = 'a cat'",
        "digest = x'00'",
        "digest = 'text'",
    ],
)
def test_a_damaged_row_is_absent_and_mended_by_the_next_reading(
    tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ReadingStore(tmp_path / "r.db") as store:
        store.put(RUN_KEY, THREE, some(3))
        store._db.execute(f"UPDATE readings SET {change} WHERE image = 'b'")
        back, places = store.get(RUN_KEY, THREE)
        assert (places, store.damaged) == ([0, 2], 1)
        assert np.array_equal(back.answer_logp, some(3).answer_logp[[0, 2]])
        assert [store.is_damaged(RUN_KEY, pair) for pair in THREE] == [False, True, False]
        assert "does not match its digest" in caplog.text
        assert [len(part) for _, part in store.batches(RUN_KEY)] == [2]
        store.put(RUN_KEY, THREE[1:2], some(3).take([1]))
    with ReadingStore(tmp_path / "r.db") as store:
        back, places = store.get(RUN_KEY, THREE)
        assert (places, store.damaged) == ([0, 1, 2], 0)
        assert np.array_equal(back.answer_logp, some(3).answer_logp)


def test_a_damaged_head_makes_its_hidden_states_absent(tmp_path: Path) -> None:
    plain = some(3)
    rng = np.random.default_rng(0)
    hidden = replace(
        plain,
        hidden=rng.normal(size=(3, 5)).astype(np.float32),
        head=rng.normal(size=(10, 5)).astype(np.float32),
    )
    with ReadingStore(tmp_path / "r.db") as store:
        store.put(RUN_KEY, THREE, hidden)
        store._db.execute("UPDATE heads SET weight = zeroblob(200)")
        assert store.get(RUN_KEY, THREE, hidden=True)[1] == []
        assert store.get(RUN_KEY, THREE)[1] == [0, 1, 2]  # the answers are whole
        store.put(RUN_KEY, THREE, hidden)
        back, places = store.get(RUN_KEY, THREE, hidden=True)
        assert places == [0, 1, 2]
        assert np.array_equal(np.asarray(back.head), np.asarray(hidden.head))


def test_a_damaged_schema_is_said_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    ReadingStore(path).close()
    path.write_bytes(path.read_bytes().replace(b"key TEXT PRIMARY", b"key T\xff\xfe( PRIMARY"))
    with pytest.raises(StoreError, match="if it is damaged"):
        ReadingStore(path)


@pytest.mark.full
def test_no_damaged_byte_changes_a_reading(tmp_path: Path) -> None:
    """Anywhere in the file: an error, or a reading that is absent, but never another number."""
    path, pairs, true = tmp_path / "r.db", [PairKey(str(i), "x" * i) for i in range(60)], some(60)
    with ReadingStore(path) as store:
        store.put(RUN_KEY, pairs, true)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    absent = errors = 0
    for number, place in enumerate(rng.integers(100, len(whole) - 16, 150).tolist()):
        damaged, size = bytearray(whole), 1 << number % 5
        damaged[place : place + size] = rng.bytes(size)
        path.write_bytes(damaged)
        try:
            with ReadingStore(path) as store:
                back, places = store.get(RUN_KEY, pairs)
        except StoreError:
            errors += 1
            continue
        assert np.array_equal(back.answer_logp, true.answer_logp[places])
        absent += len(places) < len(pairs)
    assert absent > 30, errors  # most bytes are readings


def test_a_reader_without_write_permission_sees_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.db"
    with ReadingStore(path) as writer:
        writer.put(RUN_KEY, [PairKey("a", "x")], some(1))
        assert Path(f"{path}-wal").stat().st_size > 0  # not yet in the file itself
        monkeypatch.setattr("discode.readings._store._writable", lambda path: False)
        with ReadingStore(path, create=False) as reader:
            assert len(reader) == 1
    with ReadingStore(path, create=False) as alone:
        assert len(alone) == 1


def test_bad_places(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a folder"):
        ReadingStore(tmp_path / "none" / "r.db")
    with pytest.raises(StoreError, match="no reading store at"):
        ReadingStore(tmp_path / "r.db", create=False)
    with pytest.raises(StoreError, match="cannot use"):
        ReadingStore(tmp_path)
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreError, match="not a reading store"):
        ReadingStore(tmp_path / "empty.db", create=False)
    assert (tmp_path / "empty.db").stat().st_size == 0


RUN = """
    import os, signal, sys, threading, time
    from pathlib import Path
    from discode import load
    from discode._pairs import Pair
    from tests.helpers.fake_model import FakeModel

    folder, total, kill_after = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    think, delay = float(sys.argv[4]), float(sys.argv[5])
    die = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL))

    class Slow(FakeModel):
        count = 0

        def answer(self, pairs, prompt, scale, *, hidden=False):
            with (folder / "asked.txt").open("a") as log:
                log.writelines(f"{pair.caption}\\n" for pair in pairs)
            self.count += len(pairs)
            if self.count >= kill_after > 0 and not die.is_alive():
                die.start()
            if self.count > total // 2 and kill_after:
                signal.pause()  # it must not end before it dies
            time.sleep(think)
            return super().answer(pairs, prompt, scale, hidden=hidden)

    pairs = [Pair(folder / "image.png", f"caption {i}") for i in range(total)]
    scores = load(Slow(), store=folder / "r.db", batch_size=4).score_pairs(pairs)
    print(*scores.value.tolist(), sep="\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("total", "after", "think", "delay"),
    [(40, 16, 0.5, 0.1), (2000, 100, 0, 0.001), (2000, 401, 0, 0.002), (2000, 802, 0, 0.003)],
    ids=["while the model thinks", *(f"while it writes, {n}" for n in (1, 2, 3))],
)
@pytest.mark.full
def test_kill_minus_nine_loses_one_batch_at_most(
    tmp_path: Path, image: Path, total: int, after: int, think: float, delay: float
) -> None:
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(RUN))
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}

    def run(*options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), str(tmp_path), *map(str, options)]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    def asked() -> int:
        return len((tmp_path / "asked.txt").read_text().splitlines())

    killed = run(total, after, think, delay)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    first = asked()
    assert after <= first < total
    with ReadingStore(tmp_path / "r.db", create=False) as store:
        kept = len(store)
    assert kept >= first - 4  # at most the batch in flight is lost

    again = run(total, 0, 0, 0)
    assert asked() - first == total - kept  # only what was missing is asked for
    whole = run(total, 0, 0, 0)
    assert whole.stdout == again.stdout
    assert asked() - first == total - kept  # and now nothing
    assert len(again.stdout.split()) == total


OLD = Path(__file__).parent / "data" / "store-0.1.0.sqlite"


@pytest.fixture
def old_store(tmp_path: Path) -> Path:
    """A store that discode 0.1.0 wrote: the embedded model on the images of its demo."""
    return Path(shutil.copy(OLD, tmp_path / "old.db"))


def test_a_store_of_0_1_0_replays_bit_for_bit(old_store: Path) -> None:
    rows = json.loads(OLD.with_suffix(".json").read_text(encoding="utf-8"))
    folders = {"rocket.jpg": OLD.parent}  # the other images still ship
    pairs = [
        Pair(folders.get(row["image"], demo_path()) / row["image"], row["caption"]) for row in rows
    ]
    for method in ("raw", "smoothing", "fleur", "discode"):
        scores = discode.load(f"recorded:{old_store}", method=method).score_pairs(pairs)
        kept = [float.fromhex(row["scores"][method]) for row in rows]
        # Ratings were products, 0.30000000000000004; they are the nearest to their decimals now.
        assert scores.value.tolist() == (
            [round(one, 1) for one in kept] if method == "raw" else kept
        )


def test_a_store_of_0_1_0_gets_digests_while_another_process_has_it_open(old_store: Path) -> None:
    old = "key, ask, image, caption, refs, answer_logp, stem_logp, truncated, how"
    other = sqlite3.connect(old_store, isolation_level=None)  # as discode 0.2 writes and reads
    copy = f"INSERT INTO readings ({old}) SELECT ?, {old.partition(', ')[2]} FROM readings LIMIT 1"
    other.execute(copy, ("first",))
    with ReadingStore(old_store) as one, ReadingStore(old_store) as two:
        ((run, _),) = one.run_keys()
        other.execute("BEGIN IMMEDIATE")
        assert len(one) == 9  # opening and reading wait for no writer
        other.execute("ROLLBACK")
        for number, store in enumerate((one, two, one)):
            store.put(replace(run, scale=TEN), [THREE[number]], some(3).take([number]))
        other.execute(copy, ("second",))
        assert other.execute("SELECT count(*), count(digest) FROM readings").fetchone() == (13, 3)
        assert two.get(replace(run, scale=TEN), THREE)[1] == [0, 1, 2]
    other.close()


def test_a_full_disk_at_the_end_of_a_batch_loses_that_batch_only(tmp_path: Path) -> None:
    class Full(sqlite3.Connection):
        def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
            if sql == "COMMIT" and full:
                raise sqlite3.OperationalError("database or disk is full")
            return super().execute(sql, *rest)

    path, full = tmp_path / "r.db", False
    ReadingStore(path).close()
    with ReadingStore(path) as store:
        store._db.close()
        store._db = sqlite3.connect(
            path, isolation_level=None, factory=Full, check_same_thread=False
        )
        full = True
        with pytest.raises(StoreError, match="disk is full") as caught:
            store.put(RUN_KEY, THREE, some(3))
        assert ".recover" not in str(caught.value)
        full = False
        store.put(RUN_KEY, THREE[:1], some(1))
    with ReadingStore(path) as store:
        assert len(store) == 1
