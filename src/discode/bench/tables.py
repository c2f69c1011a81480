"""Runs as the paper prints them: metrics down, benchmarks across, its numbers beside ours."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from discode.backends.local.catalog import CATALOG
from discode.bench.runlog import RunLog
from discode.benchmarks import BENCHMARKS, Preferences, Ratings, published
from discode.errors import InputError, lookup
from discode.metrics import METRICS

TITLES = {
    "flickr8k-expert": "Flickr8k-Expert", "flickr8k-cf": "Flickr8k-CF", "composite": "Composite",
    "pascal50s": "Pascal-50S", "foil": "FOIL", "mceval": "MCEval",
}  # fmt: skip
"""The paper's benchmarks in its order."""
SYMBOLS = {"tau_b": "τ_b", "tau_c": "τ_c", "mean": "Mean"}
_ORDER = ("HC", "HI", "HM", "MM", "real", "painting", "sketch", "quickdraw", "clipart", "infograph")
_MAIN = ("sota_main", "refdisode", "rice", "foil")
"""Tables whose rows are systems; the others vary one."""
DEFAULT = "LLaVA-NeXT-72B"
"""The judge behind the paper's main tables."""


Head = tuple[str, str]
"""Benchmark and measure."""


@dataclass(frozen=True)
class Cell:
    """A number of ours in percent, its interval, and the paper's, NaN where there is none."""

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
        """Ours minus the paper's; NaN where that is another model's."""
        return self.value - self.paper if self.comparable else math.nan


def cells(runs: Mapping[str, RunLog]) -> list[Cell]:
    """Return every cell of runs by name.

    A metric that two runs made differently carries the run's name, and so does a benchmark whose
    data or options differ between them.
    """
    if not any(log.results for log in runs.values()):
        raise InputError("these runs have no results; discode bench run adds some")
    made: dict[tuple[str, str], set[str]] = {}
    places: dict[str, list[RunLog]] = {}
    for log in runs.values():
        places.setdefault(log.benchmark, []).append(log)
        for label, result in log.results.items():
            made.setdefault((label, log.benchmark), set()).add(result.signature)
    found: dict[tuple[str, str, str], Cell] = {}
    for name, log in runs.items():
        alike = all(log.same_questions(other) for other in places[log.benchmark])
        where = log.benchmark if alike else f"{log.benchmark} ({name})"
        for label, result in log.results.items():
            one_way = not alike or len(made[label, log.benchmark]) == 1
            shown = label if one_way else f"{label} ({name})"
            for measure in columns(log):
                one = result.measures[measure]
                paper, model, same = paper_value(label, log, measure)
                found[shown, where, measure] = Cell(
                    shown, where, measure, 100 * one.value, 100 * one.low, 100 * one.high,
                    paper, model, same, 100 * result.measures["ties"].value,
                    100 * result.measures["failed"].value,
                )  # fmt: skip
    return list(found.values())


def columns(log: RunLog) -> list[str]:
    """Return the measures a benchmark's table shows."""
    if isinstance(log.judgments, Ratings):
        return ["tau_b", "tau_c"]
    categories = sorted(set(log.judgments.category), key=_place)
    return ["mean"] if len(categories) == 1 else [*categories, "mean"]


def _place(category: str) -> tuple[int, str]:
    return (_ORDER.index(category) if category in _ORDER else len(_ORDER), category)


def paper_value(label: str, log: RunLog, measure: str) -> tuple[float, str, bool]:
    """Return the paper's number for a metric, in percent, its model, and whether ours is alike.

    A judge whose model is one of the paper's is compared with that; any other is shown beside the
    paper's default, which it has no reason to equal. Nor has a run by another protocol.
    """
    signature = log.results[label].signature
    metric = re.search(r"\|metric:([^|]*)", signature)
    system = metric[1] if metric and metric[1] in METRICS else label
    usual = BENCHMARKS[log.benchmark].options if log.benchmark in BENCHMARKS else {}
    same = log.protocol.ties == "wrong" and all(
        log.options.get(name) == option.default
        for name, option in usual.items()
        if name not in ("draws", "seed") and log.benchmark != "foil"
    )
    column = f"{log.benchmark} {measure}"
    if log.benchmark == "foil" and isinstance(log.judgments, Preferences):
        column = f"foil {log.options.get('references')}-ref"
    found = [
        cell
        for cell in published()
        if cell.system == system and cell.column == column and not cell.setting
    ]
    judge = None if metric else re.search(r"\|model:([^|]*)", signature)
    if judge:
        names = {row.hub: row.paper for row in CATALOG} | {
            row.hub.rpartition("/")[2]: row.paper for row in CATALOG
        }
        ours = names.get(judge[1], "")
        known = bool(ours) and any(cell.model == ours for cell in found)
        found = [cell for cell in found if cell.model == (ours if known else DEFAULT)]
        same = same and known
    else:
        found = [cell for cell in found if cell.table in _MAIN]
    return (found[0].value, found[0].model, same) if found else (math.nan, "", same)


def render(runs: Mapping[str, RunLog], form: str = "text", *, intervals: bool = False) -> str:
    """Return a table as "text", "markdown", "latex" or "csv".

    Each metric has a row of ours, one of the paper's where it has numbers, and one of the
    difference; ``intervals`` adds the bootstrap's. The CSV has a line a cell, with everything.
    """
    write = lookup(FORMS, form, "format")
    every = cells(runs)
    if write is None:
        return _csv(every)
    heads = sorted(
        {(cell.benchmark, cell.measure): None for cell in every},
        key=lambda head: _benchmark_place(head[0]),
    )
    rows: list[list[str]] = []
    for metric in dict.fromkeys(cell.metric for cell in every):
        own = {(c.benchmark, c.measure): c for c in every if c.metric == metric}

        def row(title: str, show: Callable[[Cell], str], own: dict[Head, Cell] = own) -> None:
            rows.append([title, *(show(own[head]) if head in own else "" for head in heads)])

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
    note = f"\n\n* without a score: {'; '.join(failed)}" if failed and form != "latex" else ""
    return write(heads, rows) + note


def _benchmark_place(name: str) -> int:
    bare = name.partition(" ")[0]
    return [*TITLES].index(bare) if bare in TITLES else len(TITLES)


def _number(value: float, digits: int = 2) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def _signed(value: float) -> str:
    return "" if math.isnan(value) else f"{value:+.2f}"


def _titles(heads: Sequence[Head]) -> tuple[list[str], list[str]]:
    """Return the two lines above the columns; a benchmark's name stands over its first."""
    first = [
        TITLES.get(name, name) if number == 0 or heads[number - 1][0] != name else ""
        for number, (name, _) in enumerate(heads)
    ]
    return first, [SYMBOLS.get(measure, measure) for _, measure in heads]


def _text(heads: Sequence[Head], rows: Sequence[Sequence[str]]) -> str:
    first, second = _titles(heads)
    wide = [max(len(row[0]) for row in rows)]
    for number, head in enumerate(second):
        wide.append(max(len(head), 6, *(len(row[number + 1]) for row in rows)))
    starts = [number for number, title in enumerate(first) if title]
    for start, end in zip(starts, [*starts[1:], len(heads)], strict=True):
        room = sum(wide[start + 1 : end + 1]) + 2 * (end - start - 1)
        wide[end] += max(0, len(first[start]) - room)
    top = " " * wide[0]
    for start, end in zip(starts, [*starts[1:], len(heads)], strict=True):
        room = sum(wide[start + 1 : end + 1]) + 2 * (end - start - 1)
        top += "  " + first[start].center(room)
    lines = [top.rstrip()]
    for row in (["", *second], *rows):
        line = [row[0].ljust(wide[0])]
        line += [cell.rjust(width) for cell, width in zip(row[1:], wide[1:], strict=True)]
        lines.append("  ".join(line).rstrip())
    return "\n".join(lines)


def _markdown(heads: Sequence[Head], rows: Sequence[Sequence[str]]) -> str:
    first, second = _titles(heads)
    titles = [f"{a} {b}".strip().replace("|", "\\|") for a, b in zip(first, second, strict=True)]
    lines = ["| metric | " + " | ".join(titles) + " |", "| --- |" + " ---: |" * len(heads)]
    for row in rows:
        name = row[0].replace("|", "\\|")
        indented = f"&nbsp;&nbsp;{name.strip()}" if name.startswith(" ") else name
        lines.append(f"| {indented} | " + " | ".join(row[1:]) + " |")
    return "\n".join(lines)


_TEX = {
    "\\": r"\textbackslash{}",
    "^": r"\^{}",
    "~": r"\~{}",
    "τ_b": r"$\tau_b$",
    "τ_c": r"$\tau_c$",
} | {letter: f"\\{letter}" for letter in "&%$#_{}"}


def _latex(heads: Sequence[Head], rows: Sequence[Sequence[str]]) -> str:
    first, second = _titles(heads)
    lines = [r"\begin{tabular}{l" + "r" * len(heads) + "}", r"\toprule"]
    lines.append(" & ".join(["", *map(_tex, first)]) + r" \\")
    lines.append(" & ".join(["", *(_TEX.get(name) or _tex(name) for name in second)]) + r" \\")
    lines.append(r"\midrule")
    for row in rows:
        name = r"\quad " + _tex(row[0].strip()) if row[0].startswith(" ") else _tex(row[0])
        lines.append(" & ".join([name, *row[1:]]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _tex(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in text)


def _csv(every: Sequence[Cell]) -> str:
    file = io.StringIO()
    names = ("metric", "benchmark", "measure", "value", "low", "high", "paper", "difference")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*names, "paper_model", "ties", "failed"])
    for cell in every:
        numbers = (cell.value, cell.low, cell.high, cell.paper, cell.difference)
        writer.writerow(
            [cell.metric, cell.benchmark, cell.measure, *(_number(n, 4) for n in numbers),
             cell.paper_model, _number(cell.ties), _number(cell.failed)]
        )  # fmt: skip
    return file.getvalue().rstrip("\n")


FORMS: dict[str, Callable[[Sequence[Head], Sequence[Sequence[str]]], str] | None] = {
    "text": _text,
    "markdown": _markdown,
    "latex": _latex,
    "csv": None,  # has no rows of heads: a line a cell
}
