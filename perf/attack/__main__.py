"""Run attacks: python -m perf.attack [NAME ...] [--count N] [--seed S]"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

import numpy as np

ATTACKS = {
    "images": (3000, "files that are nearly images, through the one door for images"),
    "captions": (3000, "captions that give orders, drive terminals and forge prompts"),
    "kill": (120, "kill -9 in the middle of runs, then the same command again"),
    "store": (300, "stores with flipped bits, four writers, a disk that is full"),
    "addresses": (49, "URLs that lead inside, to a service that fetches URLs"),
    "requests": (2300, "requests of every kind to a service, broken ones among valid ones"),
    "minimise": (20000, "random losses minimised by scipy, too; bounds of truncated rows"),
}
"""The attacks, each with the count that docs/BENCHMARKS.md shows."""


def main() -> None:
    """Run the attacks that are named, or list them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ATTACKS))
    parser.add_argument("--count", type=int, help="instead of the attack's own")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if unknown := set(args.names) - ATTACKS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(ATTACKS)}")
    if not args.names:
        for name, (count, about) in ATTACKS.items():
            print(f"{name:10} {count:6}  {about}")
    broken = 0
    for name in args.names:
        count = ATTACKS[name][0] if args.count is None else args.count
        attack = import_module(f"perf.attack.{name}").attack
        start, cpu = time.perf_counter(), time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            report = attack(count, np.random.default_rng(args.seed), Path(folder))
        print("\n".join(report.lines()))
        took, own = time.perf_counter() - start, time.process_time() - cpu
        print(f"  {took:.0f} s, {own:.0f} s of CPU in this process\n")
        broken += len(report.broken)
    sys.exit(broken > 0)


if __name__ == "__main__":
    main()
