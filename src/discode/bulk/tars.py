"""WebDataset tars: a sample is the consecutive files that share a name up to its first dot.

A sample has an image (``.jpg``, ``.png``, ...) and a caption, in ``.txt`` or in a field of
``.json``, which may also hold references and an id. A sample whose files cannot be told apart, or
that stand in several places of the tar, has a reason instead of a score: it is not known which
caption belongs to which image.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from discode.bulk.chunks import ChunkPlan, PairChunk, split
from discode.bulk.tables import InputFile, make_chunk
from discode.errors import InputError
from discode.files import PlacedRow, parse_json
from discode.images import IMAGE_SUFFIXES
from discode.pairs import CAPTION_COLUMNS, PairColumns, PairParser, first_filled

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
            keys = [f"{file.prefix}{sample.key}" for sample in part]
            rows = [_row(sample, key, file.name) for sample, key in zip(part, keys, strict=True)]
            chunk = make_chunk(place, rows, file, parser, keep=False)
            # A sample has its key for a name even where nothing else can be made of it.
            ids = [
                key if pair is None else pair.id
                for key, pair in zip(keys, chunk.pairs, strict=True)
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
    keys: set[str] = set()  # seen before; small beside the samples themselves
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
                if key in keys:
                    error = (
                        "its files are not adjacent: some came earlier in the tar; make it with "
                        "tar --sort=name, and give every sample a name of its own"
                    )
                keys.add(key)
            error = error or _misplaced(info, members)
            if error is not None:
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


def _misplaced(info: tarfile.TarInfo, members: Sequence[Member]) -> str | None:
    """Return why a file makes its sample useless, if it does."""
    if info.size > MAX_MEMBER:
        return f"{info.name} has {info.size} bytes, more than {MAX_MEMBER}"
    if info.name.startswith("/") or ".." in info.name.split("/"):
        return f"{info.name} would be written outside of the folder that the tar is unpacked in"
    if any(split_name(member.name) == split_name(info.name) for member in members):
        return f"{info.name} is there twice; give every sample a name of its own"
    return None


def _image_of(sample: Sample, where: str) -> bytes:
    """Return the image of a sample: ``0.jpg`` rather than ``0.seg.png``, and only one of a kind."""
    found: dict[bool, list[Member]] = {True: [], False: []}
    for member in sample.members:
        _, _, suffix = (extension := split_name(member.name)[1]).rpartition(".")
        if f".{suffix}" in IMAGE_SUFFIXES:
            found[suffix == extension].append(member)
    images = found[True] or found[False]
    if not images:
        raise InputError(f"{where} has no image; allowed are {', '.join(IMAGE_SUFFIXES)}")
    if len(images) > 1:
        names = " and ".join(member.name for member in images[:2])
        raise InputError(f"{where} has several images, {names}; a sample has one")
    return images[0].data


def _row(sample: Sample, key: str, name: str) -> PlacedRow:
    """Return a sample as a row of a table; broken ones as what is wrong with them."""
    where = f"{name} sample {sample.key!r}"
    given: Any = {}
    text: str | None = None
    try:
        if sample.error is not None:
            raise InputError(f"{where}: {sample.error}")
        image = _image_of(sample, where)
        for member in sample.members:
            _, extension = split_name(member.name)
            if extension == "txt":
                text = member.data.decode().rstrip("\r\n")
            elif extension == "json":
                given = parse_json(member.data.decode(), f"{where}: {member.name}")
                if not isinstance(given, dict):
                    raise InputError(f"{where}: {member.name} is not an object with fields")
        columns = PairColumns.among(given)
        caption = first_filled(given, columns.caption) if text is None else text
        if caption is None:
            raise InputError(
                f"{where} has no caption: neither .txt nor a .json with "
                f"{', '.join(CAPTION_COLUMNS)}"
            )
    except UnicodeDecodeError as error:
        return where, InputError(f"{where} is not UTF-8: {error}")
    except InputError as error:
        return where, error
    own = first_filled(given, columns.id)
    row = {
        "image": image,
        "caption": caption,
        "references": first_filled(given, columns.references),
        "id": key if own is None else own,
    }
    return where, row
