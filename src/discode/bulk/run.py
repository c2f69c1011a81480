"""A judge over inputs of any size, in bounded memory, safe to kill."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

from discode.bulk.chunks import BLOCK_ROWS, Chunk, Cut, Shard
from discode.bulk.folder import RunFolder, Settings, check_same
from discode.bulk.formats import FORMATS
from discode.bulk.inputs import Inputs, find_inputs, source_file
from discode.bulk.judging import Totals, check_going, judge_chunk
from discode.bulk.sinks import SINKS
from discode.errors import InputError
from discode.files import replacing
from discode.judge import Judge
from discode.pairs import PairRows
from discode.scores import Progress

Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def read_chunks(
    inputs: Inputs,
    number: int,
    wanted: Callable[[int], bool] = lambda block: True,
    *,
    images: str | os.PathLike[str] | None = None,
    shard_size: int = BLOCK_ROWS,
    keep: bool = False,
) -> Iterator[Chunk]:
    """Read the wanted blocks of one file of an input."""
    read = FORMATS[inputs.kind].read
    how = Cut(shard_size, wanted)
    return read(source_file(inputs, number), how, PairRows(images), keep=keep)


def settle(
    source: Source,
    output: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    shard_size: int = BLOCK_ROWS,
    format: str = "jsonl",
    min_score: float | None = None,
) -> Settings:
    """Check everything that can be checked before a model is opened."""
    inputs, folder = find_inputs(source), Path(output)
    where = None if images is None else str(Path(images).resolve())
    settings = Settings(inputs, shard_size, format, min_score, where)
    target = folder.resolve()
    if any(file.resolve().parent in (target, target / "passed") for file in inputs.files):
        raise InputError(f"--output {folder} is also read from; give another folder")
    check_same(folder, settings)
    return settings


def score_stream(
    judge: Judge,
    source: Source,
    output: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    shard: str | Shard = "0/1",
    shard_size: int = BLOCK_ROWS,
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
        images: The folder that image names, or COCO's image numbers, are found in.
        shard: This process's share, "I/N"; see :class:`~discode.bulk.chunks.Shard`.
        shard_size: Rows an output shard.
        format: Of the scores: "jsonl", "parquet" or "csv".
        min_score: Also write the samples with at least this score, as they came.
        progress: Called with the number of rows just done.

    Returns:
        The counts of all shards of this share, those of earlier runs included.

    Raises:
        StoppedError: A served model's cap was reached, or its server refused for good. Shards
            that were not finished are left for the next run.
    """
    shard = Shard.parse(shard) if isinstance(shard, str) else shard
    settings = settle(
        source, output, images=images, shard_size=shard_size, format=format, min_score=min_score
    )
    inputs = settings.inputs
    with closing(RunFolder(Path(output), settings, shard)) as folder:
        folder.begin(str(judge.signature))
        for number in range(len(inputs.files)):
            wanted = folder.wanted(number)
            if wanted is None:
                continue
            for chunk in read_chunks(
                inputs, number, wanted, images=settings.images, shard_size=shard_size,
                keep=min_score is not None,
            ):  # fmt: skip
                judged = judge_chunk(judge, chunk, min_score, progress)
                check_going(judge)
                folder.add(judged)
        totals = folder.totals()
    if not totals.rows and shard.count == 1:
        raise InputError(f"{', '.join(inputs.given)} holds no pairs")
    return totals


def score_to_file(
    judge: Judge,
    source: Source,
    output: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Totals:
    """Score everything in ``source`` into one .jsonl, .csv or .parquet file, at the end.

    A run that was stopped begins again; what the judge's store has is not asked for twice.
    """
    inputs = find_inputs(source)
    output = Path(output)
    make = SINKS.get(output.suffix.lower().removeprefix("."))
    if make is None:
        raise InputError(f"{output.name}: scores are written to .jsonl, .csv or .parquet")
    totals = Totals()
    with replacing(output) as temp, closing(make(temp)) as sink:
        for number, name in enumerate(inputs.names):
            for chunk in read_chunks(inputs, number, images=images):
                judged = judge_chunk(judge, chunk, progress=progress)
                sink.write(name, chunk.piece.start, chunk.ids, judged.scores)
                totals += Totals.of(judged)
        if not totals.rows:
            raise InputError(f"{', '.join(inputs.given)} holds no pairs")
    return totals
