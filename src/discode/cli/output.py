"""What the verbs share: tables, bars, files written whole or not at all."""

from __future__ import annotations

import csv
import json
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from discode.errors import InputError
from discode.files import replacing
from discode.scores import Scores

stdout = Console()
stderr = Console(stderr=True)

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # a caption must not drive the terminal
_EIGHTHS = " ▏▎▍▌▋▊▉█"
TABLE_ROWS = 40
"""Rows a table shows; files and --json have them all."""
CHARTS = 8
"""Charts that --show draws."""


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Return pairs a second, once there is a speed."""
        return Text("" if task.speed is None else f"{task.speed:.1f} pairs/s")


def progress() -> Progress:
    """Return a bar on standard error: how many pairs, how fast, how long still."""
    columns = (BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    return Progress(*columns, console=stderr, transient=True)


def check_output(path: Path | None, *inputs: Path | None) -> None:
    """Raise unless ``path`` has a format we write, can be written, and is none of the inputs."""
    if path is None:
        return
    if path.suffix.lower() not in (".jsonl", ".csv"):
        raise InputError(f"{path.name}: scores are written to .jsonl or .csv")
    check_writable(path)
    if any(other is not None and other.resolve() == path.resolve() for other in inputs):
        raise InputError(f"--output {path} is also read from; give another file")


def check_writable(path: Path) -> None:
    """Raise, before the work begins, where nothing could be written at its end."""
    try:
        if path.is_dir():
            raise IsADirectoryError
        with tempfile.TemporaryFile(dir=path.parent):  # root may write where nobody can
            pass
    except OSError:
        raise InputError(
            f"cannot write {path}: give a file in a folder that can be written"
        ) from None


def check_show(show: bool, as_json: bool) -> None:
    """Raise where charts would stand between JSON lines."""
    if show and as_json:
        raise InputError("--show draws for people, --json writes for programs; give one of them")


def write_scores(
    path: Path,
    results: Mapping[str, Scores],
    ids: Sequence[str],
    extra: Sequence[Mapping[str, str]] | None = None,
) -> None:
    """Write one row an item and method, with its signature; ``extra`` columns come first."""
    with (
        replacing(path) as temp,
        temp.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        write_rows(file, path.suffix, results, ids, extra)


def write_rows(
    file: TextIO,
    suffix: str,
    results: Mapping[str, Scores],
    ids: Sequence[str],
    extra: Sequence[Mapping[str, str]] | None = None,
) -> None:
    """Write the rows of :func:`write_scores` to an open file, as CSV or JSON lines."""
    rows = (
        {
            "id": row["id"],
            **(extra[i] if extra else {}),
            "method": method,
            **row,
            "signature": str(scores.signature),
        }
        for method, scores in results.items()
        for i, row in enumerate(scores.rows(ids))
    )
    if suffix.lower() == ".csv":
        bound = ["bound"] if any(scores.bound is not None for scores in results.values()) else []
        columns = ["id", *(extra[0] if extra else {}), "method", "score", "raw", *bound, "flags"]
        writer = csv.DictWriter(file, [*columns, "error", "signature"], extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            cells = {key: "nan" if row[key] is None else row[key] for key in ("score", "raw")}
            writer.writerow(row | cells | {"flags": " ".join(row["flags"])})
    else:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def score_table(
    results: Mapping[str, Scores], ids: Sequence[str], extra: Sequence[Mapping[str, str]] | None
) -> Table:
    """Return items down, methods across."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("id", no_wrap=True)
    for name in extra[0] if extra else {}:
        table.add_column(name, overflow="fold")
    first = next(iter(results.values()))
    if "raw" not in results:
        table.add_column("raw", justify="right", no_wrap=True)
    for method in results:
        table.add_column(escape(method), justify="right", no_wrap=True)
    table.add_column("flags")
    for i in range(min(len(first), TABLE_ROWS)):
        # A file's name tells pictures apart; the folder would push the scores off the screen.
        texts = [
            Path(t).name if n == "image" else t for n, t in (extra[i] if extra else {}).items()
        ]
        cells = [escape(_CONTROL.sub("?", text)) for text in (ids[i], *texts)]
        if "raw" not in results:
            cells.append("-" if first.raw is None else number(first.raw[i]))
        cells += [number(scores.value[i]) for scores in results.values()]
        marks = dict.fromkeys(
            name for scores in results.values() for name, on in scores.flags.items() if on[i]
        )
        table.add_row(*cells, " ".join(marks))
    if len(first) > TABLE_ROWS:
        table.caption = f"... and {len(first) - TABLE_ROWS} rows more; --output or --json has all"
    return table


def number(value: float) -> str:
    """Return a score for a table cell."""
    return "nan" if math.isnan(value) else f"{value:.3f}"


def bars(
    title: str, answers: Sequence[str], before: Any, after: Any, names: tuple[str, str]
) -> Table:
    """Return a bar chart of a distribution before and after the prior."""
    table = Table(title=escape(title), title_justify="left", title_style="bold", box=None)
    table.add_column("", no_wrap=True)
    width = max(4, min(24, (stdout.width - 24) // 2))  # of a full bar
    for name, style in zip(names, ("cyan", "magenta"), strict=True):
        table.add_column(escape(name), style=style, min_width=width + 6)
    for answer, p, q in zip(answers, before, after, strict=True):
        table.add_row(answer, _bar(p, width), _bar(q, width))
    return table


def _bar(p: float, width: int) -> str:
    eighths = round(p * width * 8)
    full, rest = divmod(eighths, 8)
    return f"{p:5.3f} {'█' * full}{_EIGHTHS[rest].strip()}"


def show(
    method: str, scores: Scores, before: Scores, titles: Sequence[str], rows: Sequence[int]
) -> None:
    """Print charts of some rows: token probabilities beside a method's distribution."""
    assert scores.distribution is not None
    assert before.distribution is not None
    for i in [row for row in rows if not np.isnan(scores.value[row])][:CHARTS]:
        names = (
            f"token probabilities → {number(before.value[i])}",
            f"{method} → {number(scores.value[i])}",
        )
        chart = bars(
            titles[i], scores.answers, before.distribution[i], scores.distribution[i], names
        )
        stdout.print(chart)
        stdout.print()


def finish(results: Mapping[str, Scores], ids: Sequence[str]) -> None:
    """Report what failed on standard error, and exit with 1 if anything did."""
    failures = {row: reason for scores in results.values() for row, reason in scores.errors.items()}
    for row in sorted(failures)[:5]:
        reason = failures[row]
        where = "" if reason.startswith(ids[row]) else f"{ids[row]}: "
        stderr.print(f"failed: {where}{reason}", style="red", markup=False, soft_wrap=True)
    if len(failures) > 5:
        stderr.print(f"... and {len(failures) - 5} more", style="red")
    total = len(ids)
    for method, scores in results.items():
        notes = ", ".join(f"{count} {name}" for name, count in scores.counts().items() if count)
        mean = scores.mean()
        line = f"{method}: {total} items, mean {'nan' if math.isnan(mean) else f'{mean:.4f}'}"
        stderr.print(
            line + (f" ({notes})" if notes else ""), markup=False, highlight=False, soft_wrap=True
        )
        if scores.bound is not None:
            worst = float(np.nanmax(scores.bound, initial=0.0))
            stderr.print(
                f"{method}: truncated rows may be wrong by up to {worst:.4f} (column bound)",
                markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip
        stderr.print(
            str(scores.signature), style="dim", markup=False, highlight=False, soft_wrap=True
        )
    if failures:
        raise typer.Exit(1)
