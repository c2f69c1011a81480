"""Pages that are generated when the site is built: home page, command line, list of modules.

The home page is README.md, the command line is typer's documentation of it, and the list of modules
has the first line of every docstring. training/README.md, CHANGELOG.md and CONTRIBUTING.md also
become pages.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAGES = {  # files of the repository that are not below docs/, and the pages they become
    "README.md": "index.md",
    "training/README.md": "training.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
FOLDERS = ("src/discode", "src/mceval", "perf", "training", "docs")
LINK = re.compile(r"(\]\()([^)\s:#]+)(#[^)\s]*)?\)")
CODE_LINK = re.compile(r"^\[([\w./]+\.py)\]\(\S+\)$", re.MULTILINE)


def relink(text: str, source: str, page: str) -> str:
    """Return Markdown of the file ``source`` with its links adapted to the site's ``page``.

    >>> relink("[a](docs/endpoints.md#pace) [b](LICENSE)", "README.md", "index.md")
    '[a](endpoints.md#pace) b'
    >>> relink("[t](../training/README.md)", "docs/MODEL_CARD.md", "MODEL_CARD.md")
    '[t](training.md)'
    """

    def link(match: re.Match[str]) -> str:
        _, path, anchor = match.groups()
        target = normpath(Path(source).parent.joinpath(path).as_posix())
        inside = PAGES.get(target) or target.removeprefix("docs/")
        if target not in PAGES and not target.startswith("docs/"):
            return "](?)"  # not a page of the site
        return f"]({relpath(inside, Path(page).parent.as_posix())}{anchor or ''})"

    return re.sub(r"\[([^]]*)\]\(\?\)", r"\1", LINK.sub(link, text))


def command_line() -> str:
    """Return every verb with its options, as Markdown."""
    typer = [sys.executable, "-m", "typer", "discode._cli", "utils", "docs", "--name", "discode"]
    done = subprocess.run(typer, capture_output=True, text=True, check=True, cwd=ROOT)
    text = done.stdout.replace("&#x27;", "'").replace("# `discode`", "# Command line", 1)
    about = dict(re.findall(r"^#+ `discode (.+)`\n\n(.+)$", text, re.MULTILINE))
    verb = ""
    lines = []
    commands = False
    for line in text.splitlines():
        if heading := re.match(r"#+ `discode (.+)`", line):
            verb, commands = heading[1] + " ", False
        commands = commands or line == "**Commands**:"
        if commands and (row := re.match(r"\* `([\w-]+)`", line)):
            name = verb + row[1]  # typer shortens the description of a command
            line = f"* [`{name}`](#discode-{name.replace(' ', '-')}): {about[name]}"
        lines.append(line)
    return "\n".join(lines) + "\n"


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


def modules() -> str:
    """Return the trees of all folders, as Markdown."""
    rows = [row for folder in FOLDERS for row in tree(ROOT / folder, folder)]
    width = max(len(name) for name, _ in rows) + 2
    lines = "\n".join(f"{name:{width}}{purpose}".rstrip() for name, purpose in rows)
    return f"# Every module\n\n```text\n{lines}\n```\n"


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    for source, page in PAGES.items():
        text = relink((ROOT / source).read_text(encoding="utf-8"), source, page)
        if page == "index.md":  # its list of pages would contain only Home
            text = f"---\nhide: [navigation]\n---\n{text}"
        files.append(File.generated(config, page, content=text))
    for page, text in (("cli.md", command_line()), ("modules.md", modules())):
        files.append(File.generated(config, page, content=text))
    return files


def include_code(text: str) -> str:
    """Replace every line that is a link to a Python file by the file's code."""

    def code(match: re.Match[str]) -> str:
        return f"```python\n{(ROOT / match[1]).read_text(encoding='utf-8')}```"

    return CODE_LINK.sub(code, text)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Repair links from docs/ to other files of the repository, and include linked code."""
    source = page.file.src_uri
    if source in {*PAGES.values(), "cli.md", "modules.md"}:
        return markdown
    return relink(include_code(markdown), f"docs/{source}", source)
