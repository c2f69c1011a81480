"""Score a benchmark with several metrics, each pair once, and keep the results in a log."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import numpy as np
from numpy.typing import NDArray

from discode.bench.agreement import AgreementProtocol, measure_agreement
from discode.bench.runlog import MetricResult, RunLog
from discode.benchmarks import Benchmark
from discode.bulk.judging import raise_if_stopped
from discode.errors import DiscodeError, InputError, StoppedError
from discode.metrics import METRICS, MetricFactory
from discode.metrics.base import unique_keys
from discode.metrics.judge_metric import JudgeMetric
from discode.metrics.registry import asks_judge
from discode.options import option_text
from discode.pairs import Pair
from discode.scores import Metric
from discode.version import __version__

_PACKAGES = ("numpy", "onnxruntime", "pycocoevalcap", "torch", "transformers")

RunProgress = Callable[[str, int, int], None]
"""Called with a metric's label, the number of pairs just done, and the number of all its pairs."""


def label_metrics(specs: Sequence[str]) -> dict[str, str]:
    """Return the label of each metric, and the name that a factory makes it by.

    "large=clip-s:model=ORG/NAME" is the metric with the label "large". Without a label of yours it
    is the metric's name; that of a judge or a file keeps its options, which make it another metric.

    >>> label_metrics(["cider", "clip-s:model=ORG/NAME", "polos=scorefile:polos.csv#score"])
    {'cider': 'cider', 'clip-s': 'clip-s:model=ORG/NAME', 'polos': 'scorefile:polos.csv#score'}
    """
    if not specs:
        raise InputError("give at least one metric, such as cider or discode")
    names: dict[str, str] = {}
    for text in specs:
        label, equals, name = text.partition("=")
        # "discode:sigma2=0.05" and "scorefile:a=b.csv" have an equals sign of their own.
        if not equals or ":" in label or not label or not name:
            bare = text.partition(":")[0]
            label, name = (bare if bare in METRICS and not asks_judge(text) else text), text
        if names.get(label, name) != name:
            raise InputError(f"two metrics are called {label!r}; give one of them another name")
        names[label] = name
    return names


def run_metrics(
    benchmark: Benchmark,
    metrics: Mapping[str, str],
    factory: MetricFactory,
    protocol: AgreementProtocol | None = None,
    *,
    earlier: RunLog | None = None,
    save: Callable[[RunLog], None] | None = None,
    progress: RunProgress | None = None,
) -> tuple[RunLog, dict[str, str]]:
    """Score a benchmark with metrics.

    Args:
        benchmark: What to score.
        metrics: Label to name, as :func:`label_metrics` returns them.
        factory: Makes the metrics.
        protocol: How agreement is measured.
        earlier: A log of the same benchmark: scores that were made the same way are reused.
        save: Called with the log after every metric.
        progress: See ``RunProgress``.

    Returns:
        The log, and label to reason for the metrics that could not be made or run at all.

    Raises:
        StoppedError: A served model's cap was reached, or its server refused for good. What it
            read is in the factory's store, and metrics that were finished were given to ``save``.
    """
    protocol = protocol or AgreementProtocol()
    log = RunLog.begin(benchmark, protocol, _versions())
    if earlier is not None and earlier.same_questions(log):
        results = {
            label: result if earlier.protocol == protocol else measure_again(result, log)
            for label, result in earlier.results.items()
        }
        log = replace(log, results=results)
    problems: dict[str, str] = {}
    factory.expect(name for label, name in metrics.items() if label not in log.results)
    for label, name in metrics.items():
        try:
            metric = factory.make(name)
            old = log.results.get(label)
            signature = metric.signature
            if old is not None and old.metric_signature == signature and not old.failures:
                continue
            result = _score(benchmark, label, metric, protocol, progress)
        except StoppedError:
            raise
        except DiscodeError as error:
            problems[label] = str(error)
            continue
        log = replace(log, results={**log.results, label: result})
        if save is not None:
            save(log)
    return log, problems


def measure_again(result: MetricResult, log: RunLog) -> MetricResult:
    """Measure scores by another protocol, with its ties in their signature."""
    signature = result.signature.with_fields(ties=log.protocol.ties)
    measures = measure_agreement(log.judgments, log.image, result.value, log.protocol)
    return replace(result, signature=signature, measures=measures)


def _score(
    benchmark: Benchmark,
    label: str,
    metric: Metric,
    protocol: AgreementProtocol,
    progress: RunProgress | None,
) -> MetricResult:
    start = time.perf_counter()
    pairs, which = _distinct_pairs(benchmark.pairs, metric.needs)
    repeats = np.bincount(which, weights=benchmark.repeats()).astype(np.int64).tolist()

    def report(done: int) -> None:
        if progress is not None:
            progress(label, done, len(pairs))

    scores = metric.score_pairs(pairs, repeats=repeats, progress=report)
    if isinstance(metric, JudgeMetric) and scores.errors:
        raise_if_stopped(metric.judge)  # pairs that were not asked about are not a result
    seconds = time.perf_counter() - start
    value = scores.value[which]
    errors = {
        row: scores.errors[number]
        for row, number in enumerate(which.tolist())
        if number in scores.errors
    }
    options = ",".join(f"{key}={option_text(value)}" for key, value in benchmark.options.items())
    signature = scores.signature.with_fields(
        benchmark=f"{benchmark.name}({options})", ties=protocol.ties
    )
    measures = measure_agreement(benchmark.judgments, benchmark.image, value, protocol)
    return MetricResult(
        metric.signature, signature, value, errors, scores.counts(), seconds, measures
    )


def pairs_to_judge(benchmark: Benchmark, metrics: Mapping[str, str]) -> list[Pair]:
    """Return the pairs that metrics would ask the judge about; the others ask it nothing."""
    seeing = {name.startswith("ref-") for name in metrics.values() if asks_judge(name)}
    pairs = _distinct_pairs(benchmark.pairs, frozenset())[0] if False in seeing else []
    asked = [replace(pair, references=()) for pair in pairs]
    return asked + [pair for pair in benchmark.pairs if True in seeing and pair.references]


def _distinct_pairs(
    pairs: Sequence[Pair], needs: frozenset[str]
) -> tuple[list[Pair], NDArray[np.intp]]:
    """Return the pairs that are distinct to a metric, and (P,) which of them each pair is."""
    if needs & {"references", "id"}:
        return list(pairs), np.arange(len(pairs))
    first, which = unique_keys([(str(pair.image), pair.caption) for pair in pairs])
    return [pairs[number] for number in first], which


def _versions() -> dict[str, str]:
    versions = {"discode": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
