"""A decoder, a backend, a benchmark and a metric that discode finds by name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from discode import Backend, Readings, Signature
from discode.benchmarks import BenchmarkBuilder, BenchmarkRow, Ratings, read_rows
from discode.decoders import DistributionDecoder
from discode.metrics import MetricRow, PairMetric, RowScores
from discode.options import POSITIVE, SIZE, Option, option
from discode.readings import Identity


@dataclass(frozen=True, kw_only=True)
class Sharpen(DistributionDecoder):
    """p ∝ L^power: smoothing at 1, and the raw answer as the power grows."""

    power: float = option(2.0, "exponent of the model's distribution", POSITIVE)

    name = "sharpen"

    def prepare(self, seen, readings):
        """Return a function from log L of a block, (K, n), to log p (K, n), up to a constant."""
        return lambda rows, logp, raw: self.power * logp


@dataclass
class Blind(Backend):
    """A baseline judge that counts words and never opens the image."""

    model: str = ""
    best: int = option(10, "number of words that it rates highest", SIZE)

    def __post_init__(self):
        # Everything that changes the numbers; the version of this package is added.
        self.identity = Identity("blind", revision=f"best={self.best}")

    def read(self, pairs, prompt, scale, *, hidden=False):
        """Yield the indices of pairs with their readings; here all of them at once."""
        words = np.array([len(pair.caption.split()) for pair in pairs])
        values = np.arange(len(scale.answers))
        rating = np.minimum(words / self.best, 1) * values[-1]
        logp = -((values - rating[:, None]) ** 2) / 2
        logp -= np.logaddexp.reduce(logp, axis=1, keepdims=True)
        yield range(len(pairs)), Readings.of(logp, scale)


def load_stars(folder, options):
    """Read stars.csv: image, caption, stars (1 to 5)."""
    file = STARS.find_files(folder)["stars.csv"]
    builder, rows = BenchmarkBuilder(STARS, folder), []
    for where, row in read_rows(file):
        pair = builder.add(row["image"], row["caption"], (), where)
        if float(row["stars"]) >= options["least"]:
            rows.append((pair, float(row["stars"]), 0))
    return builder.build(options, Ratings.of(rows), [file])


STARS = BenchmarkRow(
    name="stars",
    title="Stars",
    about="ratings from 1 to 5",
    load=load_stars,
    source="https://example.org/stars",
    licence="CC0",
    citation="none",
    forms=(("stars.csv",),),
    options=(Option("least", 1, "the fewest stars that count", (SIZE,)),),
)


class Words(PairMetric):
    """Words in a caption."""

    needs = frozenset()
    signature = Signature.of(metric="words", version="1")

    def score_rows(self, pairs, repeats):
        """Return a number per pair; NaN with a reason in ``errors`` where there is none."""
        return RowScores(np.array([float(len(pair.caption.split())) for pair in pairs]))


WORDS = MetricRow("words", "words in a caption", frozenset(), lambda factory, name: Words())
