"""discode score: image-caption pairs to scores, from one image to any number of files."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from discode.backends import KINDS, kind_of
from discode.bulk import SHARD_ROWS, Share, Totals, find_inputs, score_to_folder
from discode.bulk.chunks import CHUNK_ROWS, PairChunk
from discode.bulk.counting import RowCount, count_rows
from discode.bulk.folder import read_signatures, store_in
from discode.bulk.judging import Methods, ScoredChunk, score_chunks
from discode.bulk.run import chunk_of, plan_run, read_share
from discode.bulk.writers import ScoreWriter, open_writer, score_format
from discode.cli import output
from discode.cli.dry_run import check_served, print_estimate
from discode.cli.model_options import (
    PANEL,
    BaseUrl,
    Device,
    Dtype,
    Model,
    ModelOption,
    Threads,
    model_options,
)
from discode.decoders import get_decoder, without_prior
from discode.errors import InputError, StoppedError, count_of, lookup
from discode.files import replacing
from discode.judge import Judge, load
from discode.pairs import make_pairs

ENGINES = {"local": "this process", "ray": "workers of Ray"}
"""Who carries a run into a folder."""
JSON_ROWS = 64
"""Rows that are judged before --json prints them."""
CAPS = ("max_requests", "max_cost", "rate", "concurrency")
"""Options of served models that each process counts for itself."""


def score(
    image: Annotated[str | None, typer.Argument(help="An image.")] = None,
    captions: Annotated[list[str] | None, typer.Argument(help="Captions of it.")] = None,
    source: Annotated[
        list[Path] | None,
        typer.Option(
            "--input",
            "-i",
            rich_help_panel="Input",
            metavar="PATH",
            help="Pairs: CSV, TSV, JSONL, Parquet, COCO's JSON or WebDataset tars; a file, "
            "a folder or a pattern; repeat.",
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel="Input",
            help="Folder of the images; names that lead out of it are refused.",
        ),
    ] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option(
            "--reference",
            "-r",
            metavar="TEXT",
            rich_help_panel="Input",
            help="A reference caption; repeat.",
        ),
    ] = None,
    model: Model = None,
    model_option: ModelOption = None,
    threads: Threads = None,
    device: Device = None,
    dtype: Dtype = None,
    base_url: BaseUrl = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-m",
            metavar="METHOD",
            rich_help_panel=PANEL,
            help="A method or a preset FILE.json; repeat to compare.",
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option("--scale", "-s", rich_help_panel=PANEL, help="unit, ten, five, ..."),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=PANEL, help="fleur, caption-last, or a text file of your own."
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(rich_help_panel=PANEL, help="Pairs per batch; default: by the model."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            rich_help_panel=PANEL,
            help="Say what a server would be sent; send nothing.",
        ),
    ] = False,
    typed: Annotated[
        str | None,  # a Path would forget the slash that makes scores.v2/ a folder
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            rich_help_panel="Output",
            help="Write scores here: .jsonl, .csv, .parquet, or a folder/.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", rich_help_panel="Output", help="Print JSON lines, not a table."),
    ] = False,
    show: Annotated[
        bool,
        typer.Option("--show", rich_help_panel="Output", help="Draw the first distributions."),
    ] = False,
    store: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel="Output",
            help="Keep readings here and resume from it; default: with --output.",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Large runs", help="This process's share, I/N from 0/N to N-1/N."
        ),
    ] = None,
    shard_size: Annotated[
        int | None,
        typer.Option(
            rich_help_panel="Large runs",
            help="Rows per shard of an output folder; default: 10000.",
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            rich_help_panel="Large runs",
            help="Of an output folder: jsonl, csv or parquet.",
        ),
    ] = None,
    min_score: Annotated[
        float | None,
        typer.Option(
            rich_help_panel="Large runs", help="Write the samples that reach it to OUTPUT/passed."
        ),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(rich_help_panel="Large runs", help="local or ray.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(rich_help_panel="Large runs", help="Of a Ray cluster; auto finds it."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(rich_help_panel="Large runs", help="Models at once, with Ray.")
    ] = None,
) -> None:
    """Score an image with captions, or files of pairs."""
    if images is not None and not images.is_dir():
        raise InputError(f"--images {images} is not a folder")
    if source and (image is not None or reference):
        raise InputError("give either an image and captions, or --input, not both")
    if not output.stderr.is_terminal:  # bars of loading and downloading would fill a log
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if dry_run:
        check_served(model)
    large = LargeRunOptions(shard, shard_size, form, min_score, engine, address, workers)
    methods = {name: get_decoder(name) for name in method or ["discode"]}
    options = model_options(
        model_option, threads=threads, device=device, dtype=dtype, base_url=base_url
    )
    # A model is opened for the decoder that needs the most of it.
    demanding = max(methods.values(), key=lambda decoder: len(decoder.requires))
    make = partial(
        load, model, method=demanding, prompt=prompt, scale=scale, batch_size=batch_size, **options
    )
    if typed is not None and is_folder(typed):
        if not source:
            raise InputError(f"--output {typed} is a folder, which goes with --input FILES")
        if as_json or show:
            raise InputError("--json and --show go with a file or the screen, not with a folder")
        run = FolderRun(source, Path(typed), images, store, methods, large)
        if dry_run:
            run.estimate(make)
        elif large.over_ray():
            run.score_with_ray(make, model, options)
        else:
            run.score_here(make)
        return
    if (flag := large.given()) is not None:
        needed = "needs" if source else "goes with --input FILES and"
        raise InputError(f"{flag} {needed} --output FOLDER")
    at_once = JSON_ROWS if as_json else CHUNK_ROWS
    chunks, total, files = _read(image, captions, reference, source, images, at_once)
    out = None if typed is None else Path(typed)
    recording = (model or "").removeprefix("recorded:").partition("#")[0]
    output.check_output(out, *files, store, Path(recording), show=show, as_json=as_json)
    chunks = itertools.chain(_first_chunk(chunks), chunks)
    if dry_run:
        kept = store or (out and output.store_beside(out))
        print_estimate(make(), (chunk.pairs for chunk in chunks), kept)
        return
    judge = make(store=store)
    if out is not None:
        judge = judge.with_store(output.store_beside(out))
    totals, signatures = _score(judge, methods, chunks, total, out, as_json=as_json, show=show)
    _finish(totals, signatures, judge, out)


def is_folder(out: str) -> bool:
    """Return whether an --output, as it was typed, is a folder: one that is there, or by its name.

    >>> is_folder("scores"), is_folder("scores.v2/"), is_folder("scores.jsonl"), is_folder("-")
    (True, True, False, False)
    """
    path = Path(out)
    return out.endswith(("/", os.sep)) or path.is_dir() or not (path.suffix or out == "-")


def _read(
    image: str | None,
    captions: list[str] | None,
    references: list[str] | None,
    source: list[Path] | None,
    images: Path | None,
    at_once: int,
) -> tuple[Iterator[PairChunk], RowCount | None, Sequence[Path]]:
    """Return the chunks to score, how many rows they have where that is known, and their files."""
    if source:
        inputs = find_inputs(source)
        chunks = read_share(inputs, images=images, chunk_rows=at_once)
        return chunks, count_rows(inputs), inputs.files
    if image is None or not captions:
        raise InputError("give an image and at least one caption, or --input FILE with pairs")
    if (file := next(filter(os.path.isfile, captions), None)) is not None:  # a shell's *.jpg
        raise InputError(
            f"{file!r} is a file and not a caption; give one image and its captions, or several "
            "images with theirs as --input FILE"
        )
    path = image if images is None else str(images / image)
    chunk = chunk_of(make_pairs(path, captions, references or None), [image] * len(captions))
    return iter([chunk]), RowCount(len(captions)), ()


def _first_chunk(chunks: Iterator[PairChunk]) -> list[PairChunk]:
    """Read one chunk: what is not a table at all is found before a model is opened."""
    return list(itertools.islice(chunks, 1))


def _score(
    judge: Judge,
    methods: Methods,
    chunks: Iterable[PairChunk],
    total: RowCount | None,
    out: Path | None,
    *,
    as_json: bool,
    show: bool,
) -> tuple[Totals, Mapping[str, str]]:
    """Score chunks into a file, JSON lines or a table, and charts of the first ones."""
    before = {name: without_prior(decoder) for name, decoder in methods.items()} if show else None
    first: list[ScoredChunk] = []
    made: dict[str, set[str]] = {}
    table = None if as_json or (out is not None and not show) else output.TableWriter()

    def write(chunk: ScoredChunk) -> None:
        for writer in writers:
            writer.write(chunk.rows)
        if not first:
            first.append(chunk)
        for name, lines in chunk.rows.signatures.items():
            made.setdefault(name, set()).update(lines)

    with ExitStack() as stack:
        writers: list[ScoreWriter] = [] if table is None else [table]
        if out is not None:
            temp = stack.enter_context(replacing(out))
            writers.append(stack.enter_context(open_writer(temp, score_format(out))))
        if as_json:
            writers.append(output.JsonPrinter())
        # On a terminal, a bar would be drawn between the lines.
        bar = not (as_json and sys.stdout.isatty())
        progress = stack.enter_context(output.row_progress(total, bar=bar))
        totals = score_chunks(judge, methods, chunks, write, progress=progress, before=before)
    for chunk in first if show else ():
        output.show(chunk.rows, chunk.before)
    if table is not None:
        table.print()
    # Where some pairs had references and some had not, the rows differ: the judge's own then.
    shown = {n: made[n].pop() if len(made[n]) == 1 else first[0].signatures[n] for n in made}
    return totals, shown


def _finish(
    totals: Totals,
    signatures: Mapping[str, str],
    judge: Judge | None = None,
    out: Path | None = None,
    min_score: float | None = None,
) -> None:
    """Report what became of a run, and exit with 1 if anything failed."""
    if judge is not None and judge.store is not None:
        output.note(f"readings kept in {judge.store.path}", "dim")
        if judge.store.damaged:
            damaged = count_of(judge.store.damaged, "damaged reading")
            output.note(f"read again: {damaged} in it", "yellow")
    output.report(totals, signatures)
    if out is not None:
        output.note(f"scores written to {out}", "dim")
        if min_score is not None:
            below = totals.rows - totals.failed - totals.passed
            counts = f"{totals.passed} pass {min_score}, {below} do not, {totals.failed} failed"
            output.note(f"{counts}; what passes is in {out / 'passed'}")
    if totals.failed:
        raise typer.Exit(1)


@dataclass(frozen=True)
class LargeRunOptions:
    """The options of runs into a folder, as they were given; None where they were not."""

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

    def over_ray(self) -> bool:
        """Return whether Ray carries the run."""
        lookup(ENGINES, self.engine or "local", "engine")
        ray = self.engine == "ray"
        if not ray and (self.address is not None or self.workers is not None):
            raise InputError("--address and --workers go with --engine ray")
        if ray and self.shard is not None:
            raise InputError("--shard is for batch systems; Ray shares the work out itself")
        return ray


@dataclass(frozen=True)
class FolderRun:
    """A run into a folder of shards."""

    source: list[Path]
    out: Path
    images: Path | None
    store: Path | None
    methods: Methods
    large: LargeRunOptions

    def score_here(self, make: Callable[..., Judge]) -> None:
        """Score this process's share."""
        share = self._share()
        inputs = plan_run(self.source, self.out, **self._options()).inputs
        _first_chunk(read_share(inputs, share, images=self.images))
        output.make_folder(self.out)
        judge = make(store=self.store).with_store(store_in(self.out, share))
        run = partial(score_to_folder, judge, self.source, self.out, shard=share)
        self._run(run, judge)

    def score_with_ray(
        self, make: Callable[..., Judge], model: str | None, options: Mapping[str, Any]
    ) -> None:
        """Score everything with the workers of Ray, each of which makes a judge."""
        from discode.bulk.ray import score_with_ray

        if self.store is not None:
            raise InputError(
                "--store is one machine's file; on a cluster, finished shards are kept"
            )
        for name in CAPS if self.large.workers != 1 else ():
            if options.get(name) is not None:
                raise InputError(
                    f"{name}: caps hold for one process, and every worker of Ray "
                    "is one; give --workers 1, or leave --engine ray out"
                )
        run = partial(
            score_with_ray, make, self.source, self.out, address=self.large.address,
            workers=self.large.workers, gpus=_gpus(model, options),
        )  # fmt: skip
        self._run(run)

    def estimate(self, make: Callable[..., Judge]) -> None:
        """Say what a server would be sent for this share; nothing is written."""
        if self.large.over_ray():
            raise InputError("--dry-run is for models behind an address; leave --engine out")
        share, settings = self._share(), plan_run(self.source, self.out, **self._options())
        chunks = read_share(
            settings.inputs, share, images=self.images, shard_size=settings.shard_size
        )
        kept = self.store or store_in(self.out, share)
        print_estimate(make(), (chunk.pairs for chunk in chunks), kept)

    def _share(self) -> Share:
        return Share.parse(self.large.shard or "0/1")

    def _options(self) -> dict[str, Any]:
        size = self.large.shard_size
        return {
            "methods": self.methods,
            "images": self.images,
            "shard_size": SHARD_ROWS if size is None else size,
            "format": self.large.format or "jsonl",
            "min_score": self.large.min_score,
        }

    def _run(self, run: Callable[..., Totals], judge: Judge | None = None) -> None:
        try:
            total = count_rows(find_inputs(self.source), self._share())
            with output.row_progress(total) as progress:
                totals = run(progress=progress, **self._options())
        except StoppedError as error:
            reason = str(error).removeprefix("not asked: ")
            output.note(
                f"stopped: {reason}; finished shards are in {self.out}: run again to go on", "red"
            )
            raise typer.Exit(1) from None
        _finish(totals, read_signatures(self.out), judge, self.out, self.large.min_score)


def _gpus(model: str | None, options: Mapping[str, Any]) -> float:
    """Return how many GPUs a worker needs: one for a local model, unless it runs elsewhere."""
    if (device := options.get("device")) is not None:
        return float(str(device).startswith("cuda"))
    return float(kind_of(model or "embedded")[0] is KINDS["hf"])
