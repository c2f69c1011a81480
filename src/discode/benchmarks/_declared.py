"""Benchmarks that are rows of data: ``data/benchmarks/NAME.json``.

A file has the fields of ``BenchmarkRow``, and how the publisher's files become the rows that a
benchmark of one's own has (``_custom.py``):

- ``columns``: from each field (image, caption, rating, ...) to where a row has it. "a.b" is the
  field b of the object a, "a|b" is a or, where a row has none, b, "a+b" is a list of both, and
  "={a}.jpg" is a text with a field filled in.
- ``join``: a second file, of JSON lines, whose fields are added to the rows that agree in ``on``.
- ``each``: the columns of every rating or choice in a row that holds several.
- ``walk``: the way to the rows in nested JSON, as field names and "*" for every item. A row
  inherits the fields of the objects around it. ``key`` is its own key, ``value`` an item that is
  not an object, and ``file`` the stem of the file.
- ``axes``: the columns of what people rated, by name; the option ``axis`` chooses one, by default
  the first. With ``axis_files`` it chooses the files whose names begin with it.
- ``sides``: which caption a value of ``preference`` means: 0, 1, or null for a tie; "*" is any
  other value. Without ``preference`` the first caption is the better one.
- ``scale``: the lowest and the highest rating. A list of ratings has one of each person, and
  ``raters`` says how they count by default.
- ``corrections``: a file whose ``value`` replaces the rating of the rows that agree in ``match``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, starmap
from pathlib import Path
from typing import Any

from discode._files import json_lines, parse_json, parse_line, read_rows, reading
from discode.benchmarks._base import (
    Benchmark,
    BenchmarkBuilder,
    BenchmarkRow,
    DataFile,
)
from discode.benchmarks._custom import RATERS, to_preferences, to_ratings
from discode.benchmarks._parsing import Entry
from discode.errors import InputError, count_of
from discode.options import Option

_OPTIONAL = ("references", "id")
"""Fields that a row may lack."""
FOLDER = Path(__file__).parents[1] / "data" / "benchmarks"
_LOADER = (
    "columns", "each", "walk", "join", "axes", "axis_files", "sides", "scale", "raters",
    "corrections",
)  # fmt: skip


def read_declared(path: Path) -> BenchmarkRow:
    """Make the row of a benchmark from its file."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    how = {name: data.pop(name) for name in _LOADER if name in data}
    options = []
    if axes := how.get("axes"):
        options.append(Option("axis", next(iter(axes)), "what people rated", tuple(axes)))
    if "raters" in how:
        options.append(Option("raters", how["raters"], RATERS, ("flatten", "average")))
    if corrections := how.get("corrections"):
        name = corrections["name"]
        options.append(Option("scores", "as published", f"or {name}'s", ("as published", name)))
    for name in ("optional", "folders", "image_folders", "categories", "published_files"):
        data[name] = tuple(data.get(name, BenchmarkRow.__dataclass_fields__[name].default))
    data["forms"] = tuple(map(tuple, data["forms"]))
    known = {name: DataFile(**facts) for name, facts in data.pop("files", {}).items()}
    data["files"] = {name: DataFile() for form in data["forms"] for name in form} | known

    def load(folder: Path, values: Mapping[str, Any]) -> Benchmark:
        return _load(row, how, folder, values)

    row = BenchmarkRow(name=path.stem, load=load, options=tuple(options), **data)
    return row


def _load(
    row: BenchmarkRow, how: Mapping[str, Any], folder: Path, options: Mapping[str, Any]
) -> Benchmark:
    files = [*row.find_files(folder).values()]
    columns = dict(how["columns"])
    if "axes" in how:
        columns["rating"] = how["axes"][options["axis"]]
    if how.get("axis_files"):
        files = [file for file in files if file.name.startswith(options["axis"])]
    layouts = [columns | own for own in how.get("each", [{}])]
    table: Iterable[tuple[str, dict[str, Any]]] = chain.from_iterable(
        _rows(file, how.get("walk")) for file in files
    )
    notes: list[str] = []
    if "join" in how:
        file = folder / how["join"]["file"]
        if file.is_file():
            table = _joined(table, file, how["join"]["on"])
            files = [*files, file]
        else:
            notes.append(f"no references: {file.name} is not in {folder}")
    entries = [
        entry
        for where, fields in table
        for layout in layouts
        for entry in _entries(fields, layout, how.get("sides", {}), where)
    ]
    builder = BenchmarkBuilder(row, folder)
    if "rating" not in layouts[0]:
        choices, ties = to_preferences(builder, entries)
        if ties:
            notes.append(f"{count_of(ties, 'tie')} of people left out")
        return builder.build(options, choices, files, notes)
    if "corrections" in how and options["scores"] == how["corrections"]["name"]:
        files = [*files, folder / how["corrections"]["file"]]
        notes.append(_correct(entries, files[-1], how["corrections"]))
    low, high = how.get("scale", (-math.inf, math.inf))
    rated = [entry for entry in entries if _is_between(entry.fields["rating"], low, high)]
    if lost := len(entries) - len(rated):
        notes.append(f"{count_of(lost, 'row')} without a rating on the scale left out")
    ratings = to_ratings(builder, rated, low, high)
    if options.get("raters") == "average":
        ratings = ratings.averaged()
    return builder.build(options, ratings, files, notes)


def _is_between(rating: Any, low: float, high: float) -> bool:
    """Whether a number is on the scale; publishers' files have typing errors and gaps."""
    try:
        return low <= float(rating) <= high and math.isfinite(float(rating))
    except (TypeError, ValueError):
        return False


def _joined(
    rows: Iterable[tuple[str, dict[str, Any]]], path: Path, on: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Add the fields of another file's rows, which agree in ``on``."""
    others: dict[str, dict[str, Any]] = {}
    for where, other in starmap(parse_line, json_lines(path, path.name)):
        if isinstance(other, InputError):
            raise other
        others[str(Entry(other, where).get(on))] = other
    for where, fields in rows:
        yield where, others.get(str(Entry(fields, where).get(on)), {}) | fields


def _entries(
    fields: dict[str, Any], layout: Mapping[str, str], sides: Mapping[str, Any], where: str
) -> list[Entry]:
    """Convert a row to the fields of a benchmark of one's own, once for each person's rating."""
    cells = {
        name: _cell(fields, spec, where)
        for name, spec in layout.items()
        if name not in _OPTIONAL or spec in fields or not spec.isidentifier()
    }
    if "preference" in cells:
        cells["preference"] = _side(cells["preference"], sides, fields, where)
    if not isinstance(ratings := cells.get("rating"), list):
        return [Entry(cells, where)]
    return [Entry(cells | {"rating": x, "rater": str(i)}, where) for i, x in enumerate(ratings)]


def _side(value: Any, sides: Mapping[str, int | None], fields: Any, where: str) -> str:
    """Translate a publisher's word for the better caption to "0", "1" or "tie"."""
    for word, side in sides.items():
        if word == "*" or str(value) == (_cell(fields, word, where) if word[0] == "=" else word):
            return "tie" if side is None else str(side)
    return str(value)


def _rows(path: Path, walk: list[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a table, or of nested JSON, with their places."""
    if walk is None:
        for where, fields in read_rows(path):
            yield where, {"file": path.stem} | fields
        return
    with reading(path, UnicodeDecodeError):
        content = parse_json(path.read_text(encoding="utf-8-sig"), path.name)
    yield from _below(content, walk, {"file": path.stem}, path.name)


def _below(
    node: Any, walk: list[str], around: Mapping[str, Any], where: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    if not walk:
        yield where, {**around, **(node if isinstance(node, dict) else {"value": node})}
        return
    step, *rest = walk
    if not isinstance(node, dict | list) or not node:
        raise InputError(f"{where} must be an object or a list that is not empty")
    if step != "*":
        entry = Entry(node, where)
        inner = entry.get(step)
        fields = {k: v for k, v in entry.fields.items() if isinstance(v, str | int | float)}
        yield from _below(inner, rest, {**around, **fields}, where)
        return
    for key, item in node.items() if isinstance(node, dict) else enumerate(node):
        yield from _below(item, rest, {**around, "key": key}, f"{where} entry {key!r}")


def _cell(fields: Mapping[str, Any], spec: str, where: str) -> Any:
    """Read what a column's specification means in a row."""
    if spec.startswith("="):
        row = Entry(fields, where)
        return re.sub(r"{(\w+)}", lambda name: str(row.get(name[1])), spec[1:])
    if "+" in spec:
        return [_cell(fields, name, where) for name in spec.split("+")]
    names = spec.split("|")
    value: Any = fields
    for name in next((name for name in names if name in fields), names[0]).split("."):
        if isinstance(value, str):  # an object as JSON
            value = parse_json(value, where)
        if value is not None:
            value = Entry(value, where).get(name)
    return value


def _correct(entries: list[Entry], path: Path, corrections: Mapping[str, Any]) -> str:
    """Replace ratings by those of another file, where it has them; return a note."""
    if not path.is_file():
        raise InputError(f"scores={corrections['name']}: no such file: {path}")
    found: dict[tuple[str, ...], list[float]] = {}
    for where, fields in read_rows(path):
        row = Entry(fields, where)
        key = tuple(str(row.get(name)) for name in corrections["match"].values())
        found.setdefault(key, []).append(row.number(corrections["value"], -1e9, 1e9))
    changed = 0
    for entry in entries:
        key = tuple(str(entry.get(name)) for name in corrections["match"])
        if key in found:
            rating = sum(found[key]) / len(found[key])
            changed += rating != float(entry.get("rating"))
            entry.fields["rating"] = rating
    return f"{count_of(changed, 'rating')} changed by {path.name}"


ROWS = tuple(read_declared(path) for path in sorted(FOLDER.glob("*.json")))
