"""Send images of the campaign to browsers, if their files are unchanged."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from pathlib import Path

from sqlalchemy import select

from discode.errors import HttpError, InputError
from mceval._shown import (
    ShownCopies,
    ShownImage,
    checked_bytes,
    checked_copy,
    copies_folder,
    image_file,
    without_metadata,
)
from mceval._tables import Image, Slot
from mceval.database import Database


class CampaignImages:
    """Finds the images of a campaign.

    Images that must be decoded have a copy from intake. A missing copy (of an older campaign, or if
    only the database was moved) is made once; one at a time, since a large image takes a gigabyte.
    Moved images are found in ``folder`` by their source.
    """

    def __init__(self, db: Database, folder: Path | None = None) -> None:
        self.db = db
        self.folder = folder.resolve() if folder is not None else None
        if self.folder is not None and not self.folder.is_dir():
            raise InputError(f"there is no folder --images {folder}")
        self._copies = ShownCopies(copies_folder(db))
        # A temporary folder, used if the campaign's folder is not writable.
        spare = Path(tempfile.mkdtemp(prefix="discode-images-"))
        weakref.finalize(self, shutil.rmtree, spare, ignore_errors=True)
        self._spare = ShownCopies(spare)
        self._decoding = threading.Lock()

    def missing(self) -> list[str]:
        """List the sources of usable images whose files are missing."""
        with self.db.read() as session:
            rows = session.scalars(
                select(Image)
                .where(Image.state.in_(("pool", "active", "done", "gold")))
                .order_by(Image.id)
            ).all()
        return [row.source or row.path for row in rows if not self._is_there(row)]

    def _is_there(self, image: Image) -> bool:
        try:
            return image_file(image, self.folder).is_file()
        except (OSError, InputError):
            return False

    def of_task(self, person: int, lease: str) -> ShownImage:
        return self._open(self._of_task(person, lease))

    def has_file(self, person: int, lease: str) -> bool:
        image = self._of_task(person, lease)
        return image is not None and self._is_there(image)

    def _of_task(self, person: int, lease: str) -> Image | None:
        with self.db.read() as session:
            return session.scalar(
                select(Image)
                .join(Slot, Slot.image_id == Image.id)
                .where(Slot.lease == lease, Slot.person_id == person, Slot.state == "leased")
            )

    def by_id(self, number: int) -> ShownImage:
        with self.db.read() as session:
            return self._open(session.get(Image, number))

    def _open(self, image: Image | None) -> ShownImage:
        if image is None:
            raise HttpError(404, "no_image", "this image does not exist, or is not yours")
        try:
            copy = self._kept(image) or without_metadata(checked_bytes(image, self.folder))
            if copy is not None:
                return copy
            with self._decoding:
                return self._kept(image) or self._decode(image)
        except InputError as error:
            why = "the image's file is missing, has changed, or cannot be opened"
            raise HttpError(404, "no_image", why) from error

    def _kept(self, image: Image) -> ShownImage | None:
        return self._copies.find(image.digest) or self._spare.find(image.digest)

    def _decode(self, image: Image) -> ShownImage:
        copy = checked_copy(image, self.folder)
        if not self._copies.keep(image.digest, copy):
            self._spare.keep(image.digest, copy)
        return copy
