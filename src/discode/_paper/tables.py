"""The paper's tables of agreement with people: a file of data each, and one function for all."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from discode._paper.base import Study, StudySetup, run_methods
from discode._signature import Signature, SignedDecoder
from discode.bench._agreement import main_measure
from discode.bench._compare import agreement_difference
from discode.bench._layout import CellTable, TableValue
from discode.bench._published import (
    PublishedCell,
    published_cells,
    published_column,
)
from discode.bench._results import StudyResult
from discode.bench._runlog import MetricResult, RunLog
from discode.bench._tables import (
    MEASURE_SYMBOLS,
    TableCell,
    benchmark_place,
    benchmark_title,
    note_failed,
    note_tau_c,
    plot_runs,
    table_cells,
    tie_cells,
)
from discode.benchmarks import BENCHMARKS
from discode.decoders import get_decoder
from discode.errors import InputError
from discode.metrics import METRICS
from discode.metrics._registry import asks_judge
from discode.stats import Interval

MOST_FAILED = 0.5
"""A number is left out if more than this share of the judgments, missing images aside, has no
score."""


@dataclass(frozen=True)
class TableRow:
    """A row: its name, its method, and the block or scale that distinguishes equal names.

    ``metric`` is the metric's name where ``method`` is a label of the user's.
    """

    name: str
    method: str
    block: str = ""
    scale: str | None = None
    metric: str = ""

    @property
    def full_name(self) -> str:
        """The name with its block, if it has one."""
        return f"{self.name} ({self.block})" if self.block else self.name

    @property
    def group(self) -> str:
        """Whether the method sees references."""
        metric = METRICS.get(self.metric or self.method)
        if metric is None and not asks_judge(self.method):
            return "scores from files"
        shown = metric and "references" in metric.needs
        return "with references" if shown or self.method.startswith("ref-") else "reference-free"

    def holds(self, label: str, signature: Signature) -> bool:
        """Whether a result belongs to the row, judging by its signature."""
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
class PaperTable:
    """A table of the paper, described by ``data/paper/NUMBER-NAME.json``.

    ``joins`` are our tables by name, each with the labels of the paper's tables that it joins.
    ``heading`` is the template of a row's heading, with {group}, {model} and {block}.
    ``contrasts`` are pairs of methods whose difference is described in a sentence.
    """

    name: str
    about: str
    benchmarks: tuple[str, ...]
    joins: Mapping[str, tuple[str, ...]]
    heading: str
    rows: tuple[TableRow, ...]
    contrasts: tuple[tuple[str, str], ...] = ()

    @classmethod
    def load(cls, path: Path) -> PaperTable:
        """Read a table."""
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        rows = tuple(TableRow(**row) for row in data.pop("rows"))
        return cls(name=path.stem.partition("-")[2], rows=rows, **data)

    @property
    def study(self) -> Study:
        """The table as a study."""
        labels = tuple(label for joined in self.joins.values() for label in joined)
        return Study(self.name, self.about, labels, self.run, tuple(self.benchmarks))

    def run(self, setup: StudySetup) -> StudyResult:
        """Score missing results, and lay out all tables as the paper does."""
        self._check_benchmarks(setup)
        judges = all(asks_judge(row.method) for row in self.rows)
        table = self if judges else self._with_metrics(setup.metrics)
        methods = list(dict.fromkeys(row.method for row in table.rows))
        runs = run_methods(setup, methods, list(dict.fromkeys(row.scale for row in table.rows)))
        table = table if judges else table._with_metrics_of(setup.logs)
        named, headings = table.named(runs.logs)
        places: dict[str, dict[str, RunLog]] = {}
        for name, log in named.items():
            places.setdefault(published_column(log, ""), {})[name] = log
        cells = [cell for several in places.values() for cell in table_cells(several)]
        drawn = {name: table.lay_out(name, cells, headings, runs) for name in table.joins}
        return replace(
            runs,
            tables={name: each for name, each in drawn.items() if each is not None},
            figures={next(iter(table.joins)): partial(plot_runs, named)},
            findings=table.findings(runs.logs, setup),
        )

    def published(self) -> list[PublishedCell]:
        """Collect the paper's cells of all joined tables."""
        labels = [label for joined in self.joins.values() for label in joined]
        return [cell for cell in published_cells() if cell.table in labels]

    def _check_benchmarks(self, setup: StudySetup) -> None:
        """Refuse benchmarks that only other tables of the paper have: they would have no column."""
        known = {cell.column.split()[0] for cell in self.published()}
        others = {cell.column.split()[0] for cell in published_cells()} - known
        here = {benchmark.name for benchmark in setup.benchmarks.values()}
        here |= {log.benchmark for log in setup.logs.values()}
        if here and here <= others:
            raise InputError(
                f"this table has no column for {', '.join(sorted(here))}; it is about "
                f"{', '.join(name for name in BENCHMARKS if name in known)}"
            )

    def _with_metrics(self, metrics: Mapping[str, str]) -> PaperTable:
        """Add a row for each metric that the paper has in this table, or in none."""
        titles = {cell.metric: cell.title for cell in self.published()}
        elsewhere = {cell.metric for cell in published_cells()} - titles.keys()
        rows = {row.method: row for row in self.rows}
        for label, spec in metrics.items():
            name = spec.partition(":")[0]
            if asks_judge(spec):
                name = "ref-paper" if spec.startswith("ref-") else "paper"
            if (name if name in METRICS else label) not in elsewhere:
                title = titles.get(label, label) if name == label else label
                rows.setdefault(label, TableRow(title, label, metric=name))
        return replace(self, rows=tuple(rows.values()))

    def _with_metrics_of(self, logs: Mapping[str, RunLog]) -> PaperTable:
        """Add a row for each metric of the logs that has none."""
        more = {
            label: TableRow(label, label, metric=result.signature.get("metric"))
            for log in logs.values()
            for label, result in log.results.items()
            if result.signature.decoder is None and self.row_of(label, result) is None
        }
        return replace(self, rows=(*self.rows, *more.values()))

    def row_of(self, label: str, result: MetricResult) -> TableRow | None:
        """Find the row of a result by its signature; None if it has no row."""
        exact = [row for row in self.rows if row.method == label]
        held = (row for row in exact or self.rows if row.holds(label, result.signature))
        return next(held, None)

    def results(self, log: RunLog) -> Iterator[tuple[str, TableRow, str, MetricResult]]:
        """Yield the results of a run that have a row: label, row, model ("" for none), result."""
        for label, result in log.results.items():
            row = self.row_of(label, result)
            present = log.judged(result.errors).mean()
            failed = result.measures["failed"].value - (1 - present)
            if row is not None and failed <= MOST_FAILED * present:
                model = result.signature.get("model") if asks_judge(label) else ""
                yield label, row, model, result

    def named(
        self, logs: Mapping[str, RunLog]
    ) -> tuple[dict[str, RunLog], dict[str, tuple[str, str]]]:
        """Rename the results of runs after their rows; also return the rows' headings and titles.

        Rows are sorted by model, then in the table's order; metrics without a model come first, as
        in the paper. If two runs of the same data have a row, the first is taken.
        """
        found = {name: list(self.results(log)) for name, log in logs.items()}
        models = sorted(
            dict.fromkeys(model for each in found.values() for _, _, model, _ in each), key=bool
        )
        several = len([model for model in models if model]) > 1
        named: dict[str, RunLog] = {}
        rows: dict[str, tuple[int, int]] = {}
        headings: dict[str, tuple[str, str]] = {}
        for name, results in found.items():
            taken = [log.results for log in named.values() if log.same_questions(logs[name])]
            mine: dict[str, MetricResult] = {}
            for _, row, model, result in results:
                label = row.full_name + (f", {model}" if several and model else "")
                heading = self.heading.format(group=row.group, model=model, block=row.block)
                title = row.name if model in heading else f"{row.name}, {model}"
                headings[label] = heading, title
                rows[label] = models.index(model), self.rows.index(row)
                if not any(label in each for each in taken):
                    mine.setdefault(label, result)
            if mine:
                named[name] = replace(logs[name], results=mine)
        return named, {label: headings[label] for label in sorted(rows, key=rows.__getitem__)}

    def lay_out(
        self,
        name: str,
        cells: Sequence[TableCell],
        headings: Mapping[str, tuple[str, str]],
        runs: StudyResult,
    ) -> CellTable | None:
        """Lay out one table: our rows, each with the paper's numbers below, and its other rows."""
        paper = [cell for label in self.joins[name] for cell in published_cells(label)]
        here = _in_columns(cells, paper, only_paper=name != next(iter(self.joins)))
        if not here:
            return None
        benchmarks = {cell.benchmark for cell in here}
        ties, tied = tie_cells([cell for cell in cells if cell.benchmark in benchmarks])
        table = {(cell.metric, cell.benchmark, cell.column): cell for cell in (*here, *ties)}
        columns = list(dict.fromkeys((cell.benchmark, cell.column) for cell in table.values()))
        columns.sort(key=lambda column: benchmark_place(column[0]))
        blocks: dict[str, list[list[TableValue]]] = {}
        for label, (heading, title) in headings.items():
            own = [table.get((label, *column)) for column in columns]
            values: list[TableValue] = [None if cell is None else cell.interval for cell in own]
            printed = [f"{c.paper:.1f}" if c and c.published else "" for c in own]
            mark = " *" if any(cell and cell.failed > 0 for cell in own) else ""
            if any(own):
                blocks.setdefault(heading, []).append([f"  {title}{mark}", *values])
            if any(printed):
                blocks[heading].append(["    paper", *printed])
        shown = {_source(cell.published) for cell in here if cell.published}
        others: dict[tuple[str, ...], list[PublishedCell]] = {}
        for cell in paper:
            if (source := _source(cell)) not in shown:
                others.setdefault(source, []).append(cell)
        for of in others.values():
            one, texts = of[0], {cell.column: f"{cell.value:.1f}" for cell in of}
            heading = self.heading.format(group=one.group, model=one.model, block="the paper")
            known = one.model in heading or one.model in one.title
            title = one.title if known else f"{one.title}, {one.model}"
            numbers = [texts.get(column) for _, column in columns]
            if any(numbers):
                blocks.setdefault(heading, []).append([f"  {title} (published)", *numbers])
        body: list[list[TableValue]] = []
        for heading, block in blocks.items():
            body += [[heading], *block]
        rated = any(cell.measure == "tau_c" for cell in here)
        notes = [*runs.left_out, *(note_tau_c(runs.logs.values()) if rated else ()), *tied]
        titles = [
            (benchmark_title(where), MEASURE_SYMBOLS.get(measure, measure))
            for where, measure in ((where, column.partition(" ")[2]) for where, column in columns)
        ]
        return CellTable(["", *titles], body, notes=[*notes, *note_failed(here)])

    def findings(self, logs: Mapping[str, RunLog], setup: StudySetup) -> list[str]:
        """Describe each contrast in each run: the difference with its interval."""
        sentences: dict[str, None] = {}
        for log in logs.values() if setup.protocol.resamples else ():
            here = {(row.method, model): (label, row) for label, row, model, _ in self.results(log)}
            models = dict.fromkeys(model for _, model in here)
            for (a, b), model in product(self.contrasts, models):
                if {(a, model), (b, model)} <= here.keys():
                    (first, row), (second, other) = here[a, model], here[b, model]
                    apart = agreement_difference(log, first, second, setup.protocol)
                    sentences[_sentence(log, model, row, other, apart)] = None
        return list(sentences)


def _source(cell: PublishedCell) -> tuple[str, ...]:
    """Identify a cell's row, regardless of the table it is printed in."""
    if cell.metric:
        return cell.metric, cell.scale, cell.model
    return cell.system, cell.setting, cell.model


def _in_columns(
    cells: Sequence[TableCell], paper: Sequence[PublishedCell], *, only_paper: bool
) -> list[TableCell]:
    """Select the cells in the paper's columns, and those of columns it does not have.

    The latter are the user's own benchmarks and, if the paper's table has categories of a
    benchmark, further categories of it, such as a domain that MCEval does not have.
    """
    printed = {cell.column for cell in paper}
    every = {cell.column for cell in published_cells()}
    known = {column.partition(" ")[0] for column in every}
    divided = {column.partition(" ")[0] for column in printed if not column.endswith(" mean")}

    def belongs(column: str) -> bool:
        name = column.partition(" ")[0]
        other = column not in every and name in divided
        return column in printed or other or not (only_paper or name in known)

    return [cell for cell in cells if belongs(cell.column)]


def _sentence(log: RunLog, model: str, a: TableRow, b: TableRow, apart: Interval) -> str:
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


FOLDER = Path(__file__).parents[1] / "data" / "paper"
PAPER_STUDIES = tuple(PaperTable.load(path).study for path in sorted(FOLDER.glob("*.json")))
"""The studies of the paper's tables of agreement with people, in the order of their files."""
