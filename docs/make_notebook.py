"""Make notebook.html, a small notebook with its output: python docs/make_notebook.py.

Requires nbconvert and ipykernel.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import nbformat
from make_outputs import ROOT, copy_images
from nbclient import NotebookClient
from nbconvert.exporters import HTMLExporter

CELLS = [
    "# Captions of one photograph",
    """import discode

judge = discode.load("embedded")
captions = [
    "a close up of a brown striped cat with green eyes",
    "an animal is looking at something",
    "a brown cat is running through the snow",
    "a man in a helmet rides a bike down a hill",
    "a cat, " + "which looks as if somebody had said something very long to it, " * 4,
    "<b>bold</b> & <script>alert('no')</script>",
]
scores = judge.score("cat.jpg", captions)
scores""",
    "A slice, a mask or a list of rows is shown in the same way, with the reason for failed rows.",
    """judge.score(["cat.jpg", "lost.jpg"], ["a cat", "a cat"])""",
    "An index gives a number, and numpy reads all of them.",
    """import numpy as np

scores[0], np.asarray(scores).round(2)""",
]
"""Text, code, text, code, ..."""

STYLE = """
:root { color-scheme: light dark; }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; }
.prompt { display: none; }
pre { overflow-x: auto; padding: .6rem .8rem; border-radius: .4rem;
  background: rgba(128, 128, 128, .12); font-size: 13px; }
.output pre { background: none; padding: 0; }
table { border-collapse: collapse; font-size: 13px; }
td, th { padding: .25rem .6rem; border-bottom: 1px solid rgba(128, 128, 128, .3); }
.output_subarea { overflow-x: auto; }
.anchor-link { display: none; }
"""


def main() -> None:
    """Run the notebook in a folder with the demo's images, and write the page."""
    make = (nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell)
    cells = [make[number % 2](text) for number, text in enumerate(CELLS)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    with tempfile.TemporaryDirectory() as folder:
        copy_images(Path(folder))
        NotebookClient(notebook, resources={"metadata": {"path": folder}}, timeout=300).execute()
    body, _ = HTMLExporter(template_name="basic").from_notebook_node(notebook)
    body = re.sub(r"<style.*?</style>|<script.*?</script>", "", body, flags=re.DOTALL)
    body = re.sub(r' id="cell-id=\w+"', "", body)  # random
    page = (
        "<!doctype html>\n<html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width">'
        f"<title>Scores in a notebook</title><style>{STYLE}</style>\n{body.strip()}\n</html>\n"
    )
    (ROOT / "docs" / "notebook.html").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
