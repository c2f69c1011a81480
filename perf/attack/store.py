"""Stores that are damaged, shared and out of space: never a wrong score.

- A store with flipped bits, zeroed blocks or a missing end is asked for all its readings: by a
  judge that may ask its model again, and as a recording that may not. The same files without
  digests, as older versions wrote them, show what the digests are for.
- Four processes write the same pairs into one store, each in an order of its own.
- Files may not grow beyond a size, as on a disk that is full; then they may.
"""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

import discode
from discode.errors import DiscodeError
from discode.judge import Judge
from discode.pairs import Pair
from perf.attack.harness import CONTEXT, PATIENCE, Command, Report, tracebacks
from tests.helpers.instant import Instant, make_judge, rows
from tests.helpers.samples import png

ROWS, WRITERS = 60, 4


def attack(count: int, rng: np.random.Generator, folder: Path) -> Report:
    """Damage ``count`` stores, share one, and fill a disk."""
    report = Report(f"store: {count} damaged files, {WRITERS} writers, a full disk")
    pairs = _pairs(folder)
    truth = make_judge(store=folder / "whole.db").score_pairs(pairs).value
    shutil.copy(folder / "whole.db", folder / "older.db")
    has_digests = _drop_digests(folder / "older.db")
    log = logging.getLogger("discode")  # it warns of damage; what comes of that is counted
    before = log.level
    log.setLevel("ERROR")
    try:
        _spoil(report, count, rng, folder, pairs, truth)
    finally:
        log.setLevel(before)
    report.promise("stores have digests", [] if has_digests else ["the column is missing"])
    _share(report, folder, pairs, truth)
    _fill(report, folder, max(2, count // 50))
    return report


def _spoil(
    report: Report,
    count: int,
    rng: np.random.Generator,
    folder: Path,
    pairs: list[Pair],
    truth: np.ndarray,
) -> None:
    """Damage two stores alike, and read them in both ways."""
    damages = [rng.integers(0, 2**63) for _ in range(count)]
    for name, stored in (("without digests", "older.db"), ("with digests", "whole.db")):
        outcomes: Counter[str] = Counter()
        wrong = []
        for seed in damages:
            data = _damage(np.random.default_rng(seed), (folder / stored).read_bytes())
            for way, judge in (("asked", _live), ("recording", _recorded)):
                path = folder / "damaged.db"
                for old in folder.glob("damaged.db*"):
                    old.unlink()
                path.write_bytes(data)
                outcome = _read(judge, path, pairs, truth)
                outcomes[f"{name}, {way}: {outcome}"] += 1
                if outcome.startswith(("WRONG", "ERROR")):
                    wrong.append(f"{way}, seed {seed}: {outcome}")
        for what, number in sorted(outcomes.items()):
            report.say(what, number)
        if stored == "whole.db":
            report.promise("with digests: never a wrong score, never a traceback", wrong)


def _pairs(folder: Path) -> list[Pair]:
    for number in range(ROWS // 5):
        (folder / f"{number}.png").write_bytes(png() + str(number).encode())
    return [
        Pair(str(folder / row["image"]), row["caption"].replace("x!", ""), (), row["id"])
        for row in rows(ROWS)
    ]


def _drop_digests(path: Path) -> bool:
    """Make a store one of an older version; whether it had digests."""
    db = sqlite3.connect(path)
    try:
        has = any(row[1] == "digest" for row in db.execute("PRAGMA table_info(readings)"))
        if has:
            db.execute("ALTER TABLE readings DROP COLUMN digest")
            db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return has
    finally:
        db.close()


def _damage(rng: np.random.Generator, data: bytes) -> bytes:
    damaged = bytearray(data)
    kind = rng.random()
    if kind < 0.8:  # flipped bits, past the first page mostly: damage there is seen at once
        first = 0 if kind < 0.1 else 4096
        for place in rng.integers(first * 8, len(data) * 8, rng.integers(1, 9)).tolist():
            damaged[place // 8] ^= 1 << place % 8
    elif kind < 0.9:
        start = int(rng.integers(0, len(data)))
        size = int(rng.integers(1, 2000))
        damaged[start : start + size] = bytes(len(damaged[start : start + size]))
    else:
        del damaged[rng.integers(len(data) // 2, len(data)) :]
    return bytes(damaged)


def _live(path: Path) -> Judge:
    return discode.load(Instant(), store=path)


def _recorded(path: Path) -> Judge:
    return discode.load(f"recorded:{path}#instant")


def _read(judge: Callable[[Path], Judge], path: Path, pairs: list[Pair], truth: np.ndarray) -> str:
    """Return what becomes of a damaged store."""
    try:
        scores = judge(path).score_pairs(pairs)
    except DiscodeError as error:
        return "refused in a line" if str(error) else "ERROR no reason"
    except Exception as error:
        return f"ERROR {error!r}"
    read = ~np.isnan(scores.value)
    if not np.array_equal(scores.value[read], truth[read]):
        return "WRONG score"
    if any(i not in scores.errors for i in np.flatnonzero(~read)):
        return "ERROR a NaN without a reason"
    return "every score right" if read.all() else "some rows failed, the others right"


def _write(folder: Path, pairs: list[Pair], seed: int, truth: np.ndarray) -> None:
    order = np.random.default_rng(seed).permutation(len(pairs))
    judge = make_judge(wait=0.001, store=folder / "shared.db", batch_size=3)
    scores = judge.score_pairs([pairs[i] for i in order])
    if not np.array_equal(scores.value, truth[order]):
        raise SystemExit(3)


def _share(report: Report, folder: Path, pairs: list[Pair], truth: np.ndarray) -> None:
    writers = [
        CONTEXT.Process(target=_write, args=(folder, pairs, seed, truth)) for seed in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(PATIENCE)
    codes = [writer.exitcode for writer in writers]
    kept = []
    for name in ("shared.db", "whole.db"):
        db = sqlite3.connect(folder / name)
        columns = "key, image, caption, answer_logp, stem_logp"
        kept.append(db.execute(f"SELECT {columns} FROM readings ORDER BY key").fetchall())
        db.close()
    report.say(f"readings kept by {WRITERS} writers of {ROWS} pairs each", len(kept[0]))
    report.promise("every writer has the right scores", [code for code in codes if code])
    report.promise("each reading once, as one writer keeps it", [] if kept[0] == kept[1] else kept)


def _fill(report: Report, folder: Path, count: int) -> None:
    """Run out of space ``count`` times, each a little later, and go on with more."""
    table = folder / "pairs.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows(ROWS)))

    def start(place: str, largest: int | None = None) -> Command:
        (folder / place).mkdir(exist_ok=True)
        return Command(
            folder / place, "score", "-i", table, "--images", folder, "-o", "out.jsonl",
            "--model", "stand-in:", "--batch-size", 5, largest=largest,
        )  # fmt: skip

    code = start("roomy").wait()
    whole = (folder / "roomy" / "out.jsonl").read_bytes()
    bad, advice = [], []
    for size in np.linspace(2000, len(whole) - 1, count).astype(int).tolist():
        command = start(f"full-{size}", size)
        stopped = command.wait()
        said = [line for line in command.stderr.splitlines() if line.startswith("discode: ")]
        out = folder / f"full-{size}" / "out.jsonl"
        if stopped != 2 or len(said) != 1 or tracebacks(command.stderr) or out.exists():
            bad.append(f"{size} bytes: exit code {stopped}, {command.stderr[-300:]!r}")
        advice += [line for line in said if ".recover" in line]
        if start(f"full-{size}").wait() != code or out.read_bytes() != whole:
            bad.append(f"{size} bytes: not the same after there was space")
    report.say("runs that the disk was too small for", count)
    report.promise("exit code 2 and one line; whole once there is space", bad)
    report.promise("no advice to repair what is whole", advice)
