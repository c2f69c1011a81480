"""Score a benchmark with several metrics, each pair once, and keep the results in a log."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from discode._pairs import Pair
from discode._plugins import blame, plugin_version
from discode._scores import Floats, Metric
from discode._signature import Signature
from discode._version import __version__
from discode.bench._agreement import AgreementProtocol, measure_agreement
from discode.bench._runlog import MetricResult, RunLog
from discode.benchmarks import Benchmark, Ratings
from discode.bulk._judging import raise_if_stopped
from discode.errors import DiscodeError, InputError, StoppedError
from discode.metrics import METRICS, MetricFactory
from discode.metrics._base import NO_IMAGE, NO_REFERENCES
from discode.metrics._judge_metric import JudgeMetric
from discode.metrics._registry import asks_judge
from discode.stats import Interval

_PACKAGES = ("numpy", "onnxruntime", "pycocoevalcap", "torch", "transformers")

RunProgress = Callable[[str, int, int], None]
"""Called with a metric's label, the number of all its pairs, and the number of those just done."""


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
) -> tuple[RunLog, dict[str, DiscodeError]]:
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
        The log, and label to error for the metrics that could not be made or run at all.

    Raises:
        StoppedError: A served model's cap was reached, or its server refused for good. What it
            read is in the factory's store, and metrics that were finished were given to ``save``.
    """
    protocol = protocol or AgreementProtocol()
    log = RunLog.begin(benchmark, protocol, _versions())
    if earlier is not None and earlier.same_questions(log):
        log = replace(log, results=measure_by(protocol, earlier).results)
    problems: dict[str, DiscodeError] = {}
    factory.expect(name for label, name in metrics.items() if label not in log.results)
    for label, name in metrics.items():
        try:
            metric = factory.make(name)
            old = log.results.get(label)
            if old is not None and old.metric_signature == _signature(metric) and not old.failures:
                continue
            result = _score(benchmark, label, metric, log, progress)
        except StoppedError:
            raise
        except DiscodeError as error:
            problems[label] = error
            continue
        except (Exception, SystemExit) as error:
            if not (line := blame(error)):
                raise
            problems[label] = InputError(line)
            continue
        log = replace(log, results={**log.results, label: result})
        if save is not None:
            save(log)
    return log, problems


def _signature(metric: Metric) -> Signature:
    """Return how a metric's numbers are made, and by which version of which plug-in."""
    module = type(metric).__module__
    if module.startswith("discode."):
        return metric.signature
    return metric.signature.with_fields(plugin=plugin_version(module))


def measure_by(protocol: AgreementProtocol, log: RunLog) -> RunLog:
    """Return a log with its results measured by a protocol, again where it had another one."""
    if log.protocol == protocol:
        return log
    log = replace(log, protocol=protocol)
    results = {label: measure_result(result, log) for label, result in log.results.items()}
    return replace(log, results=results)


def measure_result(result: MetricResult, log: RunLog) -> MetricResult:
    """Measure scores by the protocol of a log, with its ties and m of τ_c in their signature."""
    made = {"ties": log.protocol.ties}
    if isinstance(log.judgments, Ratings):
        made["tau_m"] = log.protocol.tau_m
    measures = _measure(log, result.value, result.errors)
    return replace(result, signature=result.signature.with_fields(**made), measures=measures)


def _measure(log: RunLog, value: Floats, errors: Mapping[int, str]) -> dict[str, Interval]:
    """Measure scores (P,) on the judgments whose image is present; "failed" is a share of all."""
    if NO_IMAGE not in errors.values():
        return measure_agreement(log.judgments, log.image, value, log.protocol)
    present = log.judged(errors)
    some = measure_agreement(log.judgments.take(present), log.image, value, log.protocol)
    failed = 1 - present.mean() * (1 - some["failed"].value)
    none = Interval.point(np.nan, log.protocol.level)
    categories = () if isinstance(log.judgments, Ratings) else log.judgments.category
    return dict.fromkeys(categories, none) | some | {"failed": replace(none, value=failed)}


def _score(
    benchmark: Benchmark,
    label: str,
    metric: Metric,
    log: RunLog,
    progress: RunProgress | None,
) -> MetricResult:
    start = time.perf_counter()
    made, needs = _signature(metric), metric.needs
    pairs, which = list(benchmark.pairs), np.arange(len(benchmark.pairs))
    if not needs & {"references", "id"}:
        pairs, which = benchmark.bare_pairs()
    repeats = np.bincount(which, weights=benchmark.repeats()).astype(np.int64).tolist()
    report = None if progress is None else partial(progress, label, len(pairs))
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
    if "image" in needs and np.isfinite(value).any():
        for row, why in errors.items():
            if why != NO_REFERENCES and int(benchmark.image[row]) in benchmark.missing:
                errors[row] = NO_IMAGE
    options = ",".join(f"{key}={text}" for key, text in log.options.items())
    signature = scores.signature.with_fields(
        benchmark=f"{benchmark.name}({options})", ties=log.protocol.ties
    )
    if plugin := made.get("plugin"):
        signature = signature.with_fields(plugin=plugin)
    result = MetricResult(made, signature, value, errors, scores.counts(), seconds, {})
    return measure_result(result, log)


def pairs_to_judge(benchmark: Benchmark, metrics: Mapping[str, str]) -> list[Pair]:
    """Return the pairs that metrics would ask the judge about; the others ask it nothing."""
    seeing = {name.startswith("ref-") for name in metrics.values() if asks_judge(name)}
    bare = benchmark.bare_pairs()[0] if False in seeing else []
    return bare + [pair for pair in benchmark.pairs if True in seeing and pair.references]


def _versions() -> dict[str, str]:
    versions = {"discode": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
