"""Run the code of README.md, integrations.md and the tutorial, and update the outputs they show.

``python docs/make_outputs.py`` rewrites every output that no longer agrees, with ``--all`` every
one that differs, and the numbers of serving.md; a test runs the same code and only compares. The
blocks of a page run in order, in a folder with the demo's images. A comment on the line before a
fenced block sets how it is handled:

- a ``python`` block runs; after ``<!-- not run: reason -->`` it does not.
- a ``text`` block after ``<!-- output -->`` is the output of the block before it.
- a ``console`` block after ``<!-- run -->``: lines that start with ``$ discode`` run with exit code
  0, and any output shown is compared. After ``<!-- run: some fail -->`` the exit code is 1, and the
  output shown is that on standard error.
- any block after ``<!-- file: NAME -->`` is saved as NAME.

Words of outputs must be equal and numbers close; ``...`` stands for any rest.
"""

from __future__ import annotations

import contextlib
import io
import operator
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import discode
from discode.images import demo_path

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "integrations.md",
    *sorted(ROOT.glob("docs/tutorial/*.md")),
]
SERVING = ROOT / "docs" / "serving.md"
BLOCK = re.compile(
    r"(?:^<!-- (?P<note>.+?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
COMMAND = re.compile(r"^\$ (?P<command>(?:.*\\\n)*.*)\n(?P<shown>(?:(?!\$ ).*\n)*)", re.MULTILINE)
REST = "..."
FAILING = "run: some fail"


class Shown(NamedTuple):
    """Output that a page shows from ``start`` to ``end``, and the output printed today."""

    text: str
    printed: str
    start: int
    end: int
    where: str


def replay(page: Path) -> Iterator[Shown]:
    """Run a page in this folder, and yield its outputs; raise if something fails."""
    whole = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in BLOCK.finditer(whole):
        note, kind, text = block["note"] or "", block["kind"], block["text"]
        where = f"{page.name}, line {1 + whole.count(chr(10), 0, block.start('text'))}"
        if note.startswith("file: "):
            Path(note.removeprefix("file: ")).write_text(text, encoding="utf-8")
        elif note == "output":
            yield Shown(text, printed, *block.span("text"), where)
        elif kind == "python" and not note.startswith("not run: "):
            if note:
                raise ValueError(f"{where}: {note!r} is not allowed before a Python block")
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(text, where, "exec"), names)
            printed = output.getvalue()
        elif note in ("run", FAILING):
            for part in COMMAND.finditer(text):
                command = part["command"].replace("\\\n", " ")
                if command.startswith("discode "):
                    printed = run(command, failing=note == FAILING)
                    if part["shown"].strip():
                        start, end = (block.start("text") + place for place in part.span("shown"))
                        yield Shown(part["shown"], printed, start, end, where)


def run(command: str, *, failing: bool = False) -> str:
    """Run ``discode ...`` with this Python, and return its output (standard error if failing)."""
    done = subprocess.run(
        [sys.executable, "-m", "discode", *shlex.split(command, comments=True)[1:]],
        capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "100"},
    )  # fmt: skip
    if done.returncode != failing:
        raise RuntimeError(f"{command}\n{done.stdout}{done.stderr}")
    return done.stderr if failing else done.stdout


def agree(shown: str, printed: str, same: Callable[[str, str], bool] | None = None) -> bool:
    """Return whether words are equal and numbers close, up to any ``...``; or all words ``same``.

    >>> agree("mean 0.50", "mean  0.501"), agree("a", "b"), agree("a\\n...", "a\\nb c")
    (True, False, True)
    """
    want, got = shown.split(), printed.split()
    if REST in want:
        want = want[: want.index(REST)]
        got = got[: len(want)]
    return len(want) == len(got) and all(map(same or close, want, got))


def close(word: str, other: str) -> bool:
    """Return whether two words are equal, except that numbers may differ by rounding (0.011)."""
    number = r"-?\d+\.\d*"
    return re.sub(number, "#", word) == re.sub(number, "#", other) and all(
        abs(float(a) - float(b)) <= 0.011
        for a, b in zip(re.findall(number, word), re.findall(number, other), strict=True)
    )


def renewed(shown: str, printed: str) -> str:
    """Return the new output for a page, with as many lines before ``...`` as it has.

    >>> renewed("old 1\\n...\\n", "new 1\\nnew 2\\n")
    'new 1\\n...\\n'
    """
    lines = printed.splitlines(keepends=True)
    if REST not in shown.split():
        return "".join(lines)
    before = [line.strip() for line in shown.splitlines()].index(REST)
    return "".join(lines[:before]) + f"{REST}\n"


def copy_images(folder: Path) -> None:
    """Copy the demo's images into a folder, and the cat also as photo.jpg."""
    for image in demo_path().glob("*.jpg"):
        shutil.copy(image, folder)
    shutil.copy(demo_path() / "cat.jpg", folder / "photo.jpg")


def answered(page: str) -> str:
    """Return serving.md with the numbers that the embedded judge answers."""
    cat = demo_path() / "cat.jpg"
    caption, explained = re.findall(r'"caption": "([^"]+)"', page)
    methods = ("raw", "smoothing", "discode")
    scores = [float(discode.load("embedded", method=m).score(cat, caption)) for m in methods]
    (words,) = discode.load("embedded").explain(cat, explained)
    last = words.spans[-1]
    word = last.start, last.end, last.effect, last.expected, last.blame
    numbers = iter([*scores, words.score, *word])
    number = r'("(?:raw|smoothing|score|start|end|effect|expected|blame)": )-?[\d.]+'
    return re.sub(number, lambda found: f"{found[1]}{round(next(numbers), 4):.15g}", page)


def main() -> None:
    """Rewrite the outputs that no longer agree."""
    same = operator.eq if "--all" in sys.argv else close
    served = SERVING.read_text(encoding="utf-8")
    if not agree(served, now := answered(served), same):
        SERVING.write_text(now, encoding="utf-8")
    for page in PAGES:
        with tempfile.TemporaryDirectory() as folder:
            copy_images(Path(folder))
            os.chdir(folder)
            every = list(replay(page))
            os.chdir(ROOT)
        text = page.read_text(encoding="utf-8")
        stale = [one for one in every if not agree(one.text, one.printed, same)]
        for one in reversed(stale):
            text = text[: one.start] + renewed(one.text, one.printed) + text[one.end :]
            print(f"{one.where}: renewed")
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
