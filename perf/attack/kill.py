"""``kill -9`` in the middle of runs, then the same command again.

Three kinds of runs: into a folder of shards, into one file, and onto standard output with a store.
Each is killed a few times, at moments drawn at random: while it starts, after any number of
answers, and while it writes its results. Then it runs to its end. What it wrote must be, byte for
byte, what a run writes that nobody disturbs; a model may be asked again only for the batch that was
in flight; and the store is sound after every kill.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections import Counter
from pathlib import Path

import numpy as np

from perf.attack.harness import Command, Report
from tests.helpers.instant import rows
from tests.helpers.samples import png

ROWS, BATCH, EACH = 600, 10, 4
"""Pairs of a run, pairs per batch, and kills of one run before it may end."""
RUNS = {
    "folder": ("-o", "out/", "--shard-size", 100),
    "file": ("-o", "out.jsonl"),
    "store": ("--json", "--store", "kept.db"),
}


def attack(count: int, rng: np.random.Generator, folder: Path) -> Report:
    """Kill ``count`` times."""
    pairs = folder / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows(ROWS)))
    for number in range(ROWS // 5):
        (folder / f"{number}.png").write_bytes(png() + str(number).encode())
    whole: dict[str, dict[str, bytes]] = {}
    for name in RUNS:
        code = _start(folder, f"whole-{name}", name).wait()
        whole[name] = _results(folder / f"whole-{name}")
        whole[name]["exit code"] = str(code).encode()
    kept = _kept(folder / "whole-store")
    counts: Counter[str] = Counter({"kills": 0, **{f"  of runs into a {name}": 0 for name in RUNS}})
    damaged, other, twice = [], [], []
    number = 0
    while counts["kills"] < count:
        name = list(RUNS)[number % len(RUNS)]
        place = f"run-{number}"
        number += 1
        kills = 0
        for _ in range(min(EACH, -(-count // len(RUNS)))):
            if counts["kills"] == count:
                break
            command = _start(folder, place, name)
            _wait(command, folder / place / "asked", rng)
            command.process.kill()
            command.process.join()
            if command.process.exitcode != -9:
                counts["ended before the kill"] += 1
                continue
            kills += 1
            counts["kills"] += 1
            counts[f"  of runs into a {name}"] += 1
            damaged += [f"{place}: {fault}" for fault in _check(folder / place, kept)]
        code = _start(folder, place, name).wait()
        found = _results(folder / place) | {"exit code": str(code).encode()}
        if found != whole[name]:
            wrong = [
                key for key in found.keys() | whole[name] if found.get(key) != whole[name].get(key)
            ]
            other.append(f"{name}: {', '.join(sorted(wrong))}")
        asked = (folder / place / "asked").read_text().splitlines()
        again = Counter(line.partition(" ")[2] for line in asked if "x!" not in line)
        if sum(again.values()) - len(again) > kills * BATCH:
            twice.append(f"{name}: {sum(again.values()) - len(again)} pairs after {kills} kills")
        counts["pairs asked again"] += sum(again.values()) - len(again)
        counts["runs that went on"] += 1
        shutil.rmtree(folder / place)
    report = Report(f"kill: {count} kills of runs of {ROWS} pairs, and the same command again")
    for what, value in counts.items():
        report.say(what, value)
    report.promise("the store is sound after every kill", damaged)
    report.promise("nothing lost, nothing twice: byte for byte as undisturbed", other)
    report.promise(f"asked again: at most the {BATCH} pairs in flight per kill", twice)
    return report


def _start(folder: Path, place: str, name: str) -> Command:
    (folder / place).mkdir(exist_ok=True)
    return Command(
        folder / place, "score", "-i", folder / "pairs.jsonl", "--images", folder,
        "--model", "stand-in:0.002,asked", "--batch-size", BATCH, *RUNS[name],
    )  # fmt: skip


def _wait(command: Command, log: Path, rng: np.random.Generator) -> None:
    """Wait for a random moment of a run, by what its model was asked: machines may be busy."""
    done = log.read_text().count("\n") if log.exists() else 0
    # The first hundred are the start, the last hundred the end.
    moment = int(rng.integers(done - 100, ROWS + 100))
    while command.process.is_alive() and done < min(moment, ROWS):
        time.sleep(0.001)
        done = log.read_text().count("\n") if log.exists() else 0
    time.sleep(rng.uniform(0, 0.3 if moment < done else 0.02))


def _results(place: Path) -> dict[str, bytes]:
    """Return the files that a run leaves, but for its store, its log and what it says of itself."""
    mine = ("stderr", "peak", "asked", ".lock")
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and ".db" not in path.name and path.name not in mine
    }


def _kept(place: Path) -> dict[str, tuple[object, ...]]:
    """Return the readings of the stores below a folder by their keys."""
    found = {}
    for path in place.rglob("*.db"):
        db = sqlite3.connect(path)
        try:
            if db.execute("SELECT 1 FROM sqlite_master").fetchone():
                columns = "key, image, caption, answer_logp, stem_logp"
                for row in db.execute(f"SELECT {columns} FROM readings"):
                    found[row[0]] = row
        finally:
            db.close()
    return found


def _check(place: Path, kept: dict[str, tuple[object, ...]]) -> list[str]:
    """Return what is wrong with the stores that a kill left."""
    faults = []
    for path in place.rglob("*.db"):
        db = sqlite3.connect(path)
        said = db.execute("PRAGMA integrity_check").fetchone()[0]
        db.close()
        if said != "ok":
            faults.append(said)
    found = _kept(place)
    faults += [key for key, row in found.items() if kept.get(key) != row]
    return faults
