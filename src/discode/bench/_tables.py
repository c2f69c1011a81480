"""Tables and plots of runs in the layout of the paper, with its numbers next to ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from discode.bench._agreement import COMPARED, TAU_C_NOTES, main_measure, note_ties
from discode.bench._compare import compare_metrics, worse_than
from discode.bench._figures import BLUE, check_plot, empty_figure, save_figure
from discode.bench._layout import WORSE_NOTE, Bold, CellTable, ColumnTitle, TableValue, write_table
from discode.bench._published import (
    PAPER_TABLES,
    PublishedCell,
    published_cell,
    published_cells,
    published_column,
)
from discode.bench._run import measure_by
from discode.bench._runlog import RunLog
from discode.benchmarks import BENCHMARKS, Ratings
from discode.errors import InputError, lookup
from discode.stats import Interval

MEASURE_SYMBOLS = {
    "tau_b": "τ_b", "tau_c": "τ_c", "spearman": "ρ", "pearson": "r", "mean": "Mean",
    "ties": "ties %",
}  # fmt: skip
RATING_MEASURES = ("tau_b", "tau_c", "spearman", "pearson", "acc23", "acc_tied")
"""Measures of ratings that a table can show; the first two are shown by default."""


@dataclass(frozen=True)
class TableCell:
    """Our number in percent with its interval, and the paper's number of the same thing, if any.

    ``column`` is where the paper has it, or would have it ("composite tau_c", "foil 4-ref").
    """

    metric: str
    benchmark: str
    measure: str
    column: str
    interval: Interval
    published: PublishedCell | None
    ties: float
    failed: float

    @property
    def value(self) -> float:
        """Our number."""
        return self.interval.value

    @property
    def paper(self) -> float:
        """The paper's number; NaN where it has none."""
        return math.nan if self.published is None else self.published.value

    @property
    def difference(self) -> float:
        """Ours minus the paper's; NaN where it has none."""
        return self.value - self.paper


def with_one_m(runs: Mapping[str, RunLog]) -> dict[str, RunLog]:
    """Use one m for the τ_c of all runs: people's, if the runs have different ones."""
    rated = {name: log for name, log in runs.items() if isinstance(log.judgments, Ratings)}
    if len({log.protocol.tau_m for log in rated.values()}) < 2:
        return dict(runs)
    return {**runs} | {
        name: measure_by(replace(log.protocol, tau_m="people"), log) for name, log in rated.items()
    }


def note_tau_c(runs: Iterable[RunLog]) -> list[str]:
    """Describe m in the τ_c of the runs; empty if all of them have preferences."""
    rules = dict.fromkeys(log.protocol.tau_m for log in runs if isinstance(log.judgments, Ratings))
    return [TAU_C_NOTES[rule] for rule in rules]


def name_results(runs: Mapping[str, RunLog]) -> dict[str, tuple[str, dict[str, str]]]:
    """Map each run to the displayed names of its benchmark and of its metrics.

    If two runs computed a metric differently, the run's name follows the metric's; if the data or
    the options of a benchmark differ between runs, it follows the benchmark's.
    """
    if not any(log.results for log in runs.values()):
        raise InputError("these runs have no results; add some with discode bench run")
    signatures: dict[tuple[str, str], set[str]] = {}
    places: dict[str, list[RunLog]] = {}
    for log in runs.values():
        places.setdefault(log.benchmark, []).append(log)
        for label, result in log.results.items():
            signatures.setdefault((label, log.benchmark), set()).add(str(result.signature))
    names: dict[str, tuple[str, dict[str, str]]] = {}
    for name, log in runs.items():
        benchmark = log.benchmark
        alike = all(log.same_questions(other) for other in places[benchmark])
        names[name] = benchmark if alike else f"{benchmark} ({name})", {
            label: label if not alike or len(signatures[label, benchmark]) == 1
            else f"{label} ({name})"
            for label in log.results
        }  # fmt: skip
    return names


def table_cells(runs: Mapping[str, RunLog], measures: Sequence[str] = ()) -> list[TableCell]:
    """Compute every cell of a table of runs, named as :func:`name_results` names them.

    ``measures`` selects measures of ratings; the default is τ_b and τ_c.
    """
    cells: dict[tuple[str, str, str], TableCell] = {}
    for name, (where, labels) in name_results(runs).items():
        log = runs[name]
        columns = {name: published_column(log, name) for name in table_measures(log, measures)}
        for label, shown in labels.items():
            result = log.results[label]
            for measure, column in columns.items():
                cells[shown, where, measure] = TableCell(
                    shown, where, measure, column, result.measures[measure].times(100),
                    published_cell(log, label, measure),
                    100 * result.measures["ties"].value, 100 * result.measures["failed"].value,
                )  # fmt: skip
    return list(cells.values())


def check_measures(names: Iterable[str]) -> None:
    """Raise for a measure that no table shows."""
    for name in names:
        lookup(dict.fromkeys(RATING_MEASURES), name, "measure")


def table_measures(log: RunLog, wanted: Sequence[str] = ()) -> list[str]:
    """List the measures in a run's table, in order; ``wanted`` selects those of ratings."""
    if isinstance(log.judgments, Ratings):
        return [*dict.fromkeys(wanted or RATING_MEASURES[:2])]
    present = sorted(set(log.judgments.category))
    known = BENCHMARKS[log.benchmark].categories if log.benchmark in BENCHMARKS else ()
    categories = [name for name in known if name in present]
    categories += [name for name in present if name not in known]
    return ["mean"] if len(categories) == 1 else [*categories, "mean"]


def render_table(
    runs: Mapping[str, RunLog],
    form: str = "text",
    *,
    intervals: bool = False,
    measures: Sequence[str] = (),
) -> str:
    """Format runs as a table: "text", "markdown", "latex" or "csv".

    ``measures`` are those of ratings, any of ``RATING_MEASURES``; τ_b and τ_c by default. Each
    metric has a row with our numbers, one with the paper's where it has some, and one with the
    difference; ``intervals`` adds those of the bootstrap. Tie rates follow τ_b if they
    differ by more than ``TIE_GAP``. The CSV has one line per cell, with everything. LaTeX has the
    best of each column in bold, and marks metrics that are worse by :func:`compare_metrics`.
    """
    if measures:
        check_measures(measures)
    runs = with_one_m(runs)
    every = table_cells(runs, measures)
    if form == "csv":
        return write_table(_every_cell(every), form)
    names = list(dict.fromkeys(cell.benchmark for cell in every))
    ties, tied = tie_cells(every)
    every += ties
    columns = sorted(
        {(cell.benchmark, cell.measure): None for cell in every},
        key=lambda column: (benchmark_place(column[0]), names.index(column[0])),
    )
    table = {(cell.metric, cell.benchmark, cell.measure): cell for cell in every}
    best, worse, untested = set[TableCell](), set[TableCell](), list[str]()
    if form == "latex":
        best, worse, untested = _best_and_worse(runs, every)
    rows: list[list[str]] = []
    for metric in dict.fromkeys(cell.metric for cell in every):
        cells = [table.get((metric, *column)) for column in columns]
        here = [cell for cell in cells if cell is not None]
        mark = " *" if any(cell.failed > 0 for cell in here) else ""
        row = _row(metric + mark, cells, lambda cell: _number(cell.value) or "undefined")
        for place, cell in enumerate(cells, start=1) if best else ():
            row[place] = Bold(row[place]) if cell in best else row[place] + "†" * (cell in worse)
        rows.append(row)
        if intervals:
            bounded = [cell if cell is None or cell.measure != "ties" else None for cell in cells]
            rows.append(_row("  from", bounded, lambda cell: _number(cell.interval.low) or "none"))
            rows.append(_row("  to", bounded, lambda cell: _number(cell.interval.high) or "none"))
        if any(not math.isnan(cell.paper) for cell in here):
            models = dict.fromkeys(cell.published.model for cell in here if cell.published)
            title = f"  paper ({', '.join(filter(None, models))})" if any(models) else "  paper"
            rows.append(_row(title, cells, lambda cell: _number(cell.paper, ".1f")))
            rows.append(_row("  difference", cells, lambda cell: _number(cell.difference, "+.2f")))
    notes = note_failed(every)
    alike = dict.fromkeys(cell.metric for cell in every if cell.ties == 100)
    if alike:
        notes.append(f"the same score for everything: {', '.join(alike)}")
    if best:
        notes.append("; ".join([WORSE_NOTE, *untested]))
    if any(measure == "tau_c" for _, measure in columns):
        notes += note_tau_c(runs.values())
    notes += tied
    titles = [
        (benchmark_title(name), MEASURE_SYMBOLS.get(measure, measure)) for name, measure in columns
    ]
    return write_table(CellTable(["metric", *titles], rows, notes=notes), form)


def tie_cells(cells: Sequence[TableCell]) -> tuple[list[TableCell], list[str]]:
    """Make cells of tie rates that differ within a benchmark, and a line on each of these."""
    several = len({cell.benchmark for cell in cells}) > 1
    rated: dict[str, list[TableCell]] = {}
    for cell in cells:
        if cell.measure == "tau_b":
            rated.setdefault(cell.benchmark, []).append(cell)
    found: list[TableCell] = []
    lines: list[str] = []
    for name, group in rated.items():
        where = f" on {benchmark_title(name)}" if several else ""
        if notes := note_ties({cell.metric: cell.ties for cell in group}, where):
            lines += notes
            found += [
                replace(cell, measure="ties", column=cell.column.replace(" tau_b", " ties"),
                        interval=Interval.point(cell.ties, cell.interval.level), published=None)
                for cell in group
            ]  # fmt: skip
    return found, lines


def note_failed(cells: Iterable[TableCell]) -> list[str]:
    """Report the share of judgments without a score; empty if all have one."""
    lost = {(cell.metric, cell.benchmark): cell for cell in cells if cell.failed > 0}
    failed = [
        f"{cell.metric} {max(cell.failed, 0.01):.2f} % of {cell.benchmark}"
        for cell in lost.values()
    ]
    return [f"* without a score: {'; '.join(failed)}"] if failed else []


def _best_and_worse(
    runs: Mapping[str, RunLog], every: Sequence[TableCell]
) -> tuple[set[TableCell], set[TableCell], list[str]]:
    """Find the best cell of each column, those that are worse, and columns without a test.

    A test needs all metrics in one run.
    """
    columns: dict[tuple[str, str], list[TableCell]] = {}
    for cell in every:
        if cell.measure != "ties" and not math.isnan(cell.value):
            columns.setdefault((cell.benchmark, cell.measure), []).append(cell)
    best, worse, untested = set[TableCell](), set[TableCell](), list[str]()
    for (benchmark, measure), cells in columns.items():
        if len(cells) < 2:
            continue
        first = max(cells, key=lambda cell: cell.value)
        best.add(first)
        logs = [log for log in runs.values() if log.benchmark == benchmark]
        names = [cell.metric for cell in cells]
        try:
            if len(logs) > 1 or measure not in (*COMPARED, "mean"):
                raise InputError("no test")
            done = compare_metrics(logs[0], names, measure=measure)
        except InputError:  # perhaps no judgment has a score of every metric
            untested.append(f"{benchmark_title(benchmark)} {MEASURE_SYMBOLS.get(measure, measure)}")
            continue
        differ = worse_than(done.pairs, first.metric)
        worse |= {cell for cell in cells if cell.metric in differ}
    return best, worse, [f"not tested: {', '.join(untested)}"] if untested else []


def _row(
    title: str, cells: Sequence[TableCell | None], show: Callable[[TableCell], str]
) -> list[str]:
    return [title, *("" if cell is None else show(cell) for cell in cells)]


def _every_cell(every: Sequence[TableCell]) -> CellTable:
    names = ("metric", "benchmark", "measure", "value", "low", "high", "paper", "difference")
    rows = []
    for cell in every:
        interval = cell.interval
        numbers = cell.value, interval.low, interval.high, cell.paper, cell.difference
        rows.append([
            cell.metric, cell.benchmark, cell.measure, *(_number(n, ".4f") for n in numbers),
            cell.published.model if cell.published else "",
            _number(cell.ties), _number(cell.failed),
        ])  # fmt: skip
    return CellTable([*names, "paper_model", "ties", "failed"], rows)


def benchmark_place(name: str) -> int:
    """Position of a benchmark among the columns; a run's name after it is ignored."""
    names = list(BENCHMARKS)
    bare = name.partition(" ")[0]
    return names.index(bare) if bare in names else len(names)


def benchmark_title(name: str) -> str:
    """Look up the title of a benchmark in tables and figures."""
    return BENCHMARKS[name].title if name in BENCHMARKS else name


def _number(value: float, form: str = ".2f") -> str:
    return "" if math.isnan(value) else f"{value:{form}}"


def plot_runs(runs: Mapping[str, RunLog], path: Path) -> None:
    """Draw runs, which are given by name; the best metric is at the top."""
    check_plot(path)
    deciding = {log.benchmark: main_measure(log.benchmark, log.judgments) for log in runs.values()}
    every = [
        cell
        for cell in table_cells(with_one_m(runs))
        if cell.measure == deciding[cell.benchmark.partition(" (")[0]]
    ]
    names = list(dict.fromkeys(cell.benchmark for cell in every))
    across = min(2, len(names))
    down = -(-len(names) // across)
    height = 1.1 + 0.32 * max(sum(c.benchmark == name for c in every) for name in names)
    figure = empty_figure(max(6.0, 4.8 * across), height * down)
    panels = figure.subplots(down, across, squeeze=False)
    for panel in panels.flat[len(names) :]:
        panel.set_visible(False)
    for panel, name in zip(panels.flat, names, strict=False):
        rows = sorted((c for c in every if c.benchmark == name), key=lambda cell: cell.value)
        places = range(len(rows))
        for place, cell in enumerate(rows):
            panel.plot(
                [cell.interval.low, cell.interval.high], [place, place], color=BLUE, lw=2, alpha=0.5
            )
        panel.plot([cell.value for cell in rows], places, "o", color=BLUE, ms=6, label="ours")
        if not all(math.isnan(cell.paper) for cell in rows):
            paper = [cell.paper for cell in rows]
            panel.plot(paper, places, "D", color="#b45309", mfc="none", ms=7, label="the paper")
        panel.set_ylim(-0.6, len(rows) - 0.4)
        panel.set_yticks(places, [cell.metric for cell in rows])
        panel.set_xlabel(f"{MEASURE_SYMBOLS[rows[0].measure]}, %")
        panel.set_title(benchmark_title(name), fontsize=10)
        panel.grid(axis="x", alpha=0.25)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
        panel.legend(frameon=False, fontsize=8, loc="lower right")
    save_figure(figure, path)


def published_table(name: str) -> CellTable:
    """Lay out a table of the paper: systems or settings down, measures across."""
    cells = published_cells(name)
    rows: dict[tuple[str, ...], dict[ColumnTitle, PublishedCell]] = {}
    for cell in cells:
        key = (cell.group, cell.title, cell.model, cell.setting)
        rows.setdefault(key, {})[_printed_column(cell)] = cell
    columns = list(dict.fromkeys(title for row in rows.values() for title in row))
    groups = dict.fromkeys(group for group, *_ in rows)
    models = dict.fromkeys(model for _, _, model, _ in rows)
    shown: list[list[TableValue]] = []
    for group in groups:
        if len(groups) > 1:
            shown.append([group])
        for (mine, title, model, _), row in rows.items():
            if mine != group:
                continue
            named = len(models) == 1 or not model or model in title
            title = title if named else f"{title}, {model}"
            numbers = [row[c].text if c in row else None for c in columns]
            shown.append(["  " * (len(groups) > 1) + title, *numbers])
    notes = [f"all of {model}" for model in models if model and len(models) == 1]
    for row in rows.values():
        different = {cell.note for cell in row.values()}
        notes += [
            f"{cell.title}{'' if len(different) == 1 else f', {cell.column}'}: {cell.note}"
            for cell in {cell.note: cell for cell in row.values() if cell.note}.values()
        ]
    first = "benchmark" if name == "dataset_statistics" else "metric"
    return CellTable([first, *columns], shown, f"{name}: {PAPER_TABLES[name]}", notes)


def _printed_column(cell: PublishedCell) -> ColumnTitle:
    """Locate a cell of the paper; benchmark statistics have the benchmarks as rows."""
    name, measure = cell.column.split()
    if not cell.system:
        return measure
    return (benchmark_title(name), MEASURE_SYMBOLS.get(measure, measure))
