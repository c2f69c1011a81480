"""Any other metric: scores from a file, joined to pairs.

The file is CSV, TSV, JSONL, JSON or Parquet, one row per pair. Its columns are ``score`` (or the
one named after ``#``) and either ``id`` or ``image`` and ``caption``; images are found by name as
:class:`~discode._pairs.ImageIndex` says. A row with an id may have a caption, too: it must then be
the pair's.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode._files import csv_text, read_rows, sha256
from discode._image_index import ImageIndex
from discode._pairs import Pair
from discode._signature import Signature
from discode.errors import InputError
from discode.metrics._base import PairMetric, RowScores

_SHOWN = 3


class ScoreFile(PairMetric):
    """Scores from ``PATH`` or ``PATH#column``, joined by id, or by image and caption.

    A pair missing from the file is NaN; a warning on the logger ``discode`` counts them,
    names the first few, and counts the rows that belong to no pair. A file that has none of the
    pairs, or two different scores for one, is an error.
    """

    needs = frozenset({"id"})

    def __init__(self, spec: str | os.PathLike[str]) -> None:
        path, column = os.fspath(spec), ""
        if not Path(path).is_file():  # a "#" may be part of a file's name
            path, _, column = path.partition("#")
        self.path = Path(path)
        self.column = column or "score"
        if not self.path.is_file():
            raise InputError(f"no such file of scores: {self.path}")
        self.rows = _read(self.path, self.column)

    @cached_property
    def signature(self) -> Signature:
        """The file's name and column, and a digest of its content."""
        digest = sha256(self.path)[:8]
        return Signature.of(
            metric="scorefile", file=self.path.name, column=self.column, digest=digest
        )

    def score_rows(self, pairs: Sequence[Pair], repeats: NDArray[np.int64]) -> RowScores:
        """Return the file's score of each of N pairs."""
        by_id = any(pair.id and ("id", pair.id) in self.rows for pair in pairs)
        keys = [("id", pair.id) if by_id else _image_key(pair) for pair in pairs]
        rows = self.rows if by_id else self._by_image(pairs)
        value = np.full(len(pairs), np.nan)
        errors: dict[int, str] = {}
        for number, (pair, key) in enumerate(zip(pairs, keys, strict=True)):
            row = rows.get(key)
            if row is None:
                errors[number] = f"{self.path.name} has no row for {_shown(key)}"
                continue
            score, caption, where = row
            if caption is not None and caption != pair.caption.strip():
                raise InputError(
                    f"{where} has {_shown(key)} with the caption {caption!r}, but the pair's is "
                    f"{pair.caption!r}; the file is about other pairs"
                )
            value[number] = score
            if math.isnan(score):
                errors[number] = f"{where} has no score"
        kind = "id" if by_id else "image"
        joined = {rows[key][2] for key in keys if key in rows}
        self._check_coverage(pairs, [key for key in keys if key not in rows], joined, kind)
        return RowScores(value, errors)

    def _by_image(self, pairs: Sequence[Pair]) -> dict[tuple[str, ...], _Row]:
        paths = dict.fromkeys(_image_key(pair)[1] for pair in pairs)
        index = ImageIndex((path, path) for path in paths if path)
        rows: dict[tuple[str, ...], _Row] = {}
        for (kind, name, *text), row in self.rows.items():
            images = index.find(name) if kind == "image" else []
            if len(images) == 1:
                _keep(rows, (kind, images[0], *text), row)
        return rows

    def _check_coverage(
        self,
        pairs: Sequence[Pair],
        missing: Sequence[tuple[str, ...]],
        joined: set[str],
        kind: str,
    ) -> None:
        if len(missing) == len(pairs):
            raise InputError(
                f"{self.path.name} has none of the {len(pairs)} pairs (looked for "
                f"{_shown(missing[0])}); its rows need 'id', or 'image' and 'caption', an image "
                "with its folder where several have its name"
            )
        extra = sum(key[0] == kind and row[2] not in joined for key, row in self.rows.items())
        if missing or extra:
            shown = ", ".join(map(_shown, missing[:_SHOWN])) + ("..." * (len(missing) > _SHOWN))
            logging.getLogger("discode").warning(
                "%s has no score for %d of %d pairs%s; %d of its rows match no pair",
                self.path.name, len(missing), len(pairs), f" ({shown})" if missing else "", extra,
            )  # fmt: skip


_Row = tuple[float, str | None, str]
"""Score, caption where an id could point at the wrong pair, and the place in the file."""


def read_scores(path: Path, column: str = "score") -> Iterator[tuple[str, dict[str, Any], float]]:
    """Yield where each row of a score file is, the row, and its score; NaN where it has none."""
    for where, row in read_rows(path):
        if column not in row:
            raise InputError(f"{where} has no column {column!r}; it has {', '.join(map(str, row))}")
        score = _number(row[column], where, column)
        if path.suffix.lower() == ".csv":  # an apostrophe before what a spreadsheet would compute
            row = {k: csv_text(v) if isinstance(v, str) else v for k, v in row.items()}
        yield where, row, score


def _read(path: Path, column: str) -> dict[tuple[str, ...], _Row]:
    rows: dict[tuple[str, ...], _Row] = {}
    for where, row, score in read_scores(path, column):
        caption = row.get("caption")
        text = None if caption is None else str(caption).strip()
        keys: list[tuple[str, ...]] = []
        if row.get("id") not in (None, ""):
            keys.append(("id", str(row["id"])))
        if row.get("image") not in (None, "") and text is not None:
            keys.append(("image", str(row["image"]), text))
        if not keys:
            raise InputError(f"{where} has neither 'id' nor 'image' and 'caption'")
        for key in keys:
            try:
                _keep(rows, key, (score, text, where))
            except InputError:
                if key is keys[0]:
                    raise
                # The id distinguishes them; an image and a caption do not.
                rows[key] = (math.nan, text, f"{where}, as other lines with other ids,")
    if not rows:
        raise InputError(f"{path} has no scores")
    return rows


def _keep(rows: dict[tuple[str, ...], _Row], key: tuple[str, ...], row: _Row) -> None:
    """Add a row, or raise where another row has a different score."""
    score, _, where = row
    before = rows.setdefault(key, row)
    if before[0] != score and not (math.isnan(before[0]) and math.isnan(score)):
        raise InputError(
            f"{where} scores {_shown(key)} {score:g}, but {before[2]} has {before[0]:g}"
        )


def _number(value: Any, where: str, column: str) -> float:
    if value is None or (isinstance(value, str) and not value.strip()):
        return math.nan
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{where}: {column} is {value!r}, which is not a number") from None
    if math.isinf(number):
        raise InputError(f"{where}: {column} is {value!r}; a score is finite, or empty")
    return number


def _image_key(pair: Pair) -> tuple[str, ...]:
    path = os.fspath(pair.image) if isinstance(pair.image, str | os.PathLike) else ""
    return ("image", path, pair.caption.strip())


def _shown(key: tuple[str, ...]) -> str:
    return f"id {key[1]!r}" if key[0] == "id" else f"{key[1]!r} with {key[2]!r}"
