"""What a study is: a row with a name, what it needs, and the function that makes its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode.bench.agreement import AgreementProtocol
from discode.bench.layout import CellTable
from discode.bench.run import RunProgress, measure_again, run_metrics
from discode.bench.runlog import MetricResult, RunLog
from discode.benchmarks import Benchmark
from discode.decoders import get_decoder
from discode.errors import DiscodeError, InputError
from discode.metrics import MetricFactory
from discode.metrics.base import unique_keys
from discode.metrics.registry import asks_judge
from discode.options import Option
from discode.pairs import Pair
from discode.signature import Signature


@dataclass(frozen=True)
class StudySetup:
    """What a study works on.

    Attributes:
        benchmarks: What was loaded, by the text it was asked for with ("foil:references=4").
        judges: The factory of each model, by the model's name; nothing is opened yet.
        logs: Runs that exist already, by name; all that they have is shown.
        protocol: How agreement is measured.
        options: The study's own options, defaults filled in.
        progress: Called with what is scored, the number of pairs just done, and that of all.
        kept: Runs of earlier studies; what they have of the same pairs and judges is reused.
    """

    benchmarks: Mapping[str, Benchmark] = field(default_factory=dict)
    judges: Mapping[str, MetricFactory] = field(default_factory=dict)
    logs: Mapping[str, RunLog] = field(default_factory=dict)
    protocol: AgreementProtocol = field(default_factory=AgreementProtocol)
    options: Mapping[str, Any] = field(default_factory=dict)
    progress: RunProgress | None = None
    kept: Mapping[str, RunLog] = field(default_factory=dict)

    def count_up(self, label: str, total: int) -> Callable[[int], None]:
        """Return a function that reports how many more of ``total`` pairs are done."""
        return lambda done: None if self.progress is None else self.progress(label, done, total)


@dataclass(frozen=True)
class StudyResult:
    """What a study found.

    Attributes:
        tables: By the name of their files; the first is the one to look at first.
        figures: By the name of the file, a function that draws it to a path (PNG, SVG or PDF).
        logs: Runs by name.
        findings: What the numbers say, in sentences that were made from them.
        problems: What could not be done, and why.
        files: Other files by name, as text.
    """

    tables: Mapping[str, CellTable]
    figures: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    logs: Mapping[str, RunLog] = field(default_factory=dict)
    findings: Sequence[str] = ()
    problems: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A study, as ``discode study NAME`` runs it.

    Attributes:
        name: Its name on the command line.
        about: What it shows, in one line.
        paper: The labels of the paper's tables and figures that it is about.
        run: Makes it.
        benchmarks: Those it is about, as ``-b`` takes them: "foil:references=4"; without ``-b`` it
            is run on those of them that are there. None if it needs no benchmark.
        options: Its own options, each an option of its command.
    """

    name: str
    about: str
    paper: tuple[str, ...]
    run: Callable[[StudySetup], StudyResult]
    benchmarks: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()


@dataclass(frozen=True)
class StudyRuns:
    """Logs by name, what failed with the reason, and what was left out as a model cannot do it."""

    logs: Mapping[str, RunLog]
    problems: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def run_methods(setup: StudySetup, methods: Sequence[str], scale: str | None = None) -> StudyRuns:
    """Score every benchmark with every judge and method; nothing is scored or asked twice.

    Results that runs in ``setup`` have of the same pairs and the same model are taken from there.
    Readings that a judge's store has are decoded, and only the rest is asked for. Logs of
    benchmarks that were not loaded are handed on as they are. Metrics that do not ask a judge are
    run once, with the first.

    Args:
        setup: What to work on.
        methods: Metrics by name, as :meth:`~discode.metrics.MetricFactory.make` takes them.
        scale: The judges' scale, if it is not to be their own.
    """
    logs: dict[str, RunLog] = {}
    problems: dict[tuple[str, str], str] = {}
    left_out: dict[str, None] = {}
    for number, (model, factory) in enumerate(setup.judges.items()):
        if scale is not None:
            factory = replace(factory, scale=scale)
        judge = judge_name(factory) or model
        names = [name for name in methods if number == 0 or asks_judge(name)]
        hidden = [name for name in names if _needs_hidden(name)]
        if hidden and not _has_hidden(factory):
            names, hidden = [name for name in names if name not in hidden], []
            left_out[f"{judge} gives no hidden states, which Adam needs"] = None
        # What needs hidden states comes first: its readings serve all others.
        metrics = {name: name for name in (*hidden, *names)}
        for place, benchmark in setup.benchmarks.items():
            run = " ".join(filter(None, [judge, place, scale]))
            log, reasons = _score(setup, benchmark, factory, metrics)
            problems |= {(run, label): reason for label, reason in reasons.items()}
            results = dict(log.results)
            if run in logs:  # readings of one model in several stores
                results |= logs[run].results
            if results:
                logs[run] = replace(log, results=results)
    for run, log in setup.logs.items():
        if others := _others(setup, log):
            logs.setdefault(run, replace(log, results=others))
    unsolved = _explain(problems, logs)
    if not logs:
        raise InputError(
            f"nothing could be scored: {'; '.join(unsolved)}"
            if unsolved
            else "there is nothing to score; give --data FOLDER or --log RUN.json"
        )
    return StudyRuns(logs, unsolved, tuple(left_out))


def _score(
    setup: StudySetup, benchmark: Benchmark, factory: MetricFactory, metrics: Mapping[str, str]
) -> tuple[RunLog, dict[str, str]]:
    """Return the log of the metrics that have scores, and why each of the others has none."""
    log, reasons = run_metrics(
        benchmark, metrics, factory, setup.protocol,
        earlier=_earlier(setup, benchmark, factory), progress=setup.progress,
    )  # fmt: skip
    scored = {k: v for k, v in log.results.items() if np.isfinite(v.value).any()}
    silent = {
        label: next(iter(result.errors.values()), "no scores")
        for label, result in log.results.items()
        if label not in scored
    }
    unread = next((reason for label, reason in silent.items() if asks_judge(label)), "")
    for label, reason in reasons.items():
        # Where nothing could be read at all, hidden states are not what is missing.
        silent[label] = unread if unread and _needs_hidden(label) else reason
    return replace(log, results=scored), silent


def _explain(
    problems: Mapping[tuple[str, str], str], logs: Mapping[str, RunLog]
) -> tuple[str, ...]:
    """Return a line for each reason why metrics have no scores, unless another store had them."""
    labels: dict[tuple[str, str], list[str]] = {}
    for (run, label), reason in problems.items():
        if run not in logs or label not in logs[run].results:
            labels.setdefault((run, reason), []).append(label)
    return tuple(f"{run}, {', '.join(of)}: {reason}" for (run, reason), of in labels.items())


def _needs_hidden(name: str) -> bool:
    return asks_judge(name) and "hidden" in get_decoder(name.removeprefix("ref-")).requires


def _has_hidden(factory: MetricFactory) -> bool:
    """Whether a judge gives hidden states; one that cannot be opened says why where it is run."""
    try:
        return "hidden" in factory.judge.backend.capabilities
    except DiscodeError:
        return True


def judge_name(factory: MetricFactory) -> str:
    """Return the name that a judge is signed with; "" if it cannot be opened."""
    try:
        return factory.judge.backend.identity.model
    except DiscodeError:
        return ""


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
        label: result if log.protocol == setup.protocol else measure_again(result, begun)
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
    try:
        return signature.asked == factory.judge.signature.asked
    except DiscodeError:
        return False


def bare_pairs(benchmark: Benchmark) -> tuple[list[Pair], NDArray[np.intp]]:
    """Return pairs without references, each once, and (P,) which of them each pair is."""
    first, which = unique_keys([(str(pair.image), pair.caption) for pair in benchmark.pairs])
    return [replace(benchmark.pairs[number], references=()) for number in first], which


def file_stem(text: str) -> str:
    """Return a name as the stem of a file.

    >>> file_stem("llava-hf/llava-v1.6 foil:references=4")
    'llava-hf_llava-v1.6_foil_references_4'
    """
    return "".join(letter if letter.isalnum() or letter in "-._" else "_" for letter in text)
