"""The plan of a run into a folder: its input and settings, checked once and passed on.

The folder's ``_run.json`` holds the plan and the judge's signatures, so that a resumed run is
the same run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from discode._files import coco_files, parse_json
from discode._pairs import PairParser
from discode._version import __version__
from discode.bulk._chunks import (
    CHUNK_ROWS,
    MANIFEST,
    SHARD_ROWS,
    ChunkPlan,
    PairChunk,
    Shard,
    Share,
    split,
)
from discode.bulk._formats import FORMATS
from discode.bulk._inputs import Inputs, find_inputs
from discode.bulk._judging import Methods
from discode.bulk._tables import make_chunk
from discode.bulk._writers import FILE_WRITERS, TEXT_WRITERS, VERSION, check_score_format
from discode.errors import InputError

LAYOUT = 3
"""Version of the folder's layout."""
Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""A file, a folder or a pattern, or several."""


@dataclass(frozen=True)
class RunPlan:
    """A run into a folder, as :func:`plan_run` checked it, whose arguments it holds.

    Image names are found in ``images``, or relative to ``base``: where the run was begun.
    """

    inputs: Inputs
    folder: Path
    share: Share
    methods: Methods | None
    shard_size: int
    format: str
    min_score: float | None
    images: str | None
    annotations: str | None
    base: str

    def manifest(self, signatures: Mapping[str, str]) -> dict[str, Any]:
        """Return what ``_run.json`` holds; ``signatures`` are the judge's, by method."""
        return {
            "layout": LAYOUT,
            "columns": VERSION,
            "discode": __version__,
            "input": list(self.inputs.arguments),
            "files": len(self.inputs.files),
            "files_sha256": self.inputs.digest,
            "images": self.images,
            "annotations": self.annotations,
            "begun_in": self.base if self.images is None else None,
            "signatures": dict(signatures),
            "shard_size": self.shard_size,
            "format": self.format,
            "min_score": self.min_score,
        }

    def check_same_run(self, signatures: Mapping[str, str] | None = None) -> None:
        """Raise where the folder holds another run's shards; the judge counts where it is known."""
        folder = self.folder
        if not (folder / MANIFEST).exists():
            if folder.is_dir() and any(Shard.of(entry.name) for entry in folder.iterdir()):
                raise InputError(f"{folder} holds shards without a {MANIFEST}; give a new folder")
            return
        # Another name for the same files, or a release that scores the same, is the same run.
        ignored = {"input", "discode"}
        if signatures is None:
            ignored.add("signatures")
        now = self.manifest(signatures or {})
        begun = {"begun_in": now["begun_in"], **read_manifest(folder)}  # not in earlier versions
        for key, value in now.items():
            if key not in ignored and begun.get(key) != value:
                remedy = "use the same settings, or a new folder"
                if key == "begun_in":  # another process began it after this one was planned
                    remedy = "run this again to find images there"
                if key == "min_score":
                    remedy += "; discode filter applies another threshold to a finished run"
                difference = _difference(key, begun.get(key), value)
                raise InputError(f"{folder} was begun with {difference}; {remedy}")

    def read(
        self, file: int, wanted: Callable[[int], bool], batch_size: int = 0
    ) -> Iterator[PairChunk]:
        """Read the wanted shards of a file in chunks that hold a batch, within a shard.

        With a threshold, chunks hold their samples.
        """
        return read_chunks(
            self.inputs, file, wanted, images=self.images, annotations=self.annotations,
            base=self.base, shard_size=self.shard_size,
            chunk_rows=max(CHUNK_ROWS, batch_size), keep=self.min_score is not None,
        )  # fmt: skip

    def read_share(self) -> Iterator[PairChunk]:
        """Read all of this process's share, finished or not."""
        count = len(self.inputs.files)
        for file in range(count):
            if self.share.reads(file, count):
                yield from self.read(file, lambda b, k=file: self.share.owns(Shard(k, b), count))  # type: ignore[misc]  # ints


def plan_run(
    source: Source,
    output: str | os.PathLike[str],
    *,
    methods: Methods | None = None,
    images: str | os.PathLike[str] | None = None,
    annotations: str | os.PathLike[str] | None = None,
    shard: str = "0/1",
    shard_size: int = SHARD_ROWS,
    format: str = "jsonl",
    min_score: float | None = None,
) -> RunPlan:
    """Check a run as far as possible before a model is opened.

    Args:
        source: A file, a folder or a pattern, or several: CSV, TSV, JSON lines, Parquet,
            WebDataset tars, COCO results.
        output: A folder, made where it is missing; see :mod:`discode.bulk._folder`.
        methods: Decoders by name, for a row per item and method; the judge's own if None.
        images: The folder that image names, or COCO's image numbers, are found in.
        annotations: COCO's annotations, whose ``images`` give image ids their files.
        shard: This process's share, "I/N"; see :class:`~discode.bulk._chunks.Share`.
        shard_size: Rows per shard.
        format: Format of the scores: "jsonl", "csv" or "parquet".
        min_score: Also write the samples with at least this score, as they came.
    """
    inputs, folder = find_inputs(source), Path(output)
    check_score_format(format)
    ChunkPlan(shard_size)
    if images is not None and not Path(images).is_dir():
        raise InputError(f"images: {images} is not a folder")
    if annotations is not None:
        coco_files(annotations)
    if min_score is not None:
        if not math.isfinite(min_score):
            raise InputError(f"min_score={min_score} is not allowed; give a number of the scale")
        if inputs.format not in (*TEXT_WRITERS, *FILE_WRITERS):
            raise InputError(
                "COCO results cannot be filtered; convert them to JSON lines, a row per result"
            )
        if methods is not None and len(methods) > 1:
            raise InputError("--min-score requires exactly one --method")
    target = folder.resolve()
    if any(file.resolve().parent in (target, target / "passed") for file in inputs.files):
        raise InputError(f"--output {folder} is also an input; give another folder")
    begun = read_manifest(folder) if (folder / MANIFEST).exists() else {}
    plan = RunPlan(
        inputs, folder, Share.parse(shard), methods, shard_size, format, min_score,
        None if images is None else str(Path(images).absolute()),
        None if annotations is None else str(Path(annotations).absolute()),
        begun.get("begun_in") or str(Path.cwd()),
    )  # fmt: skip
    plan.check_same_run()
    return plan


def _difference(key: str, begun: Any, value: Any) -> str:
    """Describe how the run in a folder differs from this one."""
    if key == "files_sha256":
        return "another input: a file's name, size or content has changed since"
    if key == "signatures":
        names, now = (", ".join(sorted(signatures or ())) for signatures in (begun, value))
        if names != now:
            return f"other methods: {names}; this run has {now}"
        return f"another judge: {begun}; this run has {value}"
    return f"{key}={begun}; this run has {key}={value}"


def read_manifest(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST
    manifest = parse_json(file.read_text(errors="replace"), str(file))
    if not isinstance(manifest, dict):
        raise InputError(f"{file} is not the manifest of a run; give a new folder")
    return manifest


def read_signatures(folder: Path) -> dict[str, str]:
    return dict(read_manifest(folder)["signatures"])


def read_chunks(
    inputs: Inputs,
    number: int,
    wanted: Callable[[int], bool] = lambda shard: True,
    *,
    images: str | os.PathLike[str] | None = None,
    annotations: str | os.PathLike[str] | None = None,
    base: str = "",
    shard_size: int = SHARD_ROWS,
    chunk_rows: int = CHUNK_ROWS,
    keep: bool = False,
) -> Iterator[PairChunk]:
    """Read the wanted shards of one file of an input; with ``keep``, chunks hold their samples."""
    # Messages name the same file wherever it is read: workers may have another current folder.
    folder = None if images is None else Path(images).absolute()
    parser = PairParser(folder, annotations, base)
    layout = ChunkPlan(shard_size, wanted, chunk_rows)
    name = inputs.names[number]
    prefix = f"{name}:" if len(inputs.files) > 1 else ""
    rows = FORMATS[inputs.format][1](inputs.files[number], name, layout, keep)
    for place, piece in split(rows, number, layout, lambda row: row.weight):
        chunk = make_chunk(place, piece, name, prefix, parser)
        parser.check_ids(name)
        yield chunk
