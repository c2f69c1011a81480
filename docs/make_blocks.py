"""Write the parts of pages that the code itself tells: the tree of files, columns, an example.

``python docs/make_blocks.py`` rewrites them; ``--check`` exits with 1 where one is not current.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from discode.bulk.columns import markdown_table

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src/discode", "src/mceval", "perf", "training", "docs")


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


def file_tree() -> str:
    """Return a fenced block with the trees of all folders."""
    rows = [row for folder in FOLDERS for row in tree(ROOT / folder, folder)]
    width = max(len(name) for name, _ in rows) + 2
    lines = "\n".join(f"{name:{width}}{purpose}".rstrip() for name, purpose in rows)
    return f"```text\n{lines}\n```"


def example_plugin() -> str:
    """Return a fenced block with the code of the example of a plug-in."""
    code = (ROOT / "examples" / "plugin" / "discode_example.py").read_text(encoding="utf-8")
    return f"```python\n{code}```"


BLOCKS = {
    "architecture.md": ("tree", file_tree),
    "output.md": ("columns", markdown_table),
    "extending.md": ("example", example_plugin),
}
"""Page to the name of its block, and what makes it."""


def current(page: str, name: str, made: str) -> str:
    """Return a page with its block made anew."""
    begin, end = f"<!-- {name}: python docs/make_blocks.py -->\n", f"\n<!-- end of {name} -->\n"
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"a page lacks the markers {begin.strip()} and {end.strip()}")
    return head + begin + made + end + tail


def main(arguments: list[str]) -> int:
    """Rewrite the pages, or say which need it."""
    stale = 0
    for page, (name, make) in BLOCKS.items():
        path = ROOT / "docs" / page
        before = path.read_text(encoding="utf-8")
        after = current(before, name, make())
        stale += before != after
        if "--check" not in arguments:
            path.write_text(after, encoding="utf-8")
        elif before != after:
            print(f"{page} is stale; run python docs/make_blocks.py")
    return int(stale > 0 and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
