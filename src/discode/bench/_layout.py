"""Write tables of cells as text, Markdown, LaTeX or CSV, wherever their numbers come from."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from discode._files import csv_cell, csv_writer
from discode.errors import lookup
from discode.stats import Interval


class Bold(str):
    """Text that LaTeX sets in bold: the best of a column."""

    __slots__ = ()


WORSE_NOTE = "bold: the best; †: worse than the best (Holm's p < 5 %)"
"""Explains bold and † below a LaTeX table."""

TableValue = str | float | Interval | None
"""A cell: literal text, a number, a number with its interval, or nothing."""
ColumnTitle = str | tuple[str, str]
"""A column's title, or the title of the columns it stands under and its own."""


@dataclass(frozen=True)
class CellTable:
    """A table: the titles of its columns, and its rows.

    The first cell of a row is its name; two spaces before it put the row under the one above, and a
    row with a name alone is a heading. The bounds of an interval have a row of their own below,
    except in CSV, where they are columns. What was measured and is NaN is shown as "undefined",
    other NaN as nothing.

    Attributes:
        columns: The first is the title of the rows' names.
        rows: As many cells each as there are columns; cells that are missing at the end are empty.
        title: One line above.
        notes: Lines below.
        digits: Decimals of numbers; CSV has six significant digits.
    """

    columns: Sequence[ColumnTitle]
    rows: Sequence[Sequence[TableValue]]
    title: str = ""
    notes: Sequence[str] = field(default=())
    digits: int = 2


def write_table(table: CellTable, form: str = "text") -> str:
    """Format a table as "text", "markdown", "latex" or "csv", without a final newline.

    >>> rows = [["smoothing", Interval(51.49, 49.5, 53.4, 0.95)], ["  paper", "55.7"]]
    >>> write_table(CellTable(["metric", "τ_c"], rows), "csv").splitlines()
    ['metric,τ_c,τ_c low,τ_c high', 'smoothing,51.49,49.5,53.4', 'smoothing / paper,55.7,,']
    """
    return lookup(TABLE_FORMATS, form, "format")(table)


def _rounded(value: float, digits: int) -> str:
    """Format a number with so many decimals; a zero has no sign."""
    return f"{round(value, digits) + 0.0:.{digits}f}"  # -0.0 + 0.0 is 0.0


def _shown(value: TableValue, digits: int) -> str:
    if isinstance(value, Interval):
        return "undefined" if math.isnan(value.value) else _rounded(value.value, digits)
    if isinstance(value, float):
        return "" if math.isnan(value) else _rounded(value, digits)
    return value or ""


def _bounds(value: TableValue, digits: int) -> str:
    if not isinstance(value, Interval) or math.isnan(value.low):
        return ""
    digits = max(1, digits - 1)
    low, high = (_rounded(bound, digits) for bound in (value.low, value.high))
    return f"{low}{' to ' if low.startswith('-') else '–'}{high}"  # "-5.7–-3.1" cannot be read


def _texts(table: CellTable) -> list[list[str]]:
    """Convert every row to text, with a row of bounds below each that has intervals."""
    texts: list[list[str]] = []
    for row in table.rows:
        name, cells = row[0], _cells(row, len(table.columns))
        texts.append([str(name), *(_shown(cell, table.digits) for cell in cells)])
        bounds = [_bounds(cell, table.digits) for cell in cells]
        if any(bounds):
            level = next(cell.level for cell in cells if isinstance(cell, Interval))
            texts.append([f"{' ' * _depth(str(name))}  {100 * level:g} %", *bounds])
    return texts


def layout_texts(table: CellTable) -> dict[str, object]:
    """Lay out a table as texts for a page: titles above with the columns they span, and the rest.

    >>> laid = layout_texts(CellTable(["a", ("b", "c"), ("b", "d"), "e"], [["x", "1", "2", "3"]]))
    >>> laid["above"], laid["titles"]
    ([('', 1), ('b', 2), ('', 1)], ['a', 'c', 'd', 'e'])
    """
    first, second = _titles(table.columns)
    above = [(first[start], end - start) for start, end in _spans(table.columns, first)]
    return {
        "title": table.title, "above": above if any(first) else [], "titles": second,
        "rows": _texts(table), "notes": [*table.notes],
    }  # fmt: skip


def _cells(row: Sequence[TableValue], columns: int) -> list[TableValue]:
    return [*row[1:], *[None] * (columns - len(row))]


def _depth(name: str) -> int:
    return len(name) - len(name.lstrip(" "))


def _titles(columns: Sequence[ColumnTitle]) -> tuple[list[str], list[str]]:
    """Split titles into two lines; a shared title stands above the first of its columns."""
    pairs = [("", title) if isinstance(title, str) else title for title in columns]
    first = [
        above if number == 0 or pairs[number - 1][0] != above else ""
        for number, (above, _) in enumerate(pairs)
    ]
    return first, [title for _, title in pairs]


def _spans(columns: Sequence[ColumnTitle], first: Sequence[str]) -> list[tuple[int, int]]:
    alone = (isinstance(title, str) or not title[0] for title in columns)
    starts = [n for n, own in enumerate(alone) if own or first[n]]
    return list(zip(starts, [*starts[1:], len(columns)], strict=True))


def _text(table: CellTable) -> str:
    first, second = _titles(table.columns)
    rows = _texts(table)
    # Headings have no cells to their right, so they may be longer than the names.
    names = [row[0] for row in rows if any(row[1:])] or [row[0] for row in rows]
    wide = [max(map(len, [second[0], *names]))]
    for number, head in enumerate(second[1:], 1):
        wide.append(max(len(head), 6, *(len(row[number]) for row in rows)))
    spans = _spans(table.columns, first)
    for start, end in spans:
        room = sum(wide[start:end]) + 2 * (end - start - 1)
        wide[end - 1] += max(0, len(first[start]) - room)
    lines = [table.title] if table.title else []
    if any(first):
        above = (
            first[start].center(sum(wide[start:end]) + 2 * (end - start - 1))
            for start, end in spans
        )
        lines.append("  ".join(above).rstrip())
    for row in (second, *rows):
        line = [row[0].ljust(wide[0])]
        line += [cell.rjust(width) for cell, width in zip(row[1:], wide[1:], strict=True)]
        lines.append("  ".join(line).rstrip())
    return "\n".join([*lines, *(["", *table.notes] if table.notes else [])])


def _markdown(table: CellTable) -> str:
    first, second = _titles(table.columns)
    titles = [_inert(f"{a} {b}".strip()) for a, b in zip(first, second, strict=True)]
    lines = [f"**{table.title}**", ""] if table.title else []
    lines.append("| " + " | ".join(titles) + " |")
    lines.append("| --- |" + " ---: |" * (len(titles) - 1))
    for row in _texts(table):
        name, *cells = map(_inert, row)
        if not any(cells):
            name = f"**{name.strip()}**"
        lines.append("| " + " | ".join(["&nbsp;" * _depth(name) + name.lstrip(" "), *cells]) + " |")
    for note in table.notes:
        lines += ["", note]
    return "\n".join(lines)


def _inert(text: str) -> str:
    """Escape a cell for a Markdown table: captions may contain pipes, tags and links.

    >>> _inert("a | <b> [c](d)")
    'a \\\\| &lt;b> \\\\[c](d)'
    """
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


_TEX = {
    "\\": r"\textbackslash{}",
    "^": r"\^{}",
    "~": r"\~{}",
    "τ": r"$\tau$",
    "σ": r"$\sigma$",
    "ρ": r"$\rho$",
    "α": r"$\alpha$",
    "λ": r"$\lambda$",
    "²": r"\textsuperscript{2}",
    "–": "--",
    "†": r"\dag{}",
} | {letter: f"\\{letter}" for letter in "&%$#_{}"}


def _latex(table: CellTable) -> str:
    first, second = _titles(table.columns)
    lines = [f"% {table.title}"] if table.title else []
    lines += [r"\begin{tabular}{l" + "r" * (len(second) - 1) + "}", r"\toprule"]
    if any(first):
        lines.append(" & ".join(map(_tex, first)) + r" \\")
    lines += [" & ".join(map(_tex, second)) + r" \\", r"\midrule"]
    for row in _texts(table):
        name = r"\quad " * (_depth(row[0]) // 2) + _tex(row[0].strip())
        lines.append(" & ".join([name, *map(_tex, row[1:])]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join([*lines, *(f"% {note}" for note in table.notes)])


def _tex(text: str) -> str:
    if isinstance(text, Bold):
        return rf"\textbf{{{_tex(str(text))}}}"
    text = text.replace("τ_b", "\0b").replace("τ_c", "\0c")  # before "_" is escaped
    text = "".join(_TEX.get(letter, letter) for letter in text)
    return text.replace("\0b", r"$\tau_b$").replace("\0c", r"$\tau_c$")


def _csv(table: CellTable) -> str:
    """Format rows with the names of their headings, and bounds in columns."""
    titles = [title if isinstance(title, str) else " ".join(title) for title in table.columns]
    spread = [
        any(isinstance(row[number], Interval) for row in table.rows if number < len(row))
        for number in range(len(titles))
    ]
    file = io.StringIO()
    writer = csv_writer(file)
    writer.writerow(
        name
        for title, bounds in zip(titles, spread, strict=True)
        for name in ((title, f"{title} low", f"{title} high") if bounds else (title,))
    )
    above: list[tuple[int, str]] = []
    for row in table.rows:
        name, cells = row[0], _cells(row, len(titles))
        depth = _depth(str(name))
        above = [(d, text) for d, text in above if d < depth] + [(depth, str(name).strip())]
        if all(cell is None for cell in cells) and len(titles) > 1:
            continue  # a heading
        line = [csv_cell(" / ".join(text for _, text in above))]
        for cell, bounds in zip(cells, spread[1:], strict=True):
            inner = cell if isinstance(cell, Interval) else None
            line.append(_exact(cell if inner is None else inner.value))
            if bounds:
                line += ["", ""] if inner is None else [_exact(inner.low), _exact(inner.high)]
        writer.writerow(line)
    return file.getvalue().rstrip("\n")


def _exact(value: TableValue) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return "" if value is None else str(value)


TABLE_FORMATS: dict[str, Callable[[CellTable], str]] = {
    "text": _text,
    "markdown": _markdown,
    "latex": _latex,
    "csv": _csv,
}
"""How a table can be written."""
