"""discode compare: whether one captioner, or one metric, is better than another."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from discode.bench.compare import compare_metrics
from discode.bench.figures import check_plot, plot_systems
from discode.bench.runlog import RunLog
from discode.bench.systems import (
    RESAMPLES,
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
        str | None, typer.Option("--method", "-m", help="Of score files with several.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Of score files: the one to compare; default: score.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="What joins score files: image (default), or id.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Of score files: draw to .png, .svg or .pdf.")
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(help="Of a run: tau_b or tau_c; by default the benchmark's, or mean."),
    ] = None,
    swap: Annotated[
        str | None,
        typer.Option(help="Of a run: what the test exchanges, images or captions (PERM-BOTH)."),
    ] = None,
    resamples: Annotated[
        int | None,
        typer.Option(help=f"Of test and intervals; default: {RESAMPLES}, for a run 1000."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of both.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Say whether captioner A beats B by scores of the same images, or metric A beats B in a run.

    Difference, interval, p and effect; Holm's p and groups over many.
    """
    if _is_run(Path(what[0])):
        _refuse("score files", method=method, column=column, by=by, plot=plot)
        _compare_run(
            Path(what[0]), what[1:], measure, swap or "images",
            1000 if resamples is None else resamples, seed, as_json,
        )  # fmt: skip
    else:
        _refuse("a run of discode bench run", measure=measure, swap=swap)
        _compare_files(
            what, method, column or "score", by, plot,
            RESAMPLES if resamples is None else resamples, seed, as_json,
        )  # fmt: skip


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
    given: list[str],
    method: str | None,
    column: str,
    by: str | None,
    plot: Path | None,
    resamples: int,
    seed: int,
    as_json: bool,
) -> None:
    if plot is not None:
        check_plot(plot)
        output.check_writable(plot)
    joined = join_systems(label_systems(given), by=by, method=method, column=column)
    done = compare_systems(joined, resamples=resamples, seed=seed)
    if plot is not None:
        plot_systems(done, joined, plot)
    notes = explain_join(joined)
    if as_json:
        found = asdict(done) | {
            "systems": [_to_json(system) for system in done.systems],
            "pairs": [_to_json(pair) | {"verdict": pair.verdict()} for pair in done.pairs],
            "files": [
                {"name": name, "rows": rows, "failed": failed, "images": int(present.sum())}
                for name, rows, failed, present in zip(
                    joined.names, joined.rows, joined.failed, joined.present, strict=True
                )
            ],
            "joined_by": joined.by,
            "signatures": joined.signatures,
            "resamples": resamples,
            "seed": seed,
        }
        output.echo(json.dumps(found, ensure_ascii=False, indent=1))
        return
    means = [
        (
            system.name, f"{system.mean:.4f}", _range(system.low, system.high, ".4f"),
            f"{system.rank}",
        )
        for system in done.systems
    ]  # fmt: skip
    output.print_columns(("system", "mean", "95 %", "rank"), means, (0,))
    apart = [
        (
            one.a, one.b, f"{one.difference:+.4f}", _range(one.low, one.high, "+.4f"),
            f"{one.p:.4f}", f"{one.adjusted:.4f}", f"{100 * one.above:.1f} %",
            f"{100 * one.below:.1f} %", _number(one.standardised, "+.2f"),
        )
        for one in done.pairs
    ]  # fmt: skip
    output.stdout.print()
    titles = ("A", "B", "A - B", "95 %", "p", "Holm's p", "A above", "B above", "d")
    output.print_columns(titles, apart, (0, 1))
    for one in done.pairs if len(done.pairs) < 4 else ():
        _print(f"{one.verdict()} (5 %)")
    if len(done.pairs) > 1:
        _print_groups(done.groups)
    for line in notes:
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
        pairs = [_to_json(pair) | {"verdict": pair.verdict()} for pair in done.pairs]
        found = asdict(done) | {"pairs": pairs}
        output.echo(json.dumps(found, ensure_ascii=False, indent=1))
        return
    name = done.pairs[0].measure
    symbol = MEASURE_SYMBOLS.get(name, name)
    titles = ("A", "B", f"A {symbol}", f"B {symbol}", "A - B", "95 %", "p", "Holm's p")
    rows = [
        (
            one.a, one.b, _number(one.value_a, ".2f"), _number(one.value_b, ".2f"),
            _number(one.difference, "+.2f"), _range(one.low, one.high, "+.2f"),
            _number(one.p, ".4f"), _number(one.adjusted, ".4f"),
        )
        for one in done.pairs
    ]  # fmt: skip
    output.print_columns(titles, rows, (0, 1))
    for one in done.pairs if len(done.pairs) < 4 else ():
        _print(f"{one.verdict()} (5 %)")
    if len(done.pairs) > 1:
        _print_groups(done.groups)
    if done.left_out:
        _print(f"{done.left_out} judgments left out: not every metric has a score for them")
    if done.silent:
        _print(f"without any score: {', '.join(done.silent)}")
    _print(
        f"{log.benchmark}; p by {resamples} permutations that swap {swap}; intervals by as many "
        f"resamples of images; seed {seed}"
    )


def _number(value: float, form: str) -> str:
    return "undefined" if math.isnan(value) else format(value, form)


def _range(low: float, high: float, form: str) -> str:
    return "no interval" if math.isnan(low) else f"{low:{form}} to {high:{form}}"


def _to_json(row: Any) -> dict[str, Any]:
    """Return a row of numbers as JSON-ready data, with null for NaN."""
    return {key: None if value != value else value for key, value in asdict(row).items()}


def _print_groups(groups: tuple[tuple[str, ...], ...]) -> None:
    if sum(map(len, groups)) < 2:
        return
    _print("groups that differ: " + " > ".join(", ".join(group) for group in groups))


def _print(line: str) -> None:
    output.stdout.print(line, markup=False, highlight=False, soft_wrap=True)
