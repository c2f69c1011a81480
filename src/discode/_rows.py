"""Rows of tables in memory, scored: a ``pandas.DataFrame``, the batches of ``datasets``."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from discode._columns import PairColumns, image_name, is_missing
from discode._pairs import Pair, PairParser, pair_from
from discode._scores import COLUMNS, Metric, Scores
from discode.errors import InputError, lookup, require

MAP_COLUMNS = ("score", "raw", "error", "signature")
"""The columns that ``Dataset.map`` adds."""
FRAME_COLUMNS = [name for name, each in COLUMNS.items() if each.scored or name == "signature"]
"""The columns that a frame gets, as far as the metric has them."""


def score_columns(
    metric: Metric,
    images: Sequence[Any],
    captions: Sequence[Any],
    references: Sequence[Any] | None = None,
    folder: str | os.PathLike[str] | None = None,
    *,
    annotations: str | os.PathLike[str] | None = None,
    numbered: bool = False,
    partial: bool = False,
) -> Scores:
    """Score N rows, given as columns; a row without a valid pair is NaN, with the reason.

    It is an error if most images are ids that lead to no single file, unless the rows are
    ``partial``: a few of a table.

    Args:
        metric: A judge, or another metric.
        images: Paths, names or COCO's numbers of images in ``folder``, bytes, open images, or what
            ``datasets`` stores: ``{"bytes": ..., "path": ...}``.
        captions: Texts.
        references: A list of texts per row, or one text.
        folder: Where images are found.
        annotations: COCO's annotations, which give image ids their files.
        numbered: Whether texts in ``images`` may be COCO's numbers, too; numbers always are.
        partial: Whether they are some rows of a table.
    """
    if isinstance(captions, str) or isinstance(images, str | bytes):
        raise InputError(
            "images and captions are columns, a list each; put a single one into a list"
        )
    groups = [None] * len(captions) if references is None else references
    lengths = {"images": len(images), "captions": len(captions), "references": len(groups)}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise InputError(f"columns must be equally long, not {counts}")
    parser = PairParser(folder, annotations)
    pairs: list[Pair] = []
    for number, (image, caption, group) in enumerate(zip(images, captions, groups, strict=True)):
        try:
            pairs.append(_pair_of(parser, image, caption, group, number, numbered))
        except InputError as error:
            pairs.append(Pair("", "", (), str(number), str(error)))
    if not partial:
        parser.check_ids("images")
    return metric.score_pairs(pairs)


def _pair_of(
    parser: PairParser, image: Any, caption: Any, references: Any, number: int, numbered: bool
) -> Pair:
    where = f"row {number}"
    for what, value in (("image", image), ("caption", caption)):
        if is_missing(value):
            raise InputError(f"{where} has no {what}")
    if is_missing(references):
        references = []
    elif not isinstance(references, str):
        references = list(references)  # a column of lists may hold arrays
    if isinstance(image, str | os.PathLike | numbers.Integral | bytes | Mapping):
        column = "image_id" if numbered else "image"
        row = {column: image, "caption": caption, "references": references}
        return parser.parse(row, where, str(number))
    references = (references,) if isinstance(references, str) else references
    return pair_from(image, caption, references, where=where, name=str(number))


class RowOptions(TypedDict, total=False):
    """The columns of a table; see the attributes of :class:`RowScorer`."""

    image: str
    caption: str
    references: str | None
    images: str | os.PathLike[str] | None
    annotations: str | os.PathLike[str] | None
    prefix: str


@dataclass(frozen=True)
class RowScorer:
    """Scores the rows of a table, whose columns it knows by name.

    Attributes:
        metric: A judge, or another metric.
        image: The column of images, as :func:`score_columns` takes them.
        caption: The column of captions.
        references: The column of references; None to use none.
        images: The folder in which images are found by name, or by COCO's number; the new column
            ``file`` has those that the table names otherwise.
        annotations: COCO's annotations, which give image ids their files.
        prefix: What the names of new columns begin with.
    """

    metric: Metric
    image: str = "image"
    caption: str = "caption"
    references: str | None = None
    images: str | os.PathLike[str] | None = None
    annotations: str | os.PathLike[str] | None = None
    prefix: str = ""

    def __post_init__(self) -> None:
        # A judge keeps its signature when it is first asked for. Asked now, what `datasets` makes a
        # fingerprint of is the same before the first call and after it.
        _ = self.metric.signature

    def __call__(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Return the new columns of a batch (a list per column), or of one row."""
        self._check(rows, MAP_COLUMNS)
        text = rows[self.caption]
        single = isinstance(text, str) or not hasattr(text, "__len__")
        scores = self._score(
            {name: [rows[name]] if single else rows[name] for name in self._names()}, partial=True
        )
        return {
            self.prefix + name: column[0] if single else column
            for name, column in ((name, _filled(scores, name)) for name in self._new(MAP_COLUMNS))
        }

    def frame(self, frame: Any) -> Any:
        """Return a copy of a ``pandas.DataFrame`` with columns of ``Scores.to_pandas`` added."""
        if not isinstance(frame, require("pandas", "pandas").DataFrame):
            raise InputError(f"frame is a pandas.DataFrame, not {type(frame).__name__}")
        self._check(frame, FRAME_COLUMNS)
        scores = self._score({name: frame[name].tolist() for name in self._names()})
        columns = scores.to_pandas()
        new = [name for name in self._new(FRAME_COLUMNS) if name in columns]
        return frame.assign(**{self.prefix + name: columns[name].array for name in new})

    def _names(self) -> list[str]:
        return [name for name in (self.image, self.caption, self.references) if name is not None]

    def _new(self, columns: Iterable[str]) -> list[str]:
        """Return the new columns, with the files that were opened where images have a folder."""
        return [*columns] if self.images is None else ["file", *columns]

    def _score(self, columns: Mapping[str, Sequence[Any]], partial: bool = False) -> Scores:
        references = None if self.references is None else columns[self.references]
        scores = score_columns(
            self.metric, columns[self.image], columns[self.caption], references, self.images,
            annotations=self.annotations, numbered=PairColumns.among([self.image]).numbered,
            partial=partial,
        )  # fmt: skip
        if self.images is None:
            return scores
        known = PairColumns.among(["image"])
        names = (image_name({"image": image}, known) for image in columns[self.image])
        return replace(scores, names=tuple(names))

    def _check(self, table: Any, new: Any) -> None:
        """Raise where a column is missing, or where a new one would overwrite an existing one."""
        have = list(table)
        for option in ("image", "caption", "references"):
            if (name := getattr(self, option)) is None:
                continue
            also = f"; name the column: {option}=COLUMN"
            lookup({str(known): known for known in have}, name, "column", also)
            if have.count(name) > 1:
                raise InputError(f"{have.count(name)} columns are called {name!r}; rename them")
        for name in self._new(new):
            if self.prefix + name in have:
                raise InputError(
                    f"column {self.prefix + name!r} already exists; drop it, or give another "
                    "prefix, such as prefix='discode_'"
                )


def _filled(scores: Scores, name: str) -> list[Any]:
    """Return a column without None: Arrow has one type for all batches, some of which hold none."""
    column = COLUMNS[name]
    empty = math.nan if column.kind == "number" else ""
    return [
        empty if value is None else value for value in column.take(scores) or [empty] * len(scores)
    ]
