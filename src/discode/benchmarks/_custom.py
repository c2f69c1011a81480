"""Your own benchmark: a table of ratings or of preferences, CSV, TSV, JSONL or Parquet.

Ratings have image, caption, rating, and optionally references, rater, id. Preferences have image,
caption_a, caption_b, preference (0 or a: the first; 1 or b: the second; tie), and optionally
references, category, id, group (rows that are right only together). References are a list, in CSV
a JSON list or one text. Columns are found by the names that ``discode score`` knows, or named by an
option.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from discode._columns import (
    CAPTION_COLUMNS,
    ID_COLUMNS,
    IMAGE_COLUMNS,
    REFERENCE_COLUMNS,
    PairColumns,
    first_filled,
    is_filled,
)
from discode._files import read_rows
from discode._image_index import ImageFinder
from discode.benchmarks._base import (
    Benchmark,
    BenchmarkBuilder,
    BenchmarkRow,
    Preferences,
    Ratings,
)
from discode.benchmarks._parsing import Entry
from discode.errors import InputError, count_of
from discode.options import TEXT, Option

COLUMNS = {
    "image": IMAGE_COLUMNS,
    "caption": CAPTION_COLUMNS,
    "references": REFERENCE_COLUMNS,
    "id": ID_COLUMNS,
    "rating": ("rating", "human_rating", "human_score", "human", "gt_score", "mos"),
    "rater": ("rater", "rater_id", "annotator", "annotator_id"),
    "preference": ("preference",),
    "caption_a": ("caption_a",),
    "caption_b": ("caption_b",),
    "category": ("category",),
    "group": ("group",),
}
"""The fields of a row, and the names of their columns, tried in this order."""
_NEEDED = {"rating": ("image", "caption"), "preference": ("image", "caption_a", "caption_b")}
SIDES: dict[str, int | None] = {"0": 0, "a": 0, "1": 1, "b": 1, "tie": None}
"""The values of ``preference``: which caption is better, the first or the second, or neither."""
RATERS = "one point per rating, or per pair"


class _Layout(NamedTuple):
    """The columns of a row that hold each field, as the row calls them."""

    fields: dict[str, tuple[str, ...]]
    numbered: str | None
    """The column of COCO's numbers."""


class _Scale:
    """LOW-HIGH, kept as it is typed."""

    text = "LOW-HIGH such as 1-5"

    def convert(self, value: object) -> str | None:
        """Check a range of ratings; None if malformed."""
        return value if isinstance(value, str) and _bounds(value) else None


def _bounds(scale: str) -> tuple[float, float] | None:
    """Parse LOW-HIGH to the lowest and the highest rating; None if malformed.

    >>> _bounds("-1-2.5"), _bounds("5-1")
    ((-1.0, 2.5), None)
    """
    number = r"(-?\d+(?:\.\d+)?)"
    match = re.fullmatch(f"{number}-{number}", scale)
    low, high = map(float, match.groups()) if match else (0.0, 0.0)
    return (low, high) if low < high else None


def load_custom(path: Path, options: Mapping[str, Any]) -> Benchmark:
    """Read your own benchmark from a file, or from a folder with ratings.* or preferences.*.

    ``scale=1-5`` refuses ratings outside it; ``raters=average`` gives each pair one rating;
    ``images`` is the folder of the images, ``annotations`` COCO's file of their ids, and
    ``rating=COLUMN`` names a column.
    """
    file = path if path.is_file() else next(iter(ROW.find_files(path).values()))
    table = list(read_rows(file))
    if not table:
        raise InputError(f"{file.name} has no rows")
    images = None if options["images"] is None else Path(options["images"])
    builder = BenchmarkBuilder(ROW, file.parent, images)
    named = {name: options[name] for name in COLUMNS if options[name] is not None}
    first = _layout(*table[0], named)
    kinds = [kind for kind in _NEEDED if first.fields[kind]]
    if not kinds:
        raise _no_column(*table[0], "rating")
    finder = ImageFinder(
        builder.default if builder.default.is_dir() else None, options["annotations"]
    )
    unknown: set[str] = set()
    layouts = {tuple(table[0][1]): first}  # the rows of a table mostly have the same columns
    rows = []
    for where, row in table:
        if (layout := layouts.get(tuple(row))) is None:
            layout = layouts[tuple(row)] = _layout(where, row, named)
        for field in (*_NEEDED[kinds[0]], kinds[0]):
            if not layout.fields[field]:
                raise _no_column(where, row, field)
        rows.append(_entry(where, row, layout, finder, unknown))
    judgments: Ratings | Preferences
    notes = []
    if kinds[0] == "rating":
        low, high = _bounds(options["scale"]) or (-math.inf, math.inf)
        judgments = to_ratings(builder, rows, low, high)
        if options["raters"] == "average":
            judgments = judgments.averaged()
    else:
        judgments, ties = to_preferences(builder, rows)
        notes += [f"{count_of(ties, 'tie')} of people left out"] if ties else []
    kept = {name: options[name] for name in ("scale", "raters")} | named
    if unknown:
        advice = finder.advice("-b custom:annotations=FILE")
        notes.append(f"{count_of(len(unknown), 'image id')} {advice}")
    return builder.build(kept, judgments, [file], notes)


def _layout(where: str, row: Mapping[str, Any], named: Mapping[str, str]) -> _Layout:
    found = PairColumns.among(row, where)
    plain = {re.sub(r"[\s-]+", "_", str(name).strip().lower()): name for name in row}
    columns = {
        field: tuple(plain[name] for name in names if name in plain)
        for field, names in COLUMNS.items()
    }
    columns |= {"image": found.image, "caption": found.caption}
    for field, name in named.items():
        if name not in row:
            raise InputError(
                f"{where} has no column {name!r} ({field}={name}); it has: {', '.join(row)}"
            )
        columns[field] = (name,)
    return _Layout(columns, plain.get("image_id"))


def _no_column(where: str, row: Mapping[str, Any], field: str) -> InputError:
    wanted = ", ".join(COLUMNS[field]) + (", or a preference" if field == "rating" else "")
    return InputError(
        f"{where} has no {field} (wanted: {wanted}); it has: {', '.join(map(str, row))}; name the "
        f"column: custom:{field}=COLUMN"
    )


def _entry(
    where: str, row: Mapping[str, Any], layout: _Layout, finder: ImageFinder, unknown: set[str]
) -> Entry:
    """Convert a row to the fields of this format; COCO's numbers become file names.

    A number that leads to no single file is kept, and added to ``unknown``: text metrics need none.
    """
    fields = {
        field: row[names[0]] if len(names) == 1 else first_filled(row, names)
        for field, names in layout.fields.items()
        if names
    }
    image, names = fields["image"], layout.fields["image"]
    column = names[0] if len(names) == 1 else next((n for n in names if is_filled(row[n])), "")
    if isinstance(image, float) and image.is_integer():
        image = int(image)  # a column of numbers with gaps
    if (type(image) is int) or (isinstance(image, str) and column == layout.numbered):
        file, problem = finder.file_of_id(image)
        fields["image"] = file or str(image)
        if problem:
            unknown.add(str(image))
    return Entry(fields, where)


def to_ratings(
    builder: BenchmarkBuilder, rows: Sequence[Entry], low: float, high: float
) -> Ratings:
    """Add the pairs of rows with image, caption and rating, and return the ratings."""
    raters: dict[str, int] = {}
    rated: set[tuple[int, str]] = set()
    judged = []
    for row in rows:
        image, caption = row.text("image"), row.text("caption")
        value, rater = row.number("rating", low, high), row.optional("rater")
        pair = builder.add(image, caption, row.references(), row.optional("id"), row.where)
        if rater:
            row.check_new((pair, rater), rated)
        rated.add((pair, rater))
        judged.append((pair, value, raters.setdefault(rater, len(raters))))
    return Ratings.of(judged)


def to_preferences(builder: BenchmarkBuilder, rows: Sequence[Entry]) -> tuple[Preferences, int]:
    """Add the pairs of rows with image, caption_a and caption_b; return the choices and the ties.

    Without ``preference`` the first caption is the better one. ``image_a`` and ``image_b`` are for
    choices between images, and rows with one ``group`` count together.
    """
    keys: set[str] = set()
    groups: dict[str, int] = {}
    judged, group, ties = [], [], 0
    for i, row in enumerate(rows):
        side = row.fields.get("preference", "0")
        name = str(side).strip().lower()
        if isinstance(side, bool) or name not in SIDES:
            raise row.error("preference", f"one of {', '.join(SIDES)}")
        if (chosen := SIDES[name]) is None:
            ties += 1
            continue
        images = [row.optional(f"image_{side}") or row.text("image") for side in "ab"]
        references, key = row.references(), row.optional("id") or f"{images[0]}#{i}"
        row.check_new(key, keys)
        keys.add(key)
        left, right = (
            builder.add(image, row.text(f"caption_{side}"), references, f"{key}{side}", row.where)
            for image, side in zip(images, "ab", strict=True)
        )
        judged.append((left, right, chosen, row.optional("category") or "all"))
        group.append(groups.setdefault(row.optional("group"), len(groups)))
    return Preferences.of(judged, None if {*groups} <= {""} else group), ties


ROW = BenchmarkRow(
    "custom",
    "custom",
    "your own ratings or choices; see docs/adding-a-benchmark.md",
    load_custom,
    source="you",
    licence="yours",
    citation="yours",
    forms=(("ratings.jsonl",), ("ratings.csv",), ("preferences.jsonl",), ("preferences.csv",)),
    folders=("custom",),
    tried="",
    options=(
        Option("scale", "any", "the ratings' range", ("any", _Scale())),
        Option("raters", "flatten", RATERS, ("flatten", "average")),
        Option("images", None, "folder of the images", (None, TEXT)),
        Option("annotations", None, "COCO's file that names the images of ids", (None, TEXT)),
        *(Option(name, None, f"column to read as {name}", (None, TEXT)) for name in COLUMNS),
    ),
)
