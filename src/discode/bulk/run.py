"""A judge over inputs of any size, in bounded memory: into one file, or a folder of shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from discode.bulk.chunks import (
    CHUNK_ROWS,
    SHARD_ROWS,
    ChunkPlace,
    ChunkPlan,
    PairChunk,
    Shard,
    Share,
)
from discode.bulk.folder import OutputFolder, RunSettings, check_same_run, where_begun
from discode.bulk.formats import FORMATS
from discode.bulk.inputs import Inputs, find_inputs, input_file
from discode.bulk.judging import (
    Methods,
    Totals,
    by_method,
    judge_chunk,
    raise_if_stopped,
    score_chunks,
)
from discode.bulk.writers import open_writer, score_format
from discode.errors import InputError
from discode.files import remove_abandoned, replacing
from discode.judge import Judge
from discode.pairs import Pair, PairParser
from discode.scores import Progress

Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""A file, a folder or a pattern, or several."""


def read_chunks(
    inputs: Inputs,
    number: int,
    wanted: Callable[[int], bool] = lambda shard: True,
    *,
    images: str | os.PathLike[str] | None = None,
    shard_size: int = SHARD_ROWS,
    chunk_rows: int = CHUNK_ROWS,
    keep: bool = False,
    begun_in: str | None = None,
) -> Iterator[PairChunk]:
    """Read the wanted shards of one file of an input; with ``keep`` chunks hold their rows.

    Without ``images``, names are found in ``begun_in``; in the current folder if that is None, too.
    """
    # Messages name the same file wherever it is read: workers may have another current folder.
    parser = PairParser(None if images is None else Path(images).absolute())
    plan = ChunkPlan(shard_size, wanted, chunk_rows)
    chunks = FORMATS[inputs.format].read(input_file(inputs, number), plan, parser, keep=keep)
    if begun_in is None or begun_in == str(Path.cwd()):
        return chunks
    return map(partial(_found_in, begun_in), chunks)


def _found_in(folder: str, chunk: PairChunk) -> PairChunk:
    """Return a chunk whose images are found in a folder, wherever this process runs."""
    pairs = [
        replace(pair, image=os.path.join(folder, pair.image))  # noqa: PTH118  # keeps absolute ones
        if pair is not None and isinstance(pair.image, str)
        else pair
        for pair in chunk.pairs
    ]
    return replace(chunk, pairs=pairs)


def read_share(
    inputs: Inputs,
    share: Share | None = None,
    *,
    images: str | os.PathLike[str] | None = None,
    shard_size: int = SHARD_ROWS,
    chunk_rows: int = CHUNK_ROWS,
) -> Iterator[PairChunk]:
    """Read a share of an input, all of it by default."""
    share = share or Share()
    files = len(inputs.files)

    def owned(file: int, number: int) -> bool:
        return share.owns(Shard(file, number), files)

    for file in range(files):
        if share.reads(file, files):
            yield from read_chunks(
                inputs, file, partial(owned, file),
                images=images, shard_size=shard_size, chunk_rows=chunk_rows,
            )  # fmt: skip


def chunk_of(pairs: Sequence[Pair], images: Sequence[str | None]) -> PairChunk:
    """Return pairs from memory as a chunk; ``images`` are the names of their images."""
    return PairChunk(ChunkPlace(), None, [pair.id for pair in pairs], images, pairs)


def plan_run(
    source: Source,
    output: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    shard_size: int = SHARD_ROWS,
    format: str = "jsonl",
    min_score: float | None = None,
    methods: Methods | None = None,
) -> RunSettings:
    """Check everything that can be checked before a model is opened."""
    inputs, folder = find_inputs(source), Path(output)
    where = None if images is None else str(Path(images).absolute())
    settings = RunSettings(inputs, shard_size, format, min_score, where, where_begun(folder))
    if min_score is not None and methods is not None and len(methods) > 1:
        raise InputError("a threshold goes with one method: give --min-score one --method")
    target = folder.resolve()
    if any(file.resolve().parent in (target, target / "passed") for file in inputs.files):
        raise InputError(f"--output {folder} is also read from; give another folder")
    check_same_run(folder, settings)
    return settings


def score_to_file(
    judge: Judge,
    source: Source,
    output: str | os.PathLike[str],
    *,
    methods: Methods | None = None,
    images: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Totals:
    """Score everything in ``source`` into one .jsonl, .csv or .parquet file, at the end.

    A run that was stopped begins again; what the judge's store has is not asked for twice. The
    arguments are those of :func:`score_to_folder`.
    """
    output = Path(output)
    form, chunks = score_format(output), read_share(find_inputs(source), images=images)
    remove_abandoned(output)
    with replacing(output) as temp, open_writer(temp, form) as writer:
        return score_chunks(
            judge, methods, chunks, lambda chunk: writer.write(chunk.rows), progress=progress
        )


def score_to_folder(
    judge: Judge,
    source: Source,
    output: str | os.PathLike[str],
    *,
    methods: Methods | None = None,
    images: str | os.PathLike[str] | None = None,
    shard: str | Share = "0/1",
    shard_size: int = SHARD_ROWS,
    format: str = "jsonl",
    min_score: float | None = None,
    progress: Progress | None = None,
) -> Totals:
    """Score everything in ``source`` into the folder ``output``; go on where a run stopped.

    Args:
        judge: Who judges. With a store, nothing it has read is asked for again.
        source: A file, a folder or a pattern, or several: CSV, TSV, JSON lines, Parquet,
            WebDataset tars, COCO results.
        output: A folder, made where it is missing; see :mod:`discode.bulk.folder`.
        methods: Decoders by name, for a row per item and method; the judge's own if None.
        images: The folder that image names, or COCO's image numbers, are found in.
        shard: This process's share, "I/N"; see :class:`~discode.bulk.chunks.Share`.
        shard_size: Rows per output shard.
        format: Of the scores: "jsonl", "csv" or "parquet".
        min_score: Also write the samples with at least this score, as they came.
        progress: Called with the number of rows just done; first with those of earlier runs.

    Returns:
        The counts of all shards of this share, those of earlier runs included.

    Raises:
        StoppedError: A served model's cap was reached, or its server refused for good. Shards
            that were not finished are left for the next run.
    """
    share = Share.parse(shard) if isinstance(shard, str) else shard
    settings = plan_run(
        source, output, images=images, shard_size=shard_size, format=format, min_score=min_score,
        methods=methods,
    )  # fmt: skip
    inputs, judges = settings.inputs, by_method(judge, methods)
    with closing(OutputFolder(Path(output), settings, share)) as folder:
        folder.begin({name: str(each.signature) for name, each in judges.items()})
        if progress and (finished := folder.totals().rows):
            progress(finished)
        for number in range(len(inputs.files)):
            wanted = folder.wanted(number)
            if wanted is None:
                continue
            for chunk in read_chunks(
                inputs, number, wanted, images=settings.images, shard_size=shard_size,
                keep=min_score is not None, begun_in=settings.begun_in,
            ):  # fmt: skip
                scored = judge_chunk(judges, chunk, min_score=min_score, progress=progress)
                raise_if_stopped(judge)
                folder.add(scored)
        totals = folder.finish()
    if not totals.rows and share.count == 1:
        raise InputError(f"{', '.join(inputs.given)} holds no pairs")
    inputs.check_unchanged()
    return totals
