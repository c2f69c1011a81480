"""What a digest per row costs a store of readings: python perf/store.py [--rows 20000]

Writes readings and reads them back, with digests and without, taking turns: the ratios of
processor time hold on a busy machine, too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from discode._scales import UNIT
from discode.readings import Identity, Readings
from discode.readings import _store as module
from discode.readings._store import PairKey, ReadingStore, RunKey

BATCH = 1000
TURNS = 7


def measure(path: Path, pairs: list[PairKey], readings: Readings) -> tuple[float, float]:
    """Return the seconds of processor time for writing and for reading, a batch at a time."""
    run = RunKey(Identity("model", "1", "none"), "Rate {caption}", UNIT)
    starts = range(0, len(pairs), BATCH)
    with ReadingStore(path) as store:
        times = [time.process_time()]
        for start in starts:
            store.put(run, pairs[start : start + BATCH], readings)
        times.append(time.process_time())
        for start in starts:
            _, found = store.get(run, pairs[start : start + BATCH])
            assert len(found) == BATCH
        times.append(time.process_time())
        assert not store.damaged
    return times[1] - times[0], times[2] - times[1]


def main() -> None:
    """Print microseconds per reading, and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    rows = parser.parse_args().rows // BATCH * BATCH
    logits = np.random.default_rng(0).uniform(-8, 0, (BATCH, 2, 10))
    answers = logits - np.logaddexp.reduce(logits, axis=2, keepdims=True) - 0.1
    readings = Readings(UNIT, answers, np.tile(np.log([0.7, 0.2]), (BATCH, 1)))
    pairs = [PairKey(f"{i:064x}", f"a man in a red shirt rides bike {i}") for i in range(rows)]
    digest = module._row_digest
    spent: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(TURNS):
            for name, function in (("without", lambda row: b""), ("with", digest)):
                module._row_digest = function
                path = Path(folder) / f"{name}-{turn}.db"
                spent[name].append(measure(path, pairs, readings))
    for column, verb in enumerate(("writing", "reading")):
        was, now = (float(np.median([t[column] for t in spent[name]])) for name in spent)
        print(
            f"{verb}: {1e6 * was / rows:.1f} µs per reading without digests, "
            f"{1e6 * now / rows:.1f} with, ratio {now / was:.2f}"
        )


if __name__ == "__main__":
    main()
