"""Render the application's pages, and pages of a crowd platform from the same parts."""

from __future__ import annotations

import base64
import io
import math
import re
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from discode._http.static import ICON, StaticFile, read_static
from discode.errors import InputError
from discode.images import demo_path, open_image
from mceval import _guide as guide
from mceval._texts import LONGEST

if TYPE_CHECKING:
    from mceval._crowd import CrowdTask

HERE = Path(__file__).parent
LARGEST = 65_535
"""Maximum bytes of a page on Mechanical Turk."""
_SUBMIT = "https://www.mturk.com/mturk/externalSubmit"
_SCRIPTS = ("crowd.js", "annotate.js", "task.js")


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


class CrowdPages:
    """Pages with the application's guide, definitions, layout, zoom, skip and flag.

    They embed style, scripts and the guide's examples, and load only the image. The page draws the
    order of the captions and sends it along; the choice that it sends is the caption, not its side.
    """

    def __init__(self, instructions: str = "", *, skips: bool = True) -> None:
        self.instructions, self.skips = instructions, skips
        self.template = Pages(annotation_files()).environment.get_template("crowd.html")
        self.style = Markup((HERE / "static" / "annotate.css").read_text(encoding="utf-8"))

    def page(self, kind: str, image_url: str, captions: tuple[str, ...]) -> str:
        """Render the page of a task; all texts are escaped unless they are ``Markup``."""
        return self.template.render(
            kind=kind, image_url=image_url, captions=captions, skips=self.skips,
            instructions=self.instructions, submit=_SUBMIT, longest=LONGEST, example=_example,
            style=self.style, scripts=[_script(name) for name in _SCRIPTS],
        )  # fmt: skip

    def layout(self, kind: str) -> str:
        """Render the page with the platform's ${columns}, whose texts are escaped in the table."""
        names = ("first", "second") if kind == "compare" else ("caption",)
        columns = tuple(Markup(f"${{{name}}}") for name in names)
        return self.page(kind, Markup("${image_url}"), columns)

    def check(self, task: CrowdTask) -> None:
        """Refuse a task whose page is too large for the platform."""
        size = len(self.page(task.kind, task.image_url, task.captions).encode())
        if size > LARGEST:
            raise InputError(
                f"the page of task {task.task} has {size:,} bytes, more than Mechanical Turk's "
                f"{LARGEST:,}; shorten the instructions or captions, or use --form csv"
            )


def _data_url(content: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


@cache
def _script(name: str) -> str:
    # As a data URL, since the website would replace ${...} in a script by a column. Comments and
    # indentation are removed to leave room for captions and instructions.
    code = re.sub(rb"(?m)^\s*(//.*\n)?", b"", (HERE / "static" / name).read_bytes())
    return _data_url(code, "text/javascript")


@cache
def _example(name: str) -> str:
    """Scale an image of the guide to its displayed size, as a data URL."""
    small = open_image(demo_path() / Path(name).name)
    small.thumbnail((180, 180))
    written = io.BytesIO()
    small.save(written, "JPEG", quality=60, optimize=True)
    return _data_url(written.getvalue(), "image/jpeg")
