"""The output folder of a large run: shards written whole, marks of what is finished, a manifest.

::

    FOLDER/
      _run.json                   what the run is: input, signature, shard size, format, threshold
      part-00000-00000.jsonl      scores of block 0 of file 0
      passed/part-00000-00000.tar the samples that pass, where there is a threshold
      _done/part-00000-00000.json written last: this block is finished, and these are its counts
      _lock-00000-of-00001        held by the process that writes this share

Readers of Parquet pass over names that begin with an underscore, so the folder opens as a table.
A block counts as finished when its mark is there and names files of the size they have. Whatever
else a killed process leaves behind is written again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from discode.bulk.chunks import BLOCK_ROWS, Block, Cut, Shard
from discode.bulk.formats import FORMATS
from discode.bulk.inputs import Inputs
from discode.bulk.judging import Judged, Totals
from discode.bulk.locks import ShareLock
from discode.bulk.passing import Passing
from discode.bulk.sinks import SINKS, Sink, check_sink, check_threshold
from discode.errors import InputError
from discode.files import parse_json, replacing
from discode.version import __version__

LAYOUT = 2
MANIFEST = "_run.json"


@dataclass(frozen=True)
class Settings:
    """What makes two runs the same run, besides the judge.

    Attributes:
        inputs: What is read.
        shard_size: Rows an output shard.
        format: "jsonl", "parquet" or "csv".
        min_score: Samples with at least this score are written again; None for no such thing.
        images: The folder of the pictures.
    """

    inputs: Inputs
    shard_size: int = BLOCK_ROWS
    format: str = "jsonl"
    min_score: float | None = None
    images: str | None = None

    def __post_init__(self) -> None:
        check_sink(self.format)
        Cut(self.shard_size)
        if self.images is not None and not Path(self.images).is_dir():
            raise InputError(f"images: {self.images} is not a folder")
        if self.min_score is not None:
            check_threshold(self.min_score)
            if FORMATS[self.inputs.kind].passing is None:
                raise InputError(
                    "COCO results cannot be filtered; make JSON lines of them, a row a result"
                )

    def manifest(self, signature: str) -> dict[str, Any]:
        """Return what ``_run.json`` holds."""
        return {
            "layout": LAYOUT,
            "discode": __version__,
            "input": list(self.inputs.given),
            "files": len(self.inputs.files),
            "files_sha256": self.inputs.digest(),
            "images": self.images,
            "signature": signature,
            "shard_size": self.shard_size,
            "format": self.format,
            "min_score": self.min_score,
        }


def check_same(folder: Path, settings: Settings, signature: str | None = None) -> None:
    """Raise where a folder holds another run's shards; the signature counts where it is given."""
    file = folder / MANIFEST
    if not file.exists():
        if folder.is_dir() and any(Block.of(entry.name) for entry in folder.iterdir()):
            raise InputError(f"{folder} holds shards without a {MANIFEST}; give a new folder")
        return
    theirs = parse_json(file.read_text(errors="replace"), str(file))
    if not isinstance(theirs, dict):
        raise InputError(f"{file} is no manifest of a run; give a new folder")
    mine = settings.manifest(signature or theirs.get("signature", ""))
    for key, value in mine.items():
        # Another name for the same files, or a release that scores the same, is no other run.
        if key == "files_sha256" and theirs.get(key) != value:
            raise InputError(
                f"{folder} was begun with another input: a file's name, size or content has "
                "changed since; give the input it was begun with, or a new folder"
            )
        if key not in ("input", "discode") and theirs.get(key) != value:
            raise InputError(
                f"{folder} was begun with {key}={theirs.get(key)}, this run has {key}={value}; "
                "give the settings it was begun with, or a new folder"
            )


def signature_of(folder: Path) -> str:
    """Return the signature of the scores in an output folder."""
    file = folder / MANIFEST
    return str(parse_json(file.read_text(errors="replace"), str(file))["signature"])


@dataclass
class _Part:
    """A block that is being written; chunks may come in any order."""

    sink: Sink
    stack: ExitStack
    next_row: int
    passing: Passing | None = None
    totals: Totals = field(default_factory=Totals)
    waiting: dict[int, Judged] = field(default_factory=dict)


class RunFolder:
    """One process's view of an output folder; it writes the blocks of its share."""

    def __init__(self, path: Path, settings: Settings, shard: Shard) -> None:
        self.path, self.settings, self.shard = path, settings, shard
        try:
            for folder in (path, path / "_done", *self._passed_folder()):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror or error}") from error
        if not os.access(path, os.W_OK):
            raise InputError(f"cannot write {path}: give a folder that can be written")
        self._count = len(settings.inputs.files)
        self._signature, self._written = "", False
        self._parts: dict[Block, _Part] = {}
        self._last: dict[int, int] = {}  # file to its last block, where that is known
        self._totals: dict[Block, Totals] = {}
        self._lock = ShareLock(path, shard)  # last: whoever gets no folder holds no lock

    def _passed_folder(self) -> list[Path]:
        return [] if self.settings.min_score is None else [self.path / "passed"]

    @property
    def begun(self) -> bool:
        """Whether a run began here before."""
        return (self.path / MANIFEST).exists()

    def begin(self, signature: str) -> None:
        """See that what is here is of this run, and find what is finished."""
        check_same(self.path, self.settings, signature)
        self._signature = signature
        self._sweep()
        self._find()

    def _write_manifest(self) -> None:
        file = self.path / MANIFEST
        if not file.exists():
            with replacing(file) as temp:
                temp.write_text(
                    json.dumps(self.settings.manifest(self._signature), indent=2) + "\n"
                )
        check_same(self.path, self.settings, self._signature)  # another process may have been first

    def _sweep(self) -> None:
        """Remove what a killed process left half-written; the lock keeps others out."""
        for folder in (self.path, self.path / "_done", *self._passed_folder()):
            for entry in folder.iterdir():
                block = Block.of(entry.name) if entry.name.endswith(".part") else None
                if block is not None and self.shard.owns(block, self._count):
                    entry.unlink(missing_ok=True)

    def _find(self) -> None:
        for entry in sorted((self.path / "_done").iterdir()):
            block = Block.of(entry.name)
            mark = None if block is None else self._mark(entry)
            if block is None or mark is None:
                continue
            ends_file, totals = mark
            if ends_file:
                self._last[block.file] = block.number
            if self.shard.owns(block, self._count):
                self._totals[block] = totals

    def _mark(self, entry: Path) -> tuple[bool, Totals] | None:
        """Return whether a block ends its file, and its counts, where the mark can be trusted.

        That is: nothing is missing from it, and its files are what it says they are.
        """
        try:
            mark = json.loads(entry.read_text())
            counts = mark["totals"] | {"errors": tuple(map(tuple, mark["totals"]["errors"]))}
            totals, ends_file = Totals(**counts), mark["ends_file"]
            whole = bool(mark["files"]) and all(
                (self.path / name).stat().st_size == size for name, size in mark["files"].items()
            )
            _ = Totals() + totals  # counts that do not add up are no counts
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return (bool(ends_file), totals) if whole and set(asdict(totals)) == set(counts) else None

    def wanted(self, file: int) -> Callable[[int], bool] | None:
        """Return which blocks of a file are still to be done by this process; None if none is."""
        if not self.shard.reads(file, self._count):
            return None

        def want(number: int) -> bool:
            block = Block(file, number)
            return block not in self._totals and self.shard.owns(block, self._count)

        if file in self._last and not any(map(want, range(self._last[file] + 1))):
            return None
        return want

    def add(self, judged: Judged) -> None:
        """Take a chunk; a block is written out when its last chunk has come."""
        block = judged.piece.block
        part = self._parts.get(block)
        if str(judged.scores.signature) != self._signature:
            raise InputError(
                f"workers differ: one scores as {self._signature}, another as "
                f"{judged.scores.signature}; give all nodes the same discode and model"
            )
        if not self._written:  # only now: a mistake that ends a run at once leaves no trace
            self._write_manifest()
            self._written = True
        if part is None:
            if block in self._totals:
                return  # came twice: a worker was lost after its work was done
            part = self._parts[block] = self._open(block)
        part.waiting[judged.piece.start] = judged
        while (ready := part.waiting.pop(part.next_row, None)) is not None:
            self._write(block, part, ready)
            if ready.piece.ends_block:
                self._close(block, part, ends_file=ready.piece.ends_file)
                return

    def _open(self, block: Block) -> _Part:
        stack = ExitStack()
        temp = stack.enter_context(replacing(self._score_file(block)))
        sink = SINKS[self.settings.format](temp)
        return _Part(sink, stack, block.number * self.settings.shard_size)

    def _score_file(self, block: Block) -> Path:
        return self.path / f"{block.name}.{self.settings.format}"

    def _passed_file(self, block: Block) -> Path:
        return self.path / "passed" / f"{block.name}.{self.settings.inputs.kind}"

    def _write(self, block: Block, part: _Part, judged: Judged) -> None:
        name = self.settings.inputs.names[block.file]
        part.sink.write(name, judged.piece.start, judged.ids, judged.scores)
        part.totals += Totals.of(judged)
        part.next_row += len(judged.ids)
        if judged.kept is not None:
            if part.passing is None:
                make = FORMATS[self.settings.inputs.kind].passing
                assert make is not None
                # Entered last, so renamed first: scores appear when what passed is there.
                part.passing = make(part.stack.enter_context(replacing(self._passed_file(block))))
            part.passing.write(judged.kept, judged.kept_values)

    def _close(self, block: Block, part: _Part, *, ends_file: bool) -> None:
        files = [self._score_file(block)]
        if part.passing is not None:
            part.passing.close()
            files.append(self._passed_file(block))
        part.sink.close()
        part.stack.close()
        sizes = {file.relative_to(self.path).as_posix(): file.stat().st_size for file in files}
        mark = {"files": sizes, "ends_file": ends_file, "totals": asdict(part.totals)}
        with replacing(self.path / "_done" / f"{block.name}.json") as temp:
            temp.write_text(json.dumps(mark, ensure_ascii=True))
        del self._parts[block]
        self._totals[block] = part.totals
        if ends_file:
            self._last[block.file] = block.number

    def finished(self) -> frozenset[Block]:
        """Return the finished blocks of this share."""
        return frozenset(self._totals)

    def totals(self) -> Totals:
        """Return the counts of all finished blocks of this share, whenever they were done."""
        return sum((self._totals[block] for block in sorted(self._totals, key=_place)), Totals())

    def close(self) -> None:
        """Drop what is half-written; the next run does it again."""
        for part in self._parts.values():
            part.sink.close()
            if part.passing is not None:
                part.passing.close()
            with suppress(_Unfinished), part.stack:
                raise _Unfinished
        self._parts = {}
        self._lock.close()


class _Unfinished(Exception):
    """Makes :func:`~discode.files.replacing` throw its file away."""


def _place(block: Block) -> tuple[int, int]:
    return block.file, block.number
