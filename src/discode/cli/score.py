"""discode score: image-caption pairs to scores."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from discode.backends import Recorded, Runtime, open_backend
from discode.backends.embedded import introduce
from discode.cli import output
from discode.cli.rehearse import rehearse
from discode.cli.stream import Large, Recipe, is_large, rehearse_large, score_large
from discode.decoders import Decoder, get_decoder, without_prior
from discode.errors import InputError
from discode.judge import Judge, load
from discode.pairs import Pair, make_pairs, read_pairs
from discode.readings import Readings
from discode.scores import Scores


def score(
    image: Annotated[str | None, typer.Argument(help="A picture.")] = None,
    captions: Annotated[list[str] | None, typer.Argument(help="Captions of it.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="embedded (the default), ORG/NAME of a hub or a folder (discode models), "
            "embedded:FILE.onnx, recorded:FILE, openai:NAME, endpoint:NAME with --base-url."
        ),
    ] = None,
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
    threads: Annotated[int | None, typer.Option(help="Cores of the embedded model.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda, cuda:1, cpu; a local model's.")] = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16, float16 or float32.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.")] = None,
    batch_captions: Annotated[
        int | None, typer.Option(help="Captions of a picture at once; default: by memory.")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    quantize: Annotated[
        str | None, typer.Option(help="4bit, 8bit or fp8: a large model in less memory.")
    ] = None,
    device_map: Annotated[
        str | None, typer.Option(help="auto: a large model over several GPUs.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Where endpoint:NAME is: http://localhost:8000/v1.")
    ] = None,
    key_variable: Annotated[
        str | None, typer.Option(help="Environment variable of the key; default: OPENAI_API_KEY.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Shrink pictures for a server to so many pixels.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests at a time, at most.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second, at most.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds to wait for an answer.")] = None,
    max_requests: Annotated[int | None, typer.Option(help="Requests in all, at most.")] = None,
    max_cost: Annotated[float | None, typer.Option(help="Spend no more; needs --prices.")] = None,
    prices: Annotated[
        str | None, typer.Option(help="READ,WRITTEN: a million tokens cost this, e.g. 2.5,10.")
    ] = None,
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
    trust = trust_remote_code or None
    runtime = Runtime(
        threads, device, dtype, revision, batch_captions, trust, quantize, device_map, base_url,
        key_variable, image_size, concurrency, rate, timeout, max_requests, max_cost, prices,
    )  # fmt: skip
    if in_stream:
        if image is not None or reference or as_json or show or len(decoders) > 1:
            raise InputError(
                "many files take one --method, and no picture, --reference, --json or --show"
            )
        (decoder,) = decoders.values()
        recipe = Recipe(model, runtime, decoder, prompt, scale, batch_size)
        assert source is not None
        assert typed is not None
        work = rehearse_large if dry_run else score_large
        work(source, typed, images, store, recipe, large)
        return
    backend = open_backend("embedded" if model is None else model, runtime)
    # What is replayed from a recording is kept already.
    if store is None and out is not None and not isinstance(backend, Recorded):
        store = out.with_name(f"{out.name}.readings.db")
    if dry_run:
        rehearse(backend, [pairs], prompt, scale, store)
        return
    # The decoder that wants the most of a reading goes first; the others decode the same.
    first = max(decoders.values(), key=lambda decoder: len(decoder.requires))
    judge = load(
        backend, method=first, prompt=prompt, scale=scale, store=store, batch_size=batch_size
    )
    if model is None:  # said last, so that a mistake in the command stays one line
        introduce(backend.identity)
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
    if store is not None:
        output.stderr.print(f"readings kept in {store}", style="dim", markup=False, soft_wrap=True)
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
