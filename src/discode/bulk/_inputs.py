"""The input of a run: a file, a folder, a pattern, or several of them."""

from __future__ import annotations

import glob
import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from discode._files import read_table, reading
from discode.bulk._chunks import MANIFEST, Shard
from discode.bulk._formats import FORMATS, check_format, format_of
from discode.bulk._writers import SCORE_FORMATS
from discode.errors import InputError

DIGEST_BYTES = 64 << 10
"""Bytes of a piece of a file that the digest of an input reads."""
DIGEST_PIECES = 16
"""The most pieces of a file."""
DIGEST_PIECES_IN_ALL = 16_384
"""The most pieces of all files (1 GiB), apart from the first and the last of each."""


@dataclass(frozen=True)
class Inputs:
    """The files of a run, in a fixed order, all of one format."""

    arguments: tuple[str, ...]  # what the user named
    files: tuple[Path, ...]  # what it stands for, sorted inside a folder or a pattern
    format: str  # one of :data:`~discode.bulk._formats.FORMATS`
    names: tuple[str, ...]  # of the files in the output: their paths below what all share
    sizes: tuple[int, ...] = ()  # bytes of each when it was found

    @cached_property
    def digest(self) -> str:
        """A SHA-256 of every file's name, size and some pieces, to notice a changed input.

        Files of up to 1 MiB count whole, larger ones by sixteen pieces from the first to the last.
        Beyond a thousand files there are fewer pieces each, down to the first and the last.
        """
        digest = hashlib.sha256()
        pieces = max(2, min(DIGEST_PIECES, DIGEST_PIECES_IN_ALL // len(self.files)))
        for name, path in zip(self.names, self.files, strict=True):
            with reading(path), path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                digest.update(f"{name}\0{size}\n".encode(errors="backslashreplace"))
                for start in _starts(size, pieces):
                    file.seek(start)
                    digest.update(file.read(DIGEST_BYTES))
        return digest.hexdigest()

    def check_unchanged(self) -> None:
        """Raise where a file has another size than when it was found: rows may have been missed."""
        for path, size in zip(self.files, self.sizes, strict=True):
            if path.exists() and path.stat().st_size != size:
                raise InputError(
                    f"{path} changed while it was read; give a new folder to judge it as it is now"
                )


def find_inputs(source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Inputs:
    """Find the files of an input.

    A folder stands for the tables and tars directly in it; a pattern (``*``, ``?``, ``[``) for what
    it matches. Formats do not mix: folders that hold both Parquet files and tars, as img2dataset
    writes them, need a pattern. Nor do scores that discode wrote with tables that it is to judge:
    a folder or a pattern that covers an earlier output would judge every row again. The folder of
    a run stands for its scores.
    """
    names = [source] if isinstance(source, str | os.PathLike) else list(source)
    files = [file for name in names for file in _expand(os.fspath(name))]
    if not files:
        raise InputError("no input given; name a file, a folder or a pattern")
    formats = {check_format(file): file for file in files}
    if len(formats) > 1:
        shown = " and ".join(sorted(file.name for file in formats.values())[:2])
        raise InputError(
            f"the input mixes formats ({shown}); name one with a pattern such as 'FOLDER/*.tar'"
        )
    outputs = {_is_output(file): file for file in files} if len(files) > 1 else {}
    if len(outputs) > 1:
        raise InputError(
            f"{outputs[True]} is an output of discode, but {outputs[False]} is not; name the files "
            "to judge, or write scores to another folder"
        )
    seen = [file.resolve() for file in files]
    if len(set(seen)) < len(seen):
        twice = Counter(seen).most_common(1)[0][0]
        raise InputError(f"{twice} is given twice; name each file once")
    root = Path(os.path.commonpath([file.parent for file in seen]))
    shown_as = tuple(file.relative_to(root).as_posix() for file in seen)
    return Inputs(
        tuple(os.fspath(name) for name in names), tuple(files), next(iter(formats)), shown_as,
        tuple(file.stat().st_size for file in files),
    )  # fmt: skip


def _starts(size: int, pieces: int) -> Iterable[int]:
    if size <= pieces * DIGEST_BYTES:
        return range(0, size, DIGEST_BYTES)
    return (number * (size - DIGEST_BYTES) // (pieces - 1) for number in range(pieces))


def _is_output(file: Path) -> bool:
    """Whether discode wrote a file: by its place in a run's folder, or by its columns."""
    folders = (file.parent, file.parent.parent)
    if Shard.of(file.name) and any((folder / MANIFEST).exists() for folder in folders):
        return True
    return is_score_file(file)


def is_score_file(file: Path) -> bool:
    """Whether a file holds scores that discode wrote, by its columns."""
    try:
        row = next(read_table(file), ("", {}))[1] if format_of(file) in SCORE_FORMATS else {}
    except InputError:
        return False  # reading it reports the problem
    return isinstance(row, dict) and {"method", "score", "raw", "flags", "signature"} <= {*row}


def _expand(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        # A hidden file is half-written, or the system's own.
        names = (f for f in sorted(path.iterdir()) if f.name != MANIFEST and f.name[0] != ".")
        files = [file for file in names if format_of(file)]
    elif path.exists():
        files = [path]
    elif glob.has_magic(name):
        # Path.glob needs a folder to start in, and takes no absolute pattern.
        files = sorted(map(Path, glob.glob(name, recursive=True)))  # noqa: PTH207
        if "**" in name:  # which matches the folders on the way
            files = [file for file in files if format_of(file) or not file.is_dir()]
    elif name == "-":
        raise InputError("standard input is not supported here; write the rows to a file")
    else:
        raise InputError(f"no such file: {path}")
    if not files:
        raise InputError(f"no file matches {name}; allowed are {', '.join(FORMATS)}")
    for file in files:
        if not file.is_file():
            kind = "a folder" if file.is_dir() else "not a regular file"
            missing = "a link to a file that is missing"
            raise InputError(f"cannot read {file}: it is {kind if file.exists() else missing}")
    return files
