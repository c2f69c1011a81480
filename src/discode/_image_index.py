"""Files of images by the names and ids that tables give them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any, Generic, TypeVar

from discode._files import coco_files
from discode.errors import InputError, shortened
from discode.images import IMAGE_SUFFIXES

T = TypeVar("T")


class ImageFinder:
    """Finds the files of images by what rows call them, as ``PairParser`` describes.

    ``images`` is a folder, or None for names that are opened from ``base``, by default the current
    folder; ``annotations`` are COCO's, or None.
    """

    def __init__(
        self,
        images: str | os.PathLike[str] | None,
        annotations: str | os.PathLike[str] | None,
        base: str = "",
    ) -> None:
        self._base = "" if base == str(Path.cwd()) else base
        self._folder = None if images is None else Path(images)
        if self._folder is not None and not self._folder.is_dir():
            raise InputError(f"images: {self._folder} is not a folder")
        self._root = "" if images is None else os.path.join(os.path.abspath(images), "")  # noqa: PTH100, PTH118
        self._numbers: dict[str, list[str]] | None = None
        self._files = None if annotations is None else coco_files(annotations)
        self._annotations = annotations

    def advice(self, option: str = "--annotations FILE (in Python annotations=FILE)") -> str:
        """Return why image ids of a table lead to no file, and which ``option`` to give."""
        if self._annotations is None:
            return f"match no single file in {self._folder}; give {option}"
        return f"are not in {self._annotations}; give the annotations of these images"

    def find(self, image: Any, where: str, by_id: bool) -> tuple[str, str]:
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
            found, problem = self.file_of_id(image)
            name = name if problem else found
        return self._below_folder(name, where), problem

    def file_of_id(self, image: str | int) -> tuple[str, str]:
        """Return the file name of an image id, or "" and why it leads to no single file."""
        name = re.sub(r"^(\d+)\.0+$", r"\1", str(image))  # a column of numbers with gaps, in CSV
        if self._files is not None:
            file = self._files.get(name)
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
        if re.match(r"\w+://", name):  # addresses are refused when opened
            return name
        if self._folder is None:
            return os.path.join(self._base, name)  # noqa: PTH118  # keeps absolute names
        if ".." not in name and not os.path.isabs(name):  # noqa: PTH117  # most of them: quickly
            return str(self._folder / name)
        path = os.path.normpath(self._folder / name)  # a Path would keep ".."
        if not os.path.abspath(path).startswith(self._root):  # noqa: PTH100  # as above
            raise InputError(
                f"{where}: {name!r} leads out of the folder of images, {self._folder}; point "
                "--images at a folder that holds it"
            )
        return path


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
    """Images by the names that tables give them: one rule for everything joined by name.

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
