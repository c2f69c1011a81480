"""Find the files of images, and cache the copies of images that must be decoded to be shown.

A large TIFF takes seconds and gigabytes to decode. No request should wait for that, so copies are
made at intake.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from discode._files import replacing
from discode.errors import ImageError, InputError
from discode.images import image_bytes
from mceval._shown import ShownImage, shown_copy
from mceval._tables import Image
from mceval.database import Database


def image_file(image: Image, folder: Path | None) -> Path:
    """Locate an image's file.

    It is at its path of intake or, if images were moved to ``folder``, at its source
    ("sketch/dog/1.png") in that folder.
    """
    if folder is None:
        return Path(image.path)
    path = (folder / image.source).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(f"image {image.source} is outside the folder of images")
    return path


def checked_bytes(image: Image, folder: Path | None = None) -> bytes:
    """Read an image's file and check that it is unchanged since intake."""
    path = image_file(image, folder)
    try:
        data = image_bytes(path)
    except ImageError as error:
        raise InputError(str(error)) from error
    if hashlib.sha256(data).hexdigest() != image.digest:
        raise InputError(f"{path} has changed since intake; restore the old file")
    return data


def checked_copy(image: Image, folder: Path | None = None) -> ShownImage:
    try:
        return shown_copy(checked_bytes(image, folder))
    except ImageError as error:
        raise InputError(f"{image.source} cannot be opened: {error}") from error


def check_new_folder(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} already exists; choose a new or an empty folder")


def copies_folder(db: Database) -> Path | None:
    """Folder of a campaign's copies; ``None`` for a database in memory.

    It is next to SQLite's file or, for a database on a server, in the user's cache.
    """
    if db.sqlite:
        return db.file and Path(f"{db.file}-copies")
    cache = os.environ.get("XDG_CACHE_HOME")
    folder = Path(cache) if cache else Path.home() / ".cache"
    return folder / "discode" / f"{db.engine.url.database}-copies"


class ShownCopies:
    """The copies in a folder, by the SHA-256 of the image's file."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def find(self, digest: str) -> ShownImage | None:
        path = self._path(digest)
        if path is None or not path.is_file():
            return None
        return ShownImage(path.read_bytes(), path.suffix)

    def keep(self, digest: str, copy: ShownImage) -> bool:
        """Store a copy; whether that was possible."""
        path = self._path(digest)
        if path is None:
            return False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temp:
                temp.write_bytes(copy.data)
        except (OSError, InputError):  # the folder is not writable
            return False
        return True

    def _path(self, digest: str) -> Path | None:
        return self.folder / f"{digest}.png" if self.folder is not None else None
