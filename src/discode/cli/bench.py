"""discode bench: benchmarks with human judgments."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import TaskID

from discode.backends import kind_of
from discode.bench.agreement import AgreementProtocol
from discode.bench.layout import TABLE_FORMATS, write_table
from discode.bench.run import label_metrics, pairs_to_judge, run_metrics
from discode.bench.runlog import RunLog
from discode.benchmarks import (
    BENCHMARKS,
    Benchmark,
    BenchmarkRow,
    find_benchmark,
    find_folder,
    load_benchmark,
)
from discode.benchmarks.check import check_data, unknown_versions
from discode.benchmarks.composite import join_composite
from discode.cli import output
from discode.cli.dry_run import check_served, print_estimate
from discode.cli.lists import print_options
from discode.cli.model_options import (
    BaseUrl,
    Device,
    Dtype,
    Model,
    ModelOption,
    Threads,
    model_options,
)
from discode.cli.output import echo, stderr, stdout, store_beside, table_of
from discode.errors import InputError, StoppedError, lookup
from discode.files import replacing
from discode.metrics import METRICS, MetricFactory
from discode.metrics.registry import asks_judge, find_metric
from discode.pairs import Pair
from discode.paper.published import PAPER_TABLES, published_cells
from discode.paper.run_tables import published_table, render_table

_NAMES = "Name and options as discode bench list has them."
Data = Annotated[Path, typer.Option(help="The benchmark's folder, or a folder of such folders.")]
RunOutput = Annotated[
    str | None,  # a Path would forget the slash that makes runs/ a folder
    typer.Option(
        "--output", "-o", metavar="PATH",
        help="Keep the run in this file, or in folder/BENCHMARK.json for each of several; a "
        "second run adds to it, or resumes.",
    ),
]  # fmt: skip
BENCHMARK_SPEC = "NAME[:KEY=VALUE,...]"

app = typer.Typer(help="Benchmarks with human judgments.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Benchmarks with human judgments."""


@app.command("list")
def list_() -> None:
    """List the benchmarks, the options of their protocols, and what to fetch."""
    table = table_of("benchmark", "what it is")
    for name, row in BENCHMARKS.items():
        table.add_row(name, escape(row.about))
    stdout.print(table)
    stdout.print("\nOptions follow a colon: -b foil:references=1,pairs=valid", highlight=False)
    print_options({name: row.options for name, row in BENCHMARKS.items()})
    for name, row in BENCHMARKS.items():
        stdout.print(f"\n{name}", style="bold", highlight=False)
        _print_lines(f"  {line}" for line in _facts(row))


def _facts(row: BenchmarkRow) -> list[str]:
    """Return where a benchmark comes from, and which files it has."""
    optional = f"; optional {', '.join(row.optional)}" if row.optional else ""
    return [
        f"files: {'; or '.join(' and '.join(form) for form in row.forms)}{optional}",
        f"source: {row.source}",
        f"licence: {row.licence}",
        f"cite: {row.citation}",
    ]


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        stdout.print(line, markup=False, highlight=False, soft_wrap=True)


@app.command()
def check(
    data: Annotated[Path, typer.Option(help="A benchmark's folder, or a folder of such folders.")],
) -> None:
    """Show which benchmarks are present and complete; exit with 1 if a file is damaged."""
    rows = check_data(data)
    table = table_of("benchmark", "file", "state", "detail")
    for row in rows:
        table.add_row(*map(escape, (row.benchmark, row.file, row.state, row.detail)))
    stdout.print(table)
    if any(row.state == "damaged" for row in rows):
        raise typer.Exit(1)


@app.command()
def metrics() -> None:
    """List the metrics of discode bench run, and the options that follow a colon."""
    table = table_of("metric", "needs", "what it is")
    for row in METRICS.values():
        table.add_row(row.name, ", ".join(sorted(row.needs)), escape(row.about))
    table.add_row("scorefile:PATH", "", "any metric's scores, from a file; NAME=scorefile:PATH")
    stdout.print(table)
    example = "-m clip-s:model=ORG/NAME -m mine=discode:sigma2=0.05"
    stdout.print(f"\nOptions follow a colon: {example}", highlight=False)
    print_options({row.name: row.options for row in METRICS.values()})
    stdout.print("\nJudges have the options that discode methods lists.", highlight=False)


@app.command()
def pairs(
    benchmark: Annotated[
        str, typer.Option("--benchmark", "-b", metavar=BENCHMARK_SPEC, help=_NAMES)
    ],
    data: Data,
    references: Annotated[
        bool, typer.Option("--references/--no-references", help="Print the references, too.")
    ] = True,
) -> None:
    """Print a benchmark's pairs as JSON lines, to be scored elsewhere.

    discode score takes them as --input, and shows the model whatever references they have.
    """
    for pair in load_benchmark(benchmark, data).pairs:
        row: dict[str, Any] = {"id": pair.id, "image": str(pair.image), "caption": pair.caption}
        if references:
            row["references"] = list(pair.references)
        echo(json.dumps(row, ensure_ascii=False))


@app.command()
def run(
    benchmark: Annotated[
        list[str],
        typer.Option("--benchmark", "-b", metavar=BENCHMARK_SPEC, help=f"Repeat. {_NAMES}"),
    ],
    data: Data,
    metric: Annotated[
        list[str],
        typer.Option(
            "--metric", "-m", metavar="[LABEL=]NAME[:KEY=VALUE,...]",
            help="Repeat; discode bench metrics lists them.",
        ),
    ],
    output_: RunOutput = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out benchmarks that --data lacks.")
    ] = False,
    ties: Annotated[str, typer.Option(help="Ties of preferences: wrong or half.")] = "wrong",
    resamples: Annotated[int, typer.Option(help="Resamples of the intervals' bootstrap.")] = 1000,
    seed: Annotated[int, typer.Option(help="Random seed of the bootstrap.")] = 0,
    model: Model = None,
    model_option: ModelOption = None,
    prompt: Annotated[str | None, typer.Option(help="As for discode score.")] = None,
    scale: Annotated[str | None, typer.Option(help="As for discode score.")] = None,
    store: Annotated[
        Path | None, typer.Option(help="The judge's readings; default: with --output.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what the judge's server would be sent; send nothing."),
    ] = False,
    threads: Threads = None,
    device: Device = None,
    dtype: Dtype = None,
    base_url: BaseUrl = None,
) -> None:  # fmt: skip
    """Score benchmarks with metrics, and print them beside the paper's numbers."""
    protocol, labels = AgreementProtocol(ties, resamples, seed), label_metrics(metric)
    options = model_options(
        model_option, threads=threads, device=device, dtype=dtype, base_url=base_url
    )
    _check_metrics(labels.values(), model, options)
    if dry_run:
        check_served(model)
    out, folder = _output(output_, several=len(set(benchmark)) > 1)
    loaded = _load(list(dict.fromkeys(benchmark)), data, skip_missing)
    planned = [_plan(each, protocol, out, folder) for each in loaded]
    _print_notes(loaded)
    factory = MetricFactory(model, options, prompt, scale)
    if dry_run:
        place = store or (out and store_beside(out))
        _print_estimate(factory, [pairs_to_judge(each, labels) for each in loaded], place)
        return
    if folder is not None:
        output.make_folder(folder)
    default_store = None if out is None else store_beside(out)
    factory = replace(factory, store=store, default_store=default_store)
    _report(_run(planned, labels, factory, protocol), labels)


@dataclass(frozen=True)
class PlannedRun:
    """A benchmark to run, where its log is kept, and the log of an earlier run."""

    benchmark: Benchmark
    out: Path | None
    earlier: RunLog | None


@dataclass
class RunOutcome:
    """What became of planned runs.

    Attributes:
        logs: Benchmark to its log.
        problems: Metric and reason to the benchmarks that it could not be run on at all.
        stopped: Why the model reads nothing more; empty if it read everything.
    """

    logs: dict[str, RunLog]
    problems: dict[tuple[str, str], list[str]]
    stopped: str = ""


def _check_metrics(specs: Collection[str], model: str | None, options: Mapping[str, Any]) -> None:
    """Raise, before anything is read, for an unknown metric or an option that nothing takes."""
    others = [spec for spec in specs if not asks_judge(spec)]
    for spec in others:
        if not spec.startswith("scorefile:"):
            find_metric(spec)
    if len(others) < len(specs):
        kind_of(model or "embedded")[0].check(options)
    elif unused := sorted({*options, *(["model"] if model else [])} - {"device"}):
        raise InputError(f"{unused[0]} is for the judge, and none of these metrics asks it")


def _output(typed: str | None, *, several: bool) -> tuple[Path | None, Path | None]:
    """Return the path of --output, and the same again where it is a folder."""
    if typed is None:
        return None, None
    out = Path(typed)
    if typed.endswith(("/", os.sep)) or out.is_dir():
        return out, out
    if several and (out.exists() or out.suffix == ".json"):
        raise InputError(f"--output {typed}: several benchmarks have a log each; give a folder/")
    if not several:
        output.check_writable(out)
    return out, (out if several else None)


def _load(specs: list[str], data: Path, skip_missing: bool) -> list[Benchmark]:
    """Load benchmarks; raise, or name them and go on, where some are not in ``data``."""
    chosen = [find_benchmark(spec) for spec in specs]
    names = [row.name for row, _ in chosen]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"-b {repeated[0]} is given twice; run it once with each of its options")
    loaded: list[Benchmark] = []
    missing: dict[str, str] = {}
    for row, options in chosen:
        try:
            loaded.append(row.load(find_folder(row, data), options))
        except InputError as error:
            if not _is_missing(row, data):
                raise
            missing[row.name] = str(error)
    if missing and not skip_missing:
        hint = f"missing: {', '.join(missing)} (--skip-missing leaves them out). "
        raise InputError((hint if len(names) > 1 else "") + ". ".join(missing.values()))
    if not loaded:
        raise InputError(f"none of {', '.join(names)} is in {data}; discode bench check says more")
    for reason in missing.values():
        output.note(f"skipped: {reason}", "yellow")
    return loaded


def _print_notes(loaded: Sequence[Benchmark]) -> None:
    for each in loaded:
        for text in (*each.notes, *unknown_versions(each)):
            output.note(f"{each.name}: {text}" if len(loaded) > 1 else text, "dim")


def _is_missing(row: BenchmarkRow, data: Path) -> bool:
    """Return whether a benchmark's files are not all there; what is there may be damaged."""
    try:
        row.find_files(find_folder(row, data))
    except InputError:
        return True
    return False


def _plan(
    benchmark: Benchmark, protocol: AgreementProtocol, out: Path | None, folder: Path | None
) -> PlannedRun:
    """Return a run with the log that is kept of it, if any; raise where that is of another run."""
    path = out if folder is None else folder / f"{benchmark.name}.json"
    if path is None or not path.exists():
        return PlannedRun(benchmark, path, None)
    earlier = RunLog.load(path)
    if not earlier.same_questions(RunLog.begin(benchmark, protocol, {})):
        raise InputError(
            f"{path} is a run of {earlier.benchmark} with other data or options; give another file"
        )
    return PlannedRun(benchmark, path, earlier)


def _print_estimate(
    factory: MetricFactory, asked: Sequence[Sequence[Pair]], store: Path | None
) -> None:
    pairs = [pair for each in asked for pair in each]
    if not pairs:
        raise InputError("--dry-run: no pair of these metrics and benchmarks asks the model")
    print_estimate(factory.open_judge(), [pairs], store)


def _run(
    planned: Sequence[PlannedRun],
    labels: Mapping[str, str],
    factory: MetricFactory,
    protocol: AgreementProtocol,
) -> RunOutcome:
    """Run benchmarks one after the other; a log is kept after each metric."""
    outcome = RunOutcome({}, {})
    with output.progress() as bar:
        for plan in planned:
            name = plan.benchmark.name
            tasks: dict[str, TaskID] = {}

            def progress(
                label: str, step: int, total: int, tasks: dict[str, TaskID] = tasks
            ) -> None:
                if label not in tasks:
                    tasks[label] = bar.add_task(label, total=total)
                bar.advance(tasks[label], step)

            def save(log: RunLog, plan: PlannedRun = plan) -> None:
                outcome.logs[log.benchmark] = log
                if plan.out is not None and log.results:
                    log.save(plan.out)

            try:
                log, problems = run_metrics(
                    plan.benchmark, labels, factory, protocol, earlier=plan.earlier, save=save,
                    progress=progress,
                )  # fmt: skip
            except StoppedError as error:
                readings = factory.judge.store
                where = (
                    "nothing was kept: give --output or --store"
                    if readings is None
                    else f"readings are kept in {readings.path}: run again to go on"
                )
                outcome.stopped = f"stopped at {name}: {error.reason}; {where}"
                break
            save(log)
            for label, why in problems.items():
                outcome.problems.setdefault((label, why), []).append(name)
    return outcome


def _report(outcome: RunOutcome, labels: Mapping[str, str]) -> None:
    """Print the table and what failed; exit with 2 without any result, with 1 if some failed."""
    wanted: dict[str, RunLog] = {}
    for name, log in outcome.logs.items():
        results = {label: log.results[label] for label in labels if label in log.results}
        if results:
            wanted[name] = replace(log, results=results)
    several = len(outcome.logs) > 1
    if wanted:
        stdout.print(
            render_table(wanted, intervals=True), markup=False, highlight=False, soft_wrap=True
        )
    for name, log in wanted.items():
        for label, result in log.results.items():
            failed = f", {len(result.failures)} pairs failed" if result.failures else ""
            if lacking := len(result.errors) - len(result.failures):
                failed += f", {lacking} pairs without references left out"
            rate = result.measures["ties"].value
            ties = "no scores" if math.isnan(rate) else f"{100 * rate:.1f} % ties"
            prefix = f"{name}: " if several else ""
            output.note(f"{prefix}{label}: {ties}{failed}, {result.seconds:.1f} s")
            output.note(str(result.signature), "dim")
            for reason in [*result.failures.values()][:1]:
                output.note(f"  such as: {reason}", "red")
    for (label, why), names in outcome.problems.items():
        everywhere = len(names) == len(outcome.logs)
        output.note(f"{'' if everywhere else ', '.join(names) + ': '}{label}: {why}", "red")
    if outcome.stopped:
        output.note(outcome.stopped, "red")
        raise typer.Exit(1)
    if not wanted:
        raise typer.Exit(2)
    if outcome.problems or any(r.failures for log in wanted.values() for r in log.results.values()):
        raise typer.Exit(1)


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the files of logs, each once; a folder stands for the logs in it."""
    files: list[Path] = []
    for path in paths:
        logs = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not logs:
            raise InputError(f"no runs in {path}; discode bench run ... -o {path}/ makes some")
        files += [file for file in logs if file not in files]
    return files


def read_runs(paths: Sequence[Path]) -> dict[str, RunLog]:
    """Read logs by name, in the order of :func:`find_runs`."""
    files = find_runs(paths)
    stems = [path.stem for path in files]
    return {
        path.stem if stems.count(path.stem) == 1 else str(path): RunLog.load(path) for path in files
    }


@app.command("table")
def table_(
    runs: Annotated[
        list[Path],
        typer.Argument(help="What discode bench run -o wrote; a folder is all of it."),
    ],
    form: Annotated[
        str, typer.Option("--format", "-f", help="text, markdown, latex or csv.")
    ] = "text",
    intervals: Annotated[bool, typer.Option("--intervals", help="With 95 % intervals.")] = False,
) -> None:
    """Print runs in the paper's layout, its numbers and the difference beside ours."""
    if form not in TABLE_FORMATS:
        raise InputError(f"--format {form} is not allowed; give one of {', '.join(TABLE_FORMATS)}")
    echo(render_table(read_runs(runs), form, intervals=intervals))


@app.command()
def published(
    table: Annotated[
        str | None, typer.Argument(help="Its label in the paper's source; none: list them.")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", "-f", help="text, markdown, latex or csv.")
    ] = "text",
) -> None:
    """Print a table of the paper, or list them."""
    if table is not None:
        echo(write_table(published_table(table), form))
        return
    listed = table_of("table", "what it has", "numbers")
    for name, about in PAPER_TABLES.items():
        listed.add_row(name, escape(about), str(len(published_cells(name))))
    stdout.print(listed)


@app.command("fetch-help")
def fetch_help(benchmark: Annotated[str, typer.Argument(help=_NAMES)]) -> None:
    """Say where a benchmark's files are and where to put them; nothing is downloaded."""
    row = lookup(BENCHMARKS, benchmark, "benchmark")
    lines = [f"{row.title}: {row.about}", *_facts(row)]
    if row.folders:
        lines.append(f"folder: --data itself, or below it {' or '.join(row.folders)}")
        places = ", ".join(place or "the folder itself" for place in row.image_folders)
        lines.append(f"images, sought from there: {places}")
    _print_lines([*lines, *(["", row.help] if row.help else [])])
    if row.files:
        stdout.print("\ndiscode bench check --data FOLDER says whether they are complete.")


@app.command("join-composite")
def join_composite_(
    rows: Annotated[Path, typer.Argument(help="FLEUR's annotations/composite.json.")],
    references: Annotated[Path, typer.Argument(help="VisCE2's result.parquet.")],
    out: Annotated[Path, typer.Option("--output", "-o", help="composite.json, to be written.")],
) -> None:
    """Make Composite's file from its public sources; see discode bench fetch-help composite."""
    output.check_writable(out)
    text = join_composite(rows, references)
    with replacing(out) as temp:
        temp.write_text(text, encoding="utf-8")
    known = BENCHMARKS["composite"].files["composite.json"].sha256
    same = hashlib.sha256(text.encode()).hexdigest() == known
    verdict = "the version" if same else "not the version"
    output.note(f"written to {out}: {verdict} that reproduces the published numbers")


@app.command()
def plot(
    runs: Annotated[
        list[Path],
        typer.Argument(help="What discode bench run -o wrote; a folder is all of it."),
    ],
    out: Annotated[Path, typer.Option("--output", "-o", help=".png, .svg or .pdf.")],
) -> None:
    """Plot runs: one panel per benchmark, one line per metric, with intervals."""
    from discode.paper.run_tables import plot_runs

    output.check_writable(out)
    plot_runs(read_runs(runs), out)
    stderr.print(f"written to {out}", style="dim", markup=False, soft_wrap=True)
