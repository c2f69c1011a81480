"""What a large run reads: a file, a folder, a pattern, or several of them."""

from __future__ import annotations

import glob
import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from discode.bulk.formats import kind_of
from discode.bulk.tables import SourceFile
from discode.errors import InputError

SAMPLE = 64 << 10
"""Bytes of a block that is looked at,"""
SAMPLES = 16
"""so many of them a file,"""
SAMPLES_IN_ALL = 16_384
"""and, but for the first and the last of each file, no more in all: 1 GiB is soon read."""


@dataclass(frozen=True)
class Inputs:
    """The files of a run, in a fixed order, all of one format.

    Attributes:
        given: What the user named.
        files: The files it stands for, sorted inside a folder or a pattern.
        kind: A row of :data:`~discode.bulk.formats.FORMATS`.
        names: What each file is called in the output: its path below what all files share.
    """

    given: tuple[str, ...]
    files: tuple[Path, ...]
    kind: str
    names: tuple[str, ...]

    def digest(self) -> str:
        """SHA-256 over every file's name, size and sampled blocks: it tells a changed input.

        Files of up to 1 MiB count whole, larger ones by sixteen blocks from the first to the last.
        Beyond a thousand files there are fewer blocks each, down to the first and the last.
        """
        return self._digest

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256()
        blocks = max(2, min(SAMPLES, SAMPLES_IN_ALL // len(self.files)))
        for name, path in zip(self.names, self.files, strict=True):
            try:
                with path.open("rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    digest.update(f"{name}\0{size}\n".encode(errors="backslashreplace"))
                    for start in _starts(size, blocks):
                        file.seek(start)
                        digest.update(file.read(SAMPLE))
            except OSError as error:
                raise InputError(f"cannot read {path}: {error.strerror or error}") from error
        return digest.hexdigest()


def find_inputs(
    given: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> Inputs:
    """Find the files of an input.

    A folder stands for the tables and tars right in it; a pattern (``*``, ``?``, ``[``) for what
    it matches. Formats do not mix: folders that hold Parquet files beside tars, as img2dataset
    writes them, want a pattern.
    """
    names = [given] if isinstance(given, str | os.PathLike) else list(given)
    files = [file for name in names for file in _expand(os.fspath(name))]
    if not files:
        raise InputError("no input given; name a file, a folder or a pattern")
    kinds = {kind_of(file): file for file in files}
    if len(kinds) > 1:
        shown = " and ".join(sorted(file.name for file in kinds.values())[:2])
        raise InputError(
            f"the input mixes formats ({shown}); name one with a pattern such as 'FOLDER/*.tar'"
        )
    seen = [file.resolve() for file in files]
    if len(set(seen)) < len(seen):
        twice = Counter(seen).most_common(1)[0][0]
        raise InputError(f"{twice} stands twice in the input; its rows would be judged twice")
    root = Path(os.path.commonpath([file.parent for file in seen]))
    shown_as = tuple(file.relative_to(root).as_posix() for file in seen)
    return Inputs(
        tuple(os.fspath(name) for name in names), tuple(files), next(iter(kinds)), shown_as
    )


def source_file(inputs: Inputs, number: int) -> SourceFile:
    """Return one of the files as readers want it; where there are several, ids name theirs."""
    name = inputs.names[number]
    prefix = f"{name}:" if len(inputs.files) > 1 else ""
    return SourceFile(inputs.files[number], number, name, prefix)


def is_many(given: str | os.PathLike[str]) -> bool:
    """Return whether an input is more than one table: a folder, a pattern or a tar.

    >>> is_many("pairs.csv"), is_many("shards/*.jsonl"), is_many("00000.tar")
    (False, True, True)
    """
    path = Path(given)
    pattern = glob.has_magic(os.fspath(given)) and not path.exists()
    return path.is_dir() or pattern or kind_of(path, strict=False) == "tar"


def _starts(size: int, blocks: int) -> Iterable[int]:
    if size <= blocks * SAMPLE:
        return range(0, size, SAMPLE)
    return (number * (size - SAMPLE) // (blocks - 1) for number in range(blocks))


def _expand(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        # What hides is half a file, or the system's own.
        found = [
            file
            for file in sorted(path.iterdir())
            if kind_of(file, strict=False) and file.is_file() and not file.name.startswith(".")
        ]
        if not found:
            raise InputError(
                f"{path} holds no tables or tars; allowed are .csv, .tsv, .jsonl, .parquet, .tar"
            )
        return found
    if path.exists():
        if not path.is_file():
            raise InputError(f"cannot read {path}: it is no regular file")
        return [path]
    if glob.has_magic(name):
        # Path.glob wants a folder to start in, and knows no absolute pattern.
        found = sorted(map(Path, glob.glob(name, recursive=True)))  # noqa: PTH207
        if not found:
            raise InputError(f"no file matches {name}")
        return [file for file in found if file.is_file()]
    raise InputError(f"no such file: {path}")
