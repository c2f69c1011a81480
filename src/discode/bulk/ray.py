"""The same judge over Ray Data: one model a worker, shards as the stream writes them.

Files are read by tasks, a chunk at a time; chunks go to a pool of actors, each with a model of
its own; what they return is small and is written here. Chunks are cut as in one process and hold
the captions of a picture together, so scores are the same, digit for digit. How fast is read,
and what becomes of a worker that is lost (its chunk goes to another), is Ray Data's business.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from discode.bulk.chunks import BLOCK_ROWS, Block, Shard
from discode.bulk.folder import RunFolder, Settings
from discode.bulk.judging import Judged, Totals, check_going, judge_chunk
from discode.bulk.run import Source, read_chunks, settle
from discode.errors import DiscodeError, InputError, require
from discode.judge import Judge
from discode.scores import Progress

MakeJudge = Callable[[], Judge]
"""Makes a judge on the worker that calls it; it is pickled, the judge is not."""


def score_ray(
    make: MakeJudge,
    source: Source,
    output: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    address: str | None = None,
    workers: int | None = None,
    gpus: float = 0.0,
    shard_size: int = BLOCK_ROWS,
    format: str = "jsonl",
    min_score: float | None = None,
    progress: Progress | None = None,
) -> Totals:
    """Score everything in ``source`` into the folder ``output``, over a Ray cluster.

    Input files must be readable on every node under the same names; the folder is written by
    this process alone. A store is not used: finished shards are what a resumed run keeps.

    Args:
        make: Makes the judge, e.g. ``functools.partial(discode.load, "embedded", threads=1)``.
        source: As of :func:`~discode.bulk.score_stream`, as are the options not named here.
        output: The folder.
        images: The folder of the pictures.
        address: Of the cluster, or "auto"; None uses the one this process is in, or starts
            Ray on this machine.
        workers: Judges at once; None for one a GPU, or one a core but one without GPUs.
        gpus: GPUs a worker, where the cluster has any.
        shard_size: Rows an output shard.
        format: "jsonl", "parquet" or "csv".
        min_score: Also write the samples with at least this score.
        progress: Called with the number of rows just done.
    """
    if workers is not None and workers < 1:
        raise InputError(f"workers={workers} is not allowed; give 1 or more")
    settings = settle(
        source, output, images=images, shard_size=shard_size, format=format, min_score=min_score
    )
    ray = require("ray", "ray")
    require("ray.data", "ray")
    with (
        connected(ray, address),
        closing(RunFolder(Path(output), settings, Shard())) as folder,
    ):
        pool = _pool(ray, workers, gpus)
        if folder.begun:
            # Whether it is the same run only a judge can tell, and judges live on workers.
            ask = ray.remote(num_cpus=pool.cpus, num_gpus=pool.gpus)(_signature)
            folder.begin(plain(ray.get(ask.remote(make))))
        for judged in _results(ray, make, settings, folder, pool):
            if not folder.begun:
                folder.begin(str(judged.scores.signature))
            folder.add(judged)
            if progress:
                progress(len(judged.ids))
        totals = folder.totals()
    if not totals.rows:
        raise InputError(f"{', '.join(settings.inputs.given)} holds no pairs")
    return totals


@dataclass(frozen=True)
class Pool:
    """How many workers there are, and what each takes of the cluster."""

    workers: int
    cpus: float
    gpus: float


def _pool(ray: Any, workers: int | None, gpus: float) -> Pool:
    have = ray.cluster_resources()
    gpus = gpus if have.get("GPU", 0) else 0.0
    if gpus:
        return Pool(workers or max(1, int(have["GPU"] / gpus)), 1.0, gpus)
    return Pool(workers or max(1, int(have.get("CPU", 1)) - 1), 1.0, 0.0)


@contextmanager
def connected(ray: Any, address: str | None) -> Iterator[None]:
    """Join a cluster, or start one that ends with the run."""
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    except ConnectionError as error:
        raise InputError(
            f"no Ray cluster at {address!r}: {error}; start one with `ray start --head`, "
            "or leave --address out to use this machine"
        ) from error
    logger = logging.getLogger("ray.data")
    before = logger.level
    logger.setLevel(logging.ERROR)  # it tells of every plan it makes
    try:
        yield
    finally:
        logger.setLevel(before)
        ray.shutdown()


def read_files(ray: Any, settings: Settings, folder: RunFolder, workers: int) -> Any:
    """Return a dataset of packed chunks, those of unfinished shards; None if there are none."""
    files = [k for k in range(len(settings.inputs.files)) if folder.wanted(k) is not None]
    if not files:
        return None
    data = ray.data.from_items([{"file": k} for k in files], override_num_blocks=len(files))
    data.context.enable_progress_bars = False
    # A block is what goes to a worker at once: one chunk, so that all workers have some.
    data.context.target_max_block_size = 1
    return data.map_batches(
        partial(_read, settings=settings, finished=folder.finished()),
        batch_size=1, batch_format="pyarrow",
        compute=ray.data.TaskPoolStrategy(size=min(len(files), workers)),
        num_cpus=0,  # it waits for the disk; with a share of its own, workers could starve it
    )  # fmt: skip


def _results(
    ray: Any, make: MakeJudge, settings: Settings, folder: RunFolder, pool: Pool
) -> Iterator[Judged]:
    """Yield judged chunks in whatever order they come."""
    data = read_files(ray, settings, folder, pool.workers)
    if data is None:
        return
    judged = data.map_batches(
        _Worker, fn_constructor_args=(make, settings.min_score),
        batch_size=1, batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=pool.workers),
        num_cpus=pool.cpus, num_gpus=pool.gpus,
    )  # fmt: skip
    for batch in judged.iter_batches(batch_size=None, batch_format="pyarrow"):
        for cell in batch.column("data"):
            yield plain(unpack(cell))


def _read(batch: Any, *, settings: Settings, finished: frozenset[Block]) -> Iterator[Any]:
    """Read files into chunks, on a worker."""
    for number in batch.column("file").to_pylist():
        done = {block.number for block in finished if block.file == number}
        chunks = read_chunks(
            settings.inputs,
            number,
            lambda block, done=done: block not in done,  # type: ignore[misc]  # an int, a bool
            images=settings.images,
            shard_size=settings.shard_size,
            keep=settings.min_score is not None,
        )
        try:
            yield from map(_pack, chunks)
        except DiscodeError as error:  # told by the driver, in one line
            yield _pack(error)


class _Worker:
    """A judge in a process of its own."""

    def __init__(self, make: MakeJudge, min_score: float | None) -> None:
        self._min_score = min_score
        try:
            self._judge: Judge | DiscodeError = make()
        except DiscodeError as error:
            self._judge = error

    def __call__(self, batch: Any) -> Any:
        (cell,) = batch.column("data")
        chunk = unpack(cell)
        if isinstance(chunk, DiscodeError):
            return _pack(chunk)
        if isinstance(self._judge, DiscodeError):
            return _pack(self._judge)
        try:
            judged = judge_chunk(self._judge, chunk, self._min_score)
            check_going(self._judge)
            return _pack(judged)
        except DiscodeError as error:
            return _pack(error)


def _signature(make: MakeJudge) -> Any:
    try:
        return str(make().signature)
    except DiscodeError as error:
        return error


def _pack(thing: Any) -> Any:
    """Return a table of one cell; Ray's own tables have no room for pictures beside scores."""
    import pyarrow as pa

    return pa.table({"data": pa.array([pickle.dumps(thing)], pa.large_binary())})


def unpack(cell: Any) -> Any:
    """Return what :func:`_pack` packed."""
    return pickle.loads(cell.as_py())


def plain(thing: Any) -> Any:
    """Raise what a worker could not; return anything else."""
    if isinstance(thing, DiscodeError):
        raise thing
    return thing
