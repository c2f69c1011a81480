"""Resampling τ: 1,000 intervals' and tests' draws on a benchmark's shape, against scipy.

    python perf/stats.py [--rows N] [--images C] [--resamples R] [--scipy M]

Generated data of the shape of Flickr8k-CF: 47,830 captions of 1,000 images, a continuous metric,
the share of "yes" of three to six people. Everything runs on one core. scipy is called M times on
the repeated rows; the ratio compares the cost per resample in the same run.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
from scipy.stats import kendalltau

from discode.stats import (
    KendallPlan,
    acc23,
    bootstrap,
    permutation_test_preference,
    permutation_tests,
    tie_calibrated,
)


def seconds(run: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=47_830)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--scipy", type=int, default=20, help="how often scipy is called")
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    rng = np.random.default_rng(0)
    n, r = args.rows, args.resamples
    image = np.sort(rng.integers(0, args.images, n))
    quality = rng.beta(0.25, 2.0, n)
    people = rng.choice([3, 3, 3, 3, 4, 5, 6], n)
    human = rng.binomial(people, quality) / people
    a, b = (quality + rng.normal(scale=0.3, size=n) for _ in range(2))
    levels = len(np.unique(human))
    print(f"{n:,} rows, {args.images:,} images, {levels} human levels, {r:,} resamples, one core")
    print(f"{'':44} {'seconds':>9} {'ms/resample':>12}")

    def row(name: str, spent: float, times: int = r) -> float:
        print(f"{name:44} {spent:9.3f} {1e3 * spent / times:12.3f}")
        return spent / times

    def repeated() -> None:
        for _ in range(args.scipy):
            weights = np.bincount(rng.integers(0, args.images, args.images), minlength=args.images)
            kendalltau(np.repeat(a, weights[image]), np.repeat(human, weights[image]), variant="c")

    def swapped() -> None:
        for _ in range(args.scipy):
            swap = (rng.random(args.images) < 0.5)[image]
            kendalltau(np.where(swap, b, a), human, variant="c")
            kendalltau(np.where(swap, a, b), human, variant="c")

    slow = row("scipy on the repeated rows", seconds(repeated), args.scipy)
    for variant in "cb":
        start = time.perf_counter()
        bootstrap(KendallPlan(a, human, variant=variant), image, resamples=r)
        fast = row(f"bootstrap of τ_{variant}, images", time.perf_counter() - start)
        print(f"{'':44} {slow / fast:9.1f} times faster than scipy")
    plan = KendallPlan(a, human, variant="c")
    fast = row("bootstrap of τ_c, every row a cluster", seconds(
        lambda: bootstrap(plan, np.arange(n), resamples=r)))  # fmt: skip
    print(f"{'':44} {slow / fast:9.1f} times faster than scipy")

    slow = row("scipy on swapped scores", seconds(swapped), args.scipy)
    fast = row("permutation test of τ_c, images", seconds(
        lambda: permutation_tests([a, b], human, clusters=image, resamples=r)))  # fmt: skip
    print(f"{'':44} {slow / fast:9.1f} times faster than scipy")
    fast = row("permutation test of τ_c, image-caption cells", seconds(
        lambda: permutation_tests([a, b], human, clusters=image, sources=np.arange(n), resamples=r)
    ))  # fmt: skip
    print(f"{'':44} {slow / fast:9.1f} times faster than scipy")
    right = rng.random((2, n)) < 0.8
    row("permutation test of accuracies, images", seconds(
        lambda: permutation_test_preference(*right, clusters=image, resamples=r)))  # fmt: skip
    row("acc23, all rows", seconds(lambda: acc23(human, a)), 1)
    row("tie calibration, 5,000 rows", seconds(
        lambda: tie_calibrated(human[:5000], a[:5000])), 1)  # fmt: skip


if __name__ == "__main__":
    main()
