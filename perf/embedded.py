"""Speed of the embedded model: python perf/embedded.py [FILE.onnx] [--against OLD.onnx]

Prints what an image and a caption cost, what sharing the image saves, cold start and memory; with
--flickr8k F, a folder of Flickr8k, the time for all pairs of its experts (1,000 images, 5,664
captions). With --against, the processor time of two files that take turns: their ratio holds on a
busy machine, too.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import discode
from discode.backends.embedded import SHIPPED, Embedded
from discode.images import demo_path
from discode.pairs import Pair

CAPTION = "a man in a red shirt is riding a bike down a hill"
START = """
import time; start = time.perf_counter()
import discode
discode.load("embedded:{file}").score({photo!r}, "a cat looks at the camera")
print(time.perf_counter() - start)
"""


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


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=SHIPPED)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--flickr8k", type=Path)
    parser.add_argument("--against", type=Path, help="compare with this file, and do no more")
    args = parser.parse_args()
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
    code = START.format(file=args.file, photo=str(photo))
    cold = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(3)
    ]
    print(f"cold start to first score: {min(cold):.2f} s")
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
