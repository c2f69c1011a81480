"""Score a benchmark with several metrics, each pair once, and keep everything in a log."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from discode.bench.measures import measures
from discode.bench.runlog import Protocol, Result, RunLog
from discode.benchmarks import Benchmark
from discode.errors import DiscodeError, InputError
from discode.metrics import Judged, Workshop, score
from discode.metrics.base import numbered
from discode.metrics.scorefile import ScoreFile
from discode.pairs import Pair
from discode.scores import Metric, Scores
from discode.version import __version__

PACKAGES = ("numpy", "onnxruntime", "pycocoevalcap", "torch", "transformers")
Progress = Callable[[str, int, int], None]
"""Called with a metric's name, how many pairs were just done, and how many there are."""


def named(metrics: Sequence[str]) -> dict[str, str]:
    """Return what the user calls each metric, and its name in the table.

    "polos=scorefile:polos.csv" is the metric "polos".

    >>> named(["cider", "polos=scorefile:polos.csv#score"])
    {'cider': 'cider', 'polos': 'scorefile:polos.csv#score'}
    """
    if not metrics:
        raise InputError("give at least one metric, such as cider or discode")
    names: dict[str, str] = {}
    for given in metrics:
        label, equals, spec = given.partition("=")
        # "discode:sigma2=0.05" and "scorefile:a=b.csv" have an equals sign of their own.
        if not equals or ":" in label or not label or not spec:
            label = spec = given
        if names.get(label, spec) != spec:
            raise InputError(f"two metrics are called {label!r}; give one of them another name")
        names[label] = spec
    return names


def run(
    benchmark: Benchmark,
    metrics: Mapping[str, str],
    shop: Workshop,
    protocol: Protocol | None = None,
    *,
    before: RunLog | None = None,
    done: Callable[[RunLog], None] | None = None,
    progress: Progress | None = None,
) -> tuple[RunLog, dict[str, str]]:
    """Score a benchmark.

    Args:
        benchmark: What to score.
        metrics: Label to name, as :func:`named` gives them.
        shop: Who makes the metrics.
        protocol: How agreement is measured.
        before: An earlier log of the same benchmark: scores made the same way are taken from it.
        done: Called with the log after every metric, to save it.
        progress: See ``Progress``.

    Returns:
        The log, and label to reason for the metrics that could not be made or run at all.
    """
    protocol = protocol or Protocol()
    log = RunLog.begin(benchmark, protocol, _versions())
    if before is not None and before.same_questions(log):
        # What another run measured stays beside what this one adds.
        kept = {
            label: result if before.protocol == protocol else _again(result, log)
            for label, result in before.results.items()
        }
        log = replace(log, results=kept)
    problems: dict[str, str] = {}
    for label, spec in metrics.items():
        try:
            metric = shop.make(spec)
            old = log.results.get(label)
            if old is not None and old.made == metric.signature and not old.errors:
                continue
            result = _score(benchmark, label, metric, protocol, progress)
        except DiscodeError as error:
            problems[label] = str(error)
            continue
        log = replace(log, results={**log.results, label: result})
        if done is not None:
            done(log)
    return log, problems


def _again(result: Result, log: RunLog) -> Result:
    """Measure scores by another protocol, and say so in their signature."""
    signature = f"{result.signature.rpartition('|ties:')[0]}|ties:{log.protocol.ties}"
    found = measures(log.judgments, log.image, result.value, log.protocol)
    return replace(result, signature=signature, measures=found)


def _score(
    benchmark: Benchmark,
    label: str,
    metric: Metric,
    protocol: Protocol,
    progress: Progress | None,
) -> Result:
    start = time.perf_counter()
    pairs, which = _asked(benchmark.pairs, metric)
    repeats = np.bincount(which, weights=benchmark.repeats()).astype(np.int64)
    told: Callable[[int], None] | None = None
    if progress is not None:
        told = lambda step: progress(label, step, len(pairs))  # noqa: E731  # bound to the label
    scores = (
        metric.score_pairs(pairs, told)
        if isinstance(metric, Judged)
        else score(metric, pairs, repeats)
    )
    value = scores.value[which]
    errors = {
        row: scores.errors[number]
        for row, number in enumerate(which.tolist())
        if number in scores.errors
    }
    return Result(
        metric.signature, _signature(scores, benchmark, protocol), value, errors, scores.counts(),
        time.perf_counter() - start,
        measures(benchmark.judgments, benchmark.image, value, protocol),
    )  # fmt: skip


def _asked(pairs: Sequence[Pair], metric: Metric) -> tuple[list[Pair], np.ndarray]:
    """Return the distinct pairs a metric sees, and (P,) which of them each pair is."""
    if "references" in metric.needs or isinstance(metric, ScoreFile):
        return list(pairs), np.arange(len(pairs))
    bare = [replace(pair, references=()) for pair in pairs]
    first, which = numbered([(str(pair.image), pair.caption) for pair in bare])
    return [bare[number] for number in first], which


def _signature(scores: Scores, benchmark: Benchmark, protocol: Protocol) -> str:
    options = ",".join(f"{key}={value}" for key, value in benchmark.protocol.items())
    return f"{scores.signature}|benchmark:{benchmark.name}({options})|ties:{protocol.ties}"


def _versions() -> dict[str, str]:
    found = {"discode": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
