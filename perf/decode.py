"""One million readings through the closed form, against ten Adam steps on the same readings.

    python perf/decode.py [--readings N] [--adam M] [--width D]

Everything runs on one core. Adam solves the first M of the same readings for heads of width D; the
ratio compares the cost per reading in the same run (Adam's varies with M, by a factor of
about two).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np

import discode
from discode._scales import TEN
from discode.decoders import Decoder, get_decoder
from discode.readings import Readings


def best_of(times: int, run: Callable[[], object]) -> float:
    """Return the shortest of several timings, in seconds: noise only ever adds."""
    shortest = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        run()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readings", type=int, default=1_000_000)
    parser.add_argument("--adam", type=int, default=512)
    parser.add_argument("--width", type=int, default=4096, help="4096: an 8B model's hidden size")
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    # Logits of a random head over random hidden states: both solvers see the same readings.
    rng = np.random.default_rng(0)
    head = rng.normal(size=(10, args.width)).astype(np.float32) / np.sqrt(args.width)
    hidden = rng.normal(size=(args.adam, args.width)).astype(np.float32) * 3
    logits = rng.normal(size=(args.readings, 10)) * 3
    logits[: args.adam] = hidden @ head.T
    logp = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    readings = Readings.of(logp, TEN)
    few = Readings(
        TEN,
        readings.answer_logp[: args.adam],
        readings.stem_logp[: args.adam],
        hidden=hidden,
        head=head,
    )

    print(f"{'on one core':34} {'seconds':>9} {'ns/reading':>12}")

    def row(name: str, seconds: float, n: int) -> float:
        print(f"{name:34} {seconds:9.3f} {1e9 * seconds / n:12.0f}")
        return seconds / n

    n = args.readings
    closed = get_decoder("discode")
    cost = row(f"discode, {n:,} readings", best_of(5, lambda: closed.decode(readings)), n)
    row("discode.decode(), with all checks", best_of(3, lambda: discode.decode(logp)), n)
    row("smoothing", best_of(3, lambda: get_decoder("smoothing").decode(readings)), n)
    exact = get_decoder("jensen-shannon")
    part = readings.take(np.arange(min(n, 50_000)))
    row(f"exact Jensen-Shannon, {len(part):,}", best_of(2, lambda: exact.decode(part)), len(part))

    # One reading per call.
    singles = [few.take([i]) for i in range(min(64, args.adam))]

    def one_by_one(decoder: Decoder) -> Callable[[], object]:
        return lambda: [decoder.decode(single) for single in singles]

    single = row("discode, one reading per call", best_of(3, one_by_one(closed)), len(singles))

    import torch

    torch.set_num_threads(1)
    for divergence in ("weighted-kl", "jensen-shannon"):
        adam = get_decoder("discode", divergence=divergence, solver="adam")
        seconds = best_of(2, partial(adam.decode, few))
        slow = row(f"adam {divergence}, {args.adam:,}", seconds, args.adam)
        print(f"{'':34} {slow / cost:,.0f} times the closed form")
        seconds = best_of(2, one_by_one(adam))
        slow = row(f"adam {divergence}, one per call", seconds, len(singles))
        print(f"{'':34} {slow / single:,.0f} times the closed form, one per call")


if __name__ == "__main__":
    main()
