"""The page of a task on a crowd platform: the application's parts in one file."""

from __future__ import annotations

import base64
import io
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from discode.errors import InputError
from discode.images import demo_path, open_image
from mceval._texts import LONGEST
from mceval._web.rendering import HERE, Pages, annotation_files

if TYPE_CHECKING:
    from mceval._crowd import CrowdTask

LARGEST = 65_535
"""Maximum bytes of a page on Mechanical Turk."""
_SUBMIT = "https://www.mturk.com/mturk/externalSubmit"
_SCRIPTS = ("crowd.js", "annotate.js", "task.js")


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
