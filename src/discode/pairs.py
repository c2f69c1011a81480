"""Image-caption pairs: the type, and pairs from objects and from files."""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, Generic, TypeVar

from PIL import Image

from discode.arrays import as_numpy, is_array
from discode.errors import BadDataError, InputError, count_of, shortened, suggest
from discode.files import coco_files, coco_id, parse_json, read_rows
from discode.images import (
    IMAGE_SUFFIXES,
    KEPT_BYTES,
    ImageInput,
    ImageSource,
    SharedImage,
    as_image,
)

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
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pair:
    """An image, a caption to judge, and references where there are any.

    Where ``problem`` says why it cannot be judged, a judge asks no model and the row fails with it.

    >>> Pair("dog.jpg", "a dog runs").references
    ()
    """

    image: ImageSource
    caption: str
    references: tuple[str, ...] = ()
    id: str = ""
    problem: str = ""

    def __post_init__(self) -> None:
        if type(self.image) is not str and not isinstance(self.image, str | bytes | SharedImage):
            object.__setattr__(self, "image", as_image(self.image))


PairInput = Pair | tuple[Any, ...] | Mapping[str, Any]
"""A pair, (image, caption) or (image, caption, references), or a dictionary with these names."""


def as_pairs(pairs: Iterable[PairInput]) -> list[Pair]:
    """Return pairs that may also be given as tuples or dictionaries.

    One whose caption or image is missing (None, NaN), or whose pixels are NaN, has a ``problem``;
    what is no pair at all raises.

    >>> as_pairs([("dog.jpg", "a dog"), {"image": "cat.jpg", "caption": "a cat"}])[1].caption
    'a cat'
    """
    _check_ordered(pairs, "pairs are a list of pairs")
    return [
        pair if isinstance(pair, Pair) else _as_pair(pair, str(number))
        for number, pair in enumerate(pairs)
    ]


def _check_ordered(items: Any, wanted: str) -> None:
    """Raise unless something has an order, so that scores can have it, too."""
    if isinstance(items, str | bytes | Mapping | set | frozenset) or not isinstance(
        items, Iterable
    ):
        raise InputError(f"{wanted}, not {type(items).__name__}")


def _as_pair(item: Any, number: str) -> Pair:
    name = number
    if isinstance(item, Mapping):
        where, columns = f"pair {number}", PairColumns.among(item)
        name = row_id(item, columns, number)
        references = first_filled(item, columns.references)
        kinds = ((columns.image, IMAGE_COLUMNS), (columns.caption, CAPTION_COLUMNS))
        for names, allowed in kinds:
            if not names:
                raise InputError(f"{where} {lacking(allowed, item)}")
        image, caption = (first_filled(item, names) for names, _ in kinds)
        item = (image, caption, references)
    if not isinstance(item, tuple | list) or len(item) not in (2, 3):
        raise InputError(
            f"pair {number} is {type(item).__name__}; give discode.Pair, (image, caption), "
            '(image, caption, references) or {"image": ..., "caption": ...}'
        )
    references = () if len(item) == 2 or item[2] is None else item[2]
    _check_ordered(references, f"pair {number}: references must be a list of captions")
    image, caption = item[:2]
    try:
        return pair_from(image, caption, references, where=f"pair {number}", name=name)
    except BadDataError as error:
        known = image if isinstance(image, str | os.PathLike) else ""
        return Pair(known, caption if isinstance(caption, str) else "", (), name, str(error))


def check_characters(*texts: str) -> None:
    """Raise :class:`InputError` for half a character, which no file and no model can hold.

    >>> check_characters("a \\ud800 cat")
    Traceback (most recent call last):
    discode.errors.InputError: 'a \\ud800 cat' contains half a character (a lone surrogate)
    """
    for text in texts:
        if not text.isascii() and text.encode(errors="replace").decode() != text:
            raise InputError(f"{text!r} contains half a character (a lone surrogate)")


def is_blank(text: str) -> bool:
    """Whether there is nothing to see in a text, be it spaces or characters without any width.

    >>> is_blank(" \\u200b\\ufeff"), is_blank("\\u200ba cat")
    (True, False)
    """
    first = text[:1]
    if first.isascii() and first.isalnum():  # most texts: quickly
        return False
    return all(unicodedata.category(c) in _UNSEEN or c in _FILLERS for c in text)


_UNSEEN = ("Cc", "Cf", "Mn", "Zl", "Zp", "Zs")
_FILLERS = "\u115f\u1160\u2800\u3164\uffa0"  # letters of Hangul and Braille that are blank


def group_by_image(pairs: Iterable[Pair | None]) -> list[list[int]]:
    """Return the numbers of the pairs of each image, in order of appearance; None has no image.

    >>> group_by_image([Pair("a.jpg", "x"), Pair("b.jpg", "y"), None, Pair("a.jpg", "z")])
    [[0, 3], [1]]
    """
    groups: dict[Any, list[int]] = {}
    for number, pair in enumerate(pairs):
        if pair is not None:
            image = pair.image
            key = id(image) if isinstance(image, Image.Image) else image
            groups.setdefault(key, []).append(number)
    return list(groups.values())


def batches_by_image(pairs: Sequence[Pair], size: int) -> list[list[int]]:
    """Cut the numbers of pairs into batches of at most ``size``, those of an image together.

    Only an image with more pairs than ``size`` is cut.

    >>> images = [Pair(name, "") for name in "aabcbbb"]
    >>> batches_by_image(images, 3)
    [[0, 1], [2, 4, 5], [6, 3]]
    """
    batches: list[list[int]] = []
    batch: list[int] = []
    for group in group_by_image(pairs):
        if batch and len(batch) + len(group) > size:
            batches.append(batch)
            batch = []
        batch = [*batch, *group]
        while len(batch) > size:
            batches.append(batch[:size])
            batch = batch[size:]
    return [*batches, batch] if batch else batches


def share_images(
    pairs: Sequence[Pair], *, references: bool = True, digested: bool = False
) -> list[Pair]:
    """Return the pairs of a batch as a model is asked about them.

    An image that several of them show, or that is ``digested`` besides, is read once; references
    are left out unless ``references``; a pair whose texts cannot be judged has a ``problem``.

    >>> first, second = share_images([Pair("dog.jpg", "a dog"), Pair("dog.jpg", " ")])
    >>> first.image is second.image, second.problem
    (True, 'the caption is empty')
    """
    budget = [KEPT_BYTES]
    keys = [id(p.image) if isinstance(p.image, Image.Image) else p.image for p in pairs]
    images: dict[Any, ImageSource] = dict(zip(keys, (p.image for p in pairs), strict=True))
    if digested or len(images) < len(pairs):
        for key, image in images.items():
            if not isinstance(image, bytes | SharedImage):
                images[key] = SharedImage(image, budget)
    shared = []
    for key, pair in zip(keys, pairs, strict=True):
        texts, problem = pair.references if references else (), pair.problem
        if not problem and is_blank(pair.caption):
            problem = "the caption is empty"
        if not problem and not (pair.caption + "".join(texts)).isascii():
            try:
                check_characters(pair.caption, *texts)
            except InputError as error:
                problem = str(error)
        shared.append(Pair(images[key], pair.caption, texts, pair.id, problem))
    return shared


def references_among(pairs: Sequence[Pair], *, taken: bool) -> str:
    """Return what a signature says of the references of pairs.

    That "all", "some" or "none" of them have any, or that they are "ignored", not being ``taken``.
    """
    having = sum(bool(pair.references) for pair in pairs)
    if having and not taken:
        return "ignored"
    return {len(pairs): "all", 0: "none"}.get(having, "some")


def make_pairs(
    images: ImageInput | Sequence[ImageInput],
    captions: str | Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]] | None = None,
) -> list[Pair]:
    """Pair images with captions: one with one, one with many, or many with as many.

    An image is a path, the bytes of a file, an open file, a PIL image, or an array or tensor
    (H, W), (H, W, C) or (C, H, W) of uint8 or of floats from 0 to 1; an array of four dimensions
    is a batch of them. ``references`` is one list per pair, or one list for all captions of a
    single image.

    >>> [pair.caption for pair in make_pairs("dog.jpg", ["a dog", "a cat"])]
    ['a dog', 'a cat']
    """
    return [
        pair_from(image, caption, group, where=f"pair {number}", name=str(number))
        for number, (image, caption, group) in enumerate(pair_up(images, captions, references))
    ]


def pair_up(
    images: ImageInput | Sequence[ImageInput],
    captions: str | Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]] | None = None,
) -> list[tuple[Any, Any, Iterable[Any]]]:
    """Return (image, caption, references) as :func:`make_pairs` takes them, not looked at yet.

    >>> pair_up("dog.jpg", ["a dog", None])
    [('dog.jpg', 'a dog', ()), ('dog.jpg', None, ())]
    """
    if not isinstance(captions, str | list) and is_array(captions):
        captions = as_numpy(captions).tolist()  # one text, where it has no dimension
    if not isinstance(captions, str):
        _check_ordered(captions, "captions are a text or a list of texts")
    texts = [captions] if isinstance(captions, str) else list(captions)
    if not isinstance(images, str | list) and is_array(images):
        array = as_numpy(images)
        # A batch of images, or a column of names, as a data frame has them.
        images = list(array) if array.ndim == 4 else array.tolist() if array.ndim == 1 else array
    several = isinstance(images, Sequence)
    one_image = not several or isinstance(images, str | bytes | bytearray | memoryview)
    each: list[Any] = [_once(images)] * len(texts) if one_image else list(images)  # type: ignore[arg-type]  # a sequence, as was just checked
    if len(each) != len(texts):
        raise InputError(
            f"{count_of(len(each), 'image')} and {count_of(len(texts), 'caption')} do not pair up; "
            "give one image, or as many images as captions"
        )
    if not texts:
        raise InputError("no captions given; pass at least one")
    if references is None:
        groups: list[Any] = [()] * len(texts)
    else:
        _check_ordered(references, "references must be a list of captions")
        shared = all(isinstance(item, str) for item in references) and one_image
        groups = [references] * len(texts) if shared else list(references)
    groups = [() if group is None else group for group in groups]
    groups = [(group,) if not isinstance(group, str | Iterable) else group for group in groups]
    if len(groups) != len(texts) or any(
        isinstance(group, str | set | frozenset) for group in groups
    ):
        raise InputError(
            f"references must be one list of captions per pair: {len(texts)} lists are needed"
        )
    return list(zip(each, texts, groups, strict=True))


def _once(image: ImageInput) -> Any:
    """Return an image of several captions as one of the kinds that are passed on."""
    try:
        return image if isinstance(image, str) else as_image(image)
    except BadDataError:
        return image  # each of its pairs says so


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: None, or the NaN that pandas puts there.

    >>> is_missing(None), is_missing(float("nan")), is_missing("")
    (True, True, False)
    """
    return value is None or (isinstance(value, float) and math.isnan(value))


def pair_from(
    image: Any, caption: Any, references: Iterable[Any], *, where: str, name: str
) -> Pair:
    """Return a pair of what somebody has; every pair of foreign data is made here.

    ``where`` begins messages, and ``name`` is the pair's id. Raises
    :class:`~discode.errors.BadDataError` where something is missing (None, NaN), and
    :class:`~discode.errors.InputError` where it is no image or no text.

    >>> pair_from("dog.jpg", None, (), where="row 3", name="3")
    Traceback (most recent call last):
    discode.errors.BadDataError: row 3: the caption is missing (None)
    """
    refs = tuple(references)
    if type(image) is str and type(caption) is str and not refs:  # most pairs: quickly
        return Pair(image, caption, refs, name)
    texts = (caption, *refs)
    for what, value in ("image", image), ("caption", caption), *(("reference", r) for r in refs):
        if is_missing(value):
            raise BadDataError(f"{where}: the {what} is missing ({value})")
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"{where}: a caption must be text, got {text!r}")
    try:
        return Pair(image, caption, refs, name)
    except InputError as error:
        raise type(error)(f"{where}: {error}") from None


def read_pairs(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    annotations: str | os.PathLike[str] | None = None,
) -> list[Pair]:
    """Read pairs from CSV, TSV, JSONL, Parquet, or JSON (COCO results, annotations, or any list).

    Rows have an image, a caption, and optionally references (a list, in CSV a JSON list) and
    an id. ``images`` and ``annotations`` are those of :class:`PairParser`. A pair whose image id
    leads to no single file has a ``problem``; it is an error if most pairs do.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"no such file: {path}")
    parser = PairParser(images, annotations)
    pairs = [
        parser.parse(row, where, row_id(row, PairColumns.among(row, where), str(number)))
        for number, (where, row) in enumerate(read_rows(path, columns_without_header))
    ]
    if not pairs:
        raise InputError(f"{path} holds no pairs")
    parser.check_ids(path)
    return pairs


def columns_without_header(cells: Sequence[str]) -> tuple[str, str] | None:
    """Return the columns of a table that begins with a row: an image and a caption; else None.

    >>> columns_without_header(["dog.jpg", "a dog"]), columns_without_header(["image", "caption"])
    (('image', 'caption'), None)
    """
    if len(cells) == 2 and cells[0].lower().endswith(IMAGE_SUFFIXES):
        return "image", "caption"
    return None


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


_KNOWN = {*IMAGE_COLUMNS, *CAPTION_COLUMNS, *REFERENCE_COLUMNS, *ID_COLUMNS}


class PairParser:
    """Makes pairs from the rows of a table, whatever their columns are called.

    Args:
        images: The folder that image names are found in. Names that lead out of it are refused: a
            table may come from anybody. What a link inside it points at is read, since the links
            are those of the folder's owner. Without a folder, names are opened as they are.
        annotations: A JSON file of COCO, whose ``images`` give each id its ``file_name``.

    A name is that of a file. Only a number, or a value of the column ``image_id``, is an image id.
    Annotations give its file; without them it is the file with this name, or else the one whose
    stem is this number, perhaps after zeros, or ends in ``_`` and the number.

    >>> PairParser().parse({"image": "dog.jpg", "candidate": "a dog"}, "line 2", "0").caption
    'a dog'
    """

    def __init__(
        self,
        images: str | os.PathLike[str] | None = None,
        annotations: str | os.PathLike[str] | None = None,
    ) -> None:
        self._folder = None if images is None else Path(images)
        if self._folder is not None and not self._folder.is_dir():
            raise InputError(f"images: {self._folder} is not a folder")
        self._root = "" if images is None else os.path.join(os.path.abspath(images), "")  # noqa: PTH100, PTH118
        self._numbers: dict[str, list[str]] | None = None
        self._files = None if annotations is None else coco_files(annotations)
        self._annotations = annotations
        self._last: tuple[Any, bool, str, str] = (None, False, "", "")
        self._rows = self._unknown = 0

    def parse(self, row: Mapping[str, Any], where: str, name: str) -> Pair:
        """Return the pair of a row, or raise with what it lacks; ``name`` is its id.

        A pair whose image id leads to no single file has a ``problem``.
        """
        self._rows += 1
        problem = ""
        columns = PairColumns.among(row, where)
        image = _field(row, columns.image, IMAGE_COLUMNS, where)
        if not isinstance(image, str) and isinstance(image, Mapping):
            # As `datasets` writes images: {"bytes": ..., "path": ...}
            image = next((image[k] for k in ("bytes", "path") if image.get(k) is not None), "")
        references = reference_list(first_filled(row, columns.references), where)
        if not isinstance(image, bytes):
            by_id = columns.numbered and not is_filled(first_filled(row, columns.image[:-1]))
            image, problem = self._path(image, where, by_id)
            self._unknown += bool(problem)
        caption = _field(row, columns.caption, CAPTION_COLUMNS, where)
        pair = pair_from(image, caption, references, where=where, name=name)
        return replace(pair, problem=f"{where}: {problem}") if problem else pair

    def check_ids(self, name: object) -> None:
        """Raise where the image ids of most rows so far lead to no single file.

        ``name`` is the table's.
        """
        if 2 * self._unknown > self._rows:
            why = f"match no single file in {self._folder}; give --annotations FILE"
            if self._annotations is not None:
                why = f"are not in {self._annotations}; give the annotations of these images"
            raise InputError(f"{name}: {self._unknown} of {self._rows} image ids {why}")

    def _path(self, image: Any, where: str, by_id: bool) -> tuple[str, str]:
        # The captions of an image mostly come together; True is no image, though it equals 1.
        last, last_by_id, *_ = self._last
        if type(image) is not type(last) or image != last or by_id is not last_by_id:
            self._last = (image, by_id, *self._find(image, where, by_id))
        return self._last[2:]

    def _find(self, image: Any, where: str, by_id: bool) -> tuple[str, str]:
        """Return the path of an image, and why it is unknown if its id leads to no single file."""
        if isinstance(image, InputError):  # of COCO's annotations
            raise image
        if isinstance(image, float) and image.is_integer():
            image = int(image)  # a column of numbers with gaps
        elif isinstance(image, os.PathLike):  # of a frame in memory
            image = os.fspath(image)
        if not isinstance(image, str | int) or isinstance(image, bool):
            raise InputError(
                f"{where}: an image is a file name or a number, not {shortened(image)}"
            )
        name = str(image)
        if not name.strip():
            raise InputError(f"{where} has an empty image name")
        problem = ""
        if by_id or isinstance(image, int):
            found, problem = self._of_id(image)
            name = name if problem else found
        return self._below_folder(name, where), problem

    def _of_id(self, image: str | int) -> tuple[str, str]:
        """Return the name of an image by its id, or why it is unknown."""
        name = str(image)
        if self._files is not None:
            file = self._files.get(coco_id(image))
            if isinstance(file, str) and file:
                return file, ""
            unknown = f"no image in {self._annotations} has the id {name} and a file_name"
            return "", unknown if file is None or file == "" else str(file)
        if self._folder is None or not re.fullmatch(r"\d{1,18}", name):
            return name, ""
        if (self._folder / name).is_file():
            return name, ""
        if self._numbers is None:
            self._numbers = _by_number(self._folder)
        files = self._numbers.get(str(int(name)), [])
        if len(files) == 1:
            return files[0], ""
        which = f"matches {files[0]} and {files[1]}" if files else "matches no file"
        return "", f"image id {name} {which} in {self._folder}"

    def _below_folder(self, name: str, where: str) -> str:
        if self._folder is None or re.match(r"\w+://", name):  # addresses are refused when opened
            return name
        if ".." not in name and not os.path.isabs(name):  # noqa: PTH117  # most of them: quickly
            return str(self._folder / name)
        path = os.path.normpath(self._folder / name)  # a Path would keep ".."
        if not os.path.abspath(path).startswith(self._root):  # noqa: PTH100  # as above
            raise InputError(
                f"{where}: {name!r} leads out of the folder of images, {self._folder}; point "
                "--images at a folder that holds it"
            )
        return path


def row_id(row: Mapping[str, Any], columns: PairColumns, number: str, prefix: str = "") -> str:
    """Return the id of a row: its own, else its COCO number after ``prefix``, else ``number``."""
    id_cell = first_filled(row, columns.id)
    if is_filled(id_cell):
        return str(id_cell)
    coco = row.get(columns.image[-1]) if columns.numbered else None
    return f"{prefix}{coco}" if is_filled(coco) else number


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
    """Return a cell of references: a list, in a text a JSON list, or one reference; or nothing."""
    if isinstance(cell, str) and cell:
        listed = cell.lstrip().startswith("[")
        cell = parse_json(cell, f"{where}: references") if listed else [cell]
    if cell and not isinstance(cell, list):
        raise InputError(f"{where}: references must be a list, not {cell!r}")
    return cell or []


def _field(
    row: Mapping[str, Any], names: tuple[str, ...], allowed: tuple[str, ...], where: str
) -> Any:
    value = first_filled(row, names)
    if value is None:
        if names:
            raise InputError(f"{where}: {names[0]!r} is empty (null)")
        raise InputError(f"{where} {lacking(allowed, row)}")
    return value


def lacking(allowed: Sequence[str], names: Iterable[Any], what: str = "") -> str:
    """Say that none of the ``allowed`` columns is among the ``names``; ``what`` they are called.

    >>> lacking(("image", "file_name"), ["imge", "url"], "column ")
    "has no column 'image' (nor file_name); did you mean 'imge'? It has: imge, url"
    """
    columns = list(map(str, names))
    near = suggest(allowed[0], columns)
    hint = f"{near} It has:" if near else "; it has:"
    others = f"{what}{allowed[0]!r} (nor {', '.join(allowed[1:])})"
    return f"has no {others}{hint} {', '.join(columns) or 'nothing'}"


def _by_number(folder: Path) -> dict[str, list[str]]:
    """Map the number that an image's stem is, or has after ``_``, to the names of the files.

    A number after anything else is none of COCO's: it may be the end of a hash.
    """
    files: dict[str, list[str]] = {}
    for file in sorted(folder.iterdir()):
        match = re.fullmatch(r"(?:.*_)?(\d+)", file.stem)
        if match and file.suffix.lower() in IMAGE_SUFFIXES:
            files.setdefault(str(int(match[1])), []).append(file.name)
    return files


class ImageIndex(Generic[T]):
    """Images by the names that tables give them: one rule for whatever is joined by name.

    The whole path goes first, as it is written. Else a name is that of an image whose path ends in
    it, folders and all: "1.jpg" may be "dog/1.jpg", and "cat/1.jpg" never is.

    Args:
        known: The names of images, and what to find by them; those of one image together.

    >>> index = ImageIndex([("data/cat/1.jpg", "A"), ("data/dog/1.jpg", "B")])
    >>> index.find("dog/1.jpg"), index.find("1.jpg"), index.find("bird/1.jpg")
    (['B'], ['A', 'B'], [])
    """

    def __init__(self, known: Iterable[tuple[str, T]]) -> None:
        self._whole: dict[tuple[str, ...], list[T]] = {}
        self._ends: dict[tuple[str, ...], list[T]] = {}
        for name, image in known:
            _add(self._whole, PurePath(name).parts, image)
            parts = Path(name).absolute().parts
            for start in range(len(parts)):
                _add(self._ends, parts[start:], image)

    def find(self, name: str) -> list[T]:
        """Return every image that a name may mean: one, none, or several that it does not tell."""
        parts = PurePath(name).parts
        return self._whole.get(parts) or self._ends.get(parts) or []


def _add(index: dict[tuple[str, ...], list[T]], key: tuple[str, ...], image: T) -> None:
    images = index.setdefault(key, [])
    if images[-1:] != [image]:
        images.append(image)
