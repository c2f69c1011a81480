"""discode compare: whether one captioner, or one metric, is better than another."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from discode.bench.compare import compare_metrics
from discode.bench.figures import check_plot, plot_systems
from discode.bench.runlog import RunLog
from discode.bench.systems import (
    RESAMPLES,
    JoinedScores,
    compare_systems,
    explain_join,
    join_systems,
    label_systems,
)
from discode.cli import output
from discode.errors import InputError
from discode.paper.run_tables import MEASURE_SYMBOLS

FEW_IMAGES = 30
"""Below this an interval is too narrow; :func:`compare_systems` says by how much."""


def compare(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="What discode score wrote, a file or folder per captioner, or NAME=FILE; or what "
            "discode bench run -o wrote, and two or more of its metrics (default: all).",
        ),
    ],
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="Method, of score files with several.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Column of score files to compare; default: score.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="Key that joins score files: image (default), or id.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Chart of score files: .png, .svg or .pdf.")
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(help="Measure of a run: tau_b or tau_c; by default the benchmark's, or mean."),
    ] = None,
    swap: Annotated[
        str | None,
        typer.Option(help="Unit that the test of a run swaps: images or captions (PERM-BOTH)."),
    ] = None,
    resamples: Annotated[
        int | None,
        typer.Option(
            help=f"Resamples of test and intervals; default: {RESAMPLES}, for a run 1000."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Say whether captioner A beats B by scores of the same images, or metric A beats B in a run.

    Difference, interval, p and effect; Holm's p and groups over many.
    """
    if _is_run(Path(what[0])):
        _refuse("score files", method=method, column=column, by=by, plot=plot)
        resamples = 1000 if resamples is None else resamples
        _compare_run(Path(what[0]), what[1:], measure, swap or "images", resamples, seed, as_json)
    else:
        _refuse("a run of discode bench run", measure=measure, swap=swap)
        if plot is not None:
            check_plot(plot)
            output.check_writable(plot)
        joined = join_systems(label_systems(what), by=by, method=method, column=column or "score")
        resamples = RESAMPLES if resamples is None else resamples
        _compare_files(joined, plot, resamples, seed, as_json)


def _is_run(path: Path) -> bool:
    """Whether a file is a run log, or is called like one; a list of rows is JSON, too."""
    if path.suffix.lower() != ".json":
        return False
    try:
        with path.open("rb") as file:
            return not file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    except OSError:
        return True  # which says that there is no such run


def _refuse(kind: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise InputError(f"--{name} goes with {kind}; leave it out here")


def _compare_files(
    joined: JoinedScores, plot: Path | None, resamples: int, seed: int, as_json: bool
) -> None:
    done = compare_systems(joined, resamples=resamples, seed=seed)
    if plot is not None:
        plot_systems(done, joined, plot)
    if as_json:
        files = zip(joined.names, joined.rows, joined.failed, joined.present, strict=True)
        _print_json(
            done,
            systems=[_to_json(system) for system in done.systems],
            files=[
                {"name": name, "rows": rows, "failed": failed, "images": int(present.sum())}
                for name, rows, failed, present in files
            ],
            joined_by=joined.by,
            signatures=joined.signatures,
            resamples=resamples,
            seed=seed,
        )
        return
    means = [
        (each.name, f"{each.mean:.4f}", _range(each.low, each.high, ".4f"), f"{each.rank}")
        for each in done.systems
    ]
    output.print_columns(("system", "mean", "95 %", "rank"), means, (0,))
    output.stdout.print()
    _print_pairs(
        done,
        {
            "A - B": lambda pair: f"{pair.difference:+.4f}",
            "95 %": lambda pair: _range(pair.low, pair.high, "+.4f"),
            "p": lambda pair: f"{pair.p:.4f}",
            "Holm's p": lambda pair: f"{pair.adjusted:.4f}",
            "A above": lambda pair: f"{100 * pair.above:.1f} %",
            "B above": lambda pair: f"{100 * pair.below:.1f} %",
            "d": lambda pair: _number(pair.standardised, "+.2f"),
        },
    )
    for line in explain_join(joined):
        _print(line)
    if done.images < FEW_IMAGES:
        _print(f"with {done.images} images intervals are too narrow: score some dozens")
    _print(
        f"p by {resamples} permutations that swap images; intervals by as many resamples of "
        f"images; d is the difference in standard deviations; seed {seed}"
    )
    for line in joined.signatures:
        _print(line)


def _compare_run(
    run: Path,
    metrics: list[str],
    measure: str | None,
    swap: str,
    resamples: int,
    seed: int,
    as_json: bool,
) -> None:
    log = RunLog.load(run)
    done = compare_metrics(log, metrics, measure=measure, swap=swap, resamples=resamples, seed=seed)
    if as_json:
        _print_json(done)
        return
    name = done.pairs[0].measure
    symbol = MEASURE_SYMBOLS.get(name, name)
    _print_pairs(
        done,
        {
            f"A {symbol}": lambda pair: _number(pair.value_a, ".2f"),
            f"B {symbol}": lambda pair: _number(pair.value_b, ".2f"),
            "A - B": lambda pair: _number(pair.difference, "+.2f"),
            "95 %": lambda pair: _range(pair.low, pair.high, "+.2f"),
            "p": lambda pair: _number(pair.p, ".4f"),
            "Holm's p": lambda pair: _number(pair.adjusted, ".4f"),
        },
    )
    if done.left_out:
        _print(f"{done.left_out} judgments left out: not every metric has a score for them")
    if done.silent:
        _print(f"without any score: {', '.join(done.silent)}")
    _print(
        f"{log.benchmark}; p by {resamples} permutations that swap {swap}; intervals by as many "
        f"resamples of images; seed {seed}"
    )


def _print_pairs(done: Any, columns: Mapping[str, Callable[[Any], str]]) -> None:
    """Print a row per pair of systems or metrics, which is better, and the groups that differ."""
    rows = [(pair.a, pair.b, *(cell(pair) for cell in columns.values())) for pair in done.pairs]
    output.print_columns(("A", "B", *columns), rows, (0, 1))
    for pair in done.pairs if len(done.pairs) < 4 else ():
        _print(f"{pair.verdict()} (5 %)")
    if len(done.pairs) > 1 and sum(map(len, done.groups)) > 1:
        _print("groups that differ: " + " > ".join(", ".join(group) for group in done.groups))


def _print_json(done: Any, **more: Any) -> None:
    pairs = [_to_json(pair) | {"verdict": pair.verdict()} for pair in done.pairs]
    output.echo(json.dumps(asdict(done) | more | {"pairs": pairs}, ensure_ascii=False, indent=1))


def _number(value: float, form: str) -> str:
    return "undefined" if math.isnan(value) else format(value, form)


def _range(low: float, high: float, form: str) -> str:
    return "no interval" if math.isnan(low) else f"{low:{form}} to {high:{form}}"


def _to_json(row: Any) -> dict[str, Any]:
    """Return a row of numbers as JSON-ready data, with null for NaN."""
    return {key: None if value != value else value for key, value in asdict(row).items()}


def _print(line: str) -> None:
    output.stdout.print(line, markup=False, highlight=False, soft_wrap=True)
