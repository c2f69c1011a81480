"""Image-caption pairs: the type, files of them, and pictures opened safely."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from discode.errors import ImageError, InputError
from discode.files import read_rows

ImageSource = str | os.PathLike[str] | bytes | Image.Image
"""A path, the bytes of an image file, or a picture already opened."""

MAX_PIXELS = 89_478_485
"""Pictures beyond this are refused, where Pillow begins to warn of bombs."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")

# Column names met in the wild, in the order they are tried.
IMAGE_COLUMNS = ("image", "image_path", "file_name", "filename", "image_id")
CAPTION_COLUMNS = ("caption", "candidate", "text")
REFERENCE_COLUMNS = ("references", "refs", "reference")


@dataclass(frozen=True, slots=True)
class Pair:
    """A picture, a caption to judge, and references where there are any.

    >>> Pair("dog.jpg", "a dog runs").references
    ()
    """

    image: ImageSource
    caption: str
    references: tuple[str, ...] = ()
    id: str = ""


def image_digest(image: ImageSource) -> str:
    """Return the SHA-256 of a picture: of its file's bytes, or of what is seen of an open one."""
    if isinstance(image, Image.Image):
        seen = open_image(image)
        return hashlib.sha256(f"{seen.size} ".encode() + seen.tobytes()).hexdigest()
    return hashlib.sha256(image_bytes(image)).hexdigest()


def picture_key(image: ImageSource) -> Any:
    """Return what tells the pictures of a batch apart, without reading any."""
    return id(image) if isinstance(image, Image.Image) else image


class Digests:
    """Digests of pictures of one batch, each taken once: captions of a picture come together."""

    def __init__(self) -> None:
        self._known: dict[Any, str] = {}

    def of(self, image: ImageSource) -> str:
        """Return :func:`image_digest` of a picture; a path is read once, an open one seen once."""
        key = picture_key(image)
        if key not in self._known:
            self._known[key] = image_digest(image)
        return self._known[key]


def open_image(image: ImageSource) -> Image.Image:
    """Decode a picture to upright RGB, or raise :class:`ImageError`.

    Transparency is laid on white, rotation from EXIF is applied, and of an animation the
    first frame is taken.
    """
    try:
        with warnings.catch_warnings():  # Pillow warns of what is refused below
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = (
                image
                if isinstance(image, Image.Image)
                else Image.open(io.BytesIO(image_bytes(image)))
            )
        if not opened.width or not opened.height:
            raise ImageError(f"{_label(image)} has no pixels")
        if opened.width * opened.height > MAX_PIXELS:
            raise ImageError(f"{opened.width}x{opened.height} pixels are over {MAX_PIXELS}")
        # A copy of a large photograph is a hundred megabytes: none is made without need.
        turned = opened.getexif().get(ExifTags.Base.Orientation, 1) != 1
        upright = ImageOps.exif_transpose(opened) if turned else opened
        if upright.mode.startswith("I") or upright.mode == "F":
            upright = _eight_bits(upright)
        if "A" in upright.getbands() or "transparency" in upright.info:
            rgba = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
        if upright.mode != "RGB" or upright is image:
            return upright.convert("RGB")
        upright.load()
        return upright
    except ImageError:
        raise
    # Pillow raises a different error for every way a file can be broken.
    except Exception as error:
        why: object = "it is no picture" if isinstance(error, UnidentifiedImageError) else error
        if isinstance(error, Image.DecompressionBombError):
            why = f"its pixels are over {MAX_PIXELS}"
        raise ImageError(f"cannot decode {_label(image)}: {why}") from error


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scale a picture of more than eight bits; Pillow would clip it to white."""
    values = np.asarray(image, np.float64)
    top = 65535.0 if image.mode.startswith("I;16") or values.max() > 255 else 255.0
    return Image.fromarray((values.clip(0, top) / top * 255).round().astype(np.uint8))


def _label(image: ImageSource) -> str:
    return str(image) if isinstance(image, str | os.PathLike) else f"<{type(image).__name__}>"


def image_bytes(image: str | os.PathLike[str] | bytes) -> bytes:
    """Return the bytes of an image file, or raise :class:`ImageError`."""
    if isinstance(image, bytes):
        return image
    if re.match(r"\w+://", str(image)):
        raise ImageError(f"{image} is a URL; nothing is downloaded, give a local file")
    try:
        if Path(image).exists() and not Path(image).is_file():
            raise ImageError(f"cannot read {image}: it is no regular file")  # a pipe would hang
        return Path(image).read_bytes()
    except ImageError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ImageError(f"cannot read {image}: {getattr(error, 'strerror', error)}") from error


def demo_path() -> Path:
    """Return the folder of the shipped photographs and their captions.

    >>> (demo_path() / "cat.jpg").is_file()
    True
    """
    folder = Path(__file__).parent / "data" / "demo"
    if not folder.is_dir():
        raise InputError("this installation lacks the demo data; reinstall discode")
    return folder


def make_pairs(
    images: ImageSource | Sequence[ImageSource],
    captions: str | Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]] | None = None,
) -> list[Pair]:
    """Pair images with captions: one with one, one with many, or many with as many.

    ``references`` is a list a pair, or one list for all captions of a single image.

    >>> [pair.caption for pair in make_pairs("dog.jpg", ["a dog", "a cat"])]
    ['a dog', 'a cat']
    """
    one_image = isinstance(images, str | bytes | os.PathLike | Image.Image)
    texts = [captions] if isinstance(captions, str) else list(captions)
    if not one_image and not isinstance(images, Sequence):
        raise InputError(f"images are paths, bytes or PIL images, not {type(images).__name__}")
    pictures: list[Any] = [images] * len(texts) if one_image else list(images)  # type: ignore[arg-type]  # a sequence, as was just checked
    if len(pictures) != len(texts):
        raise InputError(
            f"{len(pictures)} images and {len(texts)} captions do not pair up; "
            "give one image, or as many images as captions"
        )
    if not texts:
        raise InputError("no captions given; pass at least one")
    if references is None:
        groups: list[Any] = [()] * len(texts)
    elif isinstance(references, str):
        raise InputError("references must be a list of captions, not one string")
    elif all(isinstance(item, str) for item in references) and one_image:
        groups = [references] * len(texts)
    else:
        groups = list(references)
    groups = [(group,) if not isinstance(group, str | Iterable) else group for group in groups]
    if len(groups) != len(texts) or any(isinstance(group, str) for group in groups):
        raise InputError(
            f"references must be one list of captions a pair: {len(texts)} lists are needed"
        )
    return [
        _pair(picture, caption, group, str(number))
        for number, (picture, caption, group) in enumerate(
            zip(pictures, texts, groups, strict=True)
        )
    ]


def _pair(image: Any, caption: Any, references: Iterable[Any], name: str) -> Pair:
    if not isinstance(image, str | bytes | os.PathLike | Image.Image):
        raise InputError(
            f"pair {name}: image is {type(image).__name__}; give a path, bytes or a PIL image"
        )
    refs = tuple(references)
    for text in (caption, *refs):
        if not isinstance(text, str):
            raise InputError(f"pair {name}: a caption must be text, got {text!r}")
    return Pair(image, caption, refs, name)


def read_pairs(
    path: str | os.PathLike[str], images: str | os.PathLike[str] | None = None
) -> list[Pair]:
    """Read pairs from CSV, TSV, JSONL, Parquet, or JSON (COCO results or a list of rows).

    Rows have an image, a caption, and optionally references (a list, in CSV a JSON list) and
    an id. ``images`` is the folder that image names, or COCO's image numbers, are found in.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"no such file: {path}")
    rows = PairRows(images)
    pairs = [
        rows.pair(row, where, str(number)) for number, (where, row) in enumerate(read_rows(path))
    ]
    if not pairs:
        raise InputError(f"{path} holds no pairs")
    return pairs


class PairRows:
    """Makes pairs of a table's rows, whatever their columns are called.

    Args:
        images: The folder that image names, or COCO's image numbers, are found in.

    >>> PairRows().pair({"image": "dog.jpg", "candidate": "a dog"}, "line 2", "0").caption
    'a dog'
    """

    def __init__(self, images: str | os.PathLike[str] | None = None) -> None:
        self._folder = None if images is None else Path(images)
        if self._folder is not None and not self._folder.is_dir():
            raise InputError(f"images: {self._folder} is not a folder")
        self._numbers: dict[str, list[Path]] | None = None
        self._last: tuple[Any, str] = (None, "")

    def pair(self, row: Mapping[str, Any], where: str, name: str) -> Pair:
        """Return the pair of one row, or say what ``where`` lacks; ``name`` stands in for an id."""
        image = _field(row, IMAGE_COLUMNS, where)
        if isinstance(image, Mapping):  # as `datasets` writes pictures: {"bytes": ..., "path": ...}
            image = next((image[k] for k in ("bytes", "path") if image.get(k) is not None), "")
        references: Any = next((row[name] for name in REFERENCE_COLUMNS if row.get(name)), [])
        if isinstance(references, str):
            references = _reference_list(references, where)
        if not isinstance(references, list):
            raise InputError(f"{where}: references must be a list, not {references!r}")
        if not isinstance(image, bytes):
            image = self._path(image, where)
        given = row.get("id")
        pair = _pair(image, _field(row, CAPTION_COLUMNS, where), references, where)
        name = name if given is None else str(given)
        return Pair(pair.image, pair.caption, pair.references, name)

    def _path(self, image: Any, where: str) -> str:
        if image != self._last[0]:  # the captions of a picture mostly come together
            self._last = (image, self._find(image, where))
        return self._last[1]

    def _find(self, image: Any, where: str) -> str:
        name = str(image)
        if not name.strip():
            raise InputError(f"{where} has an empty image name")
        if re.fullmatch(r"\d{1,18}", name):
            if self._numbers is None:
                self._numbers = _by_number(self._folder)
            found = self._numbers.get(str(int(name)), [Path(self._folder or "") / name])
            if len(found) > 1:
                raise InputError(
                    f"{where}: image {image} is both {found[0].name} and {found[1].name} in "
                    f"{self._folder}; point --images at one split"
                )
            return str(found[0])
        if self._folder is not None and "://" not in name:
            return str(self._folder / name)
        return name


def _reference_list(text: str, where: str) -> list[str]:
    """Return a references cell: a JSON list, or one plain reference."""
    if not text.lstrip().startswith("["):
        return [text]
    try:
        return list(json.loads(text))
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: references are no JSON list: {error}") from None


def _field(row: Mapping[str, Any], names: tuple[str, ...], where: str) -> Any:
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise InputError(
        f"{where} has no {names[0]!r} (nor {', '.join(names[1:])}); it has: "
        f"{', '.join(map(str, row)) or 'nothing'}"
    )


def _by_number(folder: Path | None) -> dict[str, list[Path]]:
    """Map the number at the end of a picture's name to the files, as COCO numbers its images."""
    files: dict[str, list[Path]] = {}
    for file in sorted(folder.iterdir()) if folder else ():
        match = re.search(r"(\d+)$", file.stem)
        if match and file.suffix.lower() in IMAGE_SUFFIXES:
            files.setdefault(str(int(match[1])), []).append(file)
    return files
