"""Tables of log-probabilities with human ratings, for the choice of a decoder."""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from discode._columns import PairColumns, first_filled, image_name, is_filled
from discode._files import parse_json, read_rows, sha256
from discode._scales import Scale
from discode.bench._choose import JudgedReadings
from discode.benchmarks import Ratings
from discode.bulk._log_probs import read_blocks
from discode.errors import InputError
from discode.readings import Readings

COMPARISONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
               "==": operator.eq, "!=": operator.ne}  # fmt: skip
JOINING = ("id", "sample_id", "custom_id")
"""Columns that join a table of ratings to one of readings."""


def parse_condition(text: str) -> tuple[str, Callable[[Any], bool]]:
    """Parse COLUMN>=VALUE into the column and its test, numeric where both sides are numbers.

    >>> column, holds = parse_condition("score >= 1")
    >>> column, holds("1.0"), holds("0"), holds(""), holds(None), holds("nan")
    ('score', True, False, False, False, False)
    """
    parts = re.fullmatch(r"\s*([^<>=!]+?)\s*(>=|<=|==|!=|>|<)\s*([^<>=!]+?)\s*", text)
    if parts is None:
        raise InputError(
            f"--where {text!r} is not a condition such as COLUMN>=VALUE (>, <=, <, ==, !=)"
        )
    column, sign, value = parts.groups()
    compare: Callable[[Any, Any], bool] = COMPARISONS[sign]

    def holds(cell: Any) -> bool:
        try:
            return compare(float(cell), float(value))
        except (TypeError, ValueError):  # text has no order
            return sign in ("==", "!=") and compare(str(cell), value)

    return column, holds


def read_judged_rows(
    file: Path,
    title: str,
    columns: Sequence[str],
    scale: Scale,
    conditions: Mapping[str, tuple[str, Callable[[Any], bool]]],
    ratings: Path | None = None,
    task: str | None = None,
) -> JudgedReadings:
    """Read log-probabilities and human ratings from a table, grouped by image.

    The cells of rows with the same id in ``ratings`` are added; ``task`` is the column of tasks.
    """
    for each in (file, ratings or file):
        if not each.is_file():
            raise InputError(f"no such file: {each}")
    added = {} if ratings is None else _by_id(ratings)
    rows: list[tuple[int, Any]] = []
    tasks: list[str] = []
    scores: list[float] = []
    images: list[str] = []
    left_out: Counter[str] = Counter()
    column = ""
    for number, (where, row) in enumerate(read_rows(file), 1):
        if ratings is not None:
            if (more := added.get(_own_id(row, where))) is None:
                left_out[f"no rating in {ratings.name}"] += 1
                continue
            row |= more
        column = column or next((name for name in columns if name in row), columns[0])
        for name in (column, *(name for name, _ in conditions.values()), *([task] * bool(task))):
            if name not in row:
                raise InputError(f"{where} has no column {name!r}; it has: {', '.join(row)}")
        failing = [text for text, (name, holds) in conditions.items() if not holds(row[name])]
        if failing:
            left_out[f"not {failing[0]}"] += 1
            continue
        text = row[column]
        try:
            score = math.nan if text in (None, "") else float(text)
        except (TypeError, ValueError):
            raise InputError(f"{where}: {column} is {text!r}, not a number") from None
        if not math.isfinite(score):
            left_out[f"no number in {column}"] += 1
            continue
        scores.append(score)
        tasks += [str(row[task])] if task else []
        images.append(
            _image_key(row, where) or f"\n{number}"
        )  # no image name begins with a line feed
        if isinstance(row.get("log_probs"), str):  # in CSV
            row["log_probs"] = parse_json(row["log_probs"], where)
        elif not {"log_probs", "answer_logp"} & row.keys():
            names = _answer_columns(row, scale, where)
            if column in names:
                raise InputError(
                    f"{where}: {column} is the log-probability of an answer, not a rating"
                )
            row = {"log_probs": [row[name] for name in names]}
        rows.append((number, row))
    if not rows:
        raise InputError("; ".join([f"{file} has no usable row", *_left_out(left_out)]))
    blocks = read_blocks(rows, scale, "nan", file, Counter())
    readings = Readings.concat(scale, [block for _, block in blocks])
    groups, image = np.unique(images, return_inverse=True)
    alone = sum(key.startswith("\n") for key in images)
    unit = "images" if alone < len(images) else "rows"
    notes = [f"{unit}: {len(groups):,}"]
    if 0 < alone < len(images):
        notes.append(f"rows without an image, each a group: {alone:,}")
    return JudgedReadings(
        title, readings, image,
        Ratings(np.arange(len(rows)), np.array(scores), np.zeros(len(rows), np.int64)),
        {"readings": file.name, "ratings": column, "where": list(conditions),
         "left_out": dict(left_out),
         "sha256": {each.name: sha256(each) for each in (file, ratings or file)}},
        "; ".join([f"people's scores are {column}", *notes, *_left_out(left_out)]), unit,
        tuple(tasks),
    )  # fmt: skip


def _by_id(file: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for where, row in read_rows(file):
        if found.setdefault(_own_id(row, where), row) is not row:
            raise InputError(f"{where} has the id of an earlier row; average the ratings of a row")
    return found


def _own_id(row: Mapping[str, Any], where: str) -> str:
    cell = first_filled(row, JOINING)
    if not is_filled(cell):
        raise InputError(f"{where} has no {' or '.join(JOINING)} to join readings and ratings by")
    return str(cell)


def _image_key(row: Mapping[str, Any], where: str) -> str:
    """The name or the bytes of a row's image; "" if it has none."""
    columns = PairColumns.among(row, where)
    name = image_name(row, columns) or first_filled(row, columns.image)
    return str(name).strip() if is_filled(name) else ""


def _left_out(counts: Mapping[str, int]) -> list[str]:
    return [f"left out: {count:,}, {why}" for why, count in counts.items()]


def _answer_columns(names: Iterable[str], scale: Scale, where: str) -> list[str]:
    """Find the columns of the answers, which share a prefix or have none.

    >>> from discode._scales import FIVE
    >>> _answer_columns(["id", "lp1", "lp2", "lp3", "lp4", "lp5"], FIVE, "a.csv")
    ['lp1', 'lp2', 'lp3', 'lp4', 'lp5']
    """
    known, first = list(names), scale.answers[0]
    starts = [name.removesuffix(first) for name in known if name.endswith(first)]
    complete = [
        columns
        for start in starts
        if {*(columns := [f"{start}{answer}" for answer in scale.answers])} <= {*known}
    ]
    if len(complete) != 1:
        raise InputError(
            f"{where} has {len(complete) or 'no'} sets of columns for the answers {first} to "
            f"{scale.answers[-1]} of --scale {scale.name}; give log_probs, or one column per "
            f"answer such as logp_{first} (columns: {', '.join(known)})"
        )
    return complete[0]
