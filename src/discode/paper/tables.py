"""Studies that fill tables of the paper: what each asks for is data, and one function makes all."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeVar

import numpy as np

from discode.bench.agreement import main_measure, note_ties
from discode.bench.compare import agreement_difference
from discode.bench.layout import CellTable, MarkedInterval, TableValue
from discode.bench.published import (
    PaperMatch,
    PublishedCell,
    match_published,
    paper_system,
    published_cells,
)
from discode.bench.results import StudyResult
from discode.bench.runlog import MetricResult, RunLog
from discode.bench.tables import (
    MEASURE_SYMBOLS,
    benchmark_place,
    benchmark_title,
    note_tau_c,
    plot_runs,
    table_measures,
)
from discode.benchmarks import BENCHMARKS
from discode.decoders import get_decoder
from discode.errors import InputError
from discode.metrics import METRICS
from discode.metrics.registry import asks_judge
from discode.paper.base import StudySetup, run_methods
from discode.signature import Signature, SignedDecoder
from discode.stats import Interval

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

MOST_FAILED = 0.5
"""A number of ours is left out where more than this share of the judgments has no score; those of
missing images do not count."""


@dataclass(frozen=True)
class StudyLine:
    """A line of a study's table: what it is called, and the method that scores it.

    ``block`` is what it is one of, where a study scores the same line in several ways; ``setting``
    and ``system`` are what the paper's line varies and whose it is, as ``published.csv`` has them.
    """

    name: str
    method: str
    block: str = ""
    setting: str = ""
    scale: str | None = None
    system: str = "discode"

    @property
    def full_name(self) -> str:
        """The name with its block, if it has one."""
        return f"{self.name} ({self.block})" if self.block else self.name

    def holds(self, label: str, signature: Signature) -> bool:
        """Whether a result belongs to the line, by how it was made."""
        if signature.decoder is None:
            return self.method in (label, signature.get("metric"))
        if not asks_judge(self.method):
            return False
        method = self.method.removeprefix("ref-")
        bare = signature.get("references", "none") in ("none", "ignored")
        return (
            signature.decoder == SignedDecoder.of(get_decoder(method))
            and bare == (method == self.method)
            and self.scale in (None, signature.get("scale"))
        )


@dataclass(frozen=True)
class TableStudy:
    """What a study of the paper's tables asks for, and how its lines are put together.

    ``tables`` are ours by name, each with the labels of the paper's tables that it joins.
    ``heading`` goes from a line and its model ("" for metrics that ask none) to what the line
    stands under, ``paper_heading`` from a cell of the paper's line. ``contrasts`` are methods whose
    difference, the first minus the second, is worth a sentence.
    """

    tables: Mapping[str, tuple[str, ...]]
    lines: tuple[StudyLine, ...]
    heading: Callable[[StudyLine, str], str]
    paper_heading: Callable[[PublishedCell], str]
    contrasts: tuple[tuple[str, str], ...] = ()

    def run(self, setup: StudySetup) -> StudyResult:
        """Score what is missing, and lay everything out as the paper does."""
        self._check_benchmarks(setup)
        study = self._with_metrics(setup.metrics)
        methods = list(dict.fromkeys(line.method for line in study.lines))
        scales = list(dict.fromkeys(line.scale for line in study.lines))
        runs = run_methods(setup, methods, scales)
        return study._with_metrics_of(setup.logs)._lay_out(runs, setup)

    def _with_metrics(self, metrics: Mapping[str, str]) -> TableStudy:
        """Return a table of metrics with a line for each that the paper has in it, or nowhere."""
        if all(asks_judge(line.method) for line in self.lines):
            return self  # it is about judges only
        labels = {label for joined in self.tables.values() for label in joined}
        here = {cell.system: cell for cell in published_cells() if cell.table in labels}
        elsewhere = {cell.system for cell in published_cells()} - here.keys()
        lines = {line.method: line for line in self.lines}
        for label, spec in metrics.items():
            name = spec.partition(":")[0]
            if asks_judge(spec):
                name = "ref-discode" if spec.startswith("ref-") else "discode"
            system = paper_system(name if name in METRICS else label)
            if system not in elsewhere:
                title = system_title(here[system]) if name == label and system in here else label
                lines.setdefault(label, StudyLine(title, label, system=name))
        return replace(self, lines=tuple(lines.values()))

    def _with_metrics_of(self, logs: Mapping[str, RunLog]) -> TableStudy:
        """Return a table of metrics with a line for each that logs have and the study does not."""
        if all(asks_judge(line.method) for line in self.lines):
            return self  # it is about judges only
        more = {
            label: StudyLine(label, label, system=result.signature.get("metric"))
            for log in logs.values()
            for label, result in log.results.items()
            if result.signature.decoder is None and self.line_of(label, result) is None
        }
        return replace(self, lines=(*self.lines, *more.values()))

    def _lay_out(self, runs: StudyResult, setup: StudySetup) -> StudyResult:
        cells = self.cells(runs.logs)
        tables = {name: self._table(name, cells, runs) for name in self.tables}
        return replace(
            runs,
            tables={name: table for name, table in tables.items() if table is not None},
            figures={next(iter(self.tables)): partial(_plot_lines, self, runs.logs)},
            findings=self._findings(runs.logs, setup),
        )

    def _check_benchmarks(self, setup: StudySetup) -> None:
        """Raise where the paper has a benchmark in other tables only: there would be no column."""
        labels = {label for joined in self.tables.values() for label in joined}
        known = {cell.column.split()[0] for cell in published_cells() if cell.table in labels}
        others = {cell.column.split()[0] for cell in published_cells()} - known
        here = {benchmark.name for benchmark in setup.benchmarks.values()}
        here |= {log.benchmark for log in setup.logs.values()}
        if here and here <= others:
            raise InputError(
                f"this table has no column for {', '.join(sorted(here))}; it is about "
                f"{', '.join(name for name in BENCHMARKS if name in known)}"
            )

    def line_of(self, label: str, result: MetricResult) -> StudyLine | None:
        """Return the line that a result belongs to, by how it was made; None if to none."""
        exact = [line for line in self.lines if line.method == label]
        return next(
            (line for line in exact or self.lines if line.holds(label, result.signature)), None
        )

    def results(self, log: RunLog) -> Iterator[tuple[str, StudyLine, str, MetricResult]]:
        """Yield the results of a run that lines have: label, line, model ("" without), result."""
        for label, result in log.results.items():
            line = self.line_of(label, result)
            present = log.judged(result.errors).mean()
            failed = result.measures["failed"].value - (1 - present)
            if line is not None and failed <= MOST_FAILED * present:
                model = result.signature.get("model") if asks_judge(label) else ""
                yield label, line, model, result

    def cells(self, logs: Mapping[str, RunLog]) -> list[StudyCell]:
        """Return the numbers that runs have, model by model, in the order of the lines."""
        cells: dict[tuple[StudyLine, str, Column], StudyCell] = {}
        for name, log in logs.items():
            run = _place(name, logs)
            for label, line, model, result in self.results(log):
                every = log.judged_image
                images = len(np.unique(every[log.judged(result.errors)])), len(np.unique(every))
                for measure in table_measures(log):
                    column = _column_of(log, measure, run)
                    value = result.measures[measure].times(100)
                    match = match_published(log, label, measure)
                    cell = StudyCell(line, model, column, value, match, images)
                    cells.setdefault((line, model, column), cell)
                if "tau_b" in table_measures(log):
                    column, rate = _column_of(log, "ties", run), result.measures["ties"].times(100)
                    cell = StudyCell(line, model, column, rate, PaperMatch(), images)
                    cells.setdefault((line, model, column), cell)
        # Metrics that ask no model come first, as in the paper.
        models = sorted(dict.fromkeys(model for _, model, _ in cells), key=bool)
        return sorted(
            cells.values(),
            key=lambda cell: (models.index(cell.model), self.lines.index(cell.line)),
        )

    def _table(self, name: str, cells: Sequence[StudyCell], runs: StudyResult) -> CellTable | None:
        paper = [cell for label in self.tables[name] for cell in published_cells(label)]
        columns = _columns(runs.logs, paper, only_paper=name != next(iter(self.tables)))
        if not columns:
            return None
        tied = _tie_warnings(cells, columns)
        for column in tied:
            columns.insert(1 + max(map(columns.index, _beside(column, columns))), column)
        here = [cell for cell in cells if cell.column in columns]
        ours = {cell.match.cell.row for cell in here if cell.match.cell is not None}
        others = [cell for cell in paper if cell.row not in ours]
        rows = [*self._own_rows(here, columns), *self._paper_rows(others, columns)]
        body: list[list[TableValue]] = []
        for heading, block in _grouped(rows, lambda row: row[0]).items():
            body += [[heading], *(row for _, row in block)]
        rated = any(column[0].endswith(" tau_c") for column in columns)
        about = [*(note_tau_c(runs.logs.values()) if rated else ()), *tied.values()]
        notes = dict.fromkeys([*runs.left_out, *about, *filter(None, map(_note, here))])
        return CellTable(["", *map(_title, columns)], body, notes=list(notes))

    def _own_rows(self, cells: Sequence[StudyCell], columns: Sequence[Column]) -> Iterator[_Row]:
        """Yield our rows with their headings, each with the paper's numbers below it, if any."""
        for (line, model), row in _grouped(cells, lambda cell: (cell.line, cell.model)).items():
            heading = self.heading(line, model)
            title = line.name if model in heading else f"{line.name}, {model}"
            values = {cell.column: cell.shown for cell in row}
            yield heading, [f"  {title}", *(values.get(column) for column in columns)]
            paper = {c.column: f"{c.match.cell.value:.1f}" for c in row if c.match.cell is not None}
            if paper:
                yield heading, ["    paper", *(paper.get(column, "") for column in columns)]

    def _paper_rows(
        self, cells: Sequence[PublishedCell], columns: Sequence[Column]
    ) -> Iterator[_Row]:
        """Yield the paper's rows with their headings."""
        for row in _grouped(cells, lambda cell: cell.row).values():
            printed = {cell.column: f"{cell.value:.1f}" for cell in row}
            values = [printed.get(published) for published, _ in columns]
            if any(values):
                heading = self.paper_heading(row[0])
                yield heading, [f"  {self._paper_title(row[0], heading)} (published)", *values]

    def _paper_title(self, cell: PublishedCell, heading: str) -> str:
        """Return what a line of the paper is called: as ours with its setting, or as it prints."""
        system = "smoothing" if cell.system == "fleur" else cell.system  # FLEUR's is smoothing, too
        named = (
            line.name
            for line in self.lines
            if line.setting and (line.system, line.setting) == (system, cell.setting)
        )
        title = next(named, "") or system_title(cell)
        return title if cell.model in heading else f"{title}, {cell.model}"

    def _findings(self, logs: Mapping[str, RunLog], setup: StudySetup) -> list[str]:
        """Return a sentence for each contrast and run: the difference with its interval."""
        sentences: dict[str, None] = {}
        for log in logs.values() if setup.protocol.resamples else ():
            here = {
                (line.method, model): (label, line) for label, line, model, _ in self.results(log)
            }
            models = dict.fromkeys(model for _, model in here)
            for (a, b), model in product(self.contrasts, models):
                if {(a, model), (b, model)} <= here.keys():
                    (first, line), (second, other) = here[a, model], here[b, model]
                    apart = agreement_difference(log, first, second, setup.protocol).difference
                    sentences[_sentence(log, model, line, other, apart)] = None
        return list(sentences)


Column = tuple[str, str]
"""What the paper calls a column ("composite tau_c"), and the run's name if runs differ in data."""

_Row = tuple[str, list[TableValue]]
"""A row of a table, after the heading that it stands under."""


@dataclass(frozen=True)
class StudyCell:
    """A number of ours in percent: of which line and model, and the paper's that belongs to it.

    ``images`` is the number of images that it is about, and that of the benchmark's images.
    """

    line: StudyLine
    model: str
    column: Column
    value: Interval
    match: PaperMatch
    images: tuple[int, int]

    @property
    def shown(self) -> Interval:
        """The number, with a mark where images are missing."""
        number = self.value
        if self.images[0] == self.images[1]:
            return number
        return MarkedInterval(number.value, number.low, number.high, number.level)


def _grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return items by key, in the order in which they come."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _note(cell: StudyCell) -> str:
    """Return why a number of ours is not compared with the paper, where that is worth a note."""
    if isinstance(cell.shown, MarkedInterval):
        return (
            f"{cell.shown.mark} {_title(cell.column)[0]}: {cell.images[0]:,} of {cell.images[1]:,} "
            "images; the others are missing, so no published number is comparable"
        )
    if cell.match.reason and cell.match.cell is not None:
        return f"{cell.line.name}: not compared with the paper ({cell.match.reason})"
    other_data = cell.match.reason.startswith("other data")
    return f"Published numbers are of {cell.match.reason}" if other_data else ""


def _tie_warnings(cells: Sequence[StudyCell], columns: Sequence[Column]) -> dict[Column, str]:
    """Return columns of tie rates that differ beside a column of τ_b, each with a line on them."""
    rates: dict[Column, dict[str, float]] = {}
    several = len({cell.model for cell in cells if cell.model}) > 1
    for cell in cells:
        if cell.column[0].endswith(" ties") and _beside(cell.column, columns):
            name = cell.line.full_name + (f" of {cell.model}" if several and cell.model else "")
            rates.setdefault(cell.column, {})[name] = cell.value.value
    return {
        column: line
        for column, named in rates.items()
        for line in note_ties(named, f" on {_title(column)[0]}")
    }


def _beside(ties: Column, columns: Sequence[Column]) -> list[Column]:
    """Return the columns of τ that a column of tie rates belongs to."""
    name = ties[0].removesuffix(" ties")
    return [c for c in columns if c in ((f"{name} {tau}", ties[1]) for tau in ("tau_b", "tau_c"))]


def _title(column: Column) -> tuple[str, str]:
    """Return the benchmark's title, which stands above all its columns, and the measure."""
    published, run = column
    name, _, measure = published.partition(" ")
    above = benchmark_title(name) + (f" ({run})" if run else "")
    return above, MEASURE_SYMBOLS.get(measure, measure)


def _place(name: str, logs: Mapping[str, RunLog]) -> str:
    """Return a run's name if a run of other data or options would stand in the same columns."""
    log = logs[name]
    alike = (
        other.same_questions(log)
        for other in logs.values()
        if _column_of(other, "") == _column_of(log, "")
    )
    return "" if all(alike) else name


def _column_of(log: RunLog, measure: str, run: str = "") -> Column:
    row = BENCHMARKS.get(log.benchmark)
    if row is None:
        return f"{log.benchmark} {measure}", run
    options = row.option_texts(log.options)
    return row.published_column.format(benchmark=row.name, measure=measure, **options), run


def _columns(
    logs: Mapping[str, RunLog], paper: Sequence[PublishedCell], *, only_paper: bool
) -> list[Column]:
    """Return the paper's columns of the benchmarks that were run, and those that it lacks.

    Those of a benchmark of one's own; and where the paper's table has a benchmark's categories,
    other categories of it, such as a domain that MCEval does not have.
    """
    printed = list(dict.fromkeys(cell.column for cell in paper))
    every = {cell.column for cell in published_cells()}
    known = {column.partition(" ")[0] for column in every}
    divided = {c.partition(" ")[0] for c in printed if not c.endswith(" mean")}
    columns: dict[Column, None] = {}
    for name, log in logs.items():
        for measure in table_measures(log):
            column = _column_of(log, measure, _place(name, logs))
            if (
                column[0] in printed
                or (log.benchmark in divided and column[0] not in every)
                or not (only_paper or log.benchmark in known)
            ):
                columns[column] = None

    def place(column: Column) -> tuple[int, bool, int]:
        return (
            benchmark_place(column[0]),
            column[0].endswith(" mean"),
            printed.index(column[0]) if column[0] in printed else len(printed),
        )

    return sorted(columns, key=place)


_JUDGES = {"raw": "Raw score", "smoothing": "Smoothing", "fleur": "FLEUR", "discode": "DISCODE"}


def system_title(cell: PublishedCell) -> str:
    """Return what a system is called in tables, without its citation.

    >>> [system_title(cell) for cell in published_cells("foil", column="foil 1-ref")][-3:]
    ['FLEUR', 'G-VEval', 'DISCODE']
    """
    bare = cell.system.removeprefix("ref-")
    if bare in _JUDGES:
        return ("Ref" if bare != cell.system else "") + _JUDGES[bare]
    title = re.sub(r" *\([^)]*et al[^)]*\)+", "", cell.printed)
    return title.removesuffix(f" ({cell.model})").removesuffix(cell.model)


def _sentence(log: RunLog, model: str, a: StudyLine, b: StudyLine, apart: Interval) -> str:
    """Return what a difference says."""
    measure = MEASURE_SYMBOLS[main_measure(log.benchmark, log.judgments)]
    if measure == "τ_c" and log.protocol.tau_m != "people":  # differences have people's m
        measure += " with people's m"
    value, low, high = (round(number, 2) + 0.0 for number in (apart.value, apart.low, apart.high))
    verdict = "" if apart.low > 0 or apart.high < 0 else "; no difference was shown"
    bounds = (
        ""
        if math.isnan(apart.low)
        else f" ({100 * apart.level:g} %: {low:+.2f} to {high:+.2f}{verdict})"
    )
    return (
        f"{benchmark_title(log.benchmark)}, {model}: {a.full_name} minus {b.full_name} is "
        f"{'undefined' if math.isnan(value) else f'{value:+.2f}'} in {measure}{bounds}."
    )


def _plot_lines(study: TableStudy, logs: Mapping[str, RunLog], path: Path) -> None:
    """Plot every line that runs have, called by its name."""
    models = {r.signature.get("model") for log in logs.values() for r in log.results.values()}
    several = len(models - {""}) > 1
    named: dict[str, RunLog] = {}
    for name, log in logs.items():
        results = {
            line.full_name + (f", {model}" if several and model else ""): result
            for _, line, model, result in study.results(log)
        }
        if results:
            named[name] = replace(log, results=results)
    plot_runs(named, path)
