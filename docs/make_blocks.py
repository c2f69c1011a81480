"""Write the parts of pages that come from the code: the columns of score files.

``python docs/make_blocks.py`` rewrites them; ``--check`` exits with 1 if one is stale.
"""

from __future__ import annotations

import sys
from pathlib import Path

from discode._scores import COLUMNS

ROOT = Path(__file__).resolve().parents[1]


def markdown_table() -> str:
    """The columns of score files."""
    rows = (f"| `{name}` | {column.about} |" for name, column in COLUMNS.items())
    return "\n".join(["| column | meaning |", "| --- | --- |", *rows])


BLOCKS = {"output.md": ("columns", markdown_table)}
"""Page to the name of its block, and the function that makes it."""


def current(page: str, name: str, made: str) -> str:
    """Return a page with its block replaced."""
    begin, end = f"<!-- {name}: python docs/make_blocks.py -->\n", f"\n<!-- end of {name} -->\n"
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"no markers {begin.strip()} and {end.strip()}")
    return head + begin + made + end + tail


def main(arguments: list[str]) -> int:
    """Rewrite the pages, or list the stale ones."""
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
