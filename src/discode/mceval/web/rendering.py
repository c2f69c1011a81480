"""Pages from templates, everything escaped; the few files beside them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from discode.images import demo_path

HERE = Path(__file__).parent
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".jpg": "image/jpeg",
}


@dataclass(frozen=True)
class File:
    """A file that is served; the digest is in its address, so browsers may keep it."""

    content: bytes
    kind: str
    digest: str


def static_files() -> dict[str, File]:
    """Return every file that is served, by its path: style, script, icon, the examples."""
    paths = [*(HERE / "static").iterdir(), HERE.parent / "page" / "icon.svg"]
    paths += demo_path().glob("*.jpg")
    found = {}
    for path in paths:
        if path.suffix in _TYPES:
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:12]
            found[f"/static/{path.name}"] = File(content, _TYPES[path.suffix], digest)
    return found


def kept(file: File) -> Response:
    """Return a file as an answer that browsers keep."""
    headers = {"cache-control": "public, max-age=31536000, immutable"}
    return Response(file.content, media_type=file.kind, headers=headers)


class Pages:
    """The templates. Whatever is put into them is text: ``<`` is shown as ``<``."""

    def __init__(self, files: dict[str, File]) -> None:
        self.files = files
        self.environment = Environment(
            loader=FileSystemLoader(HERE / "pages"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.environment.globals["static"] = self.static
        self.environment.filters |= {
            "percent": percent, "fixed": fixed, "span": span, "count": "{:,}".format
        }  # fmt: skip

    def static(self, name: str) -> str:
        """Return the address of a file."""
        path = f"/static/{name}"
        return f"{path}?v={self.files[path].digest}"

    def show(
        self, name: str, code: int = 200, headers: dict[str, str] | None = None, **values: Any
    ) -> Response:
        """Return a page as an answer."""
        text = self.environment.get_template(name).render(values)
        return HTMLResponse(text, code, headers)


def percent(value: float) -> str:
    """Return a share as a text; a dash where there is none.

    >>> percent(0.25), percent(float("nan"))
    ('25 %', '–')
    """
    return "–" if math.isnan(value) else f"{100 * value:.0f} %"


def fixed(value: float, digits: int = 2) -> str:
    """Return a number with so many decimals; a dash where there is none.

    >>> fixed(0.756), fixed(float("nan"))
    ('0.76', '–')
    """
    return "–" if math.isnan(value) else f"{value:,.{digits}f}"


def span(seconds: float) -> str:
    """Return a time as people say it.

    >>> span(8.25), span(95), span(7300), span(float("nan"))
    ('8.2 s', '1 min 35 s', '2 h 1 min', '–')
    """
    if math.isnan(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
