"""What README.md and the tutorial show is run, in order, in a folder with the demo's images.

A comment on the line before a fenced block says what becomes of it:

- a ``python`` block runs; after ``<!-- not run: reason -->`` it does not.
- a ``text`` block after ``<!-- output -->`` is what the block before it prints.
- a ``console`` block after ``<!-- run -->``: lines that start with ``$ discode`` run, exit code 0;
  where output is shown, it is what they print.
- any block after ``<!-- file: NAME -->`` is saved as NAME.

Of the output, words must agree and numbers be close; ``...`` stands for any rest.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from discode.images import demo_path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/tutorial/*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (?P<note>.+?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """A fenced block, the comment before it, and its line in the page."""

    note: str
    kind: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["note"] or "", found["kind"], found["text"], text.count("\n", 0, found.start()))
        for found in BLOCK.finditer(text)
    ]


def agree(shown: str, printed: str) -> bool:
    """Return whether words are equal and numbers close, up to ``...`` where it is shown.

    >>> agree("mean 0.50", "mean  0.501"), agree("a", "b"), agree("a\\n...", "a\\nb c")
    (True, False, True)
    """
    want, got = shown.split(), printed.split()
    if "..." in want:
        want = want[: want.index("...")]
        got = got[: len(want)]
    return len(want) == len(got) and all(map(close, want, got))


def close(word: str, other: str) -> bool:
    number = r"-?\d+\.\d*"
    return re.sub(number, "#", word) == re.sub(number, "#", other) and all(
        abs(float(a) - float(b)) <= 0.02
        for a, b in zip(re.findall(number, word), re.findall(number, other), strict=True)
    )


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a console block, each with the output that is shown after it."""
    for part in re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def run(command: str) -> str:
    """Run ``discode ...`` as this Python's module and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "discode", *shlex.split(command, comments=True)[1:]],
        capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "100"},
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_is_shown_runs(
    page: Path, shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for image in demo_path().glob("*.jpg"):
        shutil.copy(image, tmp_path)
    shutil.copy(tmp_path / "cat.jpg", tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for note, kind, text, line in blocks(page):
        where = f"{page.name}, line {line + 1}"
        if note.startswith("file: "):
            Path(note.removeprefix("file: ")).write_text(text, encoding="utf-8")
        elif note == "output":
            assert agree(text, printed), f"{where}: printed\n{printed}"
        elif kind == "python" and not note.startswith("not run: "):
            assert not note, f"{where}: {note!r} is not a note of a Python block"
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(text, where, "exec"), names)
            printed = output.getvalue()
        elif note == "run":
            for command, shown in commands(text):
                if command.startswith("discode "):
                    printed = run(command)
                    assert not shown.strip() or agree(shown, printed), f"{where}: {printed}"
