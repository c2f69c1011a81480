"""The same judge over Ray Data: one model per worker, and the same shards as in one process.

Files are read by tasks, a chunk at a time; parts of it go to a pool of actors, each with a model of
its own; what they return is small, and is joined and written here. A part is some of the batches
that one process makes of the chunk, so scores are the same, digit for digit. Ray Data decides how
fast files are read, and gives the part of a worker that is lost to another.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from urllib.parse import urlsplit

from discode._judge import Judge
from discode._pairs import batches_by_image
from discode._scores import Progress
from discode.bulk._chunks import ChunkPlace, PairChunk, Shard
from discode.bulk._folder import OutputFolder
from discode.bulk._judging import (
    Methods,
    ScoredChunk,
    Totals,
    by_method,
    judge_chunk,
    raise_if_stopped,
)
from discode.bulk._plan import RunPlan
from discode.errors import DiscodeError, InputError, require

MakeJudge = Callable[[], Judge]
"""Makes a judge on the worker that calls it; it is pickled, the judge is not."""
PARTS_PER_WORKER = 4
"""The most parts of a chunk for each worker: few enough to cost nothing, enough to even out."""
PART_ROWS = 64
"""The fewest rows of a part, a batch of most judges."""
PART_BYTES = 256 << 20
"""The most bytes of images in all parts of a chunk: each has the whole chunk, for the worker knows
the size of a batch."""
CONNECT_SECONDS = 5.0
"""How long a cluster may take to answer."""
PORTS = {"": 6379, "ray": 10001}
"""Ray's own ports, by how an address begins."""
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
"""What a client of gRPC, which Ray speaks, sends first (RFC 9113): the last nine bytes are a frame
of settings, and the server's answer begins with such a frame."""


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
        raise InputError(
            "--shard cannot be combined with --engine ray, which distributes the work itself"
        )
    ray = require("ray", "ray")
    require("ray.data", "ray")
    with _connected(ray, address), closing(OutputFolder(plan)) as folder:
        have = ray.cluster_resources()
        gpus = gpus if have.get("GPU", 0) else 0.0
        spare = have["GPU"] / gpus if gpus else have.get("CPU", 1) - 1
        workers = workers or max(1, int(spare))
        # Whether it is the same run, and how large chunks are, depends on the judge, which
        # only workers have.
        ask = ray.remote(num_cpus=1, num_gpus=gpus)(_ask_judge)
        signatures, batch_size = _unpack(ray.get(ask.remote(make, plan.methods)))
        finished = folder.begin(signatures)
        if progress and finished:
            progress(finished)
        for scored in _results(ray, make, plan, folder, workers, gpus, batch_size):
            folder.add(scored)
            if progress:
                progress(len(scored))
        return folder.finish()


@contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """Join a cluster, or start one that ends with the run."""
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        _probe(address or "")
        ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    except ConnectionError as error:
        raise InputError(
            f"no Ray cluster at {address!r}: {error}; start one with `ray start --head`, "
            "or omit --address to use this machine"
        ) from error
    logger = logging.getLogger("ray.data")
    before = logger.level
    logger.setLevel(logging.ERROR)  # it reports every plan it makes
    try:
        yield
    finally:
        logger.setLevel(before)
        ray.shutdown()


def _probe(address: str) -> None:
    """Raise ConnectionError where no Ray answers at an address: Ray itself tries for minutes."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        if address not in ("", "auto", "local"):
            if parts.scheme not in PORTS:
                raise ConnectionError("an address is HOST:PORT or ray://HOST:PORT")
            place = parts.hostname or "", parts.port or PORTS[parts.scheme]
            with socket.create_connection(place, CONNECT_SECONDS) as opened:
                if os.environ.get("RAY_USE_TLS", "").lower() in ("1", "true"):
                    return
                opened.sendall(HTTP2_GREETING)
                if opened.makefile("rb").read(9)[3:4] != HTTP2_GREETING[-6:-5]:
                    raise ConnectionError("the server there is not Ray")
    except (OSError, ValueError) as error:
        raise ConnectionError(str(error)) from error


def _results(
    ray: Any,
    make: MakeJudge,
    plan: RunPlan,
    folder: OutputFolder,
    workers: int,
    gpus: float,
    batch_size: int,
) -> Iterator[ScoredChunk]:
    """Yield scored chunks of unfinished shards in any order."""
    files = list(folder.wanted())
    if not files:
        return
    data = ray.data.from_items([{"file": k} for k in files], override_num_blocks=len(files))
    data.context.enable_progress_bars = False
    # A block of Ray is what goes to a worker at once: one part, so that all workers have some.
    data.context.target_max_block_size = 1
    parts = data.map_batches(
        partial(
            _read, plan=plan, finished=folder.finished(), most=PARTS_PER_WORKER * workers,
            batch_size=batch_size,
        ),
        batch_size=1, batch_format="pyarrow",
        compute=ray.data.TaskPoolStrategy(size=min(len(files), workers)),
        num_cpus=0,  # it waits for the disk; counted as work, it could be starved by workers
    )  # fmt: skip
    scored = parts.map_batches(
        _Worker, fn_constructor_args=(make, plan.methods, plan.min_score),
        batch_size=1, batch_format="pyarrow",
        # One is worked on and one waits: what waits for a busy worker is not done by an idle one.
        compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=2),
        num_cpus=1, num_gpus=gpus,
    )  # fmt: skip
    # Closed while Ray is there: it would tell at length that Ray is gone.
    with closing(iter(scored.iter_batches(batch_size=1, batch_format="pyarrow"))) as blocks:
        yield from _joined(map(_unpack, blocks), plan.min_score)


def _read(
    batch: Any, *, plan: RunPlan, finished: frozenset[Shard], most: int, batch_size: int
) -> Iterator[Any]:
    """Read files into chunks and yield at most ``most`` parts of each, on a worker."""
    for file in batch.column("file").to_pylist():
        chunks = plan.read(
            file,
            lambda number, file=file: Shard(file, number) not in finished,  # type: ignore[misc]  # ints
            batch_size,
        )
        try:
            for chunk in chunks:
                images = (pair.image for pair in chunk.pairs)
                size = sum(len(image) for image in images if isinstance(image, bytes))
                count = min(most, len(chunk) // PART_ROWS, PART_BYTES // (size or 1))
                parts = range(max(1, count))
                yield from (_pack((chunk, part, len(parts))) for part in parts)
        except DiscodeError as error:  # raised by the driver, as one line
            yield _pack(error)


@dataclass(frozen=True)
class _ScoredPart:
    """What a worker made of its part of a chunk; nothing, where there were fewer batches."""

    place: ChunkPlace
    number: int
    count: int  # the chunk's parts
    rows: Sequence[int]
    scored: ScoredChunk | None
    samples: Mapping[int, Any]  # by row, those that pass a threshold


def _joined(parts: Iterable[_ScoredPart], min_score: float | None) -> Iterator[ScoredChunk]:
    """Yield chunks once all of their parts have come, in any order."""
    waiting: dict[ChunkPlace, dict[int, _ScoredPart]] = {}
    for part in parts:
        of_chunk = waiting.setdefault(part.place, {})
        of_chunk[part.number] = part
        if len(of_chunk) == part.count:
            del waiting[part.place]
            scored = [each.scored for each in of_chunk.values() if each.scored is not None]
            rows = [row for each in of_chunk.values() for row in each.rows]
            chunk = ScoredChunk.join(scored, rows)
            if min_score is not None:
                by_row = {row: s for each in of_chunk.values() for row, s in each.samples.items()}
                chunk = chunk.with_passed([by_row.get(row) for row in range(len(rows))], min_score)
            yield chunk


class _Worker:
    """A judge in a separate process."""

    def __init__(self, make: MakeJudge, methods: Methods | None, min_score: float | None) -> None:
        self._min_score = min_score
        self._judges = cache(lambda: by_method(make(), methods))

    def __call__(self, batch: Any) -> Any:
        try:
            (chunk, number, count), judges = _unpack(batch), self._judges()
            rows = _rows_of_part(chunk, number, count, next(iter(judges.values())).batch_size)
            if not rows:
                return _pack(_ScoredPart(chunk.place, number, count, rows, None, {}))
            part = chunk.take(rows)
            scored = judge_chunk(judges, part)
            for judge in judges.values():
                raise_if_stopped(judge)
            passed = [] if self._min_score is None else scored.passing(self._min_score)
            samples = {rows[row]: part.samples[row] for row in passed}
            return _pack(_ScoredPart(chunk.place, number, count, rows, scored, samples))
        except DiscodeError as error:
            return _pack(error)


def _rows_of_part(chunk: PairChunk, number: int, count: int, batch_size: int) -> list[int]:
    """Return the rows of a part, some of the chunk's batches.

    >>> from discode._pairs import Pair
    >>> chunk = PairChunk(ChunkPlace(), None, [Pair(image, "") for image in "aabcabb"], [], [])
    >>> _rows_of_part(chunk, 0, 2, batch_size=3), _rows_of_part(chunk, 1, 2, batch_size=3)
    ([0, 1, 4], [2, 5, 6, 3])
    """
    batches = batches_by_image(chunk.pairs, batch_size)
    first, last = (len(batches) * each // count for each in (number, number + 1))
    # In the order of the batches, so that the worker makes the same of them.
    return [row for batch in batches[first:last] for row in batch]


def _ask_judge(make: MakeJudge, methods: Methods | None) -> Any:
    try:
        judge = make()
        judges = by_method(judge, methods)
        signatures = {name: str(each.signature) for name, each in judges.items()}
        return _pack((signatures, judge.batch_size))
    except DiscodeError as error:
        return _pack(error)


def _pack(value: Any) -> Any:
    """Return a table of one cell; Ray's own tables cannot hold both images and scores."""
    import pyarrow as pa

    return pa.table({"data": pa.array([pickle.dumps(value)], pa.large_binary())})


def _unpack(table: Any) -> Any:
    """Return what :func:`_pack` packed; an error is raised."""
    (cell,) = table.column("data")
    content = pickle.loads(cell.as_py())
    if isinstance(content, DiscodeError):
        raise content
    return content
