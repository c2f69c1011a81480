"""discode score: image-caption pairs to scores."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from discode.cli import output
from discode.cli.model_options import (
    BaseUrl,
    Device,
    Dtype,
    Model,
    ModelOption,
    Threads,
    model_options,
)
from discode.cli.rehearse import rehearse
from discode.cli.stream import Large, Recipe, is_large, rehearse_large, score_large, store_beside
from discode.decoders import Decoder, get_decoder, without_prior
from discode.errors import InputError
from discode.judge import Judge, load
from discode.pairs import Pair, make_pairs, read_pairs
from discode.readings import Readings
from discode.scores import Scores


def score(
    image: Annotated[str | None, typer.Argument(help="A picture.")] = None,
    captions: Annotated[list[str] | None, typer.Argument(help="Captions of it.")] = None,
    model: Model = None,
    model_option: ModelOption = None,
    source: Annotated[
        list[Path] | None,
        typer.Option(
            "--input",
            "-i",
            help="Pairs: CSV, TSV, JSONL, Parquet, COCO results or WebDataset tars; a file, "
            "a folder or a pattern; repeat.",
        ),
    ] = None,
    images: Annotated[Path | None, typer.Option(help="Folder of the pictures.")] = None,
    reference: Annotated[
        list[str] | None, typer.Option("--reference", "-r", help="A reference caption; repeat.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", "-m", help="Repeat to compare decoders.")
    ] = None,
    scale: Annotated[str | None, typer.Option("--scale", "-s", help="unit, ten, five, ...")] = None,
    prompt: Annotated[
        str | None, typer.Option(help="fleur, caption-last, or a text file of your own.")
    ] = None,
    typed: Annotated[
        str | None,  # a Path would forget the slash that makes scores.v2/ a folder
        typer.Option(
            "--output", "-o", metavar="PATH", help="Write scores here: .jsonl, .csv, or a folder/."
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(help="Keep readings here and resume from it; default: beside --output."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Pairs a batch; default: by the model.")
    ] = None,
    threads: Threads = None,
    device: Device = None,
    dtype: Dtype = None,
    base_url: BaseUrl = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what a server would be sent; send nothing.")
    ] = False,
    shard: Annotated[
        str | None, typer.Option(help="This process's share, I/N from 0/N to N-1/N.")
    ] = None,
    shard_size: Annotated[
        int | None, typer.Option(help="Rows a shard of an output folder; default: 10000.")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="Of an output folder: jsonl, parquet or csv.")
    ] = None,
    min_score: Annotated[
        float | None, typer.Option(help="Write the samples that reach it to OUTPUT/passed.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="local or ray.")] = None,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; auto finds it.")] = None,
    workers: Annotated[int | None, typer.Option(help="Models at once, with Ray.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, not a table.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Draw the first distributions.")] = False,
) -> None:
    """Score a picture with captions, or a file of pairs."""
    output.check_show(show, as_json)
    if images is not None and not images.is_dir():
        raise InputError(f"--images {images} is not a folder")
    large = Large(shard, shard_size, form, min_score, engine, address, workers)
    in_stream = is_large(source, typed, large)
    out = None if typed is None else Path(typed)
    recording = (model or "").removeprefix("recorded:").partition("#")[0]
    if not in_stream:
        output.check_output(out, *(source or ()), store, Path(recording))
    decoders = {name: get_decoder(name) for name in method or ["discode"]}
    pairs = [] if in_stream else _pairs(image, captions, source, images, reference)
    if not output.stderr.is_terminal:  # bars of loading and downloading would fill a log
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    options = model_options(
        model_option, threads=threads, device=device, dtype=dtype, base_url=base_url
    )
    if in_stream:
        if image is not None or reference or as_json or show or len(decoders) > 1:
            raise InputError(
                "many files take one --method, and no picture, --reference, --json or --show"
            )
        (decoder,) = decoders.values()
        recipe = Recipe(model, options, decoder, prompt, scale, batch_size)
        work = rehearse_large if dry_run else score_large
        work(source or [], typed or "", images, store, recipe, large)
        return
    # The decoder that wants the most of a reading goes first; the others decode the same.
    first = max(decoders.values(), key=lambda decoder: len(decoder.requires))
    judge = load(
        model, method=first, prompt=prompt, scale=scale, store=store, batch_size=batch_size,
        **options,
    )  # fmt: skip
    if dry_run:
        rehearse(judge, [pairs], store or (out and store_beside(out)))
        return
    if out is not None:
        judge = judge.with_store(store_beside(out))
    readings = _read(judge, pairs)

    def decoded(decoder: Decoder) -> Scores:
        return replace(judge, decoder=decoder).decode(pairs, readings)

    results = {name: decoded(decoder) for name, decoder in decoders.items()}
    ids = [pair.id for pair in pairs]
    extra = [{"image": _name(pair), "caption": pair.caption} for pair in pairs]
    if out is not None:
        output.write_scores(out, results, ids, extra)
    if as_json:
        output.write_rows(sys.stdout, ".jsonl", results, ids, extra)
    elif out is None or show:
        titles = [f"{Path(row['image']).name}: {row['caption']}" for row in extra]
        for name, decoder in decoders.items() if show else ():
            before = decoded(without_prior(decoder))
            output.show(name, results[name], before, titles, range(len(ids)))
        output.stdout.print(output.score_table(results, ids, extra))
    if judge.store is not None:
        output.stderr.print(
            f"readings kept in {judge.store.path}", style="dim", markup=False, soft_wrap=True
        )
    output.finish(results, ids)


def _pairs(
    image: str | None,
    captions: list[str] | None,
    source: list[Path] | None,
    images: Path | None,
    references: list[str] | None,
) -> list[Pair]:
    if source:
        if image is not None or references:
            raise InputError("give either an image and captions, or --input, not both")
        return read_pairs(source[0], images)
    if image is None or not captions:
        raise InputError("give an image and at least one caption, or --input FILE with pairs")
    path = image if images is None else str(images / image)
    return make_pairs(path, captions, references or None)


def _name(pair: Pair) -> str:
    return os.fspath(pair.image) if isinstance(pair.image, str | os.PathLike) else "<image>"


def _read(judge: Judge, pairs: list[Pair]) -> Readings:
    with output.progress() as bar:
        task = bar.add_task("reading", total=len(pairs))
        return judge.read(pairs, lambda done: bar.advance(task, done))
