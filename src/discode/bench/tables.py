"""Tabulate runs as the paper does: metrics down, benchmarks across, its numbers beside ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from discode.backends.local.catalog import CATALOG
from discode.bench.layout import TABLE_FORMATS, CellTable, write_table
from discode.bench.published import published_cells
from discode.bench.runlog import RunLog
from discode.benchmarks import BENCHMARKS, Ratings
from discode.errors import InputError, lookup
from discode.metrics import METRICS
from discode.metrics.registry import asks_judge

MEASURE_SYMBOLS = {"tau_b": "τ_b", "tau_c": "τ_c", "mean": "Mean"}
_SYSTEM_TABLES = ("sota_main", "refdisode", "rice", "foil")
"""The paper's tables whose rows are systems; the others vary one system."""

_Column = tuple[str, str]
"""Benchmark and measure."""


@dataclass(frozen=True)
class TableCell:
    """Our number in percent, its interval, and the paper's number, NaN where there is none."""

    metric: str
    benchmark: str
    measure: str
    value: float
    low: float
    high: float
    paper: float
    paper_model: str
    comparable: bool
    ties: float
    failed: float

    @property
    def difference(self) -> float:
        """Ours minus the paper's; NaN where that is of another model or protocol."""
        return self.value - self.paper if self.comparable else math.nan


def table_cells(runs: Mapping[str, RunLog]) -> list[TableCell]:
    """Return every cell of a table of runs, which are given by name.

    A metric that two runs made differently has the run's name after its own, and so has a benchmark
    whose data or options differ between runs.
    """
    if not any(log.results for log in runs.values()):
        raise InputError("these runs have no results; discode bench run adds some")
    made: dict[tuple[str, str], set[str]] = {}
    places: dict[str, list[RunLog]] = {}
    for log in runs.values():
        places.setdefault(log.benchmark, []).append(log)
        for label, result in log.results.items():
            made.setdefault((label, log.benchmark), set()).add(str(result.signature))
    found: dict[tuple[str, str, str], TableCell] = {}
    for name, log in runs.items():
        alike = all(log.same_questions(other) for other in places[log.benchmark])
        where = log.benchmark if alike else f"{log.benchmark} ({name})"
        for label, result in log.results.items():
            one_way = not alike or len(made[label, log.benchmark]) == 1
            shown = label if one_way else f"{label} ({name})"
            for measure in table_measures(log):
                one = result.measures[measure]
                paper, model, comparable = published_value(label, log, measure)
                found[shown, where, measure] = TableCell(
                    shown, where, measure, 100 * one.value, 100 * one.low, 100 * one.high,
                    paper, model, comparable, 100 * result.measures["ties"].value,
                    100 * result.measures["failed"].value,
                )  # fmt: skip
    return list(found.values())


def table_measures(log: RunLog) -> list[str]:
    """Return the measures that the table of a run shows, in order."""
    if isinstance(log.judgments, Ratings):
        return ["tau_b", "tau_c"]
    found = sorted(set(log.judgments.category))
    known = BENCHMARKS[log.benchmark].categories if log.benchmark in BENCHMARKS else ()
    categories = [name for name in known if name in found]
    categories += [name for name in found if name not in known]
    return ["mean"] if len(categories) == 1 else [*categories, "mean"]


def published_value(label: str, log: RunLog, measure: str) -> tuple[float, str, bool]:
    """Return the paper's number for a metric in percent, its model, and whether ours compares.

    A judge, and a chat model's metric, has only the numbers of its own model: any other model, and
    a file of a judge's scores, which does not say its model, has none. A run with other options or
    ties is shown beside the paper's number, but is not comparable.
    """
    fields = log.results[label].signature
    metric, model = fields.get("metric", ""), fields.get("model", "")
    row = BENCHMARKS.get(log.benchmark)
    if row is None:
        return math.nan, "", False
    comparable = log.protocol.ties == "wrong" and all(
        log.options.get(name) == option.default
        for name, option in row.options.items()
        if option.affects_published
    )
    options = {name: log.options.get(name, row.options[name].default) for name in row.options}
    column = row.published_column.format(benchmark=row.name, measure=measure, **options)
    system = metric if metric in METRICS else label
    found = [
        cell
        for cell in published_cells()
        if cell.system == system and cell.column == column and not cell.setting
    ]
    if asks_judge(system) or (model and not metric):
        ours = _paper_model(model)
        found = [cell for cell in found if cell.model and cell.model == ours]
    else:
        found = [
            cell
            for cell in found
            if cell.table in _SYSTEM_TABLES
            and (not cell.model or not model or cell.model.lower() == model.lower())
        ]
    return (found[0].value, found[0].model, comparable) if found else (math.nan, "", False)


def _paper_model(model: str) -> str:
    """Return what the paper calls a model; "" where it is not one of the paper's.

    A model that was loaded from a folder has the last part of its hub name alone, and a served one
    its server's address after it.

    >>> _paper_model("llava-hf/llava-v1.6-34b-hf@localhost:8000"), _paper_model("my-internvl")
    ('LLaVA-NeXT-34B', '')
    """
    name = model.partition("@")[0]
    return next((row.paper for row in CATALOG if name in (row.hub, row.hub.rpartition("/")[2])), "")


def render_table(runs: Mapping[str, RunLog], form: str = "text", *, intervals: bool = False) -> str:
    """Return a table as "text", "markdown", "latex" or "csv".

    Each metric has a row with our numbers, one with the paper's where it has some, and one with the
    difference; ``intervals`` adds those of the bootstrap. The CSV has one line per cell, with
    everything.
    """
    lookup(TABLE_FORMATS, form, "format")
    every = table_cells(runs)
    if form == "csv":
        return write_table(_every_cell(every), form)
    columns = sorted(
        {(cell.benchmark, cell.measure): None for cell in every},
        key=lambda column: _benchmark_place(column[0]),
    )
    rows: list[list[str]] = []
    for metric in dict.fromkeys(cell.metric for cell in every):
        own = {(c.benchmark, c.measure): c for c in every if c.metric == metric}

        def row(
            title: str, show: Callable[[TableCell], str], own: dict[_Column, TableCell] = own
        ) -> None:
            rows.append(
                [title, *(show(own[column]) if column in own else "" for column in columns)]
            )

        incomplete = any(cell.failed > 0 for cell in own.values())
        row(f"{metric} *" if incomplete else metric, lambda cell: _number(cell.value))
        if intervals:
            row("  from", lambda cell: _number(cell.low))
            row("  to", lambda cell: _number(cell.high))
        if any(not math.isnan(cell.paper) for cell in own.values()):
            models = dict.fromkeys(cell.paper_model for cell in own.values() if cell.paper_model)
            row(
                f"  paper ({', '.join(models)})" if models else "  paper",
                lambda cell: _number(cell.paper, 1),
            )
            if any(cell.comparable for cell in own.values()):
                row("  difference", lambda cell: _signed(cell.difference))
    failed = [
        f"{cell.metric} {max(cell.failed, 0.01):.2f} % of {cell.benchmark}"
        for cell in {(c.metric, c.benchmark): c for c in every if c.failed > 0}.values()
    ]
    notes = [f"* without a score: {'; '.join(failed)}"] if failed and form != "latex" else []
    titles = [
        (benchmark_title(name), MEASURE_SYMBOLS.get(measure, measure)) for name, measure in columns
    ]
    return write_table(CellTable(["metric", *titles], rows, notes=notes), form)


def _every_cell(every: Sequence[TableCell]) -> CellTable:
    """Return one row per cell, with everything."""
    names = ("metric", "benchmark", "measure", "value", "low", "high", "paper", "difference")
    rows = [
        [
            cell.metric, cell.benchmark, cell.measure,
            *(
                _number(number, 4)
                for number in (cell.value, cell.low, cell.high, cell.paper, cell.difference)
            ),
            cell.paper_model, _number(cell.ties), _number(cell.failed),
        ]
        for cell in every
    ]  # fmt: skip
    return CellTable([*names, "paper_model", "ties", "failed"], rows)


def _benchmark_place(name: str) -> int:
    """Return a benchmark's place among the columns; its name may have a run's name after it."""
    names = list(BENCHMARKS)
    bare = name.partition(" ")[0]
    return names.index(bare) if bare in names else len(names)


def benchmark_title(name: str) -> str:
    """Return what tables and figures call a benchmark."""
    return BENCHMARKS[name].title if name in BENCHMARKS else name


def _number(value: float, digits: int = 2) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def _signed(value: float) -> str:
    return "" if math.isnan(value) else f"{value:+.2f}"
