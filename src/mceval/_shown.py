"""The copy of an image that people see and that is published: one frame, without metadata.

A photograph's metadata may reveal where a person lives. It is removed from JPEG, PNG and WebP
without decoding, so that pixels do not change. Other formats, animations, and images that browsers
might not rotate become a PNG of the frame that was hashed at intake. A large TIFF takes seconds and
gigabytes to decode, and no request should wait for that, so these copies are made at intake.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from PIL import ExifTags
from PIL import Image as Pillow

from discode._files import replacing
from discode.errors import ImageError, InputError
from discode.images import image_bytes, open_formats, open_image
from mceval._tables import Image
from mceval.database import Database

MEDIA_TYPES = {".jpg": "image/jpeg", ".png": "image/png", ".webp": "image/webp"}
"""Media types of copies, by suffix."""
LONGEST_SIDE = 4096
"""In pixels, for copies of decoded images."""
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_KEPT = {b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"cICP", b"sBIT", b"bKGD", b"pHYs"}
"""Optional chunks that affect the look of a PNG."""
_MARKER = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])", re.S)
"""A marker of a JPEG; escaped bytes and restarts within scans do not match."""


@dataclass(frozen=True)
class ShownImage:
    """The bytes of a copy, and the suffix of its file."""

    data: bytes
    suffix: str

    @property
    def media_type(self) -> str:
        return MEDIA_TYPES[self.suffix]


def shown_copy(data: bytes) -> ShownImage:
    """Make the copy of an image that people see; :class:`ImageError` if it cannot be decoded.

    >>> buffer = io.BytesIO()
    >>> Pillow.new("RGB", (2, 2)).save(buffer, "TIFF")
    >>> shown_copy(buffer.getvalue()).media_type
    'image/png'
    """
    return without_metadata(data) or decoded_copy(open_image(data))


def without_metadata(data: bytes) -> ShownImage | None:
    """Strip the metadata of a JPEG, PNG or WebP; ``None`` if the image must be decoded."""
    try:
        with open_formats(data) as opened:
            kind = opened.format or ""
            turned = int(opened.getexif().get(ExifTags.Base.Orientation, 1))
            # A PNG's default image, and the first of an MPO, is the first frame.
            still = kind in ("JPEG", "MPO", "PNG") or getattr(opened, "n_frames", 1) == 1
        if kind in ("JPEG", "MPO"):
            return ShownImage(_clean_jpeg(data, turned), ".jpg")
        if kind == "PNG" and turned == 1:
            return ShownImage(_clean_png(data), ".png")
        if kind == "WEBP" and turned == 1 and still:
            return ShownImage(_clean_webp(data), ".webp")
    # Pillow raises many types of errors for damaged files; decoding will report them.
    except Exception:
        return None
    return None


def decoded_copy(image: Pillow.Image) -> ShownImage:
    """Make a PNG of an opened image, which is scaled down in place."""
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    # A new image, since Pillow would also write the metadata of the old one.
    clean = Pillow.new("RGB", image.size)
    clean.paste(image)
    buffer = io.BytesIO()
    clean.save(buffer, "PNG")
    return ShownImage(buffer.getvalue(), ".png")


def _clean_jpeg(data: bytes, turned: int) -> bytes:
    """Strip all application segments of a JPEG except colour and orientation.

    Data after the end of the image (an MPO's other images, a phone's film) is removed, too.
    """
    exif = b""
    if 1 < turned <= 8:  # browsers rotate a JPEG by this tag; no other tag is kept
        tags = Pillow.Exif()
        tags[ExifTags.Base.Orientation] = turned
        words = tags.tobytes()
        exif = b"\xff\xe1" + struct.pack(">H", len(words) + 2) + words
    parts, place = [b"\xff\xd8"], 2
    jfif = data[2:4] == b"\xff\xe0"  # JFIF's segment must be the first
    if not jfif:
        parts.append(exif)
    while True:
        match = _MARKER.search(data, place)
        if match is None:  # truncated: decoders show the rest
            parts.append(data[place:])
            return b"".join(parts)
        marker = match[1][0]
        parts.append(data[place : match.start()])  # within a scan: its coded pixels
        if marker == 0xD9:
            return b"".join([*parts, b"\xff\xd9"])
        if marker in (0x01, 0xD8):
            raise ImageError("the file contains a JPEG inside a JPEG")
        start = match.end()
        (length,) = struct.unpack_from(">H", data, start)
        place = start + length
        body = data[start + 2 : place]
        keep = not (0xE0 <= marker <= 0xEF or marker == 0xFE)
        keep |= marker == 0xE0 and body.startswith(b"JFIF\0")
        keep |= marker == 0xE2 and body.startswith(b"ICC_PROFILE\0")
        keep |= marker == 0xEE and body.startswith(b"Adobe")
        if keep:
            parts.append(b"\xff" + match[1] + data[start:place])
        if jfif:
            parts.append(exif)
            jfif = False


def _clean_png(data: bytes) -> bytes:
    parts, place = [_PNG], len(_PNG)
    while place + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        end = place + 12 + length
        if kind[:1].isupper() or kind in _PNG_KEPT:
            parts.append(data[place:end])
        if kind == b"IEND":
            break
        place = end
    return b"".join(parts)


def _clean_webp(data: bytes) -> bytes:
    parts, place = [], 12
    while place + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, place)
        end = place + 8 + length + length % 2
        chunk = data[place:end]
        if kind == b"VP8X":  # clear its flags of EXIF (8) and XMP (4)
            chunk = chunk[:8] + bytes([chunk[8] & ~0x0C]) + chunk[9:]
        if kind in (b"VP8X", b"VP8 ", b"VP8L", b"ALPH", b"ICCP"):
            parts.append(chunk)
        place = end
    body = b"WEBP" + b"".join(parts)
    return b"RIFF" + struct.pack("<I", len(body)) + body


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
