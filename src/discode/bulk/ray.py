"""The same judge over Ray Data: one model per worker, and the same shards as in one process.

Files are read by tasks, a chunk at a time; chunks go to a pool of actors, each with a model of
its own; what they return is small and is written here. Chunks are the same as in one process, so
scores are the same, digit for digit. Ray Data decides how fast files are read, and gives the chunk
of a worker that is lost to another.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from discode.bulk.chunks import Shard
from discode.bulk.folder import OutputFolder
from discode.bulk.judging import (
    Methods,
    ScoredChunk,
    Totals,
    by_method,
    judge_chunk,
    raise_if_stopped,
)
from discode.bulk.plan import RunPlan
from discode.bulk.run import check_complete
from discode.errors import DiscodeError, InputError, require
from discode.judge import Judge
from discode.scores import Progress

MakeJudge = Callable[[], Judge]
"""Makes a judge on the worker that calls it; it is pickled, the judge is not."""


def score_with_ray(
    make: MakeJudge,
    plan: RunPlan,
    *,
    address: str | None = None,
    workers: int | None = None,
    gpus: float = 0.0,
    progress: Progress | None = None,
) -> Totals:
    """Score a run into its folder, over a Ray cluster.

    Input files must be readable on every node under the same names; the folder is written by
    this process alone. A store is not used: finished shards are what a resumed run keeps.

    Args:
        make: Makes the judge, e.g. ``functools.partial(discode.load, "embedded", threads=1)``.
        plan: What :func:`~discode.bulk.plan_run` returned, for the whole input.
        address: Address of the cluster, or "auto"; None uses the one this process is in, or
            starts Ray on this machine.
        workers: Judges at once; None for one per GPU or, without GPUs, one per core except one.
        gpus: GPUs per worker, where the cluster has any.
        progress: Called with the number of rows just done; first with those of earlier runs.
    """
    if workers is not None and workers < 1:
        raise InputError(f"workers={workers} is not allowed; give 1 or more")
    if plan.share.count > 1:
        raise InputError("--shard is for batch systems; Ray shares the work out itself")
    ray = require("ray", "ray")
    require("ray.data", "ray")
    with _connected(ray, address), closing(OutputFolder(plan)) as folder:
        pool = _pool(ray, workers, gpus)
        if folder.begun:
            # Whether it is the same run depends on the judge, and judges live on workers.
            ask = ray.remote(num_cpus=pool.cpus, num_gpus=pool.gpus)(_signatures)
            folder.begin(_raise_error(ray.get(ask.remote(make, plan.methods))))
            if progress and (finished := folder.totals().rows):
                progress(finished)
        for scored in _results(ray, make, plan, folder, pool):
            if not folder.begun:
                folder.begin(scored.signatures)
            folder.add(scored)
            if progress:
                progress(len(scored.rows))
        totals = folder.finish()
    check_complete(plan, totals)
    return totals


@dataclass(frozen=True)
class WorkerPool:
    """How many workers there are, and what each takes of the cluster."""

    workers: int
    cpus: float
    gpus: float


def _pool(ray: Any, workers: int | None, gpus: float) -> WorkerPool:
    have = ray.cluster_resources()
    gpus = gpus if have.get("GPU", 0) else 0.0
    if gpus:
        return WorkerPool(workers or max(1, int(have["GPU"] / gpus)), 1.0, gpus)
    return WorkerPool(workers or max(1, int(have.get("CPU", 1)) - 1), 1.0, 0.0)


@contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
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
    logger.setLevel(logging.ERROR)  # it reports every plan it makes
    try:
        yield
    finally:
        logger.setLevel(before)
        ray.shutdown()


def _read_files(ray: Any, plan: RunPlan, folder: OutputFolder, workers: int) -> Any:
    """Return a dataset of packed chunks, those of unfinished shards; None if there are none."""
    files = [k for k in range(len(plan.inputs.files)) if folder.wanted(k) is not None]
    if not files:
        return None
    data = ray.data.from_items([{"file": k} for k in files], override_num_blocks=len(files))
    data.context.enable_progress_bars = False
    # A block of Ray is what goes to a worker at once: one chunk, so that all workers have some.
    data.context.target_max_block_size = 1
    return data.map_batches(
        partial(_read, plan=plan, finished=folder.finished()),
        batch_size=1, batch_format="pyarrow",
        compute=ray.data.TaskPoolStrategy(size=min(len(files), workers)),
        num_cpus=0,  # it waits for the disk; with a share of its own, workers could starve it
    )  # fmt: skip


def _results(
    ray: Any, make: MakeJudge, plan: RunPlan, folder: OutputFolder, pool: WorkerPool
) -> Iterator[ScoredChunk]:
    """Yield scored chunks in whatever order they come."""
    data = _read_files(ray, plan, folder, pool.workers)
    if data is None:
        return
    scored = data.map_batches(
        _Worker, fn_constructor_args=(make, plan.methods, plan.min_score),
        batch_size=1, batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=pool.workers),
        num_cpus=pool.cpus, num_gpus=pool.gpus,
    )  # fmt: skip
    for batch in scored.iter_batches(batch_size=None, batch_format="pyarrow"):
        for cell in batch.column("data"):
            yield _raise_error(_unpack(cell))


def _read(batch: Any, *, plan: RunPlan, finished: frozenset[Shard]) -> Iterator[Any]:
    """Read files into chunks, on a worker."""
    for file in batch.column("file").to_pylist():
        chunks = plan.read(file, lambda number, file=file: Shard(file, number) not in finished)  # type: ignore[misc]  # ints
        try:
            yield from map(_pack, chunks)
        except DiscodeError as error:  # raised by the driver, as one line
            yield _pack(error)


class _Worker:
    """A judge in a process of its own."""

    def __init__(self, make: MakeJudge, methods: Methods | None, min_score: float | None) -> None:
        self._min_score = min_score
        try:
            self._judges: dict[str, Judge] | DiscodeError = by_method(make(), methods)
        except DiscodeError as error:
            self._judges = error

    def __call__(self, batch: Any) -> Any:
        (cell,) = batch.column("data")
        chunk = _unpack(cell)
        if isinstance(chunk, DiscodeError):
            return _pack(chunk)
        if isinstance(self._judges, DiscodeError):
            return _pack(self._judges)
        try:
            scored = judge_chunk(self._judges, chunk, min_score=self._min_score)
            for judge in self._judges.values():
                raise_if_stopped(judge)
            return _pack(scored)
        except DiscodeError as error:
            return _pack(error)


def _signatures(make: MakeJudge, methods: Methods | None) -> Any:
    try:
        return {name: str(judge.signature) for name, judge in by_method(make(), methods).items()}
    except DiscodeError as error:
        return error


def _pack(value: Any) -> Any:
    """Return a table of one cell; Ray's own tables have no room for images beside scores."""
    import pyarrow as pa

    return pa.table({"data": pa.array([pickle.dumps(value)], pa.large_binary())})


def _unpack(cell: Any) -> Any:
    """Return what :func:`_pack` packed."""
    return pickle.loads(cell.as_py())


def _raise_error(value: Any) -> Any:
    """Raise the error that a worker returned; return anything else."""
    if isinstance(value, DiscodeError):
        raise value
    return value
