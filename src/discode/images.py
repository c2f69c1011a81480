"""Images: opened safely, told apart by digest, read once for all their captions."""

from __future__ import annotations

import ctypes
import hashlib
import io
import logging
import os
import re
import stat
import struct
import warnings
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Protocol

from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from discode._arrays import is_array
from discode._pixels import from_array as from_array  # one of this module's public names
from discode._pixels import to_rgb
from discode.errors import ImageError, InputError

MAX_PIXELS = 89_478_485
"""Larger images are refused, where Pillow begins to warn of decompression bombs; a JPEG may have
twice as many, as it can be decoded at half its size."""
MAX_MEMORY = 768 << 20
"""Bytes that decoding an image may take, by what its header declares."""
MAX_FILE = 256 << 20
"""Bytes of an image file; larger ones are refused, and never read."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
IMAGE_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "MPO", "PNG", "TIFF", "WEBP")
"""The formats that are opened, whatever the file name. Pillow knows more, and hands some of them
to other programs: an EPS to Ghostscript."""
_MODE_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
# Bytes per pixel, measured: what decoders take besides the result; 4 bytes for all other modes.
_DECODER_BYTES = {"WEBP": 13, "AVIF": 10}
_PROGRESSIVE_BYTES = 6
# Tags of TIFF; a tile may be larger than the image.
_WHITE_IS, _TILE_WIDTH, _TILE_LENGTH = 262, 322, 323
ZEROS = bytes(64)
"""What a picture seldom ends in, and a file whose download stopped mostly does."""
KEPT_BYTES = 64 << 20
"""Bytes of image files that the pairs of a batch share in memory; beyond, files are read again."""


class SharedImage:
    """An image of several pairs: its file is read when it is first needed, and once.

    Made by :func:`~discode._pairs.share_images`. Backends treat it as any other image:
    :func:`open_image`, :func:`image_bytes` and :func:`image_digest` take it. ``budget`` holds one
    number, the bytes that all images of the batch may still keep in memory.
    """

    __slots__ = ("_budget", "_data", "_digest", "source")

    def __init__(
        self, source: str | os.PathLike[str] | Image.Image, budget: list[int] | None = None
    ) -> None:
        self.source = source
        self._budget = [KEPT_BYTES] if budget is None else budget
        self._data: bytes | None = None
        self._digest: str | None = None

    def __str__(self) -> str:
        return _name(self.source)

    def digest(self) -> str:
        """The :func:`image_digest` of the source, computed once."""
        if self._digest is None:
            if isinstance(self.source, Image.Image):
                self._digest = image_digest(self.source)
            else:
                self._digest = hashlib.sha256(self.data()).hexdigest()
        return self._digest

    def data(self) -> bytes:
        """The bytes of the file."""
        if self._data is not None:
            return self._data
        if isinstance(self.source, Image.Image):
            raise ImageError("an open image has no file; give a path or its bytes")
        data = image_bytes(self.source)
        if self._digest is not None and hashlib.sha256(data).hexdigest() != self._digest:
            raise ImageError(f"{self} changed while it was being read")
        if len(data) <= self._budget[0]:
            self._budget[0] -= len(data)
            self._data = data
        return data


ImageSource = str | os.PathLike[str] | bytes | Image.Image | SharedImage
"""A path, the bytes of an image file, an open image, or one that pairs of a batch share."""


class SupportsShape(Protocol):
    """An array of numpy, or a tensor of another library."""

    @property
    def shape(self) -> Any:
        """Its size in every dimension."""


ImageInput = ImageSource | SupportsShape | IO[bytes] | bytearray | memoryview
"""What users may give for an image; :func:`as_image` makes it an :data:`ImageSource`."""


def as_image(image: ImageInput) -> ImageSource:
    """Convert any supported image to one of the few types used inside.

    Arrays and tensors become open images (:func:`from_array`), open files their bytes.

    >>> as_image(io.BytesIO(b"GIF89a"))
    b'GIF89a'
    """
    if isinstance(image, str | bytes | os.PathLike | Image.Image | SharedImage):
        return image
    if isinstance(image, bytearray | memoryview | io.BytesIO):
        # From the start: after writing, a BytesIO is at its end.
        return image.getvalue() if isinstance(image, io.BytesIO) else bytes(image)
    if hasattr(image, "read"):
        with suppress(AttributeError, OSError):  # from its start, as often as it is given
            image.seek(0)  # type: ignore[union-attr]  # AttributeError is caught
        data = image.read(MAX_FILE + 1)
        if not isinstance(data, bytes):
            raise InputError("an image's file was opened as text; open it with mode 'rb'")
        if len(data) > MAX_FILE:
            raise InputError(f"an image's file has over {MAX_FILE} bytes; give a smaller one")
        return data
    if is_array(image):
        return from_array(image)
    raise InputError(
        f"an image cannot be {type(image).__name__}; give a path, bytes, an open file, a PIL "
        "image, or an array or tensor (H, W, C) or (C, H, W)"
    )


def image_digest(image: ImageSource) -> str:
    """Return the SHA-256 of an image: of its file's bytes, or of the pixels of an open one."""
    if isinstance(image, SharedImage):
        return image.digest()
    if isinstance(image, Image.Image):
        seen = open_image(image)
        return hashlib.sha256(f"{seen.size} ".encode() + seen.tobytes()).hexdigest()
    return hashlib.sha256(image_bytes(image)).hexdigest()


def open_image(image: ImageInput) -> Image.Image:
    """Decode an image to upright RGB, or raise :class:`ImageError`.

    Transparency is laid on white, rotation from EXIF is applied, and of an animation the first
    frame is taken. 16 bits and floats are scaled to 8 bits (``pixels.py``). What would not fit
    :data:`MAX_MEMORY` is refused before it is decoded, or, if it is a JPEG, decoded at a half, a
    quarter or an eighth of its size.
    """
    source = as_image(image)
    if isinstance(source, SharedImage) and isinstance(source.source, Image.Image):
        source = source.source  # there is no file to read
    data = b"" if isinstance(source, Image.Image) else image_bytes(source)
    try:
        with warnings.catch_warnings():
            # Pillow warns of what is refused here, and of odd metadata.
            warnings.filterwarnings("ignore", module=r"PIL\.")
            if isinstance(source, Image.Image):
                return _decode(source, b"", owned=False)
            return _decode(open_formats(data), data, owned=True)
    # Pillow raises a different error for every way a file can be broken.
    except Exception as error:
        why: object = error
        if isinstance(error, UnidentifiedImageError):
            tiff = data[:4] in (b"II*\0", b"MM\0*")
            why = "TIFF of this kind is not read; save it as PNG" if tiff else "it is not an image"
        elif isinstance(error, Image.DecompressionBombError):
            why = f"its pixels are over {MAX_PIXELS}"
        raise ImageError(f"cannot decode {_name(source)}: {why}") from error


def _decode(opened: Image.Image, data: bytes, *, owned: bool) -> Image.Image:
    """Decode an image; one that is not owned is not changed."""
    check_size(opened)
    _check_end(opened, data)
    sixteen_bits = _has_sixteen_bits(opened)  # before reading EXIF, which may decode a PNG
    tags = getattr(opened, "tag_v2", None) or {}
    if sixteen_bits and tags.get(_WHITE_IS) == 0:  # which Pillow heeds up to 8 bits
        raise ImageError("its white is 0; save it with 8 bits")
    # A copy of a large photograph is a hundred megabytes: none is made without need.
    turned = opened.getexif().get(ExifTags.Base.Orientation, 1) != 1
    reduction = check_size(opened, copies=int(turned), whole=not owned)
    if reduction > 1:
        opened.draft(None, (opened.width // reduction, opened.height // reduction))
    upright = ImageOps.exif_transpose(opened) if turned else opened
    rgb = to_rgb(upright, sixteen_bits=sixteen_bits)
    if rgb is opened and not owned:
        return rgb.copy()
    rgb.load()
    return rgb


def check_size(opened: Image.Image, *, copies: int = 0, whole: bool = False) -> int:
    """Return the factor by which an image must be reduced while it is decoded; 1 for most.

    What the header declares counts, and nothing is decoded: pixels, and the bytes that the decoder,
    its result and ``copies`` of it take. JPEGs can be reduced by 2, 4 or 8, unless ``whole``.
    Raises :class:`ImageError` where it is too much.

    >>> check_size(Image.new("RGB", (640, 480)))
    1
    """
    if not opened.width or not opened.height:
        raise ImageError("it has no pixels")
    pixels = opened.width * opened.height
    factors = (1, 2, 4, 8) if opened.format in ("JPEG", "MPO") and not whole else (1,)
    if pixels > MAX_PIXELS * min(len(factors), 2):
        raise ImageError(f"{opened.width}x{opened.height} pixels are over {MAX_PIXELS}")
    decoder = _DECODER_BYTES.get(opened.format or "", 0)
    if opened.info.get("progressive"):
        decoder += _PROGRESSIVE_BYTES
    tags = getattr(opened, "tag_v2", None) or {}
    block = int(tags.get(_TILE_WIDTH) or 0) * int(tags.get(_TILE_LENGTH) or 0)
    result = _MODE_BYTES.get(opened.mode, 4) * (1 + copies) + (opened.mode != "RGB") * 4
    for factor in factors:
        decoded = max(pixels // factor**2, block)
        if decoded <= MAX_PIXELS and pixels * decoder + decoded * result <= MAX_MEMORY:
            return factor
    raise ImageError(
        f"{opened.width}x{opened.height} pixels of this kind ({opened.format} {opened.mode}) take "
        f"over {MAX_MEMORY >> 20} MiB to decode; save it smaller"
    )


def _check_end(opened: Image.Image, data: bytes) -> None:
    """Raise where a file's end was lost and is zeros: WebP and AVIF decode them to some picture."""
    lost = False
    if opened.format == "AVIF" and data.endswith(ZEROS):
        exif = opened.info.get("exif", b"").removeprefix(b"Exif\0\0")
        lost = not exif.strip(b"\0") or not data.endswith(exif)  # whose last bytes may be padding
    elif opened.format == "WEBP" and (shorter := _without_zeros(data)):
        # The zeros of a plain area are needed, those of a lost end are more than the picture takes.
        with suppress(OSError):
            open_formats(shorter).load()
            lost = True
    if lost:
        raise ImageError("it ends in zeros: the rest was lost; fetch or save it again")


def _without_zeros(data: bytes) -> bytes | None:
    """Return a WebP without the last of the zeros its picture ends in; None where it does not."""
    place = 12
    while place + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, place)
        end = place + 8 + size
        if name in (b"VP8 ", b"VP8L"):
            if not data[place:end].endswith(ZEROS):
                return None
            cut = data[place + 8 : end - len(ZEROS)] + data[end:]
            head = data[8:place] + struct.pack("<4sI", name, size - len(ZEROS))
            return struct.pack("<4sI", b"RIFF", len(head + cut)) + head + cut
        place = end + size % 2
    return None


def _has_sixteen_bits(opened: Image.Image) -> bool:
    tiles = getattr(opened, "tile", None)
    arguments = tiles[0][3] if tiles else ""
    stored_as = arguments if isinstance(arguments, str) else arguments[0] if arguments else ""
    return ";16" in f"{stored_as} {opened.mode}"


def open_formats(data: bytes) -> Image.Image:
    """Return a file of one of the :data:`IMAGE_FORMATS`, opened by Pillow and not decoded yet.

    Every file that is given to Pillow passes here.

    >>> open_formats((demo_path() / "cat.jpg").read_bytes()).format
    'JPEG'
    """
    Image.init()
    _quieten_pillow()
    known = [name for name in IMAGE_FORMATS if name in Image.OPEN]  # AVIF came with Pillow 11.3
    return Image.open(io.BytesIO(data), formats=known)


@cache
def is_image_file(name: str) -> bool:
    """Return whether a file has this name, and an image's suffix or content.

    >>> is_image_file(str(demo_path() / "cat.jpg")), is_image_file("a cat")
    (True, False)
    """
    if name.lower().endswith(IMAGE_SUFFIXES):
        return os.path.isfile(name)  # noqa: PTH113  # False for a caption longer than names may be
    with suppress(Exception):  # Pillow raises a different error for every other kind of file
        open_formats(image_bytes(name))
        return True
    return False


def _quieten_pillow() -> None:
    """Keep Pillow and its libtiff from printing what is raised anyway."""
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # heard where logging is set up
    with suppress(OSError, AttributeError):  # not every Pillow has it, or lets it be found
        libtiff = ctypes.CDLL(import_module("PIL._imaging").__file__)
        for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
            handler = getattr(libtiff, name)
            handler.argtypes, handler.restype = [ctypes.c_void_p], ctypes.c_void_p
            handler(None)


def _name(image: ImageSource) -> str:
    if not isinstance(image, str | os.PathLike | SharedImage):
        return f"<{type(image).__name__}>"
    name = str(image)
    return name if len(name) <= 300 else f"{name[:300]}..."


def image_bytes(image: str | os.PathLike[str] | bytes | SharedImage) -> bytes:
    """Return the bytes of an image file, or raise :class:`ImageError`.

    Only regular files of up to :data:`MAX_FILE` bytes are read: a pipe would hang, and a device has
    no end.
    """
    if isinstance(image, bytes):
        return image
    if isinstance(image, SharedImage):
        return image.data()
    if re.match(r"\w+://|data:", str(image)):
        raise ImageError(
            f"{_name(image)} is a URL; nothing is downloaded: give a local file, or the bytes "
            "(urllib.request.urlopen(url).read())"
        )
    try:
        facts = Path(image).stat()
        if not stat.S_ISREG(facts.st_mode):
            raise ImageError(f"cannot read {_name(image)}: it is not a regular file")
        if facts.st_size > MAX_FILE:
            raise ImageError(
                f"cannot read {_name(image)}: its {facts.st_size} bytes are over {MAX_FILE}"
            )
        with Path(image).open("rb") as file:
            data = file.read(facts.st_size + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        if isinstance(error, ImageError):
            raise
        why = _missing_number(Path(image)) if isinstance(error, FileNotFoundError) else None
        why = why or getattr(error, "strerror", None) or str(error)
        raise ImageError(f"cannot read {_name(image)}: {why}") from error
    if len(data) > facts.st_size:
        raise ImageError(f"{_name(image)} changed while it was being read")
    return data


def _missing_number(path: Path) -> str | None:
    """Word the problem of a missing file whose name is a number, as COCO numbers images."""
    if not re.fullmatch(r"\d{1,18}", path.name):
        return None
    if path.name == str(path):
        given = "--images FOLDER, in Python images=FOLDER"
        return f"it is an image's number, as COCO has them; give the folder of images ({given})"
    number = int(path.name)
    return (
        f"no such file; only a number, or a value of the column image_id, matches files such as "
        f"{number}.jpg or COCO_val2014_{number:012d}.jpg"
    )


def demo_path() -> Path:
    """Return the folder of the photographs that ship with the package, and their captions.

    >>> (demo_path() / "cat.jpg").is_file()
    True
    """
    folder = Path(__file__).parent / "data" / "demo"
    if not folder.is_dir():
        raise InputError("the demo data are missing from this installation; reinstall discode")
    return folder
