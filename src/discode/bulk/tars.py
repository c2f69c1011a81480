"""WebDataset tars: a sample is the consecutive files that share a name up to its first dot.

A sample has an image (``.jpg``, ``.png``, ...) and a caption, in ``.txt`` or in a field of
``.json``, which may also hold references and an id. A sample whose files cannot be told apart, or
that stand in several places of the tar, has a reason instead of a score: it is not known which
caption belongs to which image. Tars may be joined (``cat a.tar b.tar``); where there are more zeros
between or after them than tar writes, files were lost: a row says so.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Container, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from discode.bulk.chunks import ChunkPlan, PairChunk, split
from discode.bulk.tables import InputFile, make_chunk
from discode.errors import InputError
from discode.files import PlacedRow, parse_json
from discode.images import IMAGE_SUFFIXES
from discode.pairs import CAPTION_COLUMNS, PairColumns, PairParser, first_filled

MAX_SAMPLE = 256 << 20
"""Bytes of a sample, headers and all, beyond which it is not read: no image and its texts are as
large."""


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
        return sum([tarfile.BLOCKSIZE + len(member.data) for member in self.members])


class _Header(tarfile.TarInfo):
    """A member's header; a broken one is an error, where tarfile would pass it over."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Any:
        """Read the next header."""
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


def tar_chunks(
    file: InputFile, plan: ChunkPlan, parser: PairParser, *, keep: bool
) -> Iterator[PairChunk]:
    """Read a tar from front to back, compressed or not."""
    with ExitStack() as stack:
        try:
            packed = stack.enter_context(file.path.open("rb"))
            # tarfile reads no further than the first of several gzip streams.
            plain: Any = (
                gzip.GzipFile(fileobj=packed) if packed.peek(2).startswith(b"\x1f\x8b") else packed
            )
            tar = stack.enter_context(JoinedTars.open(fileobj=plain, mode="r|*"))
        except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
            raise InputError(f"cannot read {file.path}: {error}") from error
        for place, samples in split(_samples(tar, file.name), file.number, plan, Sample.weight):
            keys = [f"{file.prefix}{sample.key}" for sample in samples]
            rows = [_row(sample, key, file.name) for sample, key in zip(samples, keys, strict=True)]
            chunk = make_chunk(place, rows, file, parser, keep=False)
            # A sample has its key for a name even where nothing else can be made of it.
            ids = [
                key if pair is None else pair.id
                for key, pair in zip(keys, chunk.pairs, strict=True)
            ]
            yield replace(chunk, ids=ids, samples=samples if keep else None)


def split_name(name: str) -> tuple[str, str]:
    """Return the key and the extension of a member, as WebDataset does.

    >>> split_name("00/000123.seg.png")
    ('00/000123', 'seg.png')
    """
    folder, slash, file = name.removeprefix("./").rpartition("/")
    stem, _, extension = file.partition(".")
    return f"{folder}{slash}{stem}" if stem else "", extension.lower()


def _samples(tar: JoinedTars, name: str) -> Iterator[Sample]:
    key = ""
    keys: set[str] = set()  # seen before; small beside the samples themselves
    members: dict[tuple[str, str], Member] = {}
    error: str | None = None
    size = 0  # of the sample so far
    begin = end = 0  # of one of the tars
    inside = False  # a file, whose sample is lost if the tar breaks off
    while True:
        try:
            inside = False
            info = tar.next()
            # It remembers every member; a large tar would fill the memory.
            tar.members = []  # type: ignore[attr-defined]  # typeshed does not know it
            if info is None or tar.zeros:
                if members or error:
                    yield Sample(key, tuple(members.values()), error)
                if problem := _wrong_end(end - begin, tar.zeros):
                    yield Sample(f"after {key}", (), f"{name} {problem}")
                if info is None:
                    return
                begin, key, members, error, tar.zeros = end + tar.zeros, "", {}, None, 0
            end = tar.offset
            name_key, extension = split_name(info.name)
            if not name_key or not extension or info.isdir():  # hidden files, too
                continue
            if name_key != key:
                if members or error:
                    yield Sample(key, tuple(members.values()), error)
                key, members, error, size = name_key, {}, None, 0
                if key in keys:
                    error = (
                        "its files are not adjacent: some came earlier in the tar; make it with "
                        "tar --sort=name, and give every sample a name of its own"
                    )
                keys.add(key)
            size += tarfile.BLOCKSIZE + info.size
            error = error or _misplaced(info, size, members)
            if error is not None:
                members = {}
                continue
            inside = True
            handle: Any = tar.extractfile(info)
            data = handle.read()
            members[name_key, extension] = Member(info.name, data, info.mtime, info.mode)
        # zlib and lzma have errors of their own for a compressed tar that is damaged
        except Exception as reason:
            broken = f"{name} breaks off, what follows cannot be read: {reason}"
            if inside:
                yield Sample(key, tuple(members.values()), broken)
                return
            if members or error:
                yield Sample(key, tuple(members.values()), error)
            yield Sample(f"after {key}", (), broken)
            return


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


def _misplaced(info: tarfile.TarInfo, size: int, members: Container[tuple[str, str]]) -> str | None:
    """Return why a file makes its sample useless, if it does; ``size`` is the sample's with it."""
    if size > MAX_SAMPLE:
        return f"with {info.name} it has {size} bytes, more than {MAX_SAMPLE}"
    if info.name.startswith("/") or ".." in info.name.split("/"):
        return f"{info.name} would be written outside of the folder that the tar is unpacked in"
    if not info.isfile():
        return (
            f"{info.name} is a link or a device, which holds nothing itself; make the tar with "
            "tar --dereference --hard-dereference"
        )
    if split_name(info.name) in members:
        return f"{info.name} is there twice; give every sample a name of its own"
    return None


def _image_of(sample: Sample, where: str) -> bytes:
    """Return the image of a sample: ``0.jpg`` rather than ``0.seg.png``, and only one of a kind."""
    by_plain_name: dict[bool, list[Member]] = {True: [], False: []}
    for member in sample.members:
        _, _, suffix = (extension := split_name(member.name)[1]).rpartition(".")
        if f".{suffix}" in IMAGE_SUFFIXES:
            by_plain_name[suffix == extension].append(member)
    images = by_plain_name[True] or by_plain_name[False]
    if not images:
        raise InputError(f"{where} has no image; allowed are {', '.join(IMAGE_SUFFIXES)}")
    if len(images) > 1:
        names = " and ".join(member.name for member in images[:2])
        raise InputError(f"{where} has several images, {names}; a sample has one")
    return images[0].data


def _row(sample: Sample, key: str, name: str) -> PlacedRow:
    """Return a sample as a row of a table; broken ones as what is wrong with them."""
    where = f"{name} sample {sample.key!r}"
    fields: Any = {}
    text: str | None = None
    try:
        if sample.error is not None:
            raise InputError(f"{where}: {sample.error}")
        image = _image_of(sample, where)
        for member in sample.members:
            _, extension = split_name(member.name)
            if extension == "txt":
                text = member.data.decode("utf-8-sig").rstrip("\r\n")
            elif extension == "json":
                fields = parse_json(member.data.decode("utf-8-sig"), f"{where}: {member.name}")
                if not isinstance(fields, dict):
                    raise InputError(f"{where}: {member.name} is not an object with fields")
        columns = PairColumns.among(fields)
        caption = first_filled(fields, columns.caption) if text is None else text
        if caption is None:
            raise InputError(
                f"{where} has no caption: neither .txt nor a .json with "
                f"{', '.join(CAPTION_COLUMNS)}"
            )
    except UnicodeDecodeError as error:
        return where, InputError(f"{where} is not UTF-8: {error}")
    except InputError as error:
        return where, error
    row_id = first_filled(fields, columns.id)
    row = {
        "image": image,
        "caption": caption,
        "references": first_filled(fields, columns.references),
        "id": key if row_id is None else row_id,
    }
    return where, row
