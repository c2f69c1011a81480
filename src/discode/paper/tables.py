"""Studies that fill tables of the paper: what each asks for is data, and one function makes all."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from discode.bench.agreement import main_measure
from discode.bench.compare import agreement_difference
from discode.bench.layout import CellTable, TableValue
from discode.bench.runlog import MetricResult, RunLog
from discode.benchmarks import BENCHMARKS
from discode.decoders import get_decoder
from discode.errors import InputError
from discode.metrics.registry import asks_judge
from discode.options import options_text
from discode.paper.base import StudyResult, StudyRuns, StudySetup, run_methods
from discode.paper.published import (
    PaperMatch,
    PublishedCell,
    match_published,
    published_cells,
    same_setting,
)
from discode.paper.run_tables import MEASURE_SYMBOLS, benchmark_title, plot_runs, table_measures
from discode.stats import Interval

_TRUST = re.compile(r",trust=[^,)]*")
MOST_FAILED = 0.5
"""A number of ours is left out where more than this share of the judgments has no score."""


@dataclass(frozen=True)
class StudyLine:
    """A line of a study's table.

    Attributes:
        name: What it is called.
        method: How it is scored, as metrics are given by name.
        block: What it is one of, where a study scores the same line in several ways.
        setting: What the paper's line varies, as ``published.csv`` has it.
        scale: The judge's scale, if not its own.
        system: Whose the paper's line is, likewise.
    """

    name: str
    method: str
    block: str = ""
    setting: str = ""
    scale: str | None = None
    system: str = "discode"


@dataclass(frozen=True)
class TableStudy:
    """What a study of the paper's tables asks for, and how its lines are put together.

    Attributes:
        tables: Our tables by name, each with the labels of the paper's tables that it joins.
        lines: What is scored.
        heading: From a line and its model ("" for metrics that ask none) to the heading that the
            line stands under.
        paper_heading: The same for a line of the paper, from one of its cells.
        contrasts: Methods whose difference is worth a sentence: the first minus the second.
        ranges: Whether to say how much each block's lines differ: small where the setting that
            they vary hardly matters.
        check: Raises where a judge cannot do at all what is asked.
        draw: Draws the figure; None plots every line on every benchmark.
    """

    tables: Mapping[str, tuple[str, ...]]
    lines: tuple[StudyLine, ...]
    heading: Callable[[StudyLine, str], str]
    paper_heading: Callable[[PublishedCell], str]
    contrasts: tuple[tuple[str, str], ...] = ()
    ranges: bool = False
    check: Callable[[StudySetup], None] | None = None
    draw: Callable[[TableStudy, Mapping[str, RunLog], Path], None] | None = None

    def run(self, setup: StudySetup) -> StudyResult:
        """Score what is missing, and lay everything out as the paper does."""
        self._check_benchmarks(setup)
        if self.check is not None:
            self.check(setup)
        found = self._score(setup)
        return self._with_given(setup.logs)._lay_out(found, setup)

    def _with_given(self, logs: Mapping[str, RunLog]) -> TableStudy:
        """Return a table of metrics with a line for each that logs have and the study does not."""
        if all(asks_judge(line.method) for line in self.lines):
            return self  # it is about judges only
        given = {
            label: StudyLine(label, label, system=result.signature.get("metric"))
            for log in logs.values()
            for label, result in log.results.items()
            if not result.signature.get("decoder") and self.line_of(label, result) is None
        }
        return replace(self, lines=(*self.lines, *given.values()))

    def _lay_out(self, found: StudyRuns, setup: StudySetup) -> StudyResult:
        own = self.own_lines(found.logs)
        tables = {name: self._table(name, own, found.logs, found.left_out) for name in self.tables}
        return StudyResult(
            {name: table for name, table in tables.items() if table is not None},
            {next(iter(self.tables)): partial(self.draw or _plot_lines, self, found.logs)},
            found.logs,
            [*self._findings(found.logs, setup), *(self._ranges(own) if self.ranges else ())],
            found.problems,
        )

    def _check_benchmarks(self, setup: StudySetup) -> None:
        """Raise where the paper has a benchmark in other tables only: there would be no column."""
        labels = {label for joined in self.tables.values() for label in joined}
        mine = {c.column.split()[0] for c in published_cells() if c.table in labels}
        others = {c.column.split()[0] for c in published_cells()} - mine
        here = {one.name for one in setup.benchmarks.values()}
        here |= {log.benchmark for log in setup.logs.values()}
        if here and here <= others:
            raise InputError(
                f"this table has no column for {', '.join(sorted(here))}; it is about "
                f"{', '.join(name for name in BENCHMARKS if name in mine)}"
            )

    def _score(self, setup: StudySetup) -> StudyRuns:
        logs: dict[str, RunLog] = {}
        problems: dict[str, None] = {}
        left_out: dict[str, None] = {}
        for scale in dict.fromkeys(line.scale for line in self.lines):
            methods = dict.fromkeys(line.method for line in self.lines if line.scale == scale)
            found = run_methods(setup, list(methods), scale)
            logs |= {name: log for name, log in found.logs.items() if name not in logs}
            problems |= dict.fromkeys(found.problems)
            left_out |= dict.fromkeys(found.left_out)
        return StudyRuns(logs, tuple(problems), tuple(left_out))

    def line_of(self, label: str, result: MetricResult) -> StudyLine | None:
        """Return the line that a result belongs to, by how it was made; None if to none."""
        made = result.signature
        for line in self.lines:
            if not made.get("decoder"):
                if line.method in (label, made.get("metric")):
                    return line
                continue
            if not asks_judge(line.method):
                continue
            method = line.method.removeprefix("ref-")
            decoder = get_decoder(method)
            texts = made["decoder"], f"{decoder.name}({options_text(decoder.options())})"
            if label == line.method:  # its trust is the one that the model advises
                texts = _TRUST.sub("", texts[0]), _TRUST.sub("", texts[1])
            if (
                texts[0] == texts[1]
                and (made.get("references", "none") in ("none", "ignored"))
                == (method == line.method)
                and line.scale in (None, made.get("scale"))
            ):
                return line
        return None

    def own_lines(self, logs: Mapping[str, RunLog]) -> list[OwnLine]:
        """Return the lines that runs have, model by model, in the study's order."""
        found: dict[tuple[str, StudyLine], OwnLine] = {}
        for name, log in logs.items():
            run = _place(name, logs)
            for label, result in log.results.items():
                line = self.line_of(label, result)
                if line is None or result.measures["failed"].value > MOST_FAILED:
                    continue
                model = result.signature.get("model") if asks_judge(label) else ""
                own = found.setdefault((model, line), OwnLine(line, model, {}))
                for measure in table_measures(log):
                    column = _column_of(log, measure, run)
                    match = match_published(log, label, measure)
                    own.cells.setdefault(
                        column, OwnCell(result.measures[measure].times(100), match)
                    )
        # Metrics that ask no model come first, as in the paper.
        models = sorted(dict.fromkeys(model for model, _ in found), key=bool)
        return sorted(
            found.values(), key=lambda own: (models.index(own.model), self.lines.index(own.line))
        )

    def _table(
        self,
        name: str,
        own_lines: Sequence[OwnLine],
        logs: Mapping[str, RunLog],
        left_out: Sequence[str],
    ) -> CellTable | None:
        paper = [cell for label in self.tables[name] for cell in published_cells(label)]
        columns = _columns(logs, paper, only_paper=name != next(iter(self.tables)))
        if not columns:
            return None
        blocks: dict[str, list[list[TableValue]]] = {}
        shown: set[tuple[str, str, str]] = set()
        notes = dict.fromkeys(left_out)
        for own in own_lines:
            cells = [own.cells.get(column) for column in columns]
            if not any(cells):
                continue
            heading = self.heading(own.line, own.model)
            title = own.line.name
            if own.model and own.model not in heading:
                title += f", {own.model}"
            rows = blocks.setdefault(heading, [])
            rows.append([f"  {title}", *(None if cell is None else cell.value for cell in cells)])
            beside = [cell.match.cell if cell else None for cell in cells]
            if any(beside):
                rows.append(
                    ["    paper", *(f"{cell.value:.1f}" if cell else "" for cell in beside)]
                )
            shown |= {_identity(cell) for cell in beside if cell}
            for match in (cell.match for cell in cells if cell and cell.match.reason):
                if match.cell is not None:
                    notes[f"{own.line.name}: not compared with the paper ({match.reason})"] = None
                elif match.reason.startswith("other data"):
                    notes[f"Published numbers are of {match.reason}"] = None
        for key, cells_of in _paper_lines(paper).items():
            printed = {cell.column: f"{cell.value:.1f}" for cell in cells_of}
            values = [printed.get(column.published) for column in columns]
            if key in shown or not any(values):
                continue
            heading = self.paper_heading(cells_of[0])
            title = self._paper_title(cells_of[0], heading)
            blocks.setdefault(heading, []).append([f"  {title} (published)", *values])
        body: list[list[TableValue]] = []
        for heading, rows in blocks.items():
            body += [[heading], *rows]
        return CellTable(["", *(column.title for column in columns)], body, notes=list(notes))

    def _paper_title(self, cell: PublishedCell, heading: str) -> str:
        """Return what a line of the paper is called: as ours with its setting, or as it prints."""
        system = "smoothing" if cell.system == "fleur" else cell.system  # FLEUR's is smoothing, too
        named = (
            line.name
            for line in self.lines
            if line.setting and (line.system, line.setting) == (system, cell.setting)
        )
        title = next(named, "") or system_title(cell)
        return title if not cell.model or cell.model in heading else f"{title}, {cell.model}"

    def _findings(self, logs: Mapping[str, RunLog], setup: StudySetup) -> list[str]:
        """Return a sentence for each contrast and run: the difference with its interval."""
        said: dict[str, None] = {}
        for log in logs.values():
            here: dict[tuple[str, str], tuple[str, StudyLine]] = {}
            for label, result in log.results.items():
                line = self.line_of(label, result)
                if line is not None and result.measures["failed"].value <= MOST_FAILED:
                    here[line.method, result.signature.get("model")] = (label, line)
            for a, b in self.contrasts if setup.protocol.resamples else ():
                for model in dict.fromkeys(model for _, model in here):
                    if (a, model) in here and (b, model) in here:
                        one, two = here[a, model], here[b, model]
                        apart = agreement_difference(
                            log, one[0], two[0], resamples=setup.protocol.resamples,
                            seed=setup.protocol.seed,
                        ).difference  # fmt: skip
                        said[_sentence(log, model, one[1], two[1], apart)] = None
        return list(said)

    def _ranges(self, own_lines: Sequence[OwnLine]) -> list[str]:
        """Return a sentence per column: from the worst line of each block to the best."""
        paper = published_cells(next(iter(self.tables.values()))[0])
        deciding = {cell.column for cell in paper}
        said = []
        for column in dict.fromkeys(c for own in own_lines for c in own.cells):
            if column.published not in deciding:
                continue
            blocks: dict[str, list[float]] = {}
            for own in own_lines:
                cell_ = own.cells.get(column)
                if own.line.setting and cell_ and not math.isnan(cell_.value.value):
                    heading = self.heading(own.line, own.model)
                    blocks.setdefault(heading, []).append(cell_.value.value)
            for cell in paper:
                if cell.column == column.published:
                    blocks.setdefault(self.paper_heading(cell), []).append(cell.value)
            words = "; ".join(f"{name} {min(v):.1f} to {max(v):.1f}" for name, v in blocks.items())
            said.append(f"{' '.join(column.title)} from the worst line to the best: {words}.")
        return said


@dataclass(frozen=True)
class OwnCell:
    """A number of ours in percent, and the paper's that belongs to it."""

    value: Interval
    match: PaperMatch


@dataclass(frozen=True)
class StudyColumn:
    """A column: what the paper calls it, and the run where runs of a benchmark differ in data."""

    published: str
    run: str = ""

    @property
    def title(self) -> tuple[str, str]:
        """The benchmark's title, which stands above all its columns, and the measure."""
        name, _, measure = self.published.partition(" ")
        above = benchmark_title(name) + (f" ({self.run})" if self.run else "")
        return above, MEASURE_SYMBOLS.get(measure, measure)


@dataclass(frozen=True)
class OwnLine:
    """A line with our numbers: of which model, and its cells by column."""

    line: StudyLine
    model: str
    cells: dict[StudyColumn, OwnCell]


def _place(name: str, logs: Mapping[str, RunLog]) -> str:
    """Return a run's name if another run of the same benchmark and options has other data."""
    mine = logs[name]
    alike = (
        other.same_questions(mine)
        for other in logs.values()
        if (other.benchmark, dict(other.options)) == (mine.benchmark, dict(mine.options))
    )
    return "" if all(alike) else name


def _column_of(log: RunLog, measure: str, run: str = "") -> StudyColumn:
    row = BENCHMARKS.get(log.benchmark)
    if row is None:
        return StudyColumn(f"{log.benchmark} {measure}", run)
    options = row.option_texts(log.options)
    text = row.published_column.format(benchmark=row.name, measure=measure, **options)
    return StudyColumn(text, run)


def _columns(
    logs: Mapping[str, RunLog], paper: Sequence[PublishedCell], *, only_paper: bool
) -> list[StudyColumn]:
    """Return the paper's columns of the benchmarks that were run, and those that it lacks.

    Those of a benchmark of one's own; and where the paper's table has a benchmark's categories,
    other categories of it, such as a domain that MCEval does not have.
    """
    printed = list(dict.fromkeys(cell.column for cell in paper))
    every = {cell.column for cell in published_cells()}
    known = {column.partition(" ")[0] for column in every}
    divided = {c.partition(" ")[0] for c in printed if not c.endswith(" mean")}
    found: dict[StudyColumn, None] = {}
    for name, log in logs.items():
        for measure in table_measures(log):
            column = _column_of(log, measure, _place(name, logs))
            if (
                column.published in printed
                or (log.benchmark in divided and column.published not in every)
                or not (only_paper or log.benchmark in known)
            ):
                found[column] = None
    names = list(BENCHMARKS)

    def place(column: StudyColumn) -> tuple[int, bool, int]:
        bare, _, measure = column.published.partition(" ")
        return (
            names.index(bare) if bare in names else len(names),
            measure == "mean",
            printed.index(column.published) if column.published in printed else len(printed),
        )

    return sorted(found, key=place)


def _identity(cell: PublishedCell) -> tuple[str, str, str]:
    """Return whose numbers a line of the paper has, however its table words the setting."""
    return cell.system, cell.model, same_setting(cell.setting)


def _paper_lines(
    cells: Sequence[PublishedCell],
) -> dict[tuple[str, str, str], list[PublishedCell]]:
    found: dict[tuple[str, str, str], list[PublishedCell]] = {}
    for cell in cells:
        found.setdefault(_identity(cell), []).append(cell)
    return found


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
    one, two = (f"{line.name} ({line.block})" if line.block else line.name for line in (a, b))
    measure = MEASURE_SYMBOLS[main_measure(log.benchmark, log.judgments)]
    value, low, high = (round(one, 2) + 0.0 for one in (apart.value, apart.low, apart.high))
    shown = "" if apart.low > 0 or apart.high < 0 else "; no difference was shown"
    bounds = (
        ""
        if math.isnan(apart.low)
        else f" ({100 * apart.level:g} %: {low:+.2f} to {high:+.2f}{shown})"
    )
    return (
        f"{benchmark_title(log.benchmark)}, {model}: {one} minus {two} is "
        f"{'undefined' if math.isnan(value) else f'{value:+.2f}'} in {measure}{bounds}."
    )


def _plot_lines(study: TableStudy, logs: Mapping[str, RunLog], path: Path) -> None:
    """Plot every line that runs have, called by its name."""
    models = {r.signature.get("model") for log in logs.values() for r in log.results.values()}
    several = len(models - {""}) > 1
    named: dict[str, RunLog] = {}
    for name, log in logs.items():
        results: dict[str, MetricResult] = {}
        for label, result in log.results.items():
            line = study.line_of(label, result)
            if line is None or result.measures["failed"].value > MOST_FAILED:
                continue
            title = f"{line.name}, {line.block}" if line.block else line.name
            if several and asks_judge(label):
                title += f", {result.signature.get('model')}"
            results[title] = result
        if results:
            named[name] = replace(log, results=results)
    plot_runs(named, path)
