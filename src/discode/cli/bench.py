"""discode bench: benchmarks with human judgments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from discode.benchmarks import BENCHMARKS
from discode.benchmarks.check import check_data
from discode.cli.output import stdout

app = typer.Typer(help="Benchmarks with human judgments.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Benchmarks with human judgments."""


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


@app.command("list")
def list_() -> None:
    """List the benchmarks, the options of their protocols, and what to fetch."""
    table = _table("benchmark", "what it is", "options, the default first")
    for name, row in BENCHMARKS.items():
        options = [
            f"{key}={'|'.join(dict.fromkeys((option.default, *option.values)))}"
            + (f" ({option.allowed})" if option.allowed else "")
            for key, option in row.options.items()
        ]
        table.add_row(name, escape(row.facts.about), escape("\n".join(options)))
    stdout.print(table)
    for name, row in BENCHMARKS.items():
        facts = row.facts
        stdout.print(f"\n{name}", style="bold", highlight=False)
        files = "; or ".join(" and ".join(form) for form in facts.forms)
        for title, words in (
            ("files", files + (f"; optional {', '.join(facts.extra)}" if facts.extra else "")),
            ("source", facts.source),
            ("licence", facts.licence),
            ("cite", facts.citation),
        ):
            stdout.print(f"  {title}: {words}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def check(
    data: Annotated[Path, typer.Option(help="A benchmark's folder, or a folder of such folders.")],
) -> None:
    """Say which benchmarks are there and whether their files are whole; exit 1 if one is not."""
    rows = check_data(data)
    table = _table("benchmark", "file", "state", "detail")
    for row in rows:
        table.add_row(*map(escape, (row.benchmark, row.file, row.state, row.detail)))
    stdout.print(table)
    if any(row.state == "damaged" for row in rows):
        raise typer.Exit(1)
