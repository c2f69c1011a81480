"""discode choose: the decoder that suits a model, chosen by human ratings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from discode._cli import flags, output
from discode._cli.flags import with_model_options
from discode._cli.paper import open_benchmarks, open_judges, show_results
from discode._scales import get_scale
from discode.bench._agreement import AgreementProtocol
from discode.bench._choose import (
    BASELINE,
    FOLDS,
    JudgedReadings,
    candidate_decoders,
    choose_and_show,
    read_judged,
)
from discode.bench._judged_rows import parse_condition, read_judged_rows
from discode.bench._layout import TABLE_FORMATS
from discode.bench._results import StudyResult, file_stem, write_result
from discode.bench._runlog import find_runs
from discode.bench._sampling import study_samples
from discode.decoders import get_decoder
from discode.decoders._preset import is_preset
from discode.errors import InputError, lookup

METHODS = ("raw", "discode", "paper", "discode:trust=9")
"""Candidates, compared with smoothing, where only log-probabilities of the answers are known."""


@with_model_options
def choose(
    data: flags.DataIfAny = None,
    benchmark: flags.BenchmarksIfAny = None,
    ratings: flags.Ratings = None,
    log: flags.RunLogs = None,
    limit: flags.Limit = None,
    readings: flags.ReadingsIfAny = None,
    rating_column: flags.RatingColumns = None,
    where: flags.Where = None,
    method: flags.Methods = None,
    scale: flags.Scale = None,
    calibrate: Annotated[
        bool, flags.judge_flag("--calibrate", help="Also map scores to the scale of the ratings.")
    ] = False,
    learn: Annotated[
        bool, flags.judge_flag("--learn", help="Also fit a linear decoder to the ratings.")
    ] = False,
    adam: Annotated[
        bool, flags.judge_flag("--adam", help="Also try Adam steps (requires torch).")
    ] = False,
    samples: Annotated[
        str | None,
        flags.judge_flag(
            "--samples",
            metavar="N,N",
            help="Instead, show what is lost if so many answers were drawn, such as 5,10,20,50.",
        ),
    ] = None,
    folds: flags.Folds = FOLDS,
    resamples: flags.Resamples = 1000,
    model: flags.Models = None,
    store: flags.Store = None,
    typed: Annotated[
        str | None,
        flags.output_option(help="Folder for tables, figures and readings.", metavar="FOLDER"),
    ] = None,
    form: flags.TableFormat = "text",
    *,
    options: dict[str, Any],
) -> None:
    """Choose a decoder for your model by human ratings, and test it on other images."""
    lookup(TABLE_FORMATS, form, "format")
    out = output.output_folder(typed)
    show = partial(_show, out=out, form=form)
    draws = None if samples is None else _whole_numbers(samples)
    if draws is not None and (learn or calibrate):
        raise InputError("--samples cannot be combined with --learn or --calibrate")
    selection = partial(
        choose_and_show, protocol=AgreementProtocol(resamples=resamples), folds=folds,
        calibrated=calibrate, learn=learn,
    )  # fmt: skip
    if readings:
        if any((data, benchmark, ratings, log, limit, adam, model, options, store)):
            raise InputError(
                "--readings cannot be combined with --data, -b, --ratings, --log, --limit, "
                "--adam, --store or model options"
            )
        if not rating_column:
            raise InputError("--readings requires --rating-column")
        if out is not None:
            output.make_folder(out)
        decoders = {name: get_decoder(name) for name in (BASELINE, *_named(method or METHODS))}
        sets = _read_tables(readings, rating_column, scale or "ten", where or ())
        show(
            selection(sets, lambda _: dict(decoders), together=True)
            if draws is None
            else study_samples(sets, decoders, draws)
        )
        return
    if scale is not None or where or method or rating_column:
        raise InputError("--scale, --where, --method and --rating-column require --readings")
    if ratings is None and data is None:
        raise InputError("give --ratings FILE, -b BENCHMARK and --data FOLDER, or --readings FILE")
    benchmarks = open_benchmarks(benchmark or (), data, ratings, limit, ("flickr8k-expert",))
    runs = find_runs(log or ())
    if out is not None:
        output.make_folder(out)
    judges = open_judges(model or (), options, store, out, runs)
    with output.progress() as bar:
        sets = read_judged(judges, benchmarks, hidden=adam, progress=output.labelled_progress(bar))
    notes = [line for each in benchmarks.values() for line in each.notes]
    if draws is not None:
        decoders = {name: get_decoder(name) for name in (BASELINE, *METHODS)}
        show(study_samples(sets, decoders, draws), notes=notes)
        return
    try:
        result = selection(sets, partial(candidate_decoders, hidden=adam))
    except InputError as error:  # the notes may have the cause: images that are missing
        raise InputError("; ".join([str(error), *notes])) from error
    show(result, notes=notes)


def _read_tables(
    files: Sequence[Path], columns: Sequence[str], scale: str, where: Sequence[str]
) -> dict[str, JudgedReadings]:
    conditions = {text: parse_condition(text) for text in where}
    names = Counter(file.name for file in {*files})
    sets = {}
    for file in dict.fromkeys(files):
        title = file.name if names[file.name] == 1 else str(file)
        judged = read_judged_rows(file, title, columns, get_scale(scale), conditions)
        sets[file_stem(f"decoder {title}") if names.total() > 1 else "decoder"] = judged
    return sets


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--samples {text} is not a list such as 5,10,20,50") from None


def _named(methods: Sequence[str]) -> Sequence[str]:
    if presets := [name for name in methods if is_preset(name)]:
        raise InputError(
            f"--method {presets[0]} is a preset, perhaps chosen on these rows; give a method name"
        )
    return methods


def _show(result: StudyResult, out: Path | None, form: str, notes: Sequence[str] = ()) -> None:
    """Write the result before it is printed: standard output may be closed early."""
    written = result if out is None else write_result("choose", result, out)
    about = "the decoder that suits your model, chosen by human ratings and tested on other images"
    show_results({"choose": (about, written)}, out, form, notes)
