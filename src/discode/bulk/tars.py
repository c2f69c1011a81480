"""WebDataset tars: a sample is the consecutive files that share a name up to its first dot.

A sample has an image (``.jpg``, ``.png``, ...) and a caption, in ``.txt`` or in a field of
``.json``, which may also hold references and an id.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from discode.bulk.chunks import ChunkPlan, PairChunk, split
from discode.bulk.tables import InputFile, make_chunk
from discode.errors import InputError
from discode.files import PlacedRow, parse_json
from discode.images import IMAGE_SUFFIXES
from discode.pairs import CAPTION_COLUMNS, PairParser

MAX_MEMBER = 256 << 20
"""Bytes of a file inside a tar beyond which it is not read: no image or caption is as large."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file inside a tar, as it came."""

    name: str
    data: bytes
    mtime: float = 0.0
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class Sample:
    """The files of one key, and what went wrong while they were read."""

    key: str
    members: tuple[Member, ...]
    error: str | None = None

    def weight(self) -> int:
        """Bytes it holds in memory."""
        return sum([len(member.data) for member in self.members])


class _Header(tarfile.TarInfo):
    """A member's header; a broken one is an error, where tarfile would take it for the end."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Any:
        """Read the next header."""
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.HeaderError as error:
            # Zeros are the end, as is nothing in an empty file; these errors have no public names.
            kind = type(error).__name__
            if kind == "EOFHeaderError" or (kind == "EmptyHeaderError" and not tarfile_.offset):
                raise
            if kind == "EmptyHeaderError":
                raise tarfile.ReadError("the zeros that end a tar are missing") from error
            raise tarfile.ReadError(str(error)) from error


def tar_chunks(
    file: InputFile, plan: ChunkPlan, parser: PairParser, *, keep: bool
) -> Iterator[PairChunk]:
    """Read a tar from front to back, compressed or not."""
    try:
        tar = tarfile.open(file.path, "r|*", tarinfo=_Header)  # noqa: SIM115  # closed below, after the last chunk
    except (OSError, tarfile.TarError, EOFError) as error:
        raise InputError(f"cannot read {file.path}: {error}") from error
    with tar:
        for place, part in split(_samples(tar, file.name), file.number, plan, Sample.weight):
            rows = [_row(sample, f"{file.name} sample {sample.key!r}") for sample in part]
            chunk = make_chunk(place, rows, file, parser, keep=False)
            # A sample has its key for a name even where nothing else can be made of it.
            ids = [
                sample.key if pair is None else pair.id
                for sample, pair in zip(part, chunk.pairs, strict=True)
            ]
            yield replace(chunk, ids=ids, samples=part if keep else None)


def split_name(name: str) -> tuple[str, str]:
    """Return the key and the extension of a member, as WebDataset does.

    >>> split_name("00/000123.seg.png")
    ('00/000123', 'seg.png')
    """
    folder, slash, file = name.removeprefix("./").rpartition("/")
    stem, _, extension = file.partition(".")
    return f"{folder}{slash}{stem}" if stem else "", extension.lower()


def _samples(tar: tarfile.TarFile, name: str) -> Iterator[Sample]:
    key = ""
    members: list[Member] = []
    error: str | None = None
    inside = False  # a file, whose sample is lost if the tar breaks off
    while True:
        try:
            inside = False
            info = tar.next()
            # It remembers every member; a large tar would fill the memory.
            tar.members = []  # type: ignore[attr-defined]  # typeshed does not know it
            if info is None:
                break
            found, extension = split_name(info.name) if info.isfile() else ("", "")
            if not found or not extension:  # folders, links and hidden files
                continue
            if found != key:
                if members or error:
                    yield Sample(key, tuple(members), error)
                key, members, error = found, [], None
            if info.size > MAX_MEMBER:
                error = f"{info.name} has {info.size} bytes, more than {MAX_MEMBER}"
                continue
            inside = True
            handle: Any = tar.extractfile(info)
            data = handle.read()
            members.append(Member(info.name, data, info.mtime, info.mode))
        # zlib and lzma have errors of their own for a compressed tar that is damaged
        except Exception as reason:
            broken = f"{name} breaks off, what follows cannot be read: {reason}"
            if inside:
                yield Sample(key, tuple(members), broken)
                return
            if members or error:
                yield Sample(key, tuple(members), error)
            yield Sample(f"after {key}", (), broken)
            return
    if members or error:
        yield Sample(key, tuple(members), error)


def _row(sample: Sample, where: str) -> PlacedRow:
    """Return a sample as a row of a table; broken ones as what is wrong with them."""
    row: dict[str, Any] = {}
    image: bytes | None = None
    text: str | None = None
    try:
        if sample.error is not None:
            raise InputError(f"{where}: {sample.error}")
        for member in sample.members:
            _, extension = split_name(member.name)
            suffix = f".{extension.rpartition('.')[2]}"
            if suffix in IMAGE_SUFFIXES and image is None:
                image = member.data
            elif extension == "txt":
                text = member.data.decode().rstrip("\r\n")
            elif extension == "json":
                given = parse_json(member.data.decode(), f"{where}: {member.name}")
                if not isinstance(given, dict):
                    raise InputError(f"{where}: {member.name} is not an object with fields")
                row.update(given)
        if image is None:
            raise InputError(f"{where} has no image; allowed are {', '.join(IMAGE_SUFFIXES)}")
        if text is None and not any(row.get(name) is not None for name in CAPTION_COLUMNS):
            raise InputError(
                f"{where} has no caption: neither .txt nor a .json with "
                f"{', '.join(CAPTION_COLUMNS)}"
            )
    except UnicodeDecodeError as error:
        return where, InputError(f"{where} is not UTF-8: {error}")
    except InputError as error:
        return where, error
    if text is not None:
        row[CAPTION_COLUMNS[0]] = text
    row["image"] = image
    if row.get("id") is None:
        row["id"] = sample.key
    return where, row
