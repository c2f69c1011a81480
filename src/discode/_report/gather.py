"""Gather the data of a report: join the runs of a benchmark, and load its pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from discode._pairs import Pair
from discode.bench._runlog import RunLog
from discode.bench._tables import benchmark_place, name_results
from discode.benchmarks import BENCHMARKS, load_benchmark
from discode.errors import InputError


@dataclass(frozen=True, eq=False)
class GatheredRun:
    """All data of one benchmark, under its name in tables.

    ``sources`` are the runs that were joined into ``log``, ``pairs`` (P) its pairs, or none where
    its data was not loaded; ``data`` is the reason, if captions and images are not shown.
    """

    name: str
    log: RunLog
    sources: tuple[str, ...]
    pairs: tuple[Pair, ...]
    data: str


def gather_runs(runs: Mapping[str, RunLog], data: Sequence[Path] = ()) -> list[GatheredRun]:
    """Join runs, given by name, of the same pairs and judgments, and load the pairs from ``data``.

    Results are named by :func:`~discode.bench._tables.name_results`. Pairs are taken from the first
    folder whose files have the checksums of the run; otherwise there are none.
    """
    names = name_results(runs)
    places: dict[str, dict[str, RunLog]] = {}
    for name, log in runs.items():
        where, labels = names[name]
        if log.results:
            results = {labels[label]: result for label, result in log.results.items()}
            places.setdefault(where, {})[name] = replace(log, results=results)
    gathered = [_load(where, _join(logs), tuple(logs), data) for where, logs in places.items()]
    return sorted(gathered, key=lambda run: benchmark_place(run.log.benchmark))


def _join(runs: Mapping[str, RunLog]) -> RunLog:
    first = next(iter(runs.values()))
    if len({log.protocol.ties for log in runs.values()}) > 1:
        raise InputError(
            f"the runs of {first.benchmark} count ties differently ({', '.join(runs)}); write one "
            "report for each"
        )
    results = {label: result for log in runs.values() for label, result in log.results.items()}
    return replace(first, results=results)


def _load(name: str, log: RunLog, sources: tuple[str, ...], data: Sequence[Path]) -> GatheredRun:
    def without(reason: str) -> GatheredRun:
        return GatheredRun(name, log, sources, (), f"Ids and scores only: {reason}.")

    if not data:
        return without("a run keeps no captions; --data shows them")
    if log.benchmark not in BENCHMARKS:
        return without(f"this version does not know the benchmark {log.benchmark}")
    reasons = []
    for folder in data:
        try:
            loaded = load_benchmark(log.benchmark, folder, log.options)
        except InputError as error:
            reasons.append(str(error).partition(";")[0])
            continue
        if RunLog.begin(loaded, log.protocol, {}).same_questions(log):
            return GatheredRun(name, log, sources, loaded.pairs, "")
        reasons.append(f"the files in {folder} are not those of the run: their checksums differ")
    return without("; ".join(dict.fromkeys(reasons)))
