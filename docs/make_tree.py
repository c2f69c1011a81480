"""Write the tree of files in architecture.md from the first line of every module.

``python docs/make_tree.py`` rewrites the block; ``--check`` exits with 1 where it is not current.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
FOLDERS = ("src/discode", "perf", "training", "docs")
BEGIN, END = "<!-- tree: python docs/make_tree.py -->\n", "<!-- end of tree -->\n"


def first_line(module: Path) -> str:
    """Return the first line of a module's docstring, or nothing."""
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def tree(folder: Path, name: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield (indented name, purpose) of a folder, its modules and then its folders."""
    init = folder / "__init__.py"
    yield "  " * depth + f"{name}/", first_line(init) if init.is_file() else ""
    for module in sorted(folder.glob("*.py")):
        if module != init:
            yield "  " * (depth + 1) + module.name, first_line(module)
    for inner in sorted(path for path in folder.iterdir() if any(path.glob("*.py"))):
        yield from tree(inner, inner.name, depth + 1)


def block() -> str:
    """Return the fenced block with the trees of all folders."""
    rows = [row for folder in FOLDERS for row in tree(ROOT / folder, folder)]
    width = max(len(name) for name, _ in rows) + 2
    lines = "\n".join(f"{name:{width}}{purpose}".rstrip() for name, purpose in rows)
    return f"```text\n{lines}\n```\n"


def current(page: str) -> str:
    """Return the page with its tree made anew."""
    head, _, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise SystemExit(f"{PAGE.name} lacks the markers {BEGIN.strip()} and {END.strip()}")
    return head + BEGIN + block() + END + tail


def main(arguments: list[str]) -> int:
    """Rewrite the page, or say whether that is needed."""
    page = PAGE.read_text(encoding="utf-8")
    made = current(page)
    if "--check" in arguments:
        if made != page:
            print(f"{PAGE.name}: the tree of files is stale; run python docs/make_tree.py")
        return int(made != page)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
