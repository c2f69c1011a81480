"""Your own benchmark: a table of ratings or of preferences, CSV, TSV, JSONL or Parquet.

Ratings have image, caption, rating, and optionally references, rater, id. Preferences have image,
caption_a, caption_b, preference (0 or a: the first; 1 or b: the second), and optionally
references, category, id. References are a list, in CSV a JSON list or one text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from discode.benchmarks.base import (
    Benchmark,
    BenchmarkBuilder,
    BenchmarkRow,
    Preferences,
    Ratings,
)
from discode.benchmarks.parsing import Entry
from discode.errors import InputError
from discode.files import read_rows
from discode.options import Option
from discode.pairs import reference_list

_SIDES = {"0": 0, "a": 0, "1": 1, "b": 1}
_Entries = list[Entry]


class _Scale:
    """LOW-HIGH, kept as it is typed."""

    text = "LOW-HIGH such as 1-5"

    def convert(self, value: object) -> str | None:
        """Return a range of ratings as it is typed; None if it is none."""
        return value if isinstance(value, str) and _bounds(value) else None


def _bounds(scale: str) -> tuple[float, float] | None:
    """Return the lowest and the highest rating of LOW-HIGH; None if it is not of that form.

    >>> _bounds("-1-2.5"), _bounds("5-1")
    ((-1.0, 2.5), None)
    """
    number = r"(-?\d+(?:\.\d+)?)"
    match = re.fullmatch(f"{number}-{number}", scale)
    low, high = map(float, match.groups()) if match else (0.0, 0.0)
    return (low, high) if low < high else None


def load_custom(path: Path, options: Mapping[str, Any]) -> Benchmark:
    """Read your own benchmark from a file, or from a folder with ratings.* or preferences.*.

    ``scale=1-5`` refuses ratings outside it; ``raters=average`` gives each pair one rating.
    """
    file = path if path.is_file() else next(iter(ROW.find_files(path).values()))
    rows = [Entry(row, where) for where, row in read_rows(file)]
    if not rows:
        raise InputError(f"{file.name} holds no rows")
    builder = BenchmarkBuilder(ROW, file.parent)
    judgments: Ratings | Preferences
    if "rating" in rows[0].fields:
        judgments = _ratings(builder, rows, options["scale"])
        if options["raters"] == "average":
            judgments = judgments.averaged()
    elif "preference" in rows[0].fields:
        judgments = _preferences(builder, rows)
    else:
        raise InputError(f"{rows[0].where} has neither a rating nor a preference")
    return builder.build(options, judgments, [file])


def _ratings(builder: BenchmarkBuilder, rows: _Entries, scale: str) -> Ratings:
    low, high = _bounds(scale) or (-math.inf, math.inf)
    checked = [(r.text("image"), r.text("caption"), r.number("rating", low, high)) for r in rows]
    names, who = ([_text(row, name) for row in rows] for name in ("id", "rater"))
    pairs = [
        builder.add(image, caption, references, name, row.where)
        for (image, caption, _), references, name, row in zip(
            checked, _references(rows), names, rows, strict=True
        )
    ]
    raters: dict[str, int] = {}
    rated: set[tuple[int, str]] = set()
    for row, pair, rater in zip(rows, pairs, who, strict=True):
        if rater:
            row.check_new((pair, rater), rated)
        rated.add((pair, rater))
        raters.setdefault(rater, len(raters))
    return Ratings.of(
        [
            (pair, value, raters[rater])
            for pair, (_, _, value), rater in zip(pairs, checked, who, strict=True)
        ]
    )


def _preferences(builder: BenchmarkBuilder, rows: _Entries) -> Preferences:
    keys: set[str] = set()
    judged = []
    for i, (row, references) in enumerate(zip(rows, _references(rows), strict=True)):
        side = row.get("preference")
        chosen = _SIDES.get(str(side).strip().lower()) if not isinstance(side, bool) else None
        if chosen is None:
            raise row.error("preference", "0 or 1, or a or b")
        image = row.text("image")
        key = _text(row, "id") or f"{image}#{i}"
        row.check_new(key, keys)
        keys.add(key)
        left, right = (
            builder.add(image, row.text(f"caption_{side}"), references, f"{key}{side}", row.where)
            for side in "ab"
        )
        judged.append((left, right, chosen, _text(row, "category") or "all"))
    return Preferences.of(judged)


def _text(row: Entry, name: str) -> str:
    """Return a field as text, "" where it is empty; 0 is not empty."""
    value = row.fields.get(name)
    return "" if value is None else str(value)


def _references(rows: _Entries) -> list[tuple[str, ...]]:
    cells = [reference_list(row.fields.get("references"), row.where) for row in rows]
    return [
        Entry({"references": cell}, row.where).texts("references")
        for cell, row in zip(cells, rows, strict=True)
    ]


ROW = BenchmarkRow(
    "custom",
    "custom",
    "your own ratings or preferences; docs/adding-a-benchmark.md has the format",
    load_custom,
    source="you",
    licence="yours",
    citation="yours",
    forms=(("ratings.jsonl",), ("ratings.csv",), ("preferences.jsonl",), ("preferences.csv",)),
    folders=("custom",),
    options=(
        Option("scale", "any", "the ratings' range", ("any", _Scale())),
        Option("raters", "flatten", "one point per rating, or per pair", ("flatten", "average")),
    ),
)
