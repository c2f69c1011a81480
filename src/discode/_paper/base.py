"""A study: its name, its requirements, and the function that makes its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from discode._judge import Judge
from discode.bench._agreement import AgreementProtocol
from discode.bench._results import StudyResult, file_stem
from discode.bench._run import RunProgress, measure_by, run_metrics
from discode.bench._runlog import MetricResult, RunLog
from discode.benchmarks import Benchmark
from discode.errors import BackendError, DiscodeError, InputError, MissingExtraError
from discode.metrics import MetricFactory
from discode.metrics._base import NO_IMAGE
from discode.metrics._registry import asks_judge
from discode.options import Option


@dataclass(frozen=True)
class StudySetup:
    """The input of a study; ``judges`` are not opened yet.

    Benchmarks are named by their specs ("foil:references=4"). ``logs`` are runs to show; ``kept``
    are runs of earlier studies, whose results of the same pairs and judges are reused. ``metrics``
    are metrics in addition to a study's, label to name.
    """

    benchmarks: Mapping[str, Benchmark] = field(default_factory=dict)
    judges: Mapping[str, MetricFactory] = field(default_factory=dict)
    logs: Mapping[str, RunLog] = field(default_factory=dict)
    protocol: AgreementProtocol = field(default_factory=AgreementProtocol)
    options: Mapping[str, Any] = field(default_factory=dict)
    progress: RunProgress | None = None
    kept: Mapping[str, RunLog] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A study, as ``discode paper NAME:KEY=VALUE`` runs it.

    ``paper`` are the labels of the tables and figures of the paper that it reproduces;
    ``benchmarks`` are its defaults without ``-b``, if their data is there, () if it needs none.
    """

    name: str
    about: str
    paper: tuple[str, ...]
    run: Callable[[StudySetup], StudyResult]
    benchmarks: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()


def run_each(
    setup: StudySetup, make: Callable[[StudySetup, str, Benchmark], StudyResult]
) -> StudyResult:
    """Run ``make`` for every judge on every benchmark, and merge the results.

    ``make`` gets a setup with this judge and this benchmark alone, the benchmark's name and the
    benchmark. From the second result on, names of tables and figures are numbered.
    """
    if not setup.benchmarks:
        raise InputError("this study requires --data: runs have no captions, images or readings")
    parts = [
        make(replace(setup, judges={model: judge}, benchmarks={place: each}), place, each)
        for (model, judge), (place, each) in product(setup.judges.items(), setup.benchmarks.items())
    ]
    made = [part for part in parts if part.tables]
    problems = list(dict.fromkeys(line for part in parts for line in part.problems))
    if not made:
        raise InputError(next(iter(problems), "nothing to compare"))
    numbered = [("" if n == 1 else f"-{n}", part) for n, part in enumerate(made, 1)]
    return StudyResult(
        {f"{name}{end}": each for end, part in numbered for name, each in part.tables.items()},
        {f"{name}{end}": draw for end, part in numbered for name, draw in part.figures.items()},
        {name: log for part in made for name, log in part.logs.items()},
        [line for part in made for line in part.findings],
        problems,
    )


def run_methods(
    setup: StudySetup, methods: Sequence[str], scales: Sequence[str | None] = (None,)
) -> StudyResult:
    """Score every benchmark with every judge and method, without tables; no pair is read twice.

    Results of the same pairs and judge in the setup's runs are reused; its ``logs`` follow the new
    ones. Metrics without a judge are run once, with the first judge. ``scales`` are the judges'
    rating scales; None is a judge's own.
    """
    logs: dict[str, RunLog] = {}
    errors: dict[tuple[str, str], DiscodeError] = {}  # by run and label
    gaps: dict[tuple[bool, str, str], list[str]] = {}  # labels by lack, run and reason
    for number, (scale, (model, factory)) in enumerate(product(scales, setup.judges.items())):
        judge = _opened(factory)
        who = model if judge is None else judge.backend.identity.model
        if scale is not None:
            factory = replace(factory, scale=scale)
            if judge is not None:  # one model for all scales
                factory = replace(factory, model=judge.backend, options={})
        names = [name for name in methods if number == 0 or asks_judge(name)]
        metrics = {name: setup.metrics.get(name, name) for name in names}
        for place, benchmark in setup.benchmarks.items():
            run = " ".join(filter(None, [who, place, scale]))
            log, problems = _score(setup, benchmark, factory, metrics)
            for label, result in log.results.items():
                failed = [why for why in result.failures.values() if why != NO_IMAGE]
                if failed and label in metrics:
                    count = f"{len(failed):,} of {len(result.value):,} pairs failed, the first: "
                    key = False, run, count + failed[0]
                    gaps.setdefault(key, []).append("the judge" if asks_judge(label) else label)
            errors |= {(run, label): error for label, error in problems.items()}
            earlier = logs[run].results if run in logs else {}  # another store of the same model
            if results := {**log.results, **earlier}:
                logs[run] = replace(log, results=results)
    for (run, label), error in errors.items():
        if run not in logs or label not in logs[run].results:
            lack = is_lack(error)  # the same for every benchmark
            key = lack, run.partition(" ")[0] if lack else run, str(error)
            gaps.setdefault(key, []).append(label)
    stems = {file_stem(run) for run in logs}
    logs |= {name: log for name, log in setup.logs.items() if file_stem(name) not in stems}
    return _concluded(logs, gaps)


def _concluded(
    logs: Mapping[str, RunLog], gaps: Mapping[tuple[bool, str, str], Sequence[str]]
) -> StudyResult:
    """Collect runs and a line for each gap in them; raise an error if there are no runs."""
    lines: tuple[list[str], list[str]] = ([], [])
    for (lack, where, reason), labels in gaps.items():
        several = sorted({*labels})
        names = ", ".join(several[:3]) + " ..." * (len(several) > 3)
        lines[lack].append(f"{where}, {names}: {reason}")
    failed, lacking = lines
    if not logs:
        if not gaps:
            raise InputError("nothing to score; give --data FOLDER or --log RUN.json")
        kind = BackendError if failed else InputError
        raise kind(f"nothing could be scored: {'; '.join([*failed, *lacking])}")
    missing = tuple(dict.fromkeys(lacking))
    return StudyResult({}, logs=dict(logs), problems=tuple(failed), left_out=missing)


def is_lack(error: DiscodeError) -> bool:
    """Whether something is missing, as opposed to having failed."""
    return isinstance(error, InputError | MissingExtraError)


def _score(
    setup: StudySetup, benchmark: Benchmark, factory: MetricFactory, metrics: Mapping[str, str]
) -> tuple[RunLog, dict[str, DiscodeError]]:
    """Score a benchmark; metrics without any score go to the errors, with the reason."""
    log, problems = run_metrics(
        benchmark, metrics, factory, setup.protocol,
        earlier=_earlier(setup, benchmark, factory), progress=setup.progress,
    )  # fmt: skip
    unread = None
    for label, result in log.results.items():
        if not np.isfinite(result.value).any():
            judged = asks_judge(label)
            lack = judged and label.startswith("ref-")
            lack = lack and not factory.judge.backend.takes_references
            kind = InputError if lack else BackendError
            problems[label] = kind(next(iter(result.errors.values()), "no scores"))
            unread = problems[label] if judged and not lack else unread
    if unread:  # that is why decoders of hidden states have nothing to decode
        problems |= {label: unread for label in problems if asks_judge(label)}
    results = {label: result for label, result in log.results.items() if label not in problems}
    return replace(log, results=results), problems


def _opened(factory: MetricFactory) -> Judge | None:
    """Open a judge; None on failure, which each of its metrics then reports."""
    try:
        return factory.judge
    except DiscodeError:
        return None


def _earlier(setup: StudySetup, benchmark: Benchmark, factory: MetricFactory) -> RunLog:
    """Collect results of the same pairs from the logs: those of this judge, or of no judge."""
    begun, judge = RunLog.begin(benchmark, setup.protocol, {}), _opened(factory)
    results: dict[str, MetricResult] = {}
    for log in (*setup.logs.values(), *setup.kept.values()):
        if log.same_questions(begun):
            results |= {
                label: result
                for label, result in measure_by(setup.protocol, log).results.items()
                if not asks_judge(label)
                or (judge and result.metric_signature.asked == judge.signature.asked)
            }
    return replace(begun, results=results)
