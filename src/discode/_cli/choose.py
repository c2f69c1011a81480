"""discode choose: which decoder suits a model, by people's judgments."""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from discode._cli import output
from discode._cli.bench import Limit, find_runs
from discode._cli.decode import read_blocks
from discode._cli.model_options import with_model_options
from discode._cli.paper import (
    BenchmarkSpecs,
    DataFolder,
    Format,
    ModelSpecs,
    OutputFolder,
    Resamples,
    RunFiles,
    StoreFile,
    open_benchmarks,
    open_judges,
    show_results,
)
from discode._columns import PairColumns, first_filled, image_name, is_filled
from discode._files import parse_json, read_rows, sha256
from discode._scales import Scale, get_scale
from discode.bench._agreement import AgreementProtocol
from discode.bench._choose import (
    BASELINE,
    FOLDS,
    JudgedReadings,
    candidate_decoders,
    choose_and_show,
    read_judged,
)
from discode.bench._layout import TABLE_FORMATS
from discode.bench._results import StudyResult, file_stem, write_result
from discode.benchmarks import Ratings
from discode.decoders import get_decoder
from discode.decoders._preset import is_preset
from discode.errors import InputError, lookup
from discode.readings import Readings

METHODS = ("raw", "discode", "paper", "discode:trust=9")
"""What is chosen from, beside smoothing, where there are log-probabilities of the answers alone."""
PANEL = "Readings of your own"
COMPARISONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
               "==": operator.eq, "!=": operator.ne}  # fmt: skip


@with_model_options
def choose(
    data: DataFolder = None,
    benchmark: BenchmarkSpecs = None,
    ratings: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|COLUMN",
            help="Your own ratings or choices (docs/adding-a-benchmark.md), or the folder of a "
            "campaign's export, instead of --data; with --readings the column of people's scores "
            "(repeat: the first that a file has).",
        ),
    ] = None,
    log: RunFiles = None,
    limit: Limit = None,
    typed: OutputFolder = None,
    form: Format = "text",
    resamples: Resamples = 1000,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Also map scores to the people's scale.")
    ] = False,
    learn: Annotated[
        bool,
        typer.Option("--learn", help="Also fit a linear decoder to the judgments, by image."),
    ] = False,
    adam: Annotated[
        bool,
        typer.Option("--adam", help="Also try Adam steps; they need hidden states, and torch."),
    ] = False,
    folds: Annotated[int, typer.Option(help="Folds that the images are dealt into.")] = FOLDS,
    readings: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=PANEL,
            help="Log-probabilities from anywhere (CSV, JSONL, Parquet), instead of a model and "
            "data: a column per answer (1, logp_1, ...), or log_probs as discode decode takes it. "
            "Repeat: a line per file.",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            rich_help_panel=PANEL,
            help="Use only rows of --readings where it holds: parsed_score>=1, split==test. "
            "Repeat: all of them.",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-m",
            metavar="METHOD",
            rich_help_panel=PANEL,
            help="Compare these with smoothing instead of raw, discode, paper and discode:trust=9. "
            "Repeat.",
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option("--scale", "-s", rich_help_panel=PANEL, help="ten (default), five, 1-7, ..."),
    ] = None,
    model: ModelSpecs = None,
    store: StoreFile = None,
    *,
    options: dict[str, Any],
) -> None:
    """Choose the decoder that suits your model by people's judgments, tested on other images."""
    lookup(TABLE_FORMATS, form, "format")
    out = output.output_folder(typed)
    if not readings:
        if scale is not None or where or method:
            raise InputError("--scale, --where and --method require --readings")
        if len(ratings or ()) > 1:
            raise InputError("several --ratings are columns of --readings; give one file")
        if not ratings and data is None:
            raise InputError("choose needs --ratings FILE, or -b BENCHMARK and --data FOLDER")
        people = Path(ratings[0]) if ratings else None
        benchmarks = open_benchmarks(benchmark or (), data, people, limit, ("flickr8k-expert",))
        files = find_runs(log or ())
        if out is not None:
            output.make_folder(out)
        judges = open_judges(model or (), options, store, out, files)
        with output.progress() as bar:
            sets = read_judged(
                judges, benchmarks, hidden=adam, progress=output.labelled_progress(bar)
            )
        notes = [line for each in benchmarks.values() for line in each.notes]
        try:
            result = choose_and_show(
                sets, partial(candidate_decoders, hidden=adam),
                AgreementProtocol(resamples=resamples),
                folds=folds, calibrated=calibrate, learn=learn,
            )  # fmt: skip
        except InputError as error:  # the notes may have the cause: images that are missing
            raise InputError("; ".join([str(error), *notes])) from error
        _show(result, out, form, notes)
        return
    if any((data, benchmark, log, limit, adam, model, options, store)):
        raise InputError(
            "--readings cannot be combined with --data, -b, --log, --limit, --adam, --store or "
            "model options"
        )
    if not ratings:
        raise InputError(f"--readings {readings[0]} needs --ratings, the column of people's scores")
    if out is not None:
        output.make_folder(out)
    if presets := [name for name in method or () if is_preset(name)]:
        raise InputError(
            f"--method {presets[0]} is a preset, which may have been chosen on these rows; give "
            "the name of a method"
        )
    decoders = {name: get_decoder(name) for name in (BASELINE, *(method or METHODS))}
    conditions = {text: _condition(text) for text in where or ()}
    names = Counter(file.name for file in {*readings})
    sets = {}
    for file in dict.fromkeys(readings):
        title = file.name if names[file.name] == 1 else str(file)
        judged = _read_judged(file, title, ratings, get_scale(scale or "ten"), conditions)
        sets[file_stem(f"decoder {title}") if names.total() > 1 else "decoder"] = judged
    result = choose_and_show(
        sets, lambda _: dict(decoders),
        AgreementProtocol(resamples=resamples), folds=folds, calibrated=calibrate, learn=learn,
        together=True,
    )  # fmt: skip
    _show(result, out, form)


def _show(result: StudyResult, out: Path | None, form: str, notes: Sequence[str] = ()) -> None:
    """Write what was found, then print it: standard output may be closed early."""
    written = result if out is None else write_result("choose", result, out)
    about = (
        "which decoder suits your model: chosen by people's judgments, tested on held-out images"
    )
    show_results({"choose": (about, written)}, out, form, notes)


def _condition(text: str) -> tuple[str, Callable[[Any], bool]]:
    """Return the column and the test of COLUMN>=VALUE; of numbers where both sides are some.

    >>> column, holds = _condition("score >= 1")
    >>> column, holds("1.0"), holds("0"), holds(""), holds(None), holds("nan")
    ('score', True, False, False, False, False)
    """
    parts = re.fullmatch(r"\s*([^<>=!]+?)\s*(>=|<=|==|!=|>|<)\s*([^<>=!]+?)\s*", text)
    if parts is None:
        raise InputError(
            f"--where {text!r} is not a condition; give COLUMN>=VALUE, or with >, <=, <, ==, !="
        )
    column, sign, value = parts.groups()
    compare: Callable[[Any, Any], bool] = COMPARISONS[sign]

    def holds(cell: Any) -> bool:
        try:
            return compare(float(cell), float(value))
        except (TypeError, ValueError):  # text has no order
            return sign in ("==", "!=") and compare(str(cell), value)

    return column, holds


def _read_judged(
    file: Path,
    title: str,
    columns: Sequence[str],
    scale: Scale,
    conditions: Mapping[str, tuple[str, Callable[[Any], bool]]],
) -> JudgedReadings:
    """Read log-probabilities with people's scores; rows of one image are kept together."""
    if not file.is_file():
        raise InputError(f"no such file: {file}")
    rows: list[tuple[int, Any]] = []
    scores: list[float] = []
    images: list[str] = []
    left_out: Counter[str] = Counter()
    column = columns[0]
    for number, (where, row) in enumerate(read_rows(file), 1):
        if number == 1:
            column = next((name for name in columns if name in row), column)
        for name in (column, *(name for name, _ in conditions.values())):
            if name not in row:
                raise InputError(f"{where} has no column {name!r}; it has: {', '.join(row)}")
        failing = [text for text, (name, holds) in conditions.items() if not holds(row[name])]
        if failing:
            left_out[f"not {failing[0]}"] += 1
            continue
        text = row[column]
        try:
            score = math.nan if text in (None, "") else float(text)
        except (TypeError, ValueError):
            raise InputError(f"{where}: {column} is {text!r}, not a number") from None
        if not math.isfinite(score):
            left_out[f"no number in {column}"] += 1
            continue
        scores.append(score)
        images.append(_image_key(row, where) or f"\n{number}")  # no image begins with a line's end
        if isinstance(row.get("log_probs"), str):  # in CSV
            row["log_probs"] = parse_json(row["log_probs"], where)
        elif not {"log_probs", "answer_logp"} & row.keys():
            names = _answer_columns(row, scale, where)
            if column in names:
                raise InputError(
                    f"{where}: {column} is an answer's log-probability; give --ratings the column "
                    "of people's scores"
                )
            row = {"log_probs": [row[name] for name in names]}
        rows.append((number, row))
    if not rows:
        raise InputError("; ".join([f"{file} has no row to use", *_left_out(left_out)]))
    blocks = read_blocks(rows, scale, "nan", file, Counter())
    readings = Readings.concat(scale, [block for _, block in blocks])
    groups, image = np.unique(images, return_inverse=True)
    alone = sum(key.startswith("\n") for key in images)
    unit = "images" if alone < len(images) else "rows"
    notes = [f"{unit}: {len(groups):,}"]
    if 0 < alone < len(images):
        notes.append(f"rows without an image, each a group: {alone:,}")
    return JudgedReadings(
        title, readings, image,
        Ratings(np.arange(len(rows)), np.array(scores), np.zeros(len(rows), np.int64)),
        {"readings": file.name, "ratings": column, "where": list(conditions),
         "left_out": dict(left_out), "sha256": {file.name: sha256(file)}},
        "; ".join([f"people's scores are {column}", *notes, *_left_out(left_out)]), unit,
    )  # fmt: skip


def _image_key(row: Mapping[str, Any], where: str) -> str:
    """Return what a row's image is known by, its name or its bytes; "" where the row has none."""
    columns = PairColumns.among(row, where)
    name = image_name(row, columns) or first_filled(row, columns.image)
    return str(name).strip() if is_filled(name) else ""


def _left_out(counts: Mapping[str, int]) -> list[str]:
    return [f"left out: {count:,}, {why}" for why, count in counts.items()]


def _answer_columns(names: Iterable[str], scale: Scale, where: str) -> list[str]:
    """Return the columns of the answers, which have the same letters in front, or none.

    >>> from discode._scales import FIVE
    >>> _answer_columns(["id", "lp1", "lp2", "lp3", "lp4", "lp5"], FIVE, "a.csv")
    ['lp1', 'lp2', 'lp3', 'lp4', 'lp5']
    """
    known, first = list(names), scale.answers[0]
    starts = [name.removesuffix(first) for name in known if name.endswith(first)]
    complete = [
        columns
        for start in starts
        if {*(columns := [f"{start}{answer}" for answer in scale.answers])} <= {*known}
    ]
    if len(complete) != 1:
        raise InputError(
            f"{where} has {len(complete) or 'no'} sets of columns for the answers {first} to "
            f"{scale.answers[-1]} of --scale {scale.name}: it has {', '.join(known)}; give "
            f"log_probs, or one column per answer, such as logp_{first}"
        )
    return complete[0]
