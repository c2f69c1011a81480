"""The output folder of a run: shards written whole, marks of what is finished, a manifest.

::

    FOLDER/
      _run.json                   what the run is: input, methods, shard size, format, threshold
      part-00000-00000.jsonl      scores of shard 0 of file 0
      passed/part-00000-00000.tar the samples that pass, where there is a threshold
      _done/part-00000-00000.json written last: this shard is finished, and these are its counts
      _lock-00000-of-00001        held by the process that writes this share
      _readings.db                what the model said

Readers of Parquet ignore names that begin with an underscore, so the folder opens as a table. A
shard counts as finished when its mark is there and names files of the size they have. Whatever
else a killed process leaves is written again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from discode.bulk.chunks import MANIFEST, SHARD_ROWS, ChunkPlan, Shard, Share
from discode.bulk.columns import VERSION
from discode.bulk.formats import FORMATS
from discode.bulk.inputs import Inputs
from discode.bulk.judging import ScoredChunk, Totals
from discode.bulk.locks import ShareLock
from discode.bulk.samples import SampleWriter
from discode.bulk.writers import ScoreWriter, check_score_format, open_writer
from discode.errors import InputError, count_of
from discode.files import parse_json, replacing
from discode.version import __version__

LAYOUT = 3


def store_in(folder: Path, share: Share) -> Path:
    """Return where the readings of a share are kept by default: in the output folder."""
    # One store per share: SQLite is for one machine at a time, and shares run on several.
    name = f"_readings-{share.index:05d}-of-{share.count:05d}.db"
    return folder / ("_readings.db" if share.count == 1 else name)


@dataclass(frozen=True)
class RunSettings:
    """What makes two runs the same run, besides the judge.

    Attributes:
        inputs: What is read.
        shard_size: Rows per output shard.
        format: "jsonl", "csv" or "parquet".
        min_score: Samples with at least this score are written again; None for no threshold.
        images: The folder of the images.
        begun_in: The current folder where the run began: images are found there without one.
    """

    inputs: Inputs
    shard_size: int = SHARD_ROWS
    format: str = "jsonl"
    min_score: float | None = None
    images: str | None = None
    begun_in: str = field(default_factory=os.getcwd)

    def __post_init__(self) -> None:
        check_score_format(self.format)
        ChunkPlan(self.shard_size)
        if self.images is not None and not Path(self.images).is_dir():
            raise InputError(f"images: {self.images} is not a folder")
        if self.min_score is not None:
            if not math.isfinite(self.min_score):
                raise InputError(
                    f"min_score={self.min_score} is not allowed; give a number of the scale"
                )
            if FORMATS[self.inputs.format].samples is None:
                raise InputError(
                    "COCO results cannot be filtered; convert them to JSON lines, a row per result"
                )

    def manifest(self, signatures: Mapping[str, str]) -> dict[str, Any]:
        """Return what ``_run.json`` holds; ``signatures`` are the judge's, by method."""
        return {
            "layout": LAYOUT,
            "columns": VERSION,
            "discode": __version__,
            "input": list(self.inputs.given),
            "files": len(self.inputs.files),
            "files_sha256": self.inputs.digest(),
            "images": self.images,
            "begun_in": self.begun_in if self.images is None else None,
            "signatures": dict(signatures),
            "shard_size": self.shard_size,
            "format": self.format,
            "min_score": self.min_score,
        }


def check_same_run(
    folder: Path, settings: RunSettings, signatures: Mapping[str, str] | None = None
) -> None:
    """Raise where a folder holds another run's shards; the judge counts where it is given."""
    file = folder / MANIFEST
    if not file.exists():
        if folder.is_dir() and any(Shard.of(entry.name) for entry in folder.iterdir()):
            raise InputError(f"{folder} holds shards without a {MANIFEST}; give a new folder")
        return
    theirs = _read_manifest(folder)
    for key, value in settings.manifest(signatures or {}).items():
        # Another name for the same files, or a release that scores the same, is the same run; so is
        # one that goes on elsewhere, since names are still found where it began.
        if key in ("input", "discode", "begun_in") or theirs.get(key) == value:
            continue
        if key == "signatures":
            begun, mine = (
                ", ".join(sorted(given or ())) for given in (theirs.get(key), signatures)
            )
            if signatures is not None and begun != mine:
                raise InputError(
                    f"{folder} was begun with other methods: {begun}; this run has {mine}; give "
                    "the --method it was begun with, or a new folder"
                )
            if signatures is not None:
                raise InputError(
                    f"{folder} was begun with another judge: signatures={theirs.get(key)}, this "
                    f"run has signatures={value}; give the judge it was begun with, or a new folder"
                )
        elif key == "files_sha256":
            raise InputError(
                f"{folder} was begun with another input: a file's name, size or content has "
                "changed since; give the input it was begun with, or a new folder"
            )
        else:
            raise InputError(
                f"{folder} was begun with {key}={theirs.get(key)}, this run has {key}={value}; "
                "give the settings it was begun with, or a new folder"
            )


def _read_manifest(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST
    found = parse_json(file.read_text(errors="replace"), str(file))
    if not isinstance(found, dict):
        raise InputError(f"{file} is not the manifest of a run; give a new folder")
    return found


def where_begun(folder: Path) -> str:
    """Return the current folder of whoever began the run in a folder: one's own, if it is new."""
    known = _read_manifest(folder).get("begun_in") if (folder / MANIFEST).exists() else None
    return str(known or Path.cwd())


def read_signatures(folder: Path) -> dict[str, str]:
    """Return the judge's signatures in an output folder, by method."""
    return dict(_read_manifest(folder)["signatures"])


def check_finished(folder: Path) -> None:
    """Raise where a run has not scored all of its input; without a manifest nobody can tell."""
    if not (folder / MANIFEST).exists():
        return
    marks, files = _read_marks(folder), _read_manifest(folder).get("files", 0)
    last = {shard.file: shard.number for shard, (ends_file, _) in marks.items() if ends_file}
    unfinished = [
        file
        for file in range(files)
        if any(Shard(file, number) not in marks for number in range(last.get(file, 0) + 1))
        or file not in last
    ]
    if unfinished:
        raise InputError(
            f"{folder} is not finished: {len(unfinished)} of {count_of(files, 'input file')} not "
            "scored to the end; run its discode score again, which goes on"
        )


def _read_marks(folder: Path) -> dict[Shard, tuple[bool, Totals]]:
    """Return, for every finished shard, whether it ends its file, and its counts.

    A mark is trusted where nothing is missing from it, and its files are what it says they are.
    """
    marks = {}
    for entry in sorted((folder / "_done").glob("*")):
        shard = Shard.of(entry.name)
        try:
            mark = json.loads(entry.read_text())
            ends_file, totals = bool(mark["ends_file"]), Totals.from_json(mark["totals"])
            whole = (mark["files"] or not totals.rows) and all(
                (folder / name).stat().st_size == size for name, size in mark["files"].items()
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        if shard is not None and whole:
            marks[shard] = ends_file, totals
    return marks


@dataclass
class _OpenFile:
    """A shard that is being written; chunks may come in any order."""

    writer: ScoreWriter
    stack: ExitStack
    next_row: int
    samples: SampleWriter | None = None
    totals: Totals = field(default_factory=Totals)
    waiting: dict[int, ScoredChunk] = field(default_factory=dict)


class OutputFolder:
    """One process's view of an output folder; it writes the shards of its share."""

    def __init__(self, path: Path, settings: RunSettings, share: Share) -> None:
        self.path, self.settings, self.share = path, settings, share
        try:
            for folder in self._folders():
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror or error}") from error
        if not os.access(path, os.W_OK):
            raise InputError(f"cannot write {path}: give a folder that can be written")
        settings.inputs.digest()  # of what is there before reading: rows may be added meanwhile
        self._files = len(settings.inputs.files)
        self._signatures: dict[str, str] = {}
        self._has_manifest, self._begun_in = False, settings.begun_in
        self._open: dict[Shard, _OpenFile] = {}
        self._last: dict[int, int] = {}  # file to its last shard, where that is known
        self._totals: dict[Shard, Totals] = {}
        self._lock = ShareLock(path, share)  # last: a folder that is refused is not locked

    def _folders(self) -> list[Path]:
        passed = [] if self.settings.min_score is None else [self.path / "passed"]
        return [self.path, self.path / "_done", *passed]

    @property
    def begun(self) -> bool:
        """Whether a run began here before."""
        return (self.path / MANIFEST).exists()

    def begin(self, signatures: Mapping[str, str]) -> None:
        """Check that what is here is of this run, and find what is finished."""
        check_same_run(self.path, self.settings, signatures)
        self._signatures = dict(signatures)
        self._remove_half_written()
        self._find_finished()

    def _write_manifest(self) -> None:
        file = self.path / MANIFEST
        if not file.exists():
            manifest = self.settings.manifest(self._signatures)
            with replacing(file, unless_exists=True) as temp:
                temp.write_text(json.dumps(manifest, indent=2) + "\n")
        # Another process may have been first, and its order of the methods holds for all shards.
        check_same_run(self.path, self.settings, self._signatures)
        self._signatures, self._begun_in = read_signatures(self.path), where_begun(self.path)

    def _remove_half_written(self) -> None:
        """Remove what a killed process left; the lock keeps others out."""
        for folder in self._folders():
            for entry in folder.iterdir():
                shard = Shard.of(entry.name) if entry.name.endswith(".part") else None
                if shard is not None and self.share.owns(shard, self._files):
                    entry.unlink(missing_ok=True)

    def _find_finished(self) -> None:
        for shard, (ends_file, totals) in _read_marks(self.path).items():
            if ends_file:
                self._last[shard.file] = shard.number
            if self.share.owns(shard, self._files):
                self._totals[shard] = totals

    def wanted(self, file: int) -> Callable[[int], bool] | None:
        """Return which shards of a file this process has still to do; None if there are none."""
        if not self.share.reads(file, self._files):
            return None

        def want(number: int) -> bool:
            shard = Shard(file, number)
            return shard not in self._totals and self.share.owns(shard, self._files)

        if file in self._last and not any(map(want, range(self._last[file] + 1))):
            return None
        return want

    def add(self, chunk: ScoredChunk) -> None:
        """Take a chunk; a shard is written out when its last chunk has come."""
        shard = chunk.place.shard
        if chunk.signatures != self._signatures:
            raise InputError(
                f"workers differ: one scores as {self._signatures}, another as "
                f"{chunk.signatures}; give all nodes the same discode and model"
            )
        if not self._has_manifest:  # only now: a mistake that ends a run at once leaves no trace
            self._write_manifest()
            self._has_manifest = True
        self._check_names(chunk.rows.images)
        open_file = self._open.get(shard)
        if open_file is None:
            if shard in self._totals:
                return  # came twice: a worker was lost after its work was done
            open_file = self._open[shard] = self._open_file(shard)
        open_file.waiting[chunk.place.start] = chunk
        while (ready := open_file.waiting.pop(open_file.next_row, None)) is not None:
            self._write(shard, open_file, ready)
            if ready.place.ends_shard:
                self._finish(shard, open_file, ends_file=ready.place.ends_file)
                return

    def _check_names(self, images: Sequence[str | None]) -> None:
        """Raise where another process began the run elsewhere, while this one read its images."""
        settings = self.settings
        if settings.images is not None or settings.begun_in == self._begun_in:
            return
        for name in images:
            if name and not Path(name).is_absolute():
                raise InputError(
                    f"{self.path} was begun in {self._begun_in} at the same time, where {name} may "
                    "be another image; run this again to go on with the images found there"
                )

    def _open_file(self, shard: Shard) -> _OpenFile:
        stack = ExitStack()
        temp = stack.enter_context(replacing(self._score_file(shard)))
        writer = stack.enter_context(open_writer(temp, self.settings.format))
        return _OpenFile(writer, stack, shard.number * self.settings.shard_size)

    def _score_file(self, shard: Shard) -> Path:
        return self.path / f"{shard.name}.{self.settings.format}"

    def _passed_file(self, shard: Shard) -> Path:
        return self.path / "passed" / f"{shard.name}.{self.settings.inputs.format}"

    def _write(self, shard: Shard, open_file: _OpenFile, chunk: ScoredChunk) -> None:
        rows = replace(
            chunk.rows, scores={name: chunk.rows.scores[name] for name in self._signatures}
        )
        open_file.writer.write(rows)
        open_file.totals += Totals.of(rows, chunk.passed)
        open_file.next_row += len(rows)
        make = FORMATS[self.settings.inputs.format].samples
        if chunk.samples is None or make is None:
            return
        if open_file.samples is None:
            # Entered last, so renamed first: scores appear when the samples that pass are there.
            temp = open_file.stack.enter_context(replacing(self._passed_file(shard)))
            open_file.samples = open_file.stack.enter_context(closing(make(temp)))
        open_file.samples.write(chunk.samples, chunk.sample_scores)

    def _finish(self, shard: Shard, open_file: _OpenFile, *, ends_file: bool) -> None:
        passed = [] if open_file.samples is None else [self._passed_file(shard)]
        open_file.stack.close()
        files = [self._score_file(shard), *passed]
        sizes = {file.relative_to(self.path).as_posix(): file.stat().st_size for file in files}
        self._mark(shard, sizes, open_file.totals, ends_file=ends_file)
        del self._open[shard]

    def _mark(
        self, shard: Shard, sizes: Mapping[str, int], totals: Totals, *, ends_file: bool
    ) -> None:
        mark = {"files": sizes, "ends_file": ends_file, "totals": totals.to_json()}
        with replacing(self.path / "_done" / f"{shard.name}.json") as temp:
            temp.write_text(json.dumps(mark, ensure_ascii=True))
        self._totals[shard] = totals
        if ends_file:
            self._last[shard.file] = shard.number

    def finish(self) -> Totals:
        """Mark files without rows, when all were read to their end; return :meth:`totals`."""
        for file in range(self._files) if self._totals or self.share.count > 1 else ():
            first = Shard(file, 0)
            if self.share.owns(first, self._files) and first not in self._totals:
                self._mark(first, {}, Totals(), ends_file=True)
        return self.totals()

    def finished(self) -> frozenset[Shard]:
        """Return the finished shards of this share."""
        return frozenset(self._totals)

    def totals(self) -> Totals:
        """Return the counts of all finished shards of this share, whenever they were done."""
        shards = sorted(self._totals, key=lambda shard: (shard.file, shard.number))
        return sum((self._totals[shard] for shard in shards), Totals())

    def close(self) -> None:
        """Discard what is half-written; the next run does it again."""
        for open_file in self._open.values():
            with suppress(_UnfinishedError), open_file.stack:
                raise _UnfinishedError
        self._open = {}
        self._lock.close()


class _UnfinishedError(Exception):
    """Makes :func:`~discode.files.replacing` discard its file."""
