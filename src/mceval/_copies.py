"""Copies of images that had to be decoded to be shown: made at intake, kept on the disk.

A large TIFF takes seconds and gigabytes to decode, which no request should wait for. Here is also
where an image's file is, if images were moved.
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
    """Return where an image's file is.

    That is where it was at intake or, where images were moved into ``folder``, at its source
    ("sketch/dog/1.png") under it.
    """
    if folder is None:
        return Path(image.path)
    path = (folder / image.source).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(f"the image {image.source} lies outside the folder of images")
    return path


def checked_bytes(image: Image, folder: Path | None = None) -> bytes:
    """Return an image's file, or raise if it is not the one of intake."""
    path = image_file(image, folder)
    try:
        data = image_bytes(path)
    except ImageError as error:
        raise InputError(f"{path} can no longer be read: {error}") from error
    if hashlib.sha256(data).hexdigest() != image.digest:
        raise InputError(f"{path} has changed since intake; put the old file back")
    return data


def checked_copy(image: Image, folder: Path | None = None) -> ShownImage:
    """Return the copy that people see, or raise if the file is not the one of intake."""
    try:
        return shown_copy(checked_bytes(image, folder))
    except ImageError as error:
        raise InputError(f"{image.source} cannot be opened: {error}") from error


def check_new_folder(folder: Path) -> None:
    """Raise unless a folder is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists already; give a new or an empty folder")


def copies_folder(db: Database) -> Path | None:
    """Return where a campaign's copies are kept; ``None`` for a database in memory.

    That is beside the database's file, or for one on a server in the user's cache.
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
        """Return the copy of an image, if there is one."""
        path = self._path(digest)
        if path is None or not path.is_file():
            return None
        return ShownImage(path.read_bytes(), path.suffix)

    def keep(self, digest: str, copy: ShownImage) -> bool:
        """Keep a copy, and return whether that was possible."""
        path = self._path(digest)
        if path is None:
            return False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temp:
                temp.write_bytes(copy.data)
        except (OSError, InputError):  # a folder that only others may write to
            return False
        return True

    def _path(self, digest: str) -> Path | None:
        return self.folder / f"{digest}.png" if self.folder is not None else None
