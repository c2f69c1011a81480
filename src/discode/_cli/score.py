"""discode score: image-caption pairs to scores, from one image to any number of files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from math import prod
from pathlib import Path
from typing import Annotated

import numpy as np

from discode._cli import flags, output
from discode._cli.dry_run import print_estimate
from discode._cli.flags import JudgeSpec, with_judge
from discode._judge import Judge
from discode._pairs import make_pairs
from discode._scores import Scores
from discode.backends import KINDS, kind_of
from discode.bulk import RunPlan, Totals, find_inputs, plan_run, score_to_folder
from discode.bulk._chunks import CHUNK_ROWS, SCORES, ChunkPlace, PairChunk
from discode.bulk._counting import RowCount, count_rows
from discode.bulk._folder import store_in
from discode.bulk._formats import format_of
from discode.bulk._judging import Methods, by_method, join_rows, judge_chunk
from discode.bulk._plan import read_chunks, read_signatures
from discode.bulk._writers import SCORE_FORMATS
from discode.decoders import SIDE_BY_SIDE, get_decoder
from discode.decoders._preset import read_preset
from discode.errors import InputError, lookup
from discode.images import is_image_file
from discode.stats import ClusteredMean

ENGINES = {"local": "this process", "ray": "workers of Ray"}
"""Engines of a run into a folder."""
JSON_ROWS = 64
"""Rows that are judged before --json prints them, unless a batch is larger."""
SORTS = ("score", "raw", "smoothing")
"""Columns that rows can be sorted by."""
CAPS = ("max_requests", "max_cost", "rate", "concurrency")
"""Options of served models that apply per process."""


@with_judge
def score(
    image: flags.ImageArgument = None,
    captions: flags.Captions = None,
    source: flags.Source = None,
    images: flags.Images = None,
    annotations: flags.Annotations = None,
    reference: flags.References = None,
    top: flags.Top = None,
    method: flags.Methods = None,
    calibration: flags.Calibration = None,
    batch_size: flags.BatchSize = None,
    by: Annotated[
        str,
        flags.judge_flag(
            metavar="UNIT",
            help="Score whole captions (caption), average over sentences (sentence), or split only "
            "captions that exceed the model's limit (auto, the default).",
            show_default=False,
        ),
    ] = "auto",
    store: flags.Store = None,
    dry_run: flags.DryRun = False,
    typed: Annotated[
        str | None,
        flags.output_option(
            help="File (.jsonl, .csv, .parquet), or a resumable folder of shards; scores.csv/ has "
            "CSV shards."
        ),
    ] = None,
    as_json: flags.AsJson = False,
    show: flags.Show = False,
    signature: flags.FullSignatures = False,
    sort: Annotated[
        str | None,
        flags.output_flag(
            metavar="NAME", help="Sort rows by score, raw or smoothing of the first method."
        ),
    ] = None,
    shard: Annotated[
        str | None, flags.large_flag(metavar="I/N", help="Process shard I of N (0 <= I < N).")
    ] = None,
    shard_size: Annotated[
        int | None,
        flags.large_flag(metavar="N", help="Rows per shard of a folder; default: 10000."),
    ] = None,
    min_score: flags.MinScoreIfAny = None,
    max_failed: Annotated[
        str | None,
        flags.large_flag(
            metavar="N|N%", help="Exit with 0 if at most this many items fail; default: 0."
        ),
    ] = None,
    engine: Annotated[
        str | None, flags.large_flag(metavar="NAME", help="local or ray; default: local.")
    ] = None,
    address: Annotated[
        str | None, flags.large_flag(help='Address of the Ray cluster ("auto" to detect).')
    ] = None,
    workers: Annotated[
        int | None, flags.large_flag(metavar="N", help="Number of Ray workers, one model each.")
    ] = None,
    *,
    spec: JudgeSpec,
) -> None:
    """Score an image with captions, or files of pairs, by discode or other methods."""
    most = output.MaxFailed() if max_failed is None else output.MaxFailed.parse(max_failed)
    methods = decoders_of(method, calibration)
    # A model is opened for the decoder that needs the most of it.
    demanding = max(methods.values(), key=lambda decoder: len(decoder.requires))
    make = partial(spec.open, method=demanding, batch_size=batch_size, by=by)
    if not output.stderr.is_terminal:  # bars of loading and downloading would fill a log
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    check_input(image, captions, reference, source, images, annotations)
    large = LargeRun(spec, make, shard, shard_size, min_score, engine, address, workers)
    if sort is not None or top is not None:
        sort = sort or SORTS[0]
        lookup(dict.fromkeys(SORTS), sort, "--sort")
        if show or (source and typed is not None and output.is_folder(typed)):
            raise InputError("--sort and --top cannot be combined with --show or an output folder")
    if source and typed is not None and output.is_folder(typed):
        if as_json or show:
            raise InputError(f"--output {typed} is a folder; --json and --show require a file")
        plan = large.plan(source, typed, images, annotations, methods)
        large.run(plan, store, full=signature, dry_run=dry_run, max_failed=most)
        return
    large.refuse()
    rows = read_input(image, captions, reference, source, images, annotations)
    out = None if typed is None else output.output_file(typed, SCORES)
    if out is not None or show:
        output.check_output(out, *rows.files, store, spec.recording, show=show, as_json=as_json)
    next(rows.read(CHUNK_ROWS), None)  # reports an unreadable table before a model is opened
    beside = None if out is None else output.store_beside(out)
    if dry_run:
        chunks = rows.read(CHUNK_ROWS)
        print_estimate(make(), (chunk.pairs for chunk in chunks), store or beside)
        return
    judge = make(store=store)
    if beside is not None:
        judge = judge.with_store(beside)
    means: dict[str, ClusteredMean] | None = {} if rows.files else None  # else there is one image
    # A chunk holds a whole batch of the model.
    chunks = rows.read(max(JSON_ROWS if as_json else CHUNK_ROWS, judge.batch_size))
    totals, signatures = score_into(
        judge, methods, chunks, out, total=rows.total, as_json=as_json, show=show, means=means,
        sort=sort, top=top,
    )  # fmt: skip
    output.report(
        totals, signatures, judge.store, out, full=signature, means=means, max_failed=most
    )


def decoders_of(names: Sequence[str] | None, calibration: Path | None) -> Methods:
    """Make the decoders of ``-m``, or that of a calibration, which must be the only one."""
    made = {name: get_decoder(name) for name in names or SIDE_BY_SIDE[-1:]}
    if calibration is None:
        return made
    decoder = read_preset(calibration, get_decoder)
    if decoder.preset.intervals is None:
        raise InputError(f"{calibration} has no intervals; make it with discode calibrate")
    for name in names or ():
        other = made[name]
        if (other.name, other.options()) != (decoder.name, decoder.decoder.options()):
            raise InputError(
                f"--calibration {calibration} was fitted to {decoder.preset.method}, not to {name}"
            )
    return {(names or [decoder.name])[0]: decoder}


def check_input(
    image: str | None,
    captions: Sequence[str] | None,
    references: Sequence[str] | None = None,
    source: Sequence[Path] | None = None,
    images: Path | None = None,
    annotations: Path | None = None,
) -> None:
    """Raise where arguments cannot be combined."""
    if images is not None and not images.is_dir():
        raise InputError(f"--images {images} is not a folder")
    if annotations is not None and not source:
        raise InputError("--annotations requires --input FILES")
    if source and (image is not None or references):
        raise InputError("give either an image and captions, or --input")
    if (file := next(filter(is_image_file, captions or ()), None)) is not None:  # a shell's *.jpg
        raise InputError(
            f"{file!r} is an image, not a caption; for several images, use --input FILE"
        )


@dataclass(frozen=True)
class Rows:
    """Rows to score, their number if it is known, and their files."""

    read: Callable[[int], Iterator[PairChunk]]
    """Read the rows in chunks of at most the given size."""
    total: RowCount | None
    files: Sequence[Path] = ()


def read_input(
    image: str | None,
    captions: list[str] | None,
    references: list[str] | None,
    source: list[Path] | None,
    images: Path | None,
    annotations: Path | None,
) -> Rows:
    """Open the rows of files, or an image and its captions."""
    if source:
        inputs = find_inputs(source)

        def read(chunk_rows: int) -> Iterator[PairChunk]:
            for number in range(len(inputs.files)):
                yield from read_chunks(
                    inputs, number, images=images, annotations=annotations, chunk_rows=chunk_rows
                )

        return Rows(read, count_rows(inputs), inputs.files)
    if image is None or not captions:
        raise InputError("give an image and at least one caption, or --input FILE")
    path = image if images is None else str(images / image)
    pairs = make_pairs(path, captions, references or None)
    chunk = PairChunk(ChunkPlace(), None, pairs, [image] * len(pairs), captions)
    return Rows(lambda _: iter([chunk]), RowCount(len(captions)))


def score_into(
    judge: Judge,
    methods: Methods | None,
    chunks: Iterable[PairChunk],
    out: Path | None,
    *,
    total: RowCount | None = None,
    as_json: bool = False,
    show: bool = False,
    means: dict[str, ClusteredMean] | None = None,
    sort: str | None = None,
    top: int | None = None,
) -> tuple[Totals, Mapping[str, str]]:
    """Score chunks into a file or onto the screen; return totals and signatures by method.

    ``means`` collects the mean score of each method over named images. Sorted rows are written at
    the end, limited to the ``top`` lowest.
    """
    bar = not (as_json and sys.stdout.isatty())  # which would be drawn between the lines
    with (
        output.open_scores(out, as_json=as_json, show=show) as write,
        output.row_progress(total, bar=bar) as progress,
    ):
        judges = by_method(judge, methods)
        seen: dict[str, set[str]] = {name: set() for name in judges}
        totals = Totals()
        unsorted: list[Mapping[str, Scores]] = []
        for chunk in chunks:
            scored = judge_chunk(judges, chunk, progress=progress)
            totals += Totals.of(scored.rows)
            if sort is None:
                write(scored.rows)
            else:
                unsorted.append(scored.rows)
                if top is not None:
                    unsorted = [lowest_rows(unsorted, sort, top)]
            for name, scores in scored.rows.items():
                seen[name].update(scores.signatures or ())
            if means is not None:
                # Tars reuse image names for different images.
                in_tar = chunk.source and format_of(Path(chunk.source)) == "tar"
                images = [pair.id for pair in chunk.pairs] if in_tar else chunk.images
                for name, scores in scored.rows.items():
                    means.setdefault(name, ClusteredMean()).add(scores.value, images)
        if not totals.rows:
            raise InputError("the input holds no pairs")
        if sort is not None:
            write(lowest_rows(unsorted, sort, top))
    # Signatures differ if only some pairs had references; use the judge's own then.
    return totals, {
        name: seen[name].pop() if len(seen[name]) == 1 else str(each.signature)
        for name, each in judges.items()
    }


def lowest_rows(
    parts: Sequence[Mapping[str, Scores]], by: str, top: int | None = None
) -> dict[str, Scores]:
    """Return the rows with the lowest values of the first method, those without one last."""
    field = "value" if by == "score" else by
    values = [getattr(next(iter(part.values())), field) for part in parts]
    if any(value is None for value in values):
        raise InputError(f"cannot sort by {by}: this method has no such column")
    return join_rows(parts, np.argsort(np.concatenate(values), kind="stable")[:top])


@dataclass(frozen=True)
class LargeRun:
    """A run into a folder; its options are None where they were not given."""

    spec: JudgeSpec
    make: Callable[..., Judge]
    shard: str | None = None
    shard_size: int | None = None
    min_score: float | None = None
    engine: str | None = None
    address: str | None = None
    workers: int | None = None

    def refuse(self) -> None:
        """Raise where any of its options was given for a run that is not into a folder."""
        for each in fields(self)[2:]:
            if getattr(self, each.name) is not None:
                flag = each.name.replace("_", "-")
                raise InputError(f"--{flag} requires --input FILES and --output FOLDER")

    def plan(
        self,
        source: list[Path],
        out: str,
        images: Path | None,
        annotations: Path | None,
        methods: Methods,
    ) -> RunPlan:
        """Plan the run; the suffix of its folder is the format of its shards."""
        lookup(ENGINES, self.engine or "local", "engine")
        if self.engine != "ray" and (self.address is not None or self.workers is not None):
            raise InputError("--address and --workers require --engine ray")
        names = ("shard", "shard_size", "min_score")
        options = {name: value for name in names if (value := getattr(self, name)) is not None}
        suffix = Path(out).suffix.removeprefix(".").lower()
        return plan_run(
            source, out, methods=methods, images=images, annotations=annotations,
            format=suffix if suffix in SCORE_FORMATS else "jsonl", **options,
        )  # fmt: skip

    def run(
        self,
        plan: RunPlan,
        store: Path | None,
        *,
        full: bool,
        dry_run: bool,
        max_failed: output.MaxFailed,
    ) -> None:
        """Carry out the run, or print what it would send."""
        own_store = store_in(plan.folder, plan.share)
        readings = None
        if dry_run:
            if self.engine == "ray":
                raise InputError("--dry-run cannot be combined with --engine ray")
            chunks = (chunk.pairs for chunk in plan.read_share())
            share_of_many = plan.share.count > 1
            print_estimate(self.make(), chunks, store or own_store, may_be_empty=share_of_many)
            return
        if self.engine == "ray":
            run = self._over_ray(plan, store)
        else:
            next(plan.read_share(), None)  # reports an unreadable table before a model is opened
            output.make_folder(plan.folder)
            judge = self.make(store=store).with_store(own_store)
            readings = judge.store
            run = partial(score_to_folder, judge, plan)
        kept = f"finished shards are in {plan.folder}; run the same command again to resume"
        counted = count_rows(plan.inputs, plan.share)
        with output.stopping(lambda: kept), output.row_progress(counted) as progress:
            totals = run(progress=progress)
        output.report(
            totals, read_signatures(plan.folder), readings, plan.folder, plan.min_score, full=full,
            max_failed=max_failed,
        )  # fmt: skip

    def _over_ray(self, plan: RunPlan, store: Path | None) -> partial[Totals]:
        from discode.bulk._ray import score_with_ray

        if store is not None:
            raise InputError("--store cannot be combined with --engine ray; it is a local file")
        for name in CAPS if self.workers != 1 else ():
            if self.spec.options.get(name) is not None:
                raise InputError(
                    f"-M {name} applies per process; with --engine ray use --workers 1"
                )
        device, kind = self.spec.options.get("device"), kind_of(self.spec.model or "embedded")[0]
        # A worker of a local model needs a GPU, unless the model runs elsewhere.
        gpus = float(kind is KINDS["hf"] if device is None else str(device).startswith("cuda"))
        if kind is KINDS["vllm"]:
            sizes = (f"{way}_parallel_size" for way in ("tensor", "pipeline"))
            gpus = prod(float(self.spec.options.get(name) or 1) for name in sizes)
        return partial(
            score_with_ray, self.make, plan, address=self.address, workers=self.workers, gpus=gpus
        )
