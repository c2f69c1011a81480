"""Benchmarks made by a rule, and metrics that score them without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from discode._pairs import Pair
from discode._scores import Progress, Scores
from discode._signature import Signature
from discode.bench import AgreementProtocol, RunLog, run_metrics
from discode.benchmarks import Benchmark, Preferences, Ratings
from discode.errors import InputError
from discode.metrics import MetricFactory

QUICK = AgreementProtocol(resamples=100)


class FakeMetric:
    """Scores a caption by its length and noise, and counts the pairs it is asked for."""

    def __init__(self, seed: int, noise: float, needs: Sequence[str] = ()) -> None:
        self.needs, self.asked = frozenset(needs), 0
        self.signature = Signature.of(metric=f"fake-{seed}-{noise}")
        self._seed, self._noise = seed, noise

    def score_pairs(
        self,
        pairs: Sequence[Pair],
        *,
        repeats: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> Scores:
        self.asked += len(pairs)
        rng = np.random.default_rng(self._seed)
        truth = np.array([len(pair.caption) for pair in pairs], float)
        value = truth + self._noise * rng.standard_normal(len(pairs))
        if progress:
            progress(len(pairs))
        return Scores(value, self.signature)


class CoarseMetric(FakeMetric):
    """Says of a caption whether it is long: two scores."""

    def score_pairs(self, pairs: Sequence[Pair], **options: Any) -> Scores:
        scores = super().score_pairs(pairs, **options)
        return Scores(np.where(scores.value > 15, 1.0, 0.0), self.signature)


class FakeFactory(MetricFactory):
    """Has the metrics it is given, by name."""

    def __init__(self, **metrics: Any) -> None:
        super().__init__()
        self.metrics = metrics

    def make(self, spec: str, **options: Any) -> Any:
        if spec not in self.metrics:
            raise InputError(f"no {spec} here")
        return self.metrics[spec]


def rated(images: int = 40, captions: int = 5) -> Benchmark:
    """Captions whose length is rated by three raters who err."""
    rng = np.random.default_rng(0)
    pairs, rows, image = [], [], []
    for i in range(images):
        for j in range(captions):
            length = int(rng.integers(1, 30))
            # Two pairs per caption, which differ in their references only.
            for k in range(2):
                pairs.append(Pair(f"{i}.jpg", "x" * length + f" {j}", (f"r{k}",), f"{i}#{j}#{k}"))
                image.append(i)
                for rater in range(3):
                    rating = np.clip(round(length / 8 + rng.normal(0, 0.7)), 1, 4)
                    rows.append((len(pairs) - 1, float(rating), rater))
    return Benchmark("composite", {"references": "clean"}, tuple(pairs), Ratings.of(rows),
                     np.array(image), {"a.json": "00"})  # fmt: skip


def preferred(choices: int = 200) -> Benchmark:
    """Choices between two captions, of which mostly the longer one is preferred."""
    rng = np.random.default_rng(1)
    pairs, rows, image = [], [], []
    for i in range(choices):
        lengths = rng.integers(1, 30, 2)
        for side, length in enumerate(lengths):
            pairs.append(Pair(f"{i}.jpg", "x" * int(length), (), f"{i}#{side}"))
            image.append(i)
        better = int(lengths[1] > lengths[0]) if rng.random() < 0.9 else int(rng.integers(2))
        rows.append((2 * i, 2 * i + 1, better, ("HC", "MM")[i % 2]))
    return Benchmark("pascal50s", {"draws": "1"}, tuple(pairs), Preferences.of(rows),
                     np.array(image), {})  # fmt: skip


@cache
def fake_runs() -> dict[str, RunLog]:
    """A run on ratings and one on choices: two good metrics and a bad one."""
    factory = FakeFactory(good=FakeMetric(0, 2.0), bad=FakeMetric(1, 30.0), same=FakeMetric(2, 2.0))
    labels = {"cider": "good", "bleu-4": "bad", "other": "same"}
    return {
        "ratings": run_metrics(rated(), labels, factory, QUICK)[0],
        "choices": run_metrics(preferred(), labels, factory, QUICK)[0],
    }


def coarse_run(protocol: AgreementProtocol = QUICK, name: str = "custom") -> RunLog:
    """People's ratings have many values: a metric with two, and one with many."""
    bench = rated()
    length = [len(pair.caption) for pair in bench.pairs]
    noise = np.random.default_rng(3).integers(-6, 7, len(length))
    people = Ratings(np.arange(len(length)), np.array(length, float) + noise, np.zeros_like(noise))
    metrics = {"coarse": CoarseMetric(0, 2.0), "fine": FakeMetric(1, 8.0)}
    bench = replace(bench, name=name, judgments=people)
    return run_metrics(
        bench, {label: label for label in metrics}, FakeFactory(**metrics), protocol
    )[0]
