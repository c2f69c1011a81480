"""WebDataset tars: a sample is the consecutive files that share a name up to its first dot.

A sample has an image (``.jpg``, ``.png``, ...) and a caption, in ``.txt`` or in a field of
``.json``, which may also hold references and an id. A sample whose files cannot be told apart, or
that stand in several places of the tar, has a reason instead of a score: it is not known which
caption belongs to which image. Tars may be joined (``cat a.tar b.tar``); where there are more zeros
between or after them than tar writes, files were lost, which a failed row reports.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from discode._columns import CAPTION_COLUMNS, PairColumns, first_filled
from discode._files import TableRow, parse_json, reading
from discode.bulk._chunks import ChunkPlan
from discode.bulk._tables import Row
from discode.errors import InputError
from discode.images import IMAGE_SUFFIXES

MAX_SAMPLE = 256 << 20
"""Bytes of a sample, headers and all, beyond which it is not read: no image and its texts are as
large."""
_NOT_ADJACENT = (
    "its files are not adjacent: some came earlier in the tar; make it with tar --sort=name, and "
    "give each sample a unique name"
)


@dataclass(frozen=True, slots=True)
class Member:
    """A file inside a tar, as it came."""

    name: str
    data: bytes
    mtime: float = 0.0
    mode: int = 0o644


@dataclass(slots=True)
class Sample:
    """The files of one key by their extensions, and what went wrong while they were read."""

    key: str
    members: dict[str, Member] = field(default_factory=dict)
    error: str | None = None
    size: int = 0  # headers and all, also of files that are not kept

    def weight(self) -> int:
        return sum([tarfile.BLOCKSIZE + len(member.data) for member in self.members.values()])

    def fail(self, error: str) -> None:
        self.members, self.error = {}, error


class _Header(tarfile.TarInfo):
    """A member's header; a broken one is an error, where tarfile would pass it over."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Any:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.HeaderError as error:
            kind = type(error).__name__  # these errors have no public names
            if kind == "EOFHeaderError" and isinstance(tarfile_, JoinedTars):
                tarfile_.zeros += tarfile.BLOCKSIZE
            elif kind != "EmptyHeaderError":  # which is the end of the file
                raise tarfile.ReadError(str(error)) from error
            raise


class JoinedTars(tarfile.TarFile):
    """Tars one after another, read as one; ``zeros`` counts the bytes of zeros that were met."""

    tarinfo = _Header
    ignore_zeros = True
    zeros = 0


def tar_rows(path: Path, name: str, plan: ChunkPlan, keep: bool) -> Iterator[Row]:
    """Read a tar from front to back, compressed or not."""
    with ExitStack() as stack:
        with reading(path, EOFError, tarfile.TarError, zlib.error):
            packed: Any = stack.enter_context(path.open("rb"))
            # tarfile reads no further than the first of several gzip streams.
            zipped = packed.peek(2).startswith(b"\x1f\x8b")
            plain = gzip.GzipFile(fileobj=packed) if zipped else packed
            tar = stack.enter_context(JoinedTars.open(fileobj=plain, mode="r|*"))
        for sample in _samples(tar, name):
            where = f"{name} sample {sample.key!r}"
            fields, weight = _fields(sample, where), sample.weight()
            yield Row(where, fields, sample if keep else None, sample.key, weight)


def split_name(name: str) -> tuple[str, str]:
    """Return the key and the extension of a member, as WebDataset does.

    >>> split_name("00/000123.seg.png")
    ('00/000123', 'seg.png')
    """
    folder, slash, file = name.removeprefix("./").rpartition("/")
    stem, _, extension = file.partition(".")
    return f"{folder}{slash}{stem}" if stem else "", extension.lower()


def _samples(tar: JoinedTars, name: str) -> Iterator[Sample]:
    """Yield the samples of a tar; what was lost is one more, with the reason."""
    sample = Sample("")
    keys: set[str] = set()  # seen before; small compared with the samples
    begin = end = 0  # of one of the tars
    inside = False  # a file, whose sample is lost if the tar breaks off
    try:
        while True:
            inside = False
            info = tar.next()
            # It remembers every member; a large tar would fill the memory.
            tar.members = []  # type: ignore[attr-defined]  # typeshed does not know it
            if info is None or tar.zeros:
                if sample.size:
                    yield sample
                if problem := _wrong_end(end - begin, tar.zeros):
                    yield Sample(f"after {sample.key}", error=f"{name} {problem}")
                if info is None:
                    return
                begin, sample, tar.zeros = end + tar.zeros, Sample(""), 0
            end = tar.offset
            key, extension = split_name(info.name)
            if not key or not extension or info.isdir():  # hidden files, too
                continue
            if key != sample.key:
                if sample.size:
                    yield sample
                sample = Sample(key, error=_NOT_ADJACENT if key in keys else None)
                keys.add(key)
            sample.size += tarfile.BLOCKSIZE + info.size
            if problem := sample.error or _misplaced(info, sample, extension):
                sample.fail(problem)
                continue
            inside = True
            handle: Any = tar.extractfile(info)
            sample.members[extension] = Member(info.name, handle.read(), info.mtime, info.mode)
    # zlib and lzma have errors of their own for a compressed tar that is damaged
    except Exception as reason:
        broken = f"{name} breaks off, what follows cannot be read: {reason}"
        if inside:
            sample.fail(broken)
        if sample.size:
            yield sample
        if not inside:
            yield Sample(f"after {sample.key}", error=broken)


def _wrong_end(size: int, zeros: int) -> str | None:
    """Return what is wrong with the zeros after ``size`` bytes of a tar, if anything is.

    >>> _wrong_end(3 * 512, 2 * 512), _wrong_end(3 * 512, 17 * 512)
    (None, None)
    >>> _wrong_end(3 * 512, 18 * 512)
    'has 9216 bytes of zeros where a tar ends with 8704 at most: files were lost there'
    """
    if not zeros:
        return "breaks off: the zeros that end a tar are missing"
    most = -(size + 2 * tarfile.BLOCKSIZE) % tarfile.RECORDSIZE + 2 * tarfile.BLOCKSIZE
    if zeros <= most:
        return None
    return f"has {zeros} bytes of zeros where a tar ends with {most} at most: files were lost there"


def _misplaced(info: tarfile.TarInfo, sample: Sample, extension: str) -> str | None:
    if sample.size > MAX_SAMPLE:
        return f"with {info.name} it has {sample.size} bytes, more than {MAX_SAMPLE}"
    if info.name.startswith("/") or ".." in info.name.split("/"):
        return f"{info.name} would be written outside of the folder that the tar is unpacked in"
    if not info.isfile():
        return (
            f"{info.name} is a link or a device, which holds nothing itself; make the tar with "
            "tar --dereference --hard-dereference"
        )
    if extension in sample.members:
        return f"{info.name} occurs twice; give each sample a unique name"
    return None


def _image_of(sample: Sample, where: str) -> bytes:
    """Return the image of a sample: ``0.jpg`` rather than ``0.seg.png``, and only one of a kind."""
    images = {end: m for end, m in sample.members.items() if f".{end}".endswith(IMAGE_SUFFIXES)}
    plain = [member for end, member in images.items() if "." not in end]
    members = plain or list(images.values())
    if not members:
        raise InputError(f"{where} has no image; allowed are {', '.join(IMAGE_SUFFIXES)}")
    if len(members) > 1:
        names = " and ".join(member.name for member in members[:2])
        raise InputError(f"{where} has several images, {names}; a sample has one")
    return members[0].data


def _fields(sample: Sample, where: str) -> TableRow:
    """Return a sample as the fields of a table's row, or what is wrong with it."""
    fields: Any = {}
    try:
        if sample.error is not None:
            raise InputError(f"{where}: {sample.error}")
        image = _image_of(sample, where)
        texts = {
            end: sample.members[end].data.decode("utf-8-sig")
            for end in ("txt", "json")
            if end in sample.members
        }
        if "json" in texts:
            fields = parse_json(texts["json"], f"{where}: {sample.members['json'].name}")
            if not isinstance(fields, dict):
                raise InputError(f"{where}: its .json is not an object with fields")
        columns = PairColumns.among(fields)
        caption = first_filled(fields, columns.caption)
        if "txt" in texts:
            caption = texts["txt"].rstrip("\r\n")
        if caption is None:
            raise InputError(
                f"{where} has no caption: neither .txt nor a .json with "
                f"{', '.join(CAPTION_COLUMNS)}"
            )
    except UnicodeDecodeError as error:
        return InputError(f"{where} is not UTF-8: {error}")
    except InputError as error:
        return error
    return {
        "image": image,
        "caption": caption,
        "references": first_filled(fields, columns.references),
        "id": first_filled(fields, columns.id),
    }
