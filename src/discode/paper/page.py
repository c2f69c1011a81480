"""The page of a run of studies: their tables and figures, and links to the files beside it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from discode.bench.layout import write_table
from discode.paper.base import Study, StudyResult
from discode.version import __version__

_STYLE = """body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem;
  padding: 0 1rem; color-scheme: light dark }
pre { overflow-x: auto; font-size: 13px; line-height: 1.35 }
img { max-width: 100%; height: auto; background: #fff }"""


def write_page(
    results: Sequence[tuple[Study, StudyResult]], notes: Sequence[str], folder: Path
) -> None:
    """Write index.html into the folder that has the studies' files; ``notes`` stand at its top."""
    contents = " · ".join(f'<a href="#{study.name}">{study.name}</a>' for study, _ in results)
    lines = "".join(f"<li>{escape(note)}</li>\n" for note in notes)
    sections = "\n".join(_section(study, result) for study, result in results)
    (folder / "index.html").write_text(
        f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tables and figures of discode</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Tables and figures</h1>
<p>Made by discode {__version__}. Lines called "paper" or "(published)" are the paper's.</p>
<nav>{contents}</nav>
<ul>
{lines}</ul>
{sections}
</body>
</html>
""",
        "utf-8",
        errors="replace",  # half a character of a caption
    )


def _section(study: Study, result: StudyResult) -> str:
    """Return a study: its first table open, the others to be opened, its sentences and figures."""
    parts = [f'<h2 id="{study.name}">{study.name}</h2>', f"<p>{escape(study.about)}</p>"]
    for number, (name, table) in enumerate(result.tables.items()):
        shown = " open" if number == 0 else ""
        text = escape(write_table(table))
        parts.append(f"<details{shown}><summary>{name}</summary><pre>{text}</pre></details>")
    parts += [f"<p>{escape(finding)}</p>" for finding in result.findings]
    parts += [
        f'<p><img src="{quote(name)}.png" alt="{escape(name)}" loading="lazy"></p>'
        for name in result.figures
    ]
    files = [f"{study.name}{end}" for end in (".txt", ".md", ".tex")]
    files += [f"{name}.csv" for name in result.tables]
    links = (f'<a href="{quote(file)}">{escape(file)}</a>' for file in (*files, *result.files))
    return "\n".join([*parts, f"<p>{' · '.join(links)}</p>"])
