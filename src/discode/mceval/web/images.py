"""Images for a browser: only those of the database, and only if the file is unchanged."""

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

_MEDIA_TYPES = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif"}
"""Formats that every browser shows; others are sent as PNG."""
_LARGEST = 4096
"""The longest side, in pixels, of what is sent as PNG."""


@dataclass(frozen=True)
class ServedImage:
    """The bytes of an image and their media type."""

    data: bytes
    media_type: str


class CampaignImages:
    """Finds the images of a campaign.

    Args:
        db: The campaign.
        folder: Where the files are, if they are not where they were when the campaign began:
            an image is looked up by its source ("sketch/dog/1.png") under this folder.
    """

    def __init__(self, db: Database, folder: Path | None = None) -> None:
        self.db = db
        self.folder = folder.resolve() if folder is not None else None
        if self.folder is not None and not self.folder.is_dir():
            raise InputError(f"--images {folder} is not a folder")

    def of_task(self, person: int, lease: str) -> ServedImage:
        """Return the image of a task that a person holds."""
        return self._open(self._of_task(person, lease))

    def has_file(self, person: int, lease: str) -> bool:
        """Return whether the file of a task's image is there."""
        image = self._of_task(person, lease)
        try:
            return image is not None and self._path(image).is_file()
        except (HttpError, OSError):
            return False

    def _of_task(self, person: int, lease: str) -> Image | None:
        with self.db.read() as session:
            return session.scalar(
                select(Image)
                .join(Slot, Slot.image_id == Image.id)
                .where(Slot.lease == lease, Slot.person_id == person, Slot.state == "leased")
            )

    def by_id(self, number: int) -> ServedImage:
        """Return an image by its number, for admins."""
        with self.db.read() as session:
            return self._open(session.get(Image, number))

    def _open(self, image: Image | None) -> ServedImage:
        if image is None:
            raise HttpError(404, "no_image", "there is no such image, or it is not yours")
        try:
            data = self._path(image).read_bytes()
        except OSError as error:
            raise HttpError(404, "no_image", "the image's file cannot be read") from error
        if hashlib.sha256(data).hexdigest() != image.digest:
            raise HttpError(404, "no_image", "the image's file has changed since intake")
        return for_browser(data)

    def _path(self, image: Image) -> Path:
        if self.folder is None:
            return Path(image.path)
        path = (self.folder / image.source).resolve()
        if not path.is_relative_to(self.folder):
            raise HttpError(404, "no_image", "the image lies outside the folder of images")
        return path


def for_browser(data: bytes) -> ServedImage:
    """Return an image's bytes as they are if browsers can show them, otherwise as PNG.

    >>> buffer = io.BytesIO()
    >>> Pillow.new("RGB", (2, 2)).save(buffer, "TIFF")
    >>> for_browser(buffer.getvalue()).media_type
    'image/png'
    """
    try:
        with Pillow.open(io.BytesIO(data)) as opened:
            media_type = _MEDIA_TYPES.get(opened.format or "")
        if media_type is None:
            buffer = io.BytesIO()
            image = open_image(data)
            image.thumbnail((_LARGEST, _LARGEST))
            image.save(buffer, "PNG")
            return ServedImage(buffer.getvalue(), "image/png")
    except (OSError, ImageError, Pillow.DecompressionBombError) as error:
        raise HttpError(404, "no_image", "the image cannot be opened") from error
    return ServedImage(data, media_type)
