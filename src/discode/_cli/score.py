"""discode score: image-caption pairs to scores, from one image to any number of files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from discode._cli import output
from discode._cli.dry_run import check_served, print_estimate
from discode._cli.model_options import PANEL, Model, with_model_options
from discode._judge import Judge, load
from discode._pairs import make_pairs
from discode.backends import KINDS, kind_of
from discode.backends._recorded import split_recording
from discode.bulk import RunPlan, Totals, find_inputs, plan_run, score_to_folder
from discode.bulk._chunks import CHUNK_ROWS, PairChunk
from discode.bulk._columns import ScoredRows, lowest_rows
from discode.bulk._counting import RowCount, count_rows
from discode.bulk._folder import store_in
from discode.bulk._formats import format_of
from discode.bulk._judging import Methods, by_method, judge_chunk
from discode.bulk._plan import chunk_of, read_chunks, read_signatures
from discode.decoders import SIDE_BY_SIDE, get_decoder
from discode.errors import InputError, StoppedError, lookup
from discode.images import is_image_file
from discode.stats import ClusteredMean

ENGINES = {"local": "this process", "ray": "workers of Ray"}
"""What carries out a run into a folder."""
JSON_ROWS = 64
"""Rows that are judged before --json prints them, unless a batch is larger."""
SORTS = ("score", "raw", "smoothing")
"""Columns that rows can be sorted by."""
CAPS = ("max_requests", "max_cost", "rate", "concurrency")
"""Options of served models that each process counts for itself."""
MakeJudge = partial[Judge]
""":func:`~discode._judge.load` with its arguments; a judge is made where it is called."""

_input = partial(typer.Option, rich_help_panel="Input")
_judge = partial(typer.Option, rich_help_panel=PANEL)
_output = partial(typer.Option, rich_help_panel="Output")
_large = partial(typer.Option, rich_help_panel="Large runs")

ImageArgument = Annotated[str | None, typer.Argument(help="An image.")]
Captions = Annotated[list[str] | None, typer.Argument(help="Captions of it.")]
Source = Annotated[
    list[Path] | None,
    _input(
        "--input", "-i", metavar="PATH",
        help="Pairs: CSV, TSV, JSONL, Parquet, COCO's JSON or WebDataset tars; a file, "
        "a folder or a pattern; repeat.",
    ),
]  # fmt: skip
Images = Annotated[
    Path | None, _input(help="Folder of the images; names that lead out of it are refused.")
]
Annotations = Annotated[
    Path | None,
    _input(metavar="FILE", help="COCO's annotations, which give image ids their file names."),
]
References = Annotated[
    list[str] | None, _input("--reference", "-r", metavar="TEXT", help="Reference caption; repeat.")
]
MethodNames = Annotated[
    list[str] | None,
    _judge(
        "--method", "-m", metavar="METHOD",
        help="Method or preset FILE.json; repeat. Default: discode, with raw and smoothing beside.",
    ),
]  # fmt: skip
ScaleName = Annotated[str | None, _judge("--scale", "-s", help="unit, ten, five, ...")]
PromptName = Annotated[str | None, _judge(help="fleur, caption-last, or a text file of your own.")]
BatchSize = Annotated[int | None, _judge(help="Pairs per batch; default: by the model.")]
By = Annotated[
    str,
    _judge(help="caption, sentence (the mean over its sentences), or auto: sentence where the "
           "model would not read all of a caption."),
]  # fmt: skip
DryRun = Annotated[
    bool, _judge("--dry-run", help="Print what a server would be sent, and send nothing.")
]
Output = Annotated[
    str | None,  # a Path would forget the slash that makes scores.v2/ a folder
    _output(
        "--output", "-o", metavar="PATH",
        help="File or folder of scores: .jsonl, .csv, .parquet, or a folder/.",
    ),
]  # fmt: skip
AsJson = Annotated[bool, _output("--json", help="Print JSON lines, not a table.")]
Show = Annotated[bool, _output("--show", help="Draw the first distributions.")]
Sort = Annotated[
    str | None,
    _output(help="Sort rows by score, raw or smoothing of the first method, lowest first."),
]
Top = Annotated[
    int | None, _output(min=1, help="Only the N rows with the lowest scores, or values of --sort.")
]
Store = Annotated[
    Path | None,
    _output(help="File of readings to keep and to resume from; default: with --output."),
]
ShareOption = Annotated[str | None, _large(help="Share of this process, I/N from 0/N to N-1/N.")]
ShardSize = Annotated[
    int | None, _large(help="Rows per shard of an output folder; default: 10000.")
]
Format = Annotated[
    str | None, _large("--format", help="Format of an output folder: jsonl, csv or parquet.")
]
MinScore = Annotated[
    float | None, _large(help="Threshold; samples that reach it are written to OUTPUT/passed.")
]
MaxFailed = Annotated[
    str | None,
    _large(
        metavar="N|N%",
        help="Exit with 0 if no more items than this failed: a count or a share.  [default: 0]",
    ),
]
Engine = Annotated[str | None, _large(help="local or ray.")]
Address = Annotated[str | None, _large(help='Address of the Ray cluster ("auto" to detect).')]
Workers = Annotated[int | None, _large(help="Models at once, with Ray.")]


@with_model_options
def score(
    image: ImageArgument = None,
    captions: Captions = None,
    source: Source = None,
    images: Images = None,
    annotations: Annotations = None,
    reference: References = None,
    model: Model = None,
    method: MethodNames = None,
    scale: ScaleName = None,
    prompt: PromptName = None,
    batch_size: BatchSize = None,
    by: By = "auto",
    dry_run: DryRun = False,
    typed: Output = None,
    as_json: AsJson = False,
    show: Show = False,
    signature: output.FullSignatures = False,
    sort: Sort = None,
    top: Top = None,
    store: Store = None,
    shard: ShareOption = None,
    shard_size: ShardSize = None,
    form: Format = None,
    min_score: MinScore = None,
    max_failed: MaxFailed = None,
    engine: Engine = None,
    address: Address = None,
    workers: Workers = None,
    *,
    options: dict[str, Any],
) -> None:
    """Score an image with captions, or files of pairs."""
    if dry_run:
        check_served(model)
    most = output.MaxFailed() if max_failed is None else output.MaxFailed.parse(max_failed)
    methods = {name: get_decoder(name) for name in method or SIDE_BY_SIDE[-1:]}
    # A model is opened for the decoder that needs the most of it.
    demanding = max(methods.values(), key=lambda decoder: len(decoder.requires))
    make = partial(
        load, model, method=demanding, prompt=prompt, scale=scale, batch_size=batch_size, by=by,
        **options,
    )  # fmt: skip
    if not output.stderr.is_terminal:  # bars of loading and downloading would fill a log
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    check_input(image, captions, reference, source, images, annotations)
    large = LargeRunOptions(shard, shard_size, form, min_score, engine, address, workers)
    if sort is not None or top is not None:
        sort = sort or SORTS[0]
        lookup(dict.fromkeys(SORTS), sort, "--sort")
        if show or (source and typed is not None and output.is_folder(typed)):
            raise InputError("--sort and --top cannot be combined with --show or an output folder")
    if typed is None or not (source and output.is_folder(typed)):
        large.refuse("needs" if source else "goes with --input FILES and")
        rows = read_input(image, captions, reference, source, images, annotations)
        out = None if typed is None else output.output_file(typed, "scores.jsonl")
        _score_rows(
            make, methods, rows, out, store,
            as_json=as_json, show=show, full=signature, dry_run=dry_run, sort=sort, top=top,
            max_failed=most,
        )  # fmt: skip
        return
    if as_json or show:
        raise InputError(f"--output {typed} is a folder; --json and --show require a file")
    plan = large.plan(source, typed, images, annotations, methods)
    _score_folder(make, large, plan, store, full=signature, dry_run=dry_run, max_failed=most)


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
        raise InputError("give either an image and captions, or --input, not both")
    if (file := next(filter(is_image_file, captions or ()), None)) is not None:  # a shell's *.jpg
        raise InputError(
            f"{file!r} is an image and not a caption; give one image and its captions "
            "(discode score --input FILE takes several images)"
        )


@dataclass(frozen=True)
class Rows:
    """Rows to score, how many there are where that is known, and the files they are in."""

    read: Callable[[int], Iterator[PairChunk]]
    """Return them in chunks of at most so many rows."""
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
    """Return the rows to read: those of files, or an image and its captions."""
    if source:
        inputs = find_inputs(source)

        def read(chunk_rows: int) -> Iterator[PairChunk]:
            for number in range(len(inputs.files)):
                yield from read_chunks(
                    inputs, number, images=images, annotations=annotations, chunk_rows=chunk_rows
                )

        return Rows(read, count_rows(inputs), inputs.files)
    if image is None or not captions:
        raise InputError("give an image and at least one caption, or --input FILE with pairs")
    path = image if images is None else str(images / image)
    chunk = chunk_of(make_pairs(path, captions, references or None), [image] * len(captions))
    return Rows(lambda _: iter([chunk]), RowCount(len(captions)))


def _score_rows(
    make: MakeJudge,
    methods: Methods,
    rows: Rows,
    out: Path | None,
    store: Path | None,
    *,
    as_json: bool,
    show: bool,
    full: bool,
    dry_run: bool,
    sort: str | None,
    top: int | None,
    max_failed: output.MaxFailed,
) -> None:
    """Score rows into a file, or on the screen; with ``dry_run`` print what would be sent."""
    if out is not None or show:
        recording, _ = split_recording((make.args[0] or "").removeprefix("recorded:"))
        output.check_output(out, *rows.files, store, recording, show=show, as_json=as_json)
    # What is not a table at all is found before a model is opened.
    next(rows.read(CHUNK_ROWS), None)
    beside = None if out is None else output.store_beside(out)
    if dry_run:
        chunks = rows.read(CHUNK_ROWS)
        print_estimate(make(), (chunk.pairs for chunk in chunks), store or beside)
        return
    judge = make(store=store)
    if beside is not None:
        judge = judge.with_store(beside)
    means: dict[str, ClusteredMean] | None = {} if rows.files else None  # else there is one image
    # A chunk holds a batch: a model that takes many pairs at once is asked about as many.
    chunks = rows.read(max(JSON_ROWS if as_json else CHUNK_ROWS, judge.batch_size))
    totals, signatures = score_into(
        judge,
        methods,
        chunks,
        out,
        total=rows.total,
        as_json=as_json,
        show=show,
        means=means,
        sort=sort,
        top=top,
    )
    output.report(
        totals, signatures, judge.store, out, full=full, means=means, max_failed=max_failed
    )


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
    """Score chunks into a file or onto the screen; return the counts, and signatures by method.

    ``means`` is filled with each method's, over the images that have names. Sorted rows are
    written when all are scored, the ``top`` lowest of them where it is given.
    """
    bar = not (as_json and sys.stdout.isatty())  # which would be drawn between the lines
    with (
        output.open_scores(out, as_json=as_json, show=show) as write,
        output.row_progress(total, bar=bar) as progress,
    ):
        judges = by_method(judge, methods)
        seen: dict[str, set[str]] = {name: set() for name in judges}
        totals = Totals()
        unsorted: list[ScoredRows] = []
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
                # Several tars have the same names of images, as a rule of other images.
                in_tar = chunk.source and format_of(Path(chunk.source)) == "tar"
                images = chunk.ids if in_tar else chunk.images
                for name, scores in scored.rows.items():
                    means.setdefault(name, ClusteredMean()).add(scores.value, images)
        if not totals.rows:
            raise InputError("the input holds no pairs")
        if sort is not None:
            write(lowest_rows(unsorted, sort, top))
    # Where some pairs had references and some had not, the rows differ: the judge's own then.
    return totals, {
        name: seen[name].pop() if len(seen[name]) == 1 else str(each.signature)
        for name, each in judges.items()
    }


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

    def refuse(self, needed: str) -> None:
        """Raise where any of them was given for a run that is not into a folder."""
        for name, value in asdict(self).items():
            if value is not None:
                raise InputError(f"--{name.replace('_', '-')} {needed} --output FOLDER")

    def plan(
        self,
        source: list[Path],
        out: str,
        images: Path | None,
        annotations: Path | None,
        methods: Methods,
    ) -> RunPlan:
        """Plan a run."""
        lookup(ENGINES, self.engine or "local", "engine")
        if self.engine != "ray" and (self.address is not None or self.workers is not None):
            raise InputError("--address and --workers go with --engine ray")
        names = ("shard", "shard_size", "format", "min_score")
        options = {name: value for name in names if (value := getattr(self, name)) is not None}
        return plan_run(
            source, out, methods=methods, images=images, annotations=annotations, **options
        )


def _score_folder(
    make: MakeJudge,
    large: LargeRunOptions,
    plan: RunPlan,
    store: Path | None,
    *,
    full: bool,
    dry_run: bool,
    max_failed: output.MaxFailed,
) -> None:
    """Carry out a run into a folder, or print what it would send."""
    own_store = store_in(plan.folder, plan.share)
    readings = None
    if dry_run:
        if large.engine == "ray":
            raise InputError("--dry-run is for models behind an address; leave --engine out")
        chunks = (chunk.pairs for chunk in plan.read_share())
        share_of_many = plan.share.count > 1
        print_estimate(make(), chunks, store or own_store, may_be_empty=share_of_many)
        return
    if large.engine == "ray":
        run = _over_ray(make, large, plan, store)
    else:
        next(plan.read_share(), None)  # what is not a table is found before a model is opened
        output.make_folder(plan.folder)
        judge = make(store=store).with_store(own_store)
        readings = judge.store
        run = partial(score_to_folder, judge, plan)
    try:
        with output.row_progress(count_rows(plan.inputs, plan.share)) as progress:
            totals = run(progress=progress)
    except StoppedError as error:
        resume = f"finished shards are in {plan.folder}: run again to go on"
        output.note(f"stopped: {error.reason}; {resume}", "red")
        raise typer.Exit(1) from None
    output.report(
        totals, read_signatures(plan.folder), readings, plan.folder, plan.min_score, full=full,
        max_failed=max_failed,
    )  # fmt: skip


def _over_ray(
    make: MakeJudge, large: LargeRunOptions, plan: RunPlan, store: Path | None
) -> partial[Totals]:
    """Return a run whose workers each make a judge."""
    from discode.bulk._ray import score_with_ray

    if store is not None:
        raise InputError("--store is one machine's file; on a cluster, finished shards are kept")
    for name in CAPS if large.workers != 1 else ():
        if make.keywords.get(name) is not None:
            raise InputError(
                f"{name}: caps hold for one process, and every worker of Ray is one; give "
                "--workers 1, or leave --engine ray out"
            )
    device = make.keywords.get("device")
    # A worker of a local model needs a GPU, unless the model runs elsewhere.
    local = kind_of(make.args[0] or "embedded")[0] is KINDS["hf"]
    gpus = float(local if device is None else str(device).startswith("cuda"))
    return partial(
        score_with_ray, make, plan, address=large.address, workers=large.workers, gpus=gpus
    )
