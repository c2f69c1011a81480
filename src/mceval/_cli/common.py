"""What the verbs of discode mceval share: the database argument and cells of tables."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from rich.table import Table

from discode._cli.output import table_of
from discode.errors import InputError, require

if TYPE_CHECKING:
    from discode.stats import Interval
    from mceval.database import Database

DatabaseArgument = Annotated[
    str, typer.Argument(metavar="DATABASE", help="Database file, or postgresql://...")
]
PayPerHour = Annotated[float, typer.Option(help="Pay per hour in USD; 0 for none.")]
_GOLD_RATE = typer.Option(help="Share of gold questions.")
GoldRate = Annotated[float, _GOLD_RATE]
GoldRateIfAny = Annotated[float | None, _GOLD_RATE]
Gold = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Gold questions: image, right, wrong."),
]
_DOMAIN = typer.Option(
    metavar="NAME=PATH", help="Folder or list of images; NAME:COUNT=PATH sets a quota."
)
Domains = Annotated[list[str], _DOMAIN]
DomainsIfAny = Annotated[list[str] | None, _DOMAIN]
PublicUrl = Annotated[str | None, typer.Option(metavar="URL", help="Public address of the pages.")]
Reason = Annotated[str, typer.Option(help="Reason to record with the decision.")]


def open_campaign(url: str) -> Database:
    require("sqlalchemy", "mceval")
    from mceval.database import open_database

    return open_database(url)


def read_public_url(text: str) -> str:
    """Parse --public-url into an origin, as browsers write it.

    >>> read_public_url("https://Captions.example.org:443/")
    'https://captions.example.org'
    """
    try:
        parts = urlsplit(text)
        port, name = parts.port, (parts.hostname or "").lower()
        if parts.scheme not in ("http", "https") or not name or "@" in parts.netloc:
            raise ValueError
    except ValueError:
        raise InputError(f"--public-url {text!r} is not an address; give https://NAME") from None
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise InputError(
            f"--public-url {text!r} has a path; the pages require their own host, such as "
            f"{parts.scheme}://captions.{name}"
        )
    shown = f"[{name}]" if ":" in name else name
    if port is not None and port != {"http": 80, "https": 443}[parts.scheme]:
        shown += f":{port}"
    return f"{parts.scheme}://{shown}"


def make_table(*columns: str, left: int = 1) -> Table:
    """Make an empty table with ``left`` text columns; numbers are aligned right."""
    return table_of(*columns, texts=range(left), gap=1)


def interval_cell(share: Interval) -> str:
    if math.isnan(share.value):
        return "-"
    return f"{100 * share.value:.1f} % ({100 * share.low:.1f}–{100 * share.high:.1f})"


def number_cell(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
