"""Score files: all columns of scores with a version, whatever the input, output and engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from discode._scores import COLUMNS, Scores
from discode.errors import InputError

VERSION = 6
"""Version of the columns: in the manifest of a run, and in the metadata of Parquet."""

ScoredRows = Mapping[str, Scores]
"""Rows of an input with their scores by every method."""


def holds_scores(names: Iterable[str]) -> bool:
    """Whether a table with these columns is a file of scores.

    >>> holds_scores(COLUMNS), holds_scores(["id", "image", "caption", "score"])
    (True, False)
    """
    return {"method", "score", "raw", "flags", "signature"} <= set(names)


def markdown_table() -> str:
    rows = (f"| `{name}` | {column.about} |" for name, column in COLUMNS.items())
    return "\n".join(["| column | meaning |", "| --- | --- |", *rows])


def file_columns(scores: ScoredRows) -> dict[str, list[Any]]:
    """Return the columns of a score file, a row per item and method, None for nothing."""
    by_method = []
    for method, each in scores.items():
        none = [None] * len(each)
        columns = {name: column.take(each) or none for name, column in COLUMNS.items()}
        by_method.append(columns | {"method": [method] * len(each)})
    return {
        name: list(chain.from_iterable(zip(*(each[name] for each in by_method), strict=True)))
        for name in COLUMNS
    }


def join_rows(parts: Sequence[ScoredRows], order: Sequence[int]) -> dict[str, Scores]:
    """Return some rows of several parts; ``order`` has their numbers, part after part."""
    numbers = range(sum(len(next(iter(part.values()))) for part in parts))
    return {name: Scores.join([part[name] for part in parts], numbers)[order] for name in parts[0]}


def lowest_rows(parts: Sequence[ScoredRows], by: str, top: int | None = None) -> dict[str, Scores]:
    """Return the rows with the lowest values of the first method, those without one last.

    ``by`` is the score, raw or smoothing.
    """
    field = "value" if by == "score" else by
    values = [getattr(next(iter(part.values())), field) for part in parts]
    if any(value is None for value in values):
        raise InputError(f"cannot sort by {by}: this method has no such column")
    return join_rows(parts, np.argsort(np.concatenate(values), kind="stable")[:top].tolist())
