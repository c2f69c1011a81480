"""What the verbs of discode mceval share: the database argument and cells of tables."""

from __future__ import annotations

import math
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
    str, typer.Argument(metavar="DATABASE", help="A file, or postgresql://...")
]


def open_campaign(url: str) -> Database:
    """Return the database of a campaign."""
    require("sqlalchemy", "mceval")
    from mceval.database import open_database

    return open_database(url)


def read_public_url(text: str) -> str:
    """Return the origin that --public-url names, as browsers write it.

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
            f"--public-url {text!r} has a path; the pages need a name of their own, such as "
            f"{parts.scheme}://captions.{name}"
        )
    shown = f"[{name}]" if ":" in name else name
    if port is not None and port != {"http": 80, "https": 443}[parts.scheme]:
        shown += f":{port}"
    return f"{parts.scheme}://{shown}"


def make_table(*columns: str, left: int = 1) -> Table:
    """Return an empty table: so many columns of text, the others of numbers, on the right."""
    return table_of(*columns, texts=range(left), gap=1)


def interval_cell(share: Interval) -> str:
    """Return a share in percent with its interval."""
    if math.isnan(share.value):
        return "-"
    return f"{100 * share.value:.1f} % ({100 * share.low:.1f}–{100 * share.high:.1f})"


def number_cell(value: float, digits: int) -> str:
    """Return a number with so many decimals, or a dash for NaN."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
