"""Image-caption pairs: the type, and pairs from objects and from files."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from discode._arrays import as_numpy, is_array
from discode._columns import (
    CAPTION_COLUMNS,
    IMAGE_COLUMNS,
    PairColumns,
    columns_without_header,
    filled_field,
    first_filled,
    is_filled,
    is_missing,
    lacking,
    reference_list,
    row_id,
)
from discode._files import read_rows
from discode._image_index import ImageFinder
from discode.errors import BadDataError, InputError, count_of
from discode.images import (
    KEPT_BYTES,
    ImageInput,
    ImageSource,
    SharedImage,
    as_image,
)


@dataclass(frozen=True, slots=True)
class Pair:
    """An image, a caption to judge, and references where there are any.

    A pair with a ``problem``, the reason why it cannot be judged, fails without asking a model.

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


NO_REFERENCES = "the pair has no references, which this metric compares with"
PairInput = Pair | tuple[Any, ...] | Mapping[str, Any]
"""A pair, (image, caption) or (image, caption, references), or a dictionary with these names."""


def as_pairs(pairs: Iterable[PairInput]) -> list[Pair]:
    """Return pairs that may also be given as tuples or dictionaries.

    A pair without a caption or image (None, NaN), or with NaN pixels, has a ``problem``; any other
    object raises.

    >>> as_pairs([("dog.jpg", "a dog"), {"image": "cat.jpg", "caption": "a cat"}])[1].caption
    'a cat'
    """
    _check_ordered(pairs, "pairs are a list of pairs")
    return [
        pair if isinstance(pair, Pair) else _as_pair(pair, str(number))
        for number, pair in enumerate(pairs)
    ]


def _check_ordered(items: Any, wanted: str) -> None:
    """Raise for a collection without an order: scores follow that of their pairs."""
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
    """Whether a text is only spaces and invisible characters.

    >>> is_blank(" \\u200b\\ufeff"), is_blank("\\u200ba cat")
    (True, False)
    """
    first = text[:1]
    if first.isascii() and first.isalnum():  # most texts: quickly
        return False
    return all(unicodedata.category(c) in _UNSEEN or c in _FILLERS for c in text)


_UNSEEN = ("Cc", "Cf", "Mn", "Zl", "Zp", "Zs")


_FILLERS = "\u115f\u1160\u2800\u3164\uffa0"  # letters of Hangul and Braille that are blank


def group_by_image(pairs: Iterable[Pair]) -> list[list[int]]:
    """Return the numbers of the pairs of each image, in order of appearance.

    >>> group_by_image([Pair("a.jpg", "x"), Pair("b.jpg", "y"), Pair("a.jpg", "z")])
    [[0, 2], [1]]
    """
    groups: dict[Any, list[int]] = {}
    for number, pair in enumerate(pairs):
        key = id(pair.image) if isinstance(pair.image, Image.Image) else pair.image
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

    An image that several of them share, or that is also ``digested``, is read once; references
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
    """Return the signature's field for the references of pairs.

    "all", "some" or "none" have any; "ignored" if some do but the model does not take them.
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
    """Return (image, caption, references) as :func:`make_pairs` takes them, not validated yet.

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
    """Convert an image of several captions once."""
    try:
        return image if isinstance(image, str) else as_image(image)
    except BadDataError:
        return image  # its pairs report the problem


def pair_from(
    image: Any, caption: Any, references: Iterable[Any], *, where: str, name: str
) -> Pair:
    """Validate user input and build a Pair.

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


class PairParser:
    """Makes pairs from the rows of a table, under any of the known column names.

    Args:
        images: The folder that image names are found in. Names that lead out of it are refused,
            since a table may be untrusted. Links inside it are followed: its owner made them.
            Without a folder, names are opened as they are.
        annotations: A JSON file of COCO, whose ``images`` give each id its ``file_name``.
        base: The folder that names are relative to without ``images``, if not the current one.

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
        base: str = "",
    ) -> None:
        self._finder = ImageFinder(images, annotations, base)
        self._last: tuple[Any, bool, str, str] = (None, False, "", "")
        self._rows = self._unknown = 0

    def parse(self, row: Mapping[str, Any], where: str, name: str) -> Pair:
        """Return the pair of a row, or raise naming the missing field; ``name`` is its id.

        A pair whose image id leads to no single file has a ``problem``.
        """
        self._rows += 1
        problem = ""
        columns = PairColumns.among(row, where)
        image = filled_field(row, columns.image, IMAGE_COLUMNS, where)
        if not isinstance(image, str) and isinstance(image, Mapping):
            # As `datasets` writes images: {"bytes": ..., "path": ...}
            image = next((image[k] for k in ("bytes", "path") if image.get(k) is not None), "")
        references = reference_list(first_filled(row, columns.references), where)
        if not isinstance(image, bytes):
            by_id = columns.numbered and not is_filled(first_filled(row, columns.image[:-1]))
            image, problem = self._path(image, where, by_id)
            self._unknown += bool(problem)
        caption = filled_field(row, columns.caption, CAPTION_COLUMNS, where)
        pair = pair_from(image, caption, references, where=where, name=name)
        return replace(pair, problem=f"{where}: {problem}") if problem else pair

    def check_ids(self, name: object) -> None:
        """Raise where the image ids of most rows so far lead to no single file.

        ``name`` is the table's.
        """
        if 2 * self._unknown > self._rows:
            raise InputError(
                f"{name}: {self._unknown} of {self._rows} image ids {self._finder.advice()}"
            )

    def _path(self, image: Any, where: str, by_id: bool) -> tuple[str, str]:
        # The captions of an image mostly come together; True is no image, though it equals 1.
        last, last_by_id, *_ = self._last
        if type(image) is not type(last) or image != last or by_id is not last_by_id:
            self._last = (image, by_id, *self._finder.find(image, where, by_id))
        return self._last[2:]
