"""Render pages from templates, and list their static files."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from fastapi import Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from discode._http.static import ICON, StaticFile, read_static
from discode.images import demo_path
from mceval import _guide as guide

HERE = Path(__file__).parent


def annotation_files() -> dict[str, StaticFile]:
    return read_static("/static", [*(HERE / "static").iterdir(), ICON, *demo_path().glob("*.jpg")])


class Pages:
    """The templates. All values are escaped."""

    def __init__(self, files: dict[str, StaticFile], campaign: str = "") -> None:
        self.files = files
        self.environment = Environment(
            loader=FileSystemLoader(HERE / "pages"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.environment.globals |= {"static": self.static, "guide": guide, "campaign": campaign}
        self.environment.filters |= {
            "percent": percent, "fixed": fixed, "span": span, "count": "{:,}".format,
            "date": date,
        }  # fmt: skip

    def static(self, name: str) -> str:
        path = f"/static/{name}"
        return f"{path}?v={self.files[path].digest}"

    def show(
        self, name: str, code: int = 200, headers: dict[str, str] | None = None, **values: Any
    ) -> Response:
        text = self.environment.get_template(name).render(values)
        return HTMLResponse(text, code, headers)


def percent(value: float) -> str:
    """Format a share in percent; a dash for NaN.

    >>> percent(0.25), percent(float("nan"))
    ('25 %', '–')
    """
    return "–" if math.isnan(value) else f"{100 * value:.0f} %"


def fixed(value: float, digits: int = 2) -> str:
    """Format a number with this many decimals; a dash for NaN.

    >>> fixed(0.756), fixed(float("nan"))
    ('0.76', '–')
    """
    return "–" if math.isnan(value) else f"{value:,.{digits}f}"


def date(seconds: float) -> str:
    """Format a time in UTC: people and servers are in many places.

    >>> date(0.0)
    '1970-01-01 00:00 UTC'
    """
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def span(seconds: float) -> str:
    """Format a duration.

    >>> span(8.25), span(95), span(7300), span(float("nan"))
    ('8.2 s', '1 min 35 s', '2 h 1 min', '–')
    """
    if math.isnan(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
