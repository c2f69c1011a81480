"""Make the pictures of the embedded judge: demo.png, explain.png, serve.png, notebook.png.

    PYTHONPATH=. python docs/make_pictures.py

Requires Chromium (see tests/helpers/chromium.py) and notebook.html (make_notebook.py).
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.markup import escape
from rich.terminal_theme import DEFAULT_TERMINAL_THEME as PAPER
from rich.text import Text

import discode
from discode.images import demo_path
from tests.helpers.chromium import chromium
from tests.helpers.serving import running

DOCS = Path(__file__).parent


def keep(picture: Path, name: str) -> None:
    """Save a picture with 256 colours, at a third of the size."""
    with Image.open(picture) as image:
        colours = image.convert("RGB").quantize(
            256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
        )
    colours.save(DOCS / "images" / name, optimize=True)


def terminal(page: Path) -> str:
    """Run the first command of a page, and return it with its output as coloured HTML."""
    command = next(re.finditer(r"^\$ ((?:.*\\\n)*.*)$", page.read_text(encoding="utf-8"), re.M))[1]
    done = subprocess.run(
        [sys.executable, "-m", "discode", *shlex.split(command.replace("\\\n", " "))[1:]],
        check=True, capture_output=True, text=True, cwd=demo_path(),
        env=os.environ | {"FORCE_COLOR": "1", "COLUMNS": "100"},
    )  # fmt: skip
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(f"[bold]$[/] {escape(command)}", highlight=False)
    # Dim text becomes grey, because half of the colours would be hard to read.
    console.print(Text.from_ansi(done.stdout.replace("\x1b[2m", "\x1b[38;5;242m")), end="")
    frame = "<body style='margin:0'><pre style='display:inline-block;margin:0;padding:16px 22px;"
    frame += "background:{background};color:{foreground};font:15px/1.55 monospace'>{code}</pre>"
    return console.export_html(code_format=frame, inline_styles=True, theme=PAPER)


def main() -> None:
    """Run the demo, and take pictures of the service and the notebook."""
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder, "shot.png")
        subprocess.run(
            [sys.executable, "-m", "discode", "demo", "--output", str(shot)],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        keep(shot, "demo.png")
        with running(discode.load("embedded")) as client, chromium() as browser:
            page = browser.new_context(
                reduced_motion="reduce", viewport={"width": 1280, "height": 1010},
                device_scale_factor=1.25,
            ).new_page()  # fmt: skip
            page.goto(f"http://127.0.0.1:{client.port}/")
            page.get_by_role("button", name="Example: coffee").click()
            page.wait_for_selector("#ranking > li")
            page.mouse.move(5, 5)
            page.wait_for_function("document.getAnimations().length === 0")
            page.screenshot(path=shot)
            keep(shot, "serve.png")
            page = browser.new_context(device_scale_factor=1.5).new_page()
            page.set_content(terminal(DOCS / "tutorial" / "wrong-words.md"))
            page.locator("pre").screenshot(path=shot)
            keep(shot, "explain.png")
            both = []
            for scheme in ("light", "dark"):
                page = browser.new_context(
                    viewport={"width": 960, "height": 1000}, color_scheme=scheme
                ).new_page()
                page.goto((DOCS / "notebook.html").as_uri())
                top = page.locator("table").first.bounding_box()
                end = page.locator("table").nth(1).bounding_box()
                page.screenshot(
                    path=shot, full_page=True,
                    clip={"x": 0, "y": top["y"] - 8, "width": 960,
                          "height": end["y"] + end["height"] - top["y"] + 36},
                )  # fmt: skip
                with Image.open(shot) as image:
                    both.append(image.convert("RGB"))
        height = both[0].height
        stacked = Image.new("RGB", (both[0].width, 2 * height))
        for number, half in enumerate(both):
            stacked.paste(half, (0, number * height))
        stacked.save(shot)
        keep(shot, "notebook.png")


if __name__ == "__main__":
    main()
