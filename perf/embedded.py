"""Speed of the embedded model: python perf/embedded.py [FILE.onnx] [--against OLD.onnx]

Prints what an image and a caption cost, what sharing the image saves, the first score, pairs per
minute and memory; with --flickr8k F, a folder of Flickr8k, the time for all pairs of its experts
(1,000 images, 5,664 captions). With --against, the processor time of two files that take turns:
their ratio holds on a busy machine, too. With --spinning, numbers of threads that take turns, with
onnxruntime's spinning and without; --busy N adds N processes that only burn time.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import discode
from discode._pairs import Pair
from discode.backends._embedded import SHIPPED, Embedded, backend
from discode.backends._embedded.backend import usable_cores
from discode.images import demo_path

CAPTION = "a man in a red shirt is riding a bike down a hill"
START = """
import discode
discode.load("embedded:{file}", threads=1).score({photo!r}, "a cat looks at the camera")
"""
BURN = "while True: sum(range(10_000))"


def median_ms(times: int, run: Callable[[], object]) -> float:
    """Return the median of several timings, in milliseconds."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return 1e3 * float(np.median(seconds))


def against(file: Path, old: Path, threads: int, times: int = 25) -> None:
    """Print the median processor time of two files for an image with 1, 5 and 16 captions."""
    judges = [discode.load(Embedded(each, threads=threads)) for each in (old, file)]
    photo = demo_path() / "cat.jpg"
    for n in (1, 5, 16):
        captions = [f"{CAPTION} {i}" for i in range(n)]
        spent: list[list[float]] = [[], []]
        for turn in range(times + 2):
            for judge, seconds in zip(judges, spent, strict=True):
                start = time.process_time()
                judge.score(photo, captions)
                if turn > 1:
                    seconds.append(time.process_time() - start)
        was, now = (1e3 * float(np.median(seconds)) for seconds in spent)
        print(f"{n} captions: {was:.1f} ms before, {now:.1f} ms now, ratio {now / was:.3f}")


class Spinning(Embedded):
    """The same model with threads that spin while they wait, onnxruntime's default."""

    _spinning = "1"


def spinning(file: Path, busy: int, times: int = 15) -> None:
    """Print the times of an image by number of threads, with spinning and without.

    The median is that of the machine as it is; the least comes near to that of a quiet one.
    """
    counts = sorted({1, max(1, usable_cores() // 2), usable_cores()})
    judges = {
        f"{n} threads{', spinning' if spins else ''}": discode.load(
            (Spinning if spins else Embedded)(file, threads=n)
        )
        for n in counts
        for spins in (True, False)
    }
    photo = demo_path() / "cat.jpg"
    others = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(busy)]
    try:
        for n in (1, 5):
            captions = [f"{CAPTION} {i}" for i in range(n)]
            spent: dict[str, list[tuple[float, float]]] = {name: [] for name in judges}
            for turn in range(times + 1):
                for name, judge in judges.items():
                    wall, cpu = time.perf_counter(), time.process_time()
                    judge.score(photo, captions)
                    if turn:
                        passed = time.perf_counter() - wall, time.process_time() - cpu
                        spent[name].append(passed)
            print(f"{n} captions, {busy} busy processes, load {os.getloadavg()[0]:.1f}")
            for name, seconds in spent.items():
                (wall, cpu), least = 1e3 * np.median(seconds, axis=0), 1e3 * np.min(seconds, axis=0)
                print(f"  {name}: {wall:.0f} ms, least {least[0]:.0f}; {cpu:.0f} ms of CPU")
    finally:
        for other in others:
            other.kill()
            other.wait()


def throughput(file: Path, photo: Path, cores: int = 2, times: int = 15) -> None:
    """Print seconds of CPU to the first score, and pairs per minute from the CPU time of a pair."""
    code = START.format(file=file, photo=str(photo))
    score = ["score", str(photo), CAPTION, "--model", f"embedded:{file}", "--threads", "1"]
    for name, command in {
        "Python": ["-c", code],
        "discode score": ["-m", "discode", *score],
    }.items():
        cold = []
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *command], capture_output=True, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cold.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        print(f"first score of a new process, {name}: {min(cold):.1f} s of CPU")
    judge = discode.load(Embedded(file, threads=1))
    for n in (1, 5):
        captions = [f"{CAPTION} {i}" for i in range(n)]
        spent = []
        for _ in range(times):
            start = time.process_time()
            judge.score(photo, captions)
            spent.append((time.process_time() - start) / n)
        each = float(np.median(spent))
        print(
            f"{n} captions per image: {1e3 * each:.0f} ms of CPU per pair, "
            f"{cores * 60 / each:,.0f} pairs per minute on {cores} cores"
        )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=SHIPPED)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--flickr8k", type=Path)
    parser.add_argument("--against", type=Path, help="compare with this file, and do no more")
    parser.add_argument("--spinning", action="store_true", help="compare threads, and do no more")
    parser.add_argument("--busy", type=int, default=0, help="processes beside, with --spinning")
    args = parser.parse_args()
    backend.IMAGES_KEPT = 0  # an image is new in every run
    if args.spinning:
        spinning(args.file, args.busy)
        return
    if args.against:
        against(args.file, args.against, args.threads)
        return
    judge = discode.load(Embedded(args.file, threads=args.threads))
    photo = demo_path() / "cat.jpg"

    def shared(n: int) -> float:
        captions = [f"{CAPTION} {i}" for i in range(n)]
        judge.score(photo, captions)
        return median_ms(15, lambda: judge.score(photo, captions))

    costs = {n: shared(n) for n in (1, 5, 6, 16)}
    caption = (costs[16] - costs[1]) / 15
    print(f"{args.threads} threads, {args.file.stat().st_size / 2**20:.1f} MiB")
    print(f"image {costs[1] - caption:.1f} ms, caption {caption:.1f} ms (from 1 and 16 captions)")
    print(f"5 captions of an image: {costs[5]:.1f} ms")
    print(f"6 captions shared: x{6 * costs[1] / costs[6]:.1f} over one at a time")
    throughput(args.file, photo)
    if args.flickr8k:
        captions: dict[str, str] = {}
        for line in (args.flickr8k / "Flickr8k.token.txt").read_text("utf-8").splitlines():
            key, text = line.split("\t")
            captions[key] = text
        pairs = []
        for line in (args.flickr8k / "ExpertAnnotations.txt").read_text().splitlines():
            image, key = line.split("\t")[:2]
            if key.partition("#")[0] != image:
                pairs.append(Pair(args.flickr8k / "images" / image, captions[key]))
        start = time.perf_counter()
        scores = judge.score_pairs(pairs)
        print(f"{len(scores)} pairs: {time.perf_counter() - start:.1f} s, {scores.counts()}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
