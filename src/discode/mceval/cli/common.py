"""What the verbs of discode mceval share: the database argument and cells of tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from discode.errors import require

if TYPE_CHECKING:
    from discode.mceval.database import Database
    from discode.stats.resampling import Interval

DatabaseArgument = Annotated[
    str, typer.Argument(metavar="DATABASE", help="A file, or postgresql://...")
]


def open_campaign(url: str) -> Database:
    """Return the database of a campaign."""
    require("sqlalchemy", "mceval")
    from discode.mceval.database import open_database

    return open_database(url)


def make_table(*columns: str) -> Table:
    """Return an empty table with numbers on the right."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, overflow="fold", justify="right" if number else "left")
    return table


def interval_cell(found: Interval) -> str:
    """Return a share in percent with its interval."""
    if math.isnan(found.value):
        return "-"
    return f"{100 * found.value:.1f} % ({100 * found.low:.1f}–{100 * found.high:.1f})"


def number_cell(value: float, digits: int) -> str:
    """Return a number with so many decimals, or a dash for NaN."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
