"""What a study is: a row with a name, what it needs, and the function that makes its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from discode.bench.agreement import AgreementProtocol
from discode.bench.results import StudyResult
from discode.bench.run import RunProgress, measure_result, run_metrics
from discode.bench.runlog import MetricResult, RunLog
from discode.benchmarks import Benchmark
from discode.decoders import get_decoder
from discode.errors import BackendError, DiscodeError, InputError, MissingExtraError
from discode.judge import Judge
from discode.metrics import MetricFactory
from discode.metrics.base import NO_IMAGE
from discode.metrics.registry import asks_judge
from discode.options import Option
from discode.signature import Signature


@dataclass(frozen=True)
class StudySetup:
    """What a study works on; ``judges`` are not opened yet.

    Benchmarks have the text they were asked for with ("foil:references=4") as names. All that
    ``logs`` have is shown; of ``kept``, runs of earlier studies, what they have of the same pairs
    and judges is reused. ``progress`` is called with what is scored, the number of pairs just done,
    and that of all. ``metrics`` are metrics of one's own choice beside a study's, label to name.
    """

    benchmarks: Mapping[str, Benchmark] = field(default_factory=dict)
    judges: Mapping[str, MetricFactory] = field(default_factory=dict)
    logs: Mapping[str, RunLog] = field(default_factory=dict)
    protocol: AgreementProtocol = field(default_factory=AgreementProtocol)
    options: Mapping[str, Any] = field(default_factory=dict)
    progress: RunProgress | None = None
    kept: Mapping[str, RunLog] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)

    def count_up(self, label: str, total: int) -> Callable[[int], None]:
        """Return a function that reports how many more of ``total`` pairs are done."""
        return lambda done: None if self.progress is None else self.progress(label, total, done)


@dataclass(frozen=True)
class Study:
    """A study, as ``discode paper NAME:KEY=VALUE`` runs it.

    ``paper`` are the labels of the paper's tables and figures that it is about; ``benchmarks`` are
    those it is run on without ``-b``, where they are there, () if it needs none.
    """

    name: str
    about: str
    paper: tuple[str, ...]
    run: Callable[[StudySetup], StudyResult]
    benchmarks: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()


def run_methods(
    setup: StudySetup, methods: Sequence[str], scales: Sequence[str | None] = (None,)
) -> StudyResult:
    """Score every benchmark with every judge and method, without tables; nothing is asked twice.

    Results that runs in ``setup`` have of the same pairs and the same model are taken from there.
    Readings that a judge's store has are decoded, and only the rest is asked for. Logs of
    benchmarks that were not loaded are handed on as they are. Metrics that do not ask a judge are
    run once, with the first. ``scales`` are those to ask the judges on; None is a judge's own.
    """
    logs: dict[str, RunLog] = {}
    problems: dict[tuple[str, str], DiscodeError] = {}
    left_out: dict[str, None] = {}
    labels: dict[tuple[bool, str, str], list[str]] = {}  # by whether it is a lack, run and reason
    for number, (scale, (model, factory)) in enumerate(product(scales, setup.judges.items())):
        opened = _opened(factory)
        if scale is not None:
            factory = replace(factory, scale=scale)
            if opened is not None:  # one model for all scales
                factory = replace(factory, model=opened.backend, options={})
        judge = model if opened is None else opened.backend.identity.model
        names = [name for name in methods if number == 0 or asks_judge(name)]
        hidden = [name for name in names if _needs_hidden(name)]
        if hidden and opened is not None and "hidden" not in opened.backend.capabilities:
            names, hidden = [name for name in names if name not in hidden], []
            left_out[f"{judge} gives no hidden states, which Adam needs"] = None
        # What needs hidden states comes first: its readings serve all others.
        metrics = {name: setup.metrics.get(name, name) for name in (*hidden, *names)}
        for place, benchmark in setup.benchmarks.items():
            run = " ".join(filter(None, [judge, place, scale]))
            log, reasons = _score(setup, benchmark, factory, metrics)
            problems |= {(run, label): reason for label, reason in reasons.items()}
            earlier = logs[run].results if run in logs else {}  # another store of the same model
            if results := {**log.results, **earlier}:
                logs[run] = replace(log, results=results)
            for label in metrics.keys() & log.results.keys() - earlier.keys():
                if reason := _failures(log.results[label]):
                    shown = "the judge" if asks_judge(label) else label
                    labels.setdefault((False, run, reason), []).append(shown)
    for run, log in setup.logs.items():
        if others := _others(setup, log):
            logs.setdefault(run, replace(log, results=others))
    for (run, label), error in problems.items():
        if run not in logs or label not in logs[run].results:  # no other store had them
            lack = is_lack(error)  # the same for every benchmark
            where = run.partition(" ")[0] if lack else run
            labels.setdefault((lack, where, str(error)), []).append(label)
    return _concluded(logs, labels, left_out)


def _concluded(
    logs: Mapping[str, RunLog],
    labels: Mapping[tuple[bool, str, str], Sequence[str]],
    left_out: Iterable[str],
) -> StudyResult:
    """Return the runs with a line for each reason of what they lack, or raise if there are none."""
    lines = {
        key: f"{key[1]}, {', '.join(sorted({*of})[:3])}{' ...' * (len({*of}) > 3)}: {key[2]}"
        for key, of in labels.items()
    }
    failed = tuple(line for (lack, *_), line in lines.items() if not lack)
    if not logs and not lines:
        raise InputError("there is nothing to score; give --data FOLDER or --log RUN.json")
    if not logs:
        kind = BackendError if failed else InputError
        raise kind(f"nothing could be scored: {'; '.join(lines.values())}")
    lacking = (line for (lack, *_), line in lines.items() if lack)
    missing = tuple(dict.fromkeys([*left_out, *lacking]))
    return StudyResult({}, logs=dict(logs), problems=failed, left_out=missing)


def is_lack(error: DiscodeError) -> bool:
    """Whether an error says that something is not there, rather than that something failed."""
    return isinstance(error, InputError | MissingExtraError)


def _score(
    setup: StudySetup, benchmark: Benchmark, factory: MetricFactory, metrics: Mapping[str, str]
) -> tuple[RunLog, dict[str, DiscodeError]]:
    """Return the log of the metrics that have scores, and why each of the others has none."""
    log, errors = run_metrics(
        benchmark, metrics, factory, setup.protocol,
        earlier=_earlier(setup, benchmark, factory), progress=setup.progress,
    )  # fmt: skip
    scored = {k: v for k, v in log.results.items() if np.isfinite(v.value).any()}
    silent: dict[str, DiscodeError] = {
        label: (InputError if _shows_in_vain(label, factory) else BackendError)(
            next(iter(result.errors.values()), "no scores")
        )
        for label, result in log.results.items()
        if label not in scored
    }
    unread = next((error for label, error in silent.items() if asks_judge(label)), None)
    for label, error in errors.items():
        # Where nothing could be read at all, hidden states are not what is missing.
        silent[label] = unread if unread and _needs_hidden(label) else error
    return replace(log, results=scored), silent


def _shows_in_vain(name: str, factory: MetricFactory) -> bool:
    """Whether a judge would be shown references, which it does not take."""
    return (
        name.startswith("ref-") and asks_judge(name) and not factory.judge.backend.takes_references
    )


def _failures(result: MetricResult) -> str:
    """Say how many pairs failed, and why the first did; "" if none but for missing images.

    How many images are missing is a note of the benchmark and of tables.
    """
    failed = {row: why for row, why in result.failures.items() if why != NO_IMAGE}
    count = f"{len(failed):,} of {len(result.value):,} pairs failed, the first: "
    return next((count + reason for reason in failed.values()), "")


def _needs_hidden(name: str) -> bool:
    return asks_judge(name) and "hidden" in get_decoder(name.removeprefix("ref-")).requires


def _opened(factory: MetricFactory) -> Judge | None:
    """Return a judge; None if it cannot be opened, and it says why where it is run."""
    try:
        return factory.judge
    except DiscodeError:
        return None


def _earlier(setup: StudySetup, benchmark: Benchmark, factory: MetricFactory) -> RunLog:
    """Return what the logs have of these pairs by this judge, and by metrics that ask none."""
    begun = RunLog.begin(benchmark, setup.protocol, {})
    every = (*setup.logs.values(), *setup.kept.values())
    same = [log for log in every if log.same_questions(begun)]
    same.sort(key=lambda log: log.protocol == setup.protocol)  # these need not be measured again
    latest = {
        label: (log, result)
        for log in same
        for label, result in log.results.items()
        if not asks_judge(label) or _made_by(factory, result.metric_signature)
    }
    results = {
        label: result if log.protocol == setup.protocol else measure_result(result, begun)
        for label, (log, result) in latest.items()
    }
    return replace(begun, results=results)


def _others(setup: StudySetup, log: RunLog) -> dict[str, MetricResult]:
    """Return the results of a log that the setup's own judges and benchmarks do not give."""
    loaded = setup.benchmarks.values() if setup.judges else ()
    if not any(log.same_questions(RunLog.begin(b, setup.protocol, {})) for b in loaded):
        return dict(log.results)
    return {
        label: result
        for label, result in log.results.items()
        if asks_judge(label)
        and not any(_made_by(judge, result.metric_signature) for judge in setup.judges.values())
    }


def _made_by(factory: MetricFactory, signature: Signature) -> bool:
    """Whether scores are of this judge's model, asked in the same way."""
    judge = _opened(factory)
    return judge is not None and signature.asked == judge.signature.asked
