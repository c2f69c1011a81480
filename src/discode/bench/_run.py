"""Score a benchmark with several metrics, each pair once, and keep the results in a log."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import numpy as np
from numpy.typing import NDArray

from discode._judge import Judge
from discode._pairs import NO_REFERENCES, Pair
from discode._plugins import blame, plugin_version
from discode._preferences import in_both_orders
from discode._scores import Metric, Scores
from discode._signature import Signature
from discode._version import __version__
from discode.bench._agreement import AgreementProtocol, measure_agreement
from discode.bench._runlog import MetricResult, RunLog
from discode.benchmarks import Benchmark, Ratings
from discode.bulk._judging import raise_if_stopped
from discode.errors import DiscodeError, InputError, StoppedError
from discode.metrics import METRICS, MetricFactory
from discode.metrics._base import NO_IMAGE
from discode.metrics._prefer import PreferenceMetric
from discode.metrics._registry import ask_vqascore, asks_judge
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
    groups: dict[object, dict[str, Metric]] = {}
    for label, name in metrics.items():
        with _noting(problems, label):
            metric = factory.make(name)
            old = log.results.get(label)
            if old is not None and old.metric_signature == _signature(metric) and not old.failures:
                continue
            key: object = label
            if isinstance(metric, Judge):
                key = id(metric.backend), metric.references, metric.prompt.digest, metric.scale.name
            groups.setdefault(key, {})[label] = metric
    order = dict.fromkeys([*log.results, *metrics])
    waiting = [*groups.values()]
    while waiting:
        group = waiting.pop(0)
        failed: dict[str, DiscodeError] = {}
        with _noting(failed, *group):
            results = {**log.results, **_score(benchmark, group, log, progress)}
        if not failed:
            ordered = {label: results[label] for label in order if label in results}
            log = replace(log, results=ordered)
            if save is not None:
                save(log)
        elif len(group) > 1:  # the reason may be one decoder
            waiting = [{label: metric} for label, metric in group.items()] + waiting
        else:
            problems |= failed
    return log, problems


@contextmanager
def _noting(problems: dict[str, DiscodeError], *labels: str) -> Iterator[None]:
    """Keep an error of metrics, or of the plug-in that raised it, as the problem of ``labels``."""
    try:
        yield
    except StoppedError:
        raise
    except DiscodeError as error:
        problems |= dict.fromkeys(labels, error)
    except (Exception, SystemExit) as error:
        if not (line := blame(error)):
            raise
        problems |= dict.fromkeys(labels, InputError(line))


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
    """Measure scores by the protocol of a log, and add the log's questions to their signature."""
    measures = _measure(log, result)
    options = ",".join(f"{key}={text}" for key, text in log.options.items())
    made = {"benchmark": f"{log.benchmark}({options})", "ties": log.protocol.ties}
    if plugin := result.metric_signature.get("plugin"):
        made["plugin"] = plugin
    if isinstance(log.judgments, Ratings):
        made["tau_m"] = log.protocol.tau_m
    return replace(result, signature=result.signature.with_fields(**made), measures=measures)


def _measure(log: RunLog, result: MetricResult) -> dict[str, Interval]:
    """Measure a result on the judgments whose image is present; "failed" is a share of all."""
    value, preference = result.value, result.preference
    if NO_IMAGE not in result.errors.values():
        return measure_agreement(log.judgments, log.image, value, log.protocol, preference)
    present = log.judged(result.errors)
    kept = None if preference is None else preference[present]
    some = measure_agreement(log.judgments.take(present), log.image, value, log.protocol, kept)
    failed = 1 - present.mean() * (1 - some["failed"].value)
    none = Interval.point(np.nan, log.protocol.level)
    categories = () if isinstance(log.judgments, Ratings) else log.judgments.category
    return dict.fromkeys(categories, none) | some | {"failed": replace(none, value=failed)}


def _score(
    benchmark: Benchmark, metrics: Mapping[str, Metric], log: RunLog, progress: RunProgress | None
) -> dict[str, MetricResult]:
    """Score a benchmark with one metric, or with judges of one model, which reads it once."""
    start = time.perf_counter()
    label, metric = next(iter(metrics.items()))
    pairs, which = list(benchmark.pairs), np.arange(len(benchmark.pairs))
    needs = metric.needs
    if "preferences" in needs:
        return {label: _prefer(benchmark, label, metric, log, progress)}
    if not needs & {"references", "id"}:
        pairs, which = benchmark.bare_pairs()
    report = None if progress is None else partial(progress, label, len(pairs))
    if isinstance(metric, Judge):
        decoders = {name: each.decoder for name, each in metrics.items() if isinstance(each, Judge)}
        scores = metric.decode_all(pairs, decoders, report)
        if any(each.errors for each in scores.values()):
            raise_if_stopped(metric)  # pairs that were not asked about are not a result
    else:
        repeats = np.bincount(which, weights=benchmark.repeats()).astype(np.int64).tolist()
        scores = {label: metric.score_pairs(pairs, repeats=repeats, progress=report)}
    if progress is not None:
        for other in [*metrics][1:]:
            progress(other, len(pairs), len(pairs))
    seconds = (time.perf_counter() - start) / len(metrics)
    return {
        name: _result(benchmark, _signature(metrics[name]), needs, each, which, log, seconds)
        for name, each in scores.items()
    }


def _result(
    benchmark: Benchmark,
    made: Signature,
    needs: frozenset[str],
    scores: Scores,
    which: NDArray[np.int64],
    log: RunLog,
    seconds: float,
) -> MetricResult:
    """Join the scores of distinct pairs, each benchmark pair being the one at ``which`` (P,)."""
    value = scores.value[which]
    errors = {
        row: scores.errors[number]
        for row, number in enumerate(which.tolist())
        if number in scores.errors
    }
    if "image" in needs and np.isfinite(value).any():
        _name_missing(benchmark, errors)
    result = MetricResult(made, scores.signature, value, errors, scores.counts(), seconds, {})
    return measure_result(result, log)


def _name_missing(benchmark: Benchmark, errors: dict[int, str]) -> None:
    """Replace the reasons of pairs without an image file."""
    for row, why in errors.items():
        if why != NO_REFERENCES and int(benchmark.image[row]) in benchmark.missing:
            errors[row] = NO_IMAGE


def _prefer(
    benchmark: Benchmark, label: str, metric: Metric, log: RunLog, progress: RunProgress | None
) -> MetricResult:
    """Compare the two captions of each choice, once per two captions of an image."""
    start = time.perf_counter()
    asked, which, swapped = benchmark.comparisons()
    report = None if progress is None else partial(progress, label, len(asked))
    scores = metric.score_pairs(asked, progress=report)
    if scores.errors and isinstance(metric, PreferenceMetric):
        raise_if_stopped(metric.judge)
    p = scores.value[which]
    preference = np.where(swapped, 1 - p, p)
    judged = benchmark.judgments.sides
    sums = np.zeros(len(benchmark.pairs))
    errors: dict[int, str] = {}
    for side, share in zip(judged.values(), (preference, 1 - preference), strict=True):
        np.add.at(sums, side, share)
        errors |= {
            row: scores.errors[number]
            for row, number in zip(side.tolist(), which.tolist(), strict=True)
            if number in scores.errors
        }
    if np.isfinite(preference).any():
        _name_missing(benchmark, errors)
    repeats = benchmark.repeats()
    mean = np.where(repeats > 0, sums / np.maximum(repeats, 1), np.nan)
    counts, seconds = scores.counts(), time.perf_counter() - start
    result = MetricResult(
        _signature(metric), scores.signature, mean, errors, counts, seconds, {}, preference
    )
    return measure_result(result, log)


def questions_of(
    judge: Judge, benchmarks: Sequence[Benchmark], metrics: Mapping[str, str]
) -> list[tuple[Judge, list[Pair]]]:
    """Return the pairs of each question that metrics ask the judge; the others ask it nothing."""
    names = {*metrics.values()}
    seeing = {name.startswith("ref-") for name in names if asks_judge(name)}
    rated, answered, compared = list[Pair](), list[Pair](), list[Pair]()
    for each in benchmarks:
        bare = each.bare_pairs()[0]
        rated += bare if False in seeing else []
        rated += [pair for pair in each.pairs if True in seeing and pair.references]
        answered += bare if "vqascore" in names else []
        if "prefer" in names and not isinstance(each.judgments, Ratings):
            compared += in_both_orders(each.comparisons()[0])
    asked = [(judge, rated)]
    asked += [(ask_vqascore(judge), answered)] if answered else []
    return asked + ([(judge.comparing(), compared)] if compared else [])


def _versions() -> dict[str, str]:
    versions = {"discode": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
