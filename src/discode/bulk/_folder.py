"""The output folder of a run: shards written whole, marks of what is finished, a manifest.

::

    FOLDER/
      _run.json                   what the run is: input, methods, shard size, format, threshold
      part-00000-00000.jsonl      scores of shard 0 of file 0
      passed/part-00000-00000.tar the samples that pass, where there is a threshold
      _done/part-00000-00000.json written last: this shard is finished, and these are its counts
      _lock-00000-of-00001        held by the process that writes this share
      _readings.db                the readings

Readers of Parquet ignore names that begin with an underscore, so the folder opens as a table. A
shard counts as finished when its mark is there and names files of the size they have. Whatever
else a killed process leaves is written again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from discode._files import lock_file, replacing, writing
from discode._judge import Judge
from discode._scores import Progress
from discode.bulk._chunks import MANIFEST, Shard, Share
from discode.bulk._judging import ScoredChunk, Totals, by_method, judge_chunk, raise_if_stopped
from discode.bulk._plan import RunPlan, read_manifest, read_signatures
from discode.bulk._writers import ScoreWriter, open_table
from discode.errors import InputError, StoppedError, count_of

LOCK_TRIES = 5
"""Tries for a lock: another process may hold it for a moment, just to test it."""


def store_in(folder: Path, share: Share) -> Path:
    """Return where the readings of a share are kept by default: in the output folder."""
    # One store per share: SQLite is for one machine at a time, and shares run on several.
    name = f"_readings-{share.index:05d}-of-{share.count:05d}.db"
    return folder / ("_readings.db" if share.count == 1 else name)


def lock_share(folder: Path, share: Share) -> int:
    """Lock a share until the handle is closed; raise where another process writes its shards.

    Shares of another number of processes overlap with this one's, so they are refused, too. The
    kernel releases the lock of a process that dies. The empty files remain: one that is removed
    while another process opens it locks nothing. Systems without locks are written to without.
    """
    name = f"_lock-{share.index:05d}-of-{share.count:05d}"
    handle = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o666)
    busy = None if lock_file(handle, LOCK_TRIES) is not False else name
    for path in sorted(folder.glob("_lock-*-of-*")) if busy is None else ():
        if not path.name.endswith(f"-of-{share.count:05d}"):
            with suppress(OSError), path.open("r+b") as file:
                if lock_file(file.fileno(), LOCK_TRIES) is False:
                    busy = path.name
    if busy is not None:
        os.close(handle)
        raise InputError(
            f"another process is writing to {folder} (it holds {busy}); wait for it or end it, "
            "give each process its own share (--shard I/N), or another folder"
        )
    return handle


def check_finished(folder: Path) -> None:
    """Raise where a run has not scored all of its input; without a manifest that is not known."""
    if not (folder / MANIFEST).exists():
        return
    marks, files = _read_marks(folder), read_manifest(folder).get("files", 0)
    last = {shard.file: shard.number for shard, (ends_file, _) in marks.items() if ends_file}
    whole = [
        file
        for file, end in last.items()
        if all(Shard(file, number) in marks for number in range(end + 1))
    ]
    if len(whole) < files:
        raise InputError(
            f"{folder} is not finished: {files - len(whole)} of {count_of(files, 'input file')} "
            "not scored completely; run the same discode score again to resume"
        )


def _read_marks(folder: Path) -> dict[Shard, tuple[bool, Totals]]:
    """Return, for every finished shard, whether it ends its file, and its counts.

    A mark is trusted if it is complete and its files have the sizes it records.
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

    next_row: int
    scores: Any = None
    samples: Any = None
    totals: Totals = field(default_factory=Totals)
    waiting: dict[int, ScoredChunk] = field(default_factory=dict)
    stack: ExitStack = field(default_factory=ExitStack)
    files: list[Path] = field(default_factory=list)

    def open(self, path: Path, form: str) -> Any:
        """Open a file of it, which appears when the stack is closed."""
        self.files.append(path)
        temp = self.stack.enter_context(replacing(path))
        return self.stack.enter_context(open_table(temp, form))


class OutputFolder:
    """One process's view of an output folder; it writes the shards of its share."""

    def __init__(self, plan: RunPlan) -> None:
        self.path, self.plan, self.share = plan.folder, plan, plan.share
        path = plan.folder
        with writing(path):
            for folder in self._folders():
                folder.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise InputError(f"cannot write {path}: give a folder that can be written")
        _ = plan.inputs.digest  # of what is there before reading: rows may be added meanwhile
        self._files = len(plan.inputs.files)
        self._signatures: dict[str, str] = {}
        self._has_manifest = False
        self._open: dict[Shard, _OpenFile] = {}
        self._last: dict[int, int] = {}  # file to its last shard, where that is known
        self._totals: dict[Shard, Totals] = {}
        self._lock = lock_share(path, plan.share)  # last: a folder that is refused is not locked

    def _folders(self) -> list[Path]:
        passed = [] if self.plan.min_score is None else [self.path / "passed"]
        return [self.path, self.path / "_done", *passed]

    def begin(self, signatures: Mapping[str, str]) -> int:
        """Check that what is here is of this run, and return how many rows are finished."""
        self.plan.check_same_run(signatures)
        self._signatures = dict(signatures)
        for entry in (entry for folder in self._folders() for entry in folder.glob(".*.part")):
            shard = Shard.of(entry.name)  # what a killed process left; the lock keeps others out
            if shard is not None and self._owns(shard):
                entry.unlink(missing_ok=True)
        for shard, (ends_file, totals) in _read_marks(self.path).items():
            if ends_file:
                self._last[shard.file] = shard.number
            if self._owns(shard):
                self._totals[shard] = totals
        return self._sum().rows

    def _owns(self, shard: Shard) -> bool:
        return self.share.owns(shard, self._files)

    def _write_manifest(self) -> None:
        file = self.path / MANIFEST
        if not file.exists():
            manifest = self.plan.manifest(self._signatures)
            with replacing(file, unless_exists=True) as temp:
                temp.write_text(json.dumps(manifest, indent=2) + "\n")
        # Another process may have been first, and its order of the methods holds for all shards.
        self.plan.check_same_run(self._signatures)
        self._signatures = read_signatures(self.path)

    def wanted(self) -> dict[int, Callable[[int], bool]]:
        """Return the files of which this process has something to do, each with which shards."""

        def want(file: int, number: int) -> bool:
            shard = Shard(file, number)
            return shard not in self._totals and self._owns(shard)

        return {
            file: partial(want, file)
            for file in range(self._files)
            if self.share.reads(file, self._files)
            and (file not in self._last or any(want(file, n) for n in range(self._last[file] + 1)))
        }

    def add(self, chunk: ScoredChunk) -> None:
        """Add a chunk; a shard is finished with its last chunk."""
        shard = chunk.place.shard
        if chunk.signatures != self._signatures:
            raise InputError(
                f"workers differ: one has the signatures {self._signatures}, another "
                f"{chunk.signatures}; install the same discode and model on all nodes"
            )
        if not self._has_manifest:  # only now: a mistake that ends a run at once leaves no trace
            self._write_manifest()
            self._has_manifest = True
        open_file = self._open.get(shard)
        if open_file is None:
            if shard in self._totals:
                return  # a duplicate: a worker was lost after its work was done
            open_file = self._open[shard] = _OpenFile(shard.number * self.plan.shard_size)
            table = open_file.open(self.path / f"{shard.name}.{self.plan.format}", self.plan.format)
            open_file.scores = ScoreWriter(table, self.plan.format)
        open_file.waiting[chunk.place.start] = chunk
        while (ready := open_file.waiting.pop(open_file.next_row, None)) is not None:
            self._write(shard, open_file, ready)
            if ready.place.ends_shard:
                self._finish(shard, open_file, ends_file=ready.place.ends_file)
                return

    def _write(self, shard: Shard, open_file: _OpenFile, chunk: ScoredChunk) -> None:
        rows = {name: chunk.rows[name] for name in self._signatures}
        open_file.scores.write(rows)
        open_file.totals += Totals.of(rows, chunk.passed)
        open_file.next_row += len(chunk)
        if chunk.samples is None:
            return
        if open_file.samples is None:
            # Opened last, so renamed first: scores appear when the samples that pass are there.
            form = self.plan.inputs.format
            open_file.samples = open_file.open(self.path / "passed" / f"{shard.name}.{form}", form)
        open_file.samples.write(chunk.samples)

    def _finish(self, shard: Shard, open_file: _OpenFile, *, ends_file: bool) -> None:
        open_file.stack.close()
        sizes = {f.relative_to(self.path).as_posix(): f.stat().st_size for f in open_file.files}
        self._mark(shard, sizes, open_file.totals, ends_file=ends_file)
        del self._open[shard]

    def _mark(
        self, shard: Shard, sizes: Mapping[str, int], totals: Totals, *, ends_file: bool
    ) -> None:
        mark = {"files": sizes, "ends_file": ends_file, "totals": asdict(totals)}
        with replacing(self.path / "_done" / f"{shard.name}.json") as temp:
            temp.write_text(json.dumps(mark, ensure_ascii=True))
        self._totals[shard] = totals
        if ends_file:
            self._last[shard.file] = shard.number

    def finish(self) -> Totals:
        """Mark files without rows, and return the counts of this share, whenever they were made.

        Raises where the input held nothing, or changed meanwhile.
        """
        for file in range(self._files) if self._totals or self.share.count > 1 else ():
            first = Shard(file, 0)
            if self._owns(first) and first not in self._totals:
                self._mark(first, {}, Totals(), ends_file=True)
        totals = self._sum()
        if not totals.rows and self.share.count == 1:
            raise InputError(f"{', '.join(self.plan.inputs.arguments)} holds no pairs")
        self.plan.inputs.check_unchanged()
        return totals

    def finished(self) -> frozenset[Shard]:
        return frozenset(self._totals)

    def _sum(self) -> Totals:
        return sum((self._totals[shard] for shard in sorted(self._totals)), Totals())

    def close(self) -> None:
        """Discard what is half-written; the next run does it again."""
        for open_file in self._open.values():
            with suppress(StoppedError), open_file.stack:
                raise StoppedError("")  # which makes :func:`~discode._files.replacing` discard it
        os.close(self._lock)


def score_to_folder(judge: Judge, plan: RunPlan, progress: Progress | None = None) -> Totals:
    """Score a share of a run into its folder, resuming earlier work.

    Args:
        judge: The judge. With a store, nothing is read twice.
        plan: What :func:`~discode.bulk.plan_run` returned.
        progress: Called with the number of rows just done; first with those of earlier runs.

    Returns:
        The counts of all shards of this share, those of earlier runs included.

    Raises:
        StoppedError: A served model's cap was reached, or its server refused for good. Shards
            that were not finished are left for the next run.
    """
    judges = by_method(judge, plan.methods)
    with closing(OutputFolder(plan)) as folder:
        finished = folder.begin({name: str(each.signature) for name, each in judges.items()})
        wanted = folder.wanted()
        if wanted:
            judge.backend.capabilities  # noqa: B018  # loads a local model before rows are counted
        if progress and finished:
            progress(finished)
        for number, shards in wanted.items():
            for chunk in plan.read(number, shards, judge.batch_size):
                scored = judge_chunk(judges, chunk, min_score=plan.min_score, progress=progress)
                raise_if_stopped(judge)
                folder.add(scored)
        return folder.finish()
