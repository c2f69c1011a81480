"""discode calibrate: scores to people's scale, with an interval for every score."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from discode._cli import flags, output
from discode._cli.paper import open_benchmarks
from discode._files import read_rows, replacing
from discode._scales import get_scale
from discode.bench._choose import FOLDS, JudgedReadings, read_judged
from discode.bench._intervals import calibrate_judge
from discode.bench._judged_rows import parse_condition, read_judged_rows
from discode.bench._layout import TABLE_FORMATS, write_table
from discode.benchmarks._custom import COLUMNS
from discode.decoders import SIDE_BY_SIDE, get_decoder
from discode.decoders._preset import SUFFIX
from discode.errors import InputError, lookup
from discode.metrics import MetricFactory


def calibrate(
    readings: flags.Readings,
    ratings: flags.Ratings = None,
    rating_column: flags.RatingColumns = None,
    where: flags.Where = None,
    task: Annotated[
        str | None, flags.input_flag(metavar="COLUMN", help="Column of tasks to report separately.")
    ] = None,
    method: flags.Method = SIDE_BY_SIDE[-1],
    scale: flags.Scale = None,
    level: Annotated[
        float, flags.statistics_flag(metavar="X", help="Share of ratings to cover.")
    ] = 0.9,
    kind: Annotated[
        str,
        flags.statistics_flag(
            metavar="NAME", help="Width of the intervals that are kept: adaptive or constant."
        ),
    ] = "adaptive",
    folds: flags.Folds = FOLDS,
    resamples: flags.Resamples = 1000,
    seed: flags.Seed = 0,
    typed: Annotated[
        str | None,
        flags.output_option(help="Calibration (.json), or a folder for calibration.json."),
    ] = None,
    form: flags.TableFormat = "text",
) -> None:
    """Fit intervals of people's ratings to scores, and test them on other images.

    Readings are a store (.db) or its export, with --ratings of the captions, or
    a table of log-probabilities, with a column of ratings or --ratings that are
    joined by id.
    """
    lookup(TABLE_FORMATS, form, "format")
    out = None if typed is None else output.output_file(typed, "calibration.json")
    if out is not None and out.suffix != SUFFIX:
        raise InputError(f"--output {typed} is not a calibration; give a name that ends in .json")
    if not readings.is_file():
        raise InputError(f"no such file: {readings}")
    decoder = get_decoder(method)
    if _is_store(readings):
        if rating_column or where or task or ratings is None:
            raise InputError(
                "readings of a store require --ratings; --rating-column, --where and --task "
                "require a table of log-probabilities"
            )
        judged = _read_store(readings, ratings, scale)
    else:
        judged = read_judged_rows(
            readings, readings.name, rating_column or COLUMNS["rating"], get_scale(scale or "ten"),
            {text: parse_condition(text) for text in where or ()}, ratings, task,
        )  # fmt: skip
    preset, table = calibrate_judge(
        judged, decoder, level=level, kind=kind, folds=folds, resamples=resamples, seed=seed
    )
    if out is not None:
        with replacing(out) as temp:
            temp.write_text(preset.text(), encoding="utf-8")
    output.echo(write_table(table, form))
    if out is not None:
        output.note(f"written to {out}: discode score --calibration {out}", "dim")


def _is_store(file: Path) -> bool:
    """Whether a file is a store of readings, or its export."""
    if file.suffix.lower() == ".db":
        return True
    first = next(read_rows(file), ("", {}))[1]
    return {"model", "prompt", "answer_logp"} <= first.keys()


def _read_store(file: Path, ratings: Path, scale: str | None) -> JudgedReadings:
    judge = MetricFactory(f"recorded:{file}", scale=scale)
    benchmarks = open_benchmarks((), None, ratings, None, ())
    (judged,) = read_judged({file.name: judge}, benchmarks).values()
    return judged
