"""A million pairs into a folder of scores: CPU time per pair, and memory.

    python perf/stream.py [--rows 1000000]

Makes a Parquet set in a temporary folder and scores it with a model that answers at once, so that
only the package's own work is measured: reading, pairing, decoding, writing. Then the same again,
killed (SIGKILL) three times on the way; every row must be there exactly once, with the same score.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import discode
from discode._pairs import Pair
from discode._prompts import Prompt
from discode._scales import Scale
from discode.backends import Backend, Blocks
from discode.bulk import SHARD_ROWS, plan_run, score_to_folder
from discode.readings import Identity, Readings

KILLS = 3
MOST_MICROSECONDS, MOST_MB = 40, 300


class Instant(Backend):
    """A backend that answers by the length of a caption, at once."""

    identity = Identity("instant", "1", "none")

    def __init__(self) -> None:
        logits = np.random.default_rng(0).uniform(-8, 0, (64, 2, 10))
        self._answers = logits - np.logaddexp.reduce(logits, axis=2, keepdims=True) - 0.1

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Blocks:
        """Look N answers up."""
        kinds = np.array([len(pair.caption) % 64 for pair in pairs], np.intp)
        stems = np.tile(np.log([0.7, 0.2]), (len(pairs), 1))
        yield range(len(pairs)), Readings(scale, self._answers[kinds], stems)


def make_set(path: Path, rows: int) -> None:
    """Write a table of image names and captions, five captions per image."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    words = np.array(["a", "the", "dog", "cat", "man", "runs", "sleeps", "on", "grass", "red"])
    schema = pa.schema({"id": pa.string(), "image": pa.string(), "caption": pa.string()})
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, 50_000):
            numbers = range(start, min(start + 50_000, rows))
            chosen = words[rng.integers(len(words), size=(len(numbers), 11))]
            captions = [" ".join(row[: 5 + i % 7]) for i, row in enumerate(chosen)]
            columns = [
                [f"r{i}" for i in numbers], [f"{i // 5:07d}x.jpg" for i in numbers], captions
            ]  # fmt: skip
            writer.write_table(pa.table(columns, schema=schema))


def work(source: Path, folder: Path, form: str) -> None:
    """Score the set in this process, and print what it took."""
    judge = discode.load(Instant(), batch_size=4096)
    start = time.process_time()  # of this process alone: the machine may be busy with others
    totals = score_to_folder(judge, plan_run(source, folder, format=form))
    took = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"rows": totals.rows, "seconds": took, "peak_mb": peak}))


def command(source: Path, folder: Path, form: str) -> list[str]:
    """Return the command that does :func:`work` in a process of its own."""
    return [sys.executable, __file__, "--work", str(source), str(folder), "--format", form]


def read_scores(folder: Path) -> dict[str, float | None]:
    """Return every row's score, and check that none is there twice."""
    scores: dict[str, float | None] = {}
    count = 0
    for file in sorted(folder.glob("part-*.jsonl")):
        with file.open() as handle:
            for line in handle:
                row = json.loads(line)
                scores[row["id"]] = row["score"]
                count += 1
    assert count == len(scores), f"{count} rows, {len(scores)} of them different"
    return scores


def kill_and_resume(source: Path, folder: Path, rows: int) -> None:
    """Run with SIGKILL on the way, then to the end."""
    shards = -(-rows // SHARD_ROWS)
    for number in range(1, KILLS + 1):
        running = subprocess.Popen(command(source, folder, "jsonl"), stdout=subprocess.DEVNULL)
        while len(list(folder.glob("_done/part-*"))) < number * shards // (KILLS + 1):
            time.sleep(0.01)
        time.sleep(0.05)  # into the middle of a shard
        os.kill(running.pid, signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
        print(
            f"kill {number}: {len(list(folder.glob('_done/part-*')))} of {shards} shards were done"
        )
    subprocess.run(command(source, folder, "jsonl"), check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Measure, kill, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--work", nargs=2, type=Path, default=())
    parser.add_argument("--format", default="jsonl")
    arguments = parser.parse_args()
    if arguments.work:
        source, folder = arguments.work
        work(source, folder, arguments.format)
        return
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "set.parquet"
        make_set(source, arguments.rows)
        for form in ("jsonl", "parquet"):
            done = subprocess.run(
                command(source, Path(name) / form, form), check=True, capture_output=True, text=True
            )
            said = json.loads(done.stdout)
            seconds = said["seconds"]
            each = seconds / said["rows"] * 1e6
            print(
                f"{form}: {said['rows']} rows in {seconds:.1f} s of CPU, "
                f"{each:.1f} µs per pair, peak {said['peak_mb']:.0f} MB"
            )
            assert each < MOST_MICROSECONDS
            assert said["peak_mb"] < MOST_MB
        killed = Path(name) / "killed"
        kill_and_resume(source, killed, arguments.rows)
        whole = read_scores(Path(name) / "jsonl")
        assert len(whole) == arguments.rows
        assert read_scores(killed) == whole
        print(f"after {KILLS} kills: {len(whole)} rows, each once, with the same scores")


if __name__ == "__main__":
    main()
