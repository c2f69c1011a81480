"""How often ``discode choose`` claims a better decoder, where the truth is known.

    python perf/choose.py [--sets N] [--images C ...] [--truth METHOD ...] [--learn [--alone]]

Readings of an invented model with a hump that means something and one that does not, and ratings by
invented people (tests/helpers/simulated_ratings.py). Where people rate by nothing the model knows,
every decoder is equally good; where they rate by smoothing's score, none is better; where they rate
by another decoder's, that one is. The decoders to choose from are those of the study, with
``--learn`` also a linear one, with ``--alone`` only that and smoothing. "plain" are the claims of a
paired bootstrap over images that takes the choices of the folds as given. Intervals are Wilson's,
95 %.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np

from discode._scales import TEN
from discode.bench._agreement import AgreementProtocol
from discode.bench._choose import ALPHA, BASELINE, candidate_decoders, choose_decoder
from discode.benchmarks import Preferences, Ratings
from discode.stats import wilson
from tests.helpers.simulated_ratings import SimulatedRatings, simulate

TRUTHS = ("nothing", "smoothing", "discode:tau=1,trust=1,prior_variance=1")


def preferences(made: SimulatedRatings) -> Preferences:
    """Turn the ratings of the first two captions of each image into a choice, where they differ."""
    first = np.flatnonzero(np.diff(made.image, prepend=-1))
    value = made.ratings.value
    first = first[value[first] != value[first + 1]]
    side = (value[first + 1] > value[first]).astype(np.int64)
    return Preferences(first, first + 1, side, ("all",) * len(first))


def main() -> None:
    """Print one line per truth and number of images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--images", type=int, nargs="+", default=[100])
    parser.add_argument("--captions", type=int, default=5)
    parser.add_argument("--truth", nargs="+", default=list(TRUTHS))
    parser.add_argument("--strength", type=float, default=0.7, help="of the truth in a rating")
    parser.add_argument("--second", type=float, default=0.4, help="share of the second hump")
    parser.add_argument("--preferences", action="store_true", help="choices instead of ratings")
    parser.add_argument("--learn", action="store_true", help="also fit a linear decoder")
    parser.add_argument("--alone", action="store_true", help="no other decoder but smoothing")
    parser.add_argument("--resamples", type=int, default=399)
    args = parser.parse_args()
    decoders = candidate_decoders(TEN)
    if args.alone:
        decoders = {BASELINE: decoders[BASELINE]}
    count = len(decoders) + args.learn
    print(f"{count} decoders, {args.sets} sets of {args.captions} captions per image")
    print(f"{'truth':40} {'images':>6} {'claims %':>9} {'interval':>13} {'plain %':>8} "
          f"{'T':>7} {'ms':>5}")  # fmt: skip
    for truth in args.truth:
        for images in args.images:
            claims, plain, gain = 0, 0, 0.0
            start = time.process_time()
            for seed in range(args.sets):
                made = simulate(
                    seed, truth=None if truth == "nothing" else truth, images=images,
                    captions=args.captions, strength=args.strength, second=args.second,
                )  # fmt: skip
                judged: Ratings | Preferences = made.ratings
                if args.preferences:
                    judged = preferences(made)
                # 90 %: its lower end is that of a one-sided test at 5 %.
                protocol = AgreementProtocol(
                    resamples=args.resamples, seed=seed, level=1 - 2 * ALPHA
                )
                done = choose_decoder(
                    judged, made.image, made.readings, decoders, protocol=protocol,
                    learn=args.learn,
                )  # fmt: skip
                claims += done.beats_baseline
                plain += done.nested.difference.low > 0
                gain += done.nested.difference.value / args.sets
            each = 1000 * (time.process_time() - start) / args.sets
            share = wilson(claims, args.sets).times(100)
            print(
                f"{truth:40} {images:6} {share.value:9.1f} "
                f"{share.low:6.1f}-{share.high:<6.1f} {100 * plain / args.sets:8.1f} "
                f"{100 * gain:7.2f} {each:5.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
