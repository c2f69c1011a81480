"""Your own benchmark: a table of ratings or of preferences, CSV, TSV, JSONL or Parquet.

Ratings have image, caption, rating, and optionally references, rater, id. Preferences have image,
caption_a, caption_b, preference (0 or a: the first; 1 or b: the second), and optionally
references, category, id. References are a list, in CSV a JSON list or one text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
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
from discode.benchmarks.parsing import as_number, as_texts, check_new, get_field, get_text
from discode.errors import InputError
from discode.files import parse_json, read_rows
from discode.options import Option

_SIDES = {"0": 0, "a": 0, "1": 1, "b": 1}
_Rows = list[tuple[str, dict[str, Any]]]


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
    rows = list(read_rows(file))
    if not rows:
        raise InputError(f"{file.name} holds no rows")
    builder = BenchmarkBuilder(ROW, file.parent)
    judgments: Ratings | Preferences
    if "rating" in rows[0][1]:
        judgments = _ratings(builder, rows, options["scale"])
        if options["raters"] == "average":
            judgments = judgments.averaged()
    elif "preference" in rows[0][1]:
        judgments = _preferences(builder, rows)
    else:
        raise InputError(
            f"{rows[0][0]} has neither a rating nor a preference; "
            f"it has: {', '.join(map(str, rows[0][1]))}"
        )
    return builder.build(options, judgments, [file])


def _ratings(builder: BenchmarkBuilder, rows: _Rows, scale: str) -> Ratings:
    low, high = _bounds(scale) or (-math.inf, math.inf)
    raters: dict[str, int] = {}
    rated: set[tuple[int, int]] = set()
    places: Counter[str] = Counter()
    judged = []
    for where, row in rows:
        image = get_text(row, "image", where)
        key = _given(row, "id") or f"{image}#{places[image]}"
        before = len(builder.pairs)
        pair = builder.add(
            image, get_text(row, "caption", where), _references(row, where), key, where
        )
        places[image] += len(builder.pairs) - before
        who = _given(row, "rater")
        rater = raters.setdefault(who, len(raters))
        if who and (pair, rater) in rated:
            raise InputError(f"{where}: rater {who!r} rated this pair before")
        rated.add((pair, rater))
        value = as_number(get_field(row, "rating", where), "rating", where, low, high)
        if math.isinf(value):
            raise InputError(f"{where}: rating must be finite, not {row['rating']!r}")
        judged.append((pair, value, rater))
    return Ratings.of(judged)


def _preferences(builder: BenchmarkBuilder, rows: _Rows) -> Preferences:
    keys: set[str] = set()
    judged = []
    for i, (where, row) in enumerate(rows):
        image = get_text(row, "image", where)
        key = _given(row, "id") or f"{image}#{i}"
        check_new(key, keys, where)
        keys.add(key)
        side = get_field(row, "preference", where)
        chosen = _SIDES.get(str(side).strip().lower()) if not isinstance(side, bool) else None
        if chosen is None:
            raise InputError(f"{where}: preference must be 0 or 1, or a or b, not {side!r}")
        references = _references(row, where)
        left, right = (
            builder.add(
                image, get_text(row, f"caption_{side}", where), references, f"{key}{side}", where
            )
            for side in "ab"
        )
        judged.append((left, right, chosen, _given(row, "category") or "all"))
    return Preferences.of(judged)


def _given(row: Mapping[str, Any], name: str) -> str:
    """Return a field as text, "" where it is empty; 0 is not empty."""
    value = row.get(name)
    return "" if value is None else str(value)


def _references(row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    value = row.get("references")
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        listed = value.lstrip().startswith("[")
        value = parse_json(value, f"{where}: references") if listed else [value]
    return as_texts(value, "references", where)


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
