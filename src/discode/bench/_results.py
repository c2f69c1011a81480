"""Results of a study or a choice (tables, figures, files, sentences), and how they are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from urllib.parse import quote

from discode._version import __version__
from discode.bench._layout import CellTable, write_table
from discode.bench._runlog import RunLog
from discode.errors import MissingExtraError

SUFFIXES = {"text": ".txt", "markdown": ".md", "latex": ".tex"}

_STYLE = """body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem;
  padding: 0 1rem; color-scheme: light dark }
pre { overflow-x: auto; font-size: 13px; line-height: 1.35 }
img { max-width: 100%; height: auto; background: #fff }"""


@dataclass(frozen=True)
class StudyResult:
    """The results of a study.

    Tables, figures and other files have the names of their files; the first table is the one to
    look at first, and a figure is a function that draws it to a path (PNG, SVG or PDF).
    ``findings`` state the results in sentences, ``problems`` list failures with their reasons, and
    ``left_out`` lists omissions because a model, a file or a program is missing.
    """

    tables: Mapping[str, CellTable]
    figures: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    logs: Mapping[str, RunLog] = field(default_factory=dict)
    findings: Sequence[str] = ()
    problems: Sequence[str] = ()
    left_out: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def file_stem(text: str) -> str:
    """Convert a name to the stem of a file name.

    >>> file_stem("llava-hf/llava-v1.6 foil:references=4")
    'llava-hf_llava-v1.6_foil_references_4'
    """
    return "".join(letter if letter.isalnum() or letter in "-._" else "_" for letter in text)


def write_result(name: str, result: StudyResult, folder: Path) -> StudyResult:
    """Write tables in all formats, findings, runs, other files and figures into a folder.

    If figures cannot be drawn, the returned result records it.
    """
    for kind, suffix in SUFFIXES.items():
        parts = [write_table(table, kind) for table in result.tables.values()]
        parts += [f"% {line}" if kind == "latex" else line for line in result.findings]
        (folder / f"{name}{suffix}").write_text("\n\n".join(parts) + "\n", "utf-8")
    for stem, table in result.tables.items():
        (folder / f"{stem}.csv").write_text(write_table(table, "csv") + "\n", "utf-8")
    for run, log in result.logs.items():
        (folder / "runs").mkdir(exist_ok=True)
        log.save(folder / "runs" / f"{file_stem(run)}.json")
    for file, text in result.files.items():
        (folder / file).write_text(text, "utf-8")
    try:
        for stem, draw in result.figures.items():
            draw(folder / f"{stem}.png")
    except MissingExtraError as error:
        return replace(result, figures={}, left_out=[*result.left_out, f"figures: {error}"])
    return result


def write_page(
    results: Mapping[str, tuple[str, StudyResult]], notes: Sequence[str], folder: Path
) -> None:
    """Write index.html next to the files of results, given by name with one line about each."""
    contents = " · ".join(f'<a href="#{name}">{name}</a>' for name in results)
    lines = "".join(f"<li>{escape(note)}</li>\n" for note in notes)
    sections = "\n".join(_section(name, *about) for name, about in results.items())
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


def _section(study: str, about: str, result: StudyResult) -> str:
    parts = [f'<h2 id="{study}">{study}</h2>', f"<p>{escape(about)}</p>"]
    for number, (name, table) in enumerate(result.tables.items()):
        shown = " open" if number == 0 else ""
        text = escape(write_table(table))
        parts.append(f"<details{shown}><summary>{name}</summary><pre>{text}</pre></details>")
    parts += [f"<p>{escape(finding)}</p>" for finding in result.findings]
    parts += [
        f'<p><img src="{quote(name)}.png" alt="{escape(name)}" loading="lazy"></p>'
        for name in result.figures
    ]
    files = [f"{study}{end}" for end in SUFFIXES.values()]
    files += [f"{name}.csv" for name in result.tables]
    links = (f'<a href="{quote(file)}">{escape(file)}</a>' for file in (*files, *result.files))
    return "\n".join([*parts, f"<p>{' · '.join(links)}</p>"])
