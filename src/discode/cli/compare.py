"""discode compare: whether one metric is better than another."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from discode.bench.compare import compare_metrics
from discode.bench.runlog import RunLog
from discode.bench.tables import MEASURE_SYMBOLS
from discode.cli import output


def compare(
    run: Annotated[Path, typer.Argument(help="What discode bench run --json wrote.")],
    metrics: Annotated[list[str] | None, typer.Argument(help="Two or more; default: all.")] = None,
    measure: Annotated[
        str | None, typer.Option(help="tau_c (default) or tau_b; preferences: mean.")
    ] = None,
    swap: Annotated[
        str, typer.Option(help="What the test exchanges: images, or captions (PERM-BOTH).")
    ] = "images",
    resamples: Annotated[int, typer.Option(help="Of the test and of the intervals.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of both.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Say whether metric A beats B: difference, interval, p; Holm's over many."""
    log = RunLog.load(run)
    done = compare_metrics(
        log, metrics or [], measure=measure, swap=swap, resamples=resamples, seed=seed
    )
    if as_json:
        pairs = [
            {key: None if value != value else value for key, value in asdict(pair).items()}
            | {"verdict": pair.verdict()}
            for pair in done.pairs
        ]
        output.echo(json.dumps(asdict(done) | {"pairs": pairs}, ensure_ascii=False, indent=1))
        return
    name = done.pairs[0].measure
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in (
        "A",
        "B",
        f"A {MEASURE_SYMBOLS.get(name, name)}",
        "B",
        "A - B",
        "95 %",
        "p",
        "Holm's p",
    ):
        table.add_column(title, justify="left" if title in ("A", "B") else "right", no_wrap=True)
    for one in done.pairs:
        table.add_row(
            escape(one.a), escape(one.b), f"{one.value_a:.2f}", f"{one.value_b:.2f}",
            f"{one.difference:+.2f}", f"{one.low:+.2f} to {one.high:+.2f}", f"{one.p:.4f}",
            f"{one.adjusted:.4f}",
        )  # fmt: skip
    output.stdout.print(table)
    for one in done.pairs if len(done.pairs) < 4 else ():
        _print(f"{one.verdict()} (5 %)")
    if len(done.pairs) > 1:
        _print("groups that differ: " + " > ".join(", ".join(group) for group in done.groups))
    if done.left_out:
        _print(f"{done.left_out} judgments left out: not every metric has a score for them")
    if done.silent:
        _print(f"without any score: {', '.join(done.silent)}")
    _print(
        f"{log.benchmark}; p by {resamples} permutations that swap {swap}; intervals by as many "
        f"resamples of images; seed {seed}"
    )


def _print(line: str) -> None:
    output.stdout.print(line, markup=False, highlight=False, soft_wrap=True)
