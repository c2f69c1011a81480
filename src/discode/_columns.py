"""The columns of tables: which of them hold what a pair has, and what their cells hold."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from discode._files import parse_json
from discode.errors import InputError, suggest
from discode.images import IMAGE_SUFFIXES

# Column names met in the wild, in the order they are tried; capitals, blanks and hyphens do not
# count, so that "Image Path" is image_path.
IMAGE_COLUMNS = (
    "image", "image_path", "file_name", "filename", "image_name", "image_file", "img", "img_path",
    "path", "image_id",
)  # fmt: skip
CAPTION_COLUMNS = (
    "caption", "candidate", "text", "prediction", "sentence", "description", "comment",
)  # fmt: skip
REFERENCE_COLUMNS = ("references", "refs", "reference")
ID_COLUMNS = ("id",)
_KNOWN = {*IMAGE_COLUMNS, *CAPTION_COLUMNS, *REFERENCE_COLUMNS, *ID_COLUMNS}


@dataclass(frozen=True)
class PairColumns:
    """Which columns of a table, as it calls them, hold what a pair has; the first that is filled.

    >>> PairColumns.among(["Image ID", "File-Name", "Caption", "url"]).image
    ('File-Name', 'Image ID')
    """

    image: tuple[str, ...]
    caption: tuple[str, ...]
    references: tuple[str, ...]
    id: tuple[str, ...]
    numbered: bool
    """Whether the last image column is COCO's ``image_id``, which holds numbers."""

    @classmethod
    def among(cls, names: Iterable[str], where: object = "") -> PairColumns:
        """Find them; two that differ in capitals only, or in nothing, are refused.

        ``where`` begins the message.
        """
        try:
            return _columns_among(tuple(names))
        except InputError as error:
            raise InputError(f"{where}: {error}" if where else str(error)) from None


@lru_cache(maxsize=64)  # the rows of a table mostly have the same
def _columns_among(names: tuple[str, ...]) -> PairColumns:
    by_plain_name: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[\s-]+", "_", str(name).strip().lower())
        if plain in by_plain_name and plain in _KNOWN:
            raise InputError(
                f"the columns {by_plain_name[plain]!r} and {name!r} mean the same; rename or "
                "remove one of them"
            )
        by_plain_name[plain] = name
    kinds = (IMAGE_COLUMNS, CAPTION_COLUMNS, REFERENCE_COLUMNS, ID_COLUMNS)
    image, caption, references, ids = (
        tuple(by_plain_name[name] for name in kind if name in by_plain_name) for kind in kinds
    )
    return PairColumns(image, caption, references, ids, "image_id" in by_plain_name)


def columns_without_header(cells: Sequence[str]) -> tuple[str, str] | None:
    """Return the columns of a table that begins with a row: an image and a caption; else None.

    >>> columns_without_header(["dog.jpg", "a dog"]), columns_without_header(["image", "caption"])
    (('image', 'caption'), None)
    """
    if len(cells) == 2 and cells[0].lower().endswith(IMAGE_SUFFIXES):
        return "image", "caption"
    return None


def row_id(row: Mapping[str, Any], columns: PairColumns, number: str, prefix: str = "") -> str:
    """Return the id of a row: its own, else its COCO number after ``prefix``, else ``number``."""
    id_cell = first_filled(row, columns.id)
    if is_filled(id_cell):
        return str(id_cell)
    coco = row.get(columns.image[-1]) if columns.numbered else None
    return f"{prefix}{coco}" if is_filled(coco) else number


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: None, or the NaN that pandas puts there.

    >>> is_missing(None), is_missing(float("nan")), is_missing("")
    (True, True, False)
    """
    return value is None or (isinstance(value, float) and math.isnan(value))


def is_filled(cell: Any) -> bool:
    """Whether a cell of a table holds anything; a blank cell of CSV is an empty text.

    >>> is_filled(0), is_filled(" "), is_filled(None)
    (True, False, False)
    """
    return bool(cell.strip()) if isinstance(cell, str) else not is_missing(cell)


def first_filled(row: Mapping[str, Any], names: Iterable[str]) -> Any:
    """Return the first of some fields of a row that is filled; else the first that is not None."""
    cells = [cell for name in names if (cell := row.get(name)) is not None]
    return next(filter(is_filled, cells), cells[0] if cells else None)


def image_name(row: Mapping[str, Any], columns: PairColumns) -> str | None:
    """Return what a row calls its image; None where it has the bytes only, or no image."""
    image = first_filled(row, columns.image)
    if isinstance(image, str):
        return image
    if isinstance(image, Mapping):
        image = image.get("path")
    if isinstance(image, float) and image.is_integer():
        image = int(image)  # a column of numbers with gaps
    return None if image is None or isinstance(image, bytes | InputError) else str(image)


def reference_list(cell: Any, where: str) -> list[Any]:
    """Return a cell of references: a list; as text, a JSON or Python list, or one reference."""
    if isinstance(cell, str) and cell:
        listed = cell.lstrip().startswith("[")
        try:
            cell = parse_json(cell, f"{where}: references") if listed else [cell]
        except InputError:
            with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                cell = ast.literal_eval(cell.strip())
            if not isinstance(cell, list):
                raise
    if cell and not isinstance(cell, list):
        raise InputError(f"{where}: references must be a list, not {cell!r}")
    return cell or []


def filled_field(
    row: Mapping[str, Any], names: tuple[str, ...], allowed: tuple[str, ...], where: str
) -> Any:
    """Return the cell of a row that a pair must have; raise where there is none."""
    value = first_filled(row, names)
    if value is None:
        if names:
            raise InputError(f"{where}: {names[0]!r} is empty (null)")
        raise InputError(f"{where} {lacking(allowed, row)}")
    return value


def lacking(allowed: Sequence[str], names: Iterable[Any], what: str = "") -> str:
    """Word that none of the ``allowed`` columns is among the ``names``; ``what`` they are called.

    >>> lacking(("image", "file_name"), ["imge", "url"], "column ")
    "has no column 'image' (nor file_name); did you mean 'imge'? It has: imge, url"
    """
    columns = list(map(str, names))
    near = suggest(allowed[0], columns)
    hint = f"{near} It has:" if near else "; it has:"
    others = f"{what}{allowed[0]!r} (nor {', '.join(allowed[1:])})"
    return f"has no {others}{hint} {', '.join(columns) or 'nothing'}"
