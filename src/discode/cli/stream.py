"""discode score on inputs of any size: folders, patterns, tars, output folders, Ray."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task
from rich.text import Text

from discode.backends import KINDS, kind_of
from discode.bulk import BLOCK_ROWS, Shard, Totals, find_inputs, is_many, score_stream
from discode.bulk import score_to_file as to_file
from discode.bulk.chunks import Block
from discode.bulk.folder import signature_of
from discode.bulk.run import read_chunks, settle
from discode.cli import output
from discode.cli.rehearse import rehearse
from discode.decoders import Decoder
from discode.errors import InputError, StoppedError, lookup
from discode.judge import Judge, load

LOG_SECONDS = 60.0
"""Where nobody watches a bar, a log gets a line this often."""


@dataclass(frozen=True)
class Large:
    """The options of large runs, as they were given; None where they were not."""

    shard: str | None = None
    shard_size: int | None = None
    format: str | None = None
    min_score: float | None = None
    engine: str | None = None
    address: str | None = None
    workers: int | None = None

    def given(self) -> str | None:
        """Return the first option that was given, as it is typed."""
        for field in fields(self):
            if getattr(self, field.name) is not None:
                return f"--{field.name.replace('_', '-')}"
        return None


@dataclass(frozen=True)
class Recipe:
    """What a judge is made of; workers on other machines make theirs of the same."""

    model: str | None
    options: Mapping[str, Any]
    decoder: Decoder
    prompt: str | None
    scale: str | None
    batch_size: int | None

    def judge(self, store: Path | None = None) -> Judge:
        """Open the model."""
        return load(
            self.model, method=self.decoder, prompt=self.prompt, scale=self.scale, store=store,
            batch_size=self.batch_size, **self.options,
        )  # fmt: skip


def is_folder(out: str) -> bool:
    """Return whether an --output, as it was typed, is a folder: one that is there, or by its name.

    >>> is_folder("scores"), is_folder("scores.v2/"), is_folder("scores.jsonl")
    (True, True, False)
    """
    path = Path(out)
    return out.endswith(("/", os.sep)) or path.is_dir() or not path.suffix


def is_large(source: list[Path] | None, out: str | None, large: Large) -> bool:
    """Return whether a run is for the stream: a folder, a pattern or tars, in or out."""
    if not source:
        if large.given():
            raise InputError(f"{large.given()} goes with --input FILES and --output FOLDER")
        return False
    if (out is not None and is_folder(out)) or len(source) > 1 or any(map(is_many, source)):
        if out is None:
            raise InputError("many files want --output: a folder, or a .jsonl or .csv file")
        return True
    if large.given():
        raise InputError(f"{large.given()} wants --output to be a folder")
    return False


def score_large(
    source: list[Path],
    typed: str,
    images: Path | None,
    store: Path | None,
    recipe: Recipe,
    large: Large,
) -> None:
    """Score a large input, and report what became of it."""
    over = lookup(ENGINES, large.engine or "local", "engine")
    if over is None and (large.address is not None or large.workers is not None):
        raise InputError("--address and --workers go with --engine ray")
    out = Path(typed)
    if not is_folder(typed):
        if large.given():
            raise InputError(f"{large.given()} wants --output to be a folder, not {out.name}")
        job = _to_file(source, out, images, store, recipe)
    elif over is not None:
        if store is not None:
            raise InputError(
                "--store is one machine's file; on a cluster, finished shards are kept"
            )
        if large.shard is not None:
            raise InputError("--shard is for batch systems; Ray shares the work out itself")
        job = over(source, out, images, recipe, large)
    else:
        job = _to_folder(source, out, images, store, recipe, large)
    stopped = ""
    columns, quiet = (SpinnerColumn(), _Rows()), not output.stderr.is_terminal
    with Progress(*columns, console=output.stderr, transient=True, disable=quiet) as bar:
        task = bar.add_task("reading", total=None)
        told = time.monotonic()

        def progress(done: int) -> None:
            nonlocal told
            bar.advance(task, done)
            if quiet and time.monotonic() - told > LOG_SECONDS:
                told = time.monotonic()
                note = f"{time.strftime('%H:%M:%S')} {int(bar.tasks[0].completed)} pairs"
                output.stderr.print(note, style="dim", markup=False, highlight=False)

        try:
            totals = job.work(progress)
        except StoppedError as error:
            stopped = str(error).removeprefix("not asked: ")
    if stopped:
        line = f"stopped: {stopped}; finished shards are in {out}: run again to go on"
        output.stderr.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1)
    if job.judge is not None and job.judge.store is not None:
        kept = f"readings kept in {job.judge.store.path}"
        output.stderr.print(kept, style="dim", markup=False, soft_wrap=True)
    signature = signature_of(out) if job.judge is None else str(job.judge.signature)
    _finish(out, totals, signature, large)


def rehearse_large(
    source: list[Path],
    typed: str,
    images: Path | None,
    store: Path | None,
    recipe: Recipe,
    large: Large,
) -> None:
    """Say what a server would be sent for this share; nothing is sent, and nothing is written."""
    if lookup(ENGINES, large.engine or "local", "engine") is not None:
        raise InputError("--dry-run is for models behind an address; leave --engine out")
    out, shard = Path(typed), Shard.parse(large.shard or "0/1")
    options = _options(images, large)
    if is_folder(typed):
        inputs = settle(source, out, **options).inputs
    elif large.given():
        raise InputError(f"{large.given()} wants --output to be a folder, not {out.name}")
    else:
        output.check_output(out, *source, store)
        inputs = find_inputs(source)
    count = len(inputs.files)

    def owned(file: int, number: int) -> bool:
        return shard.owns(Block(file, number), count)

    chunks = (
        chunk.pairs
        for file in range(count)
        if shard.reads(file, count)
        for chunk in read_chunks(
            inputs, file, partial(owned, file), images=images, shard_size=options["shard_size"]
        )
    )
    kept = store or (store_of(out, shard) if is_folder(typed) else store_beside(out))
    rehearse(recipe.judge(), chunks, kept)


@dataclass(frozen=True)
class Job:
    """The work, told how to tell how far it is; and who judges, where that is this process."""

    work: Callable[[Callable[[int], None]], Totals]
    judge: Judge | None = None


def _to_file(
    source: list[Path], out: Path, images: Path | None, store: Path | None, recipe: Recipe
) -> Job:
    output.check_output(out, *source, store)
    find_inputs(source)  # a mistake in the input is told before a model is opened
    judge = recipe.judge(store).with_store(store_beside(out))
    run = partial(to_file, judge, source, out, images=images)
    return Job(lambda progress: run(progress=progress), judge)


def _to_folder(
    source: list[Path],
    out: Path,
    images: Path | None,
    store: Path | None,
    recipe: Recipe,
    large: Large,
) -> Job:
    shard = Shard.parse(large.shard or "0/1")
    options = _options(images, large)
    settle(source, out, **options)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror or error}") from error
    judge = recipe.judge(store).with_store(store_of(out, shard))
    run = partial(
        score_stream,
        judge,
        source,
        out,
        shard=shard,
        **options,
    )
    return Job(lambda progress: run(progress=progress), judge)


CAPS = ("max_requests", "max_cost", "rate", "concurrency")
"""Options of served models that a process counts for itself."""


def _over_ray(
    source: list[Path], out: Path, images: Path | None, recipe: Recipe, large: Large
) -> Job:
    from discode.bulk.ray import score_ray

    for name in CAPS if large.workers != 1 else ():
        if recipe.options.get(name) is not None:
            raise InputError(
                f"{name}: caps hold for one process, and every worker of Ray "
                "is one; give --workers 1, or leave --engine ray out"
            )
    run = partial(
        score_ray,
        recipe.judge,
        source,
        out,
        address=large.address,
        workers=large.workers,
        gpus=_gpus(recipe),
        **_options(images, large),
    )
    return Job(lambda progress: run(progress=progress))


ENGINES = {"local": None, "ray": _over_ray}
"""Who carries the work: this process, or a judge on each worker of Ray."""


def store_beside(out: Path) -> Path:
    """Return where the readings behind an output file are kept: beside it."""
    return out.with_name(f"{out.name}.readings.db")


def store_of(out: Path, shard: Shard) -> Path:
    """Return where the readings of a share of an output folder are kept: in the folder."""
    # One store per share: SQLite is for one machine at a time, and shares run on several.
    name = f"_readings-{shard.index:05d}-of-{shard.count:05d}.db"
    return out / ("_readings.db" if shard.count == 1 else name)


def _options(images: Path | None, large: Large) -> dict[str, Any]:
    return {
        "images": images,
        "shard_size": BLOCK_ROWS if large.shard_size is None else large.shard_size,
        "format": large.format or "jsonl",
        "min_score": large.min_score,
    }


def _gpus(recipe: Recipe) -> float:
    """Return how many GPUs a worker wants: one for a local model, unless it is to run elsewhere."""
    if (device := recipe.options.get("device")) is not None:
        return float(str(device).startswith("cuda"))
    return float(kind_of(recipe.model or "embedded")[0] is KINDS["hf"])


def _finish(out: Path, totals: Totals, signature: str, large: Large) -> None:
    for name, reason in totals.errors:
        where = "" if reason.startswith(name) else f"{name}: "
        output.stderr.print(f"failed: {where}{reason}", style="red", markup=False, soft_wrap=True)
    if totals.failed > len(totals.errors):
        more = totals.failed - len(totals.errors)
        output.stderr.print(f"... and {more} more", style="red")
    notes = [f"{count} {name}" for name, count in totals.flags.items() if count]
    mean = "nan" if math.isnan(totals.mean) else f"{totals.mean:.4f}"
    line = f"{totals.rows} items, mean {mean}" + (f" ({', '.join(notes)})" if notes else "")
    worst = f"truncated rows may be wrong by up to {totals.bound or 0:.4f} (column bound)"
    for text, style in (
        (line, None),
        *([] if totals.bound is None else [(worst, None)]),
        (signature, "dim"),
        (f"scores written to {out}", "dim"),
    ):
        output.stderr.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
    if large.min_score is not None:
        below = totals.rows - totals.failed - totals.passed
        output.stderr.print(
            f"{totals.passed} pass {large.min_score}, {below} do not, {totals.failed} failed; "
            f"what passes is in {out / 'passed'}",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
    if totals.failed:
        raise typer.Exit(1)


class _Rows(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Return rows so far and rows a second; how many there are is not known."""
        speed = "" if task.speed is None else f", {task.speed:.1f} pairs/s"
        return Text(f"{int(task.completed)} pairs{speed}")
