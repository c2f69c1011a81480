"""Pictures for a browser: only those of the database, only if they are what was hashed."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

from PIL import Image as Pillow
from sqlalchemy import select

from discode.errors import HttpError, ImageError, InputError
from discode.images import open_image
from discode.mceval.database import Database
from discode.mceval.tables import Image, Slot

_TYPES = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif"}
"""What every browser shows; anything else is sent as PNG."""
_LARGEST = 4096
"""Pixels a side, of what is sent as PNG."""


@dataclass(frozen=True)
class Picture:
    """A file's content and its type."""

    data: bytes
    kind: str


class Gallery:
    """Finds the pictures of a campaign.

    Args:
        db: The campaign.
        folder: Where the files are, if they are not where they were when the campaign began:
            a picture is looked for by its source ("sketch/dog/1.png") under this folder.
    """

    def __init__(self, db: Database, folder: Path | None = None) -> None:
        self.db = db
        self.folder = folder.resolve() if folder is not None else None
        if self.folder is not None and not self.folder.is_dir():
            raise InputError(f"--images {folder} is no folder")

    def held(self, person: int, lease: str) -> Picture:
        """Return the picture of a task that a person holds."""
        with self.db.read() as session:
            image = session.scalar(
                select(Image)
                .join(Slot, Slot.image_id == Image.id)
                .where(Slot.lease == lease, Slot.person_id == person, Slot.state == "leased")
            )
        return self._open(image)

    def numbered(self, number: int) -> Picture:
        """Return a picture by its number, for admins."""
        with self.db.read() as session:
            return self._open(session.get(Image, number))

    def _open(self, image: Image | None) -> Picture:
        if image is None:
            raise HttpError(404, "no_image", "there is no such picture, or it is not yours")
        try:
            data = self._path(image).read_bytes()
        except OSError as error:
            raise HttpError(404, "no_image", "the image's file cannot be read") from error
        if hashlib.sha256(data).hexdigest() != image.digest:
            raise HttpError(404, "no_image", "the image's file has changed since intake")
        return as_shown(data)

    def _path(self, image: Image) -> Path:
        if self.folder is None:
            return Path(image.path)
        path = (self.folder / image.source).resolve()
        if not path.is_relative_to(self.folder):
            raise HttpError(404, "no_image", "the picture lies outside the folder of pictures")
        return path


def as_shown(data: bytes) -> Picture:
    """Return a picture's bytes as they are if a browser shows them, otherwise as PNG.

    >>> buffer = io.BytesIO()
    >>> Pillow.new("RGB", (2, 2)).save(buffer, "TIFF")
    >>> as_shown(buffer.getvalue()).kind
    'image/png'
    """
    try:
        with Pillow.open(io.BytesIO(data)) as opened:
            kind = _TYPES.get(opened.format or "")
        if kind is None:
            buffer = io.BytesIO()
            picture = open_image(data)
            picture.thumbnail((_LARGEST, _LARGEST))
            picture.save(buffer, "PNG")
            return Picture(buffer.getvalue(), "image/png")
    except (OSError, ImageError, Pillow.DecompressionBombError) as error:
        raise HttpError(404, "no_image", "the picture cannot be opened") from error
    return Picture(data, kind)
