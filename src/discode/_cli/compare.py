"""discode compare: whether one captioner, or one metric, is better than another."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from discode._cli import flags, output
from discode._cli.paper import open_benchmarks
from discode._files import without_nan
from discode._signature import shortened_signature
from discode.bench._agreement import TAU_C_NOTES, note_ties
from discode.bench._compare import (
    GROUP_RULE,
    MetricComparison,
    compare_metrics,
    note_few_images,
    worse_than,
)
from discode.bench._figures import check_plot, plot_systems
from discode.bench._layout import TABLE_FORMATS, WORSE_NOTE, Bold, CellTable, write_table
from discode.bench._rated import (
    RATED_TITLES,
    RatedMeans,
    describe_rated,
    rate_systems,
    rated_rows,
)
from discode.bench._runlog import RunLog
from discode.bench._systems import (
    RESAMPLES,
    JoinedScores,
    compare_systems,
    explain_join,
    is_scores_folder,
    join_systems,
    label_systems,
)
from discode.bench._tables import MEASURE_SYMBOLS
from discode.errors import InputError, lookup


def compare(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Score files or folders, one per captioner, optionally NAME=FILE; or a run log "
            "of `bench run -o` and two or more of its metrics (default: all).",
        ),
    ],
    method: flags.MethodIfAny = None,
    column: Annotated[
        str | None,
        flags.input_flag(metavar="NAME", help="Column of score files to compare; default: score."),
    ] = None,
    join_by: Annotated[
        str | None,
        flags.input_flag(metavar="KEY", help="Key that joins score files: image (default) or id."),
    ] = None,
    failed_as: flags.FailedAs = None,
    ratings: flags.Ratings = None,
    measure: flags.Measure = None,
    swap: Annotated[
        str | None,
        flags.statistics_flag(
            metavar="UNIT",
            help="Unit that the test of a run swaps: images or captions (PERM-BOTH).",
        ),
    ] = None,
    resamples: flags.ResamplesIfAny = None,
    seed: flags.Seed = 0,
    plot: Annotated[
        Path | None,
        flags.output_flag(metavar="FILE", help="Chart of score files: .png, .svg or .pdf."),
    ] = None,
    form: flags.TableFormat = "text",
    as_json: flags.AsJson = False,
    signature: flags.FullSignatures = False,
) -> None:
    """Compare captioners by scores of the same images, or the metrics of a run.

    One captioner gets a mean with a 95 % interval over images; several get
    differences, p-values (Holm's for many) and groups; with --ratings of some
    captions their mean rating. Resamples are 5,000, of run logs 1,000.
    """
    lookup(TABLE_FORMATS, form, "format")
    if as_json and form != "text":
        raise InputError(f"--json cannot be combined with --format {form}")
    first = _run_in(Path(what[0]))
    if _is_run(first):
        refuse(
            "score files",
            method=method,
            column=column,
            join_by=join_by,
            failed_as=failed_as,
            ratings=ratings,
            plot=plot,
        )
        resamples = 1000 if resamples is None else resamples
        log = RunLog.load(first)
        swap = swap or "images"
        done = compare_metrics(
            log, what[1:], measure=measure, swap=swap, resamples=resamples, seed=seed
        )
        if as_json:
            print_json(done)
            return
        _print_metrics(
            done, form,
            f"{log.benchmark}; p from {resamples} permutations that swap {swap}; intervals from as "
            f"many resamples of images; seed {seed}",
        )  # fmt: skip
    else:
        refuse("run logs", measure=measure, swap=swap)
        if plot is not None:
            check_plot(plot)
            output.check_writable(plot)
        joined = join_systems(
            label_systems(what),
            by=join_by,
            method=method,
            column=column or "score",
            failed_as=failed_as,
        )
        resamples = RESAMPLES if resamples is None else resamples
        rated = None
        if ratings is not None:
            (benchmark,) = open_benchmarks((), None, ratings, None, ()).values()
            rated = rate_systems(joined, benchmark, ratings if ratings.is_dir() else ratings.parent)
        _compare_files(
            joined, plot, resamples, seed, form, as_json, signature or form != "text", rated
        )


def _run_in(path: Path) -> Path:
    """Find the run log in a folder of ``bench run -o``; other paths are unchanged."""
    if is_scores_folder(path) or not (runs := sorted(path.glob("*.json"))):
        return path
    if len(runs) > 1:
        raise InputError(f"{path} holds {len(runs)} runs; give one of them, such as {runs[0]}")
    return runs[0]


def _is_run(path: Path) -> bool:
    """Whether a file is a run log by its name; a JSON list holds scores instead."""
    if path.suffix.lower() != ".json":
        return False
    try:
        with path.open("rb") as file:
            return not file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    except OSError:
        return True  # reading the run reports that it is missing


def is_scores(path: Path) -> bool:
    """Whether a path, or the path in NAME=PATH, names a file or a folder of scores."""
    file = path if path.exists() else Path(str(path).rpartition("=")[2])
    table = file.suffix.lower() in (".jsonl", ".csv", ".tsv", ".parquet", ".json")
    return is_scores_folder(file) or (table and not _is_run(file))


def refuse(kind: str, **options: object) -> None:
    """Raise if an option is given that applies to ``kind`` only."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f"--{name.replace('_', '-')} requires {kind}")


def _compare_files(
    joined: JoinedScores, plot: Path | None, resamples: int, seed: int, form: str, as_json: bool,
    full: bool, rated: RatedMeans | None,
) -> None:  # fmt: skip
    done = compare_systems(joined, resamples=resamples, seed=seed)
    if plot is not None:
        plot_systems(done, joined, plot)
    if as_json:
        files = zip(joined.names, joined.rows, joined.failed, joined.present, strict=True)
        print_json(
            done,
            systems=[asdict(system) for system in done.systems],
            files=[
                {"name": name, "rows": rows, "failed": failed, "images": int(present.sum())}
                for name, rows, failed, present in files
            ],
            joined_by=joined.by,
            failed_as=joined.failed_as,
            signatures=joined.signatures,
            resamples=resamples,
            seed=seed,
            ratings=rated and {k: asdict(v) | {"worth": v.worth} for k, v in rated.means.items()},
        )
        return
    if rated is not None:
        print_table(form, RATED_TITLES, rated_rows(rated), (0,), describe_rated(rated))
        output.echo("")
    notes = explain_join(joined)
    means: list[tuple[str, ...]] = [
        (each.name, f"{each.mean:.4f}", show_range(each.low, each.high, ".4f"), f"{each.rank}")
        for each in done.systems
    ]
    titles = ("system", "mean", "95 %", "rank")
    signatures = [each if full else shortened_signature(each) for each in joined.signatures]
    if not done.pairs:
        how = f"interval by {resamples} resamples of images; seed {seed}"
        lines = [*notes, *note_few_images(done.images), how, *signatures]
        print_table(form, titles[:-1], [row[:-1] for row in means], (0,), lines)
        return
    how = (
        f"p by {resamples} permutations that swap images; intervals by as many resamples of "
        f"images; d is the difference in standard deviations; seed {seed}"
    )
    marks = form == "latex"
    if marks:
        best, worse = done.systems[0].name, worse_than(done.pairs, done.systems[0].name)
        means = [
            (name, Bold(mean) if name == best else mean + "†" * (name in worse), *others)
            for name, mean, *others in means
        ]
    print_table(form, titles, means, (0,), [WORSE_NOTE] * marks)
    output.echo("")
    print_pairs(
        done,
        form,
        notes,
        [how, *signatures],
        {
            "A - B": lambda pair: f"{pair.difference:+.4f}",
            "95 %": lambda pair: show_range(pair.low, pair.high, "+.4f"),
            "p": lambda pair: f"{pair.p:.4f}",
            "Holm's p": lambda pair: f"{pair.adjusted:.4f}",
            "A above": lambda pair: f"{100 * pair.above:.1f} %",
            "B above": lambda pair: f"{100 * pair.below:.1f} %",
            "d": lambda pair: show_number(pair.standardised, "+.2f"),
        },
    )


def _print_metrics(done: MetricComparison, form: str, how: str) -> None:
    notes = []
    if done.left_out:
        notes.append(f"{done.left_out} judgments skipped: not every metric has a score for them")
    if done.silent:
        notes.append(f"no scores: {', '.join(done.silent)}")
    name = done.pairs[0].measure
    symbol = MEASURE_SYMBOLS.get(name, name)
    tied = note_ties(done.ties) if name.startswith("tau_") else []
    rates = {
        "A ties": lambda pair: f"{done.ties[pair.a]:.1f} %",
        "B ties": lambda pair: f"{done.ties[pair.b]:.1f} %",
    }
    print_pairs(
        done,
        form,
        [*notes, *tied, *([TAU_C_NOTES["people"]] if name == "tau_c" else [])],
        [how],
        {
            f"A {symbol}": lambda pair: show_number(pair.value_a, ".2f"),
            f"B {symbol}": lambda pair: show_number(pair.value_b, ".2f"),
            **(rates if tied and name == "tau_b" else {}),
            "A - B": lambda pair: show_number(pair.difference, "+.2f"),
            "95 %": lambda pair: show_range(pair.low, pair.high, "+.2f"),
            "p": lambda pair: show_number(pair.p, ".4f"),
            "Holm's p": lambda pair: show_number(pair.adjusted, ".4f"),
        },
    )


def print_pairs(
    done: Any,
    form: str,
    notes: Sequence[str],
    how: Sequence[str],
    columns: Mapping[str, Callable[[Any], str]],
) -> None:
    verdicts = [f"{pair.verdict()} (5 %)" for pair in done.pairs if len(done.pairs) < 4]
    if len(done.pairs) > 1 and sum(map(len, done.groups)) > 1:
        several = len(done.groups) > 1
        groups = " > ".join(", ".join(group) for group in done.groups) if several else "none"
        verdicts += [f"groups that differ: {groups}", GROUP_RULE]
    rows = [(pair.a, pair.b, *(cell(pair) for cell in columns.values())) for pair in done.pairs]
    lines = [*verdicts, *notes, *note_few_images(done.images), *how]
    print_table(form, ("A", "B", *columns), rows, (0, 1), lines)


def print_table(
    form: str,
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    texts: Sequence[int],
    notes: Sequence[str] = (),
) -> None:
    if form != "text":
        output.echo(write_table(CellTable(titles, rows, notes=notes), form))
        return
    output.print_columns(titles, rows, texts)  # as wide as the terminal
    for line in notes:
        output.echo(line)


def print_json(done: Any, **more: Any) -> None:
    pairs = [asdict(pair) | {"verdict": pair.verdict()} for pair in done.pairs]
    content = without_nan(asdict(done) | more | {"pairs": pairs})
    output.echo(json.dumps(content, ensure_ascii=False, indent=1))


def show_number(value: float, form: str) -> str:
    return "undefined" if math.isnan(value) else format(value, form)


def show_range(low: float, high: float, form: str) -> str:
    return "no interval" if math.isnan(low) else f"{low:{form}} to {high:{form}}"
