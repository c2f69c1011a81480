"""discode bench: benchmarks with human judgments."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from discode._cli import flags, output
from discode._cli.config import write_config
from discode._cli.dry_run import print_estimate
from discode._cli.flags import JudgeSpec, with_judge
from discode._cli.lists import print_list, print_one
from discode._cli.output import echo, stdout, store_beside, table_of
from discode._files import replacing
from discode.backends import kind_of
from discode.bench._agreement import AgreementProtocol
from discode.bench._layout import TABLE_FORMATS, CellTable, write_table
from discode.bench._localise import measure_localisation
from discode.bench._published import PAPER_TABLES, published_cells
from discode.bench._run import label_metrics, questions_of, run_metrics
from discode.bench._runlog import RunLog, read_runs
from discode.bench._tables import (
    check_measures,
    plot_runs,
    published_table,
    render_table,
)
from discode.bench._verify import (
    TEXT,
    VerifiedCell,
    verified_table,
    verify,
    verify_choices,
    verify_intervals,
)
from discode.benchmarks import (
    BENCHMARKS,
    LIMIT,
    Benchmark,
    load_benchmark,
    load_present,
)
from discode.benchmarks._check import check_data, unknown_versions
from discode.benchmarks._composite import join_composite
from discode.bulk._counting import RowCount
from discode.decoders import METHODS, options_of
from discode.errors import InputError, StoppedError, count_of, lookup
from discode.explain import THRESHOLD
from discode.explain._effects import pairs_to_explain
from discode.metrics import METRICS, MetricFactory
from discode.metrics._registry import asks_judge, find_metric

app = typer.Typer(help="Benchmarks with human judgments.", no_args_is_help=True)


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(help="Benchmark to describe; default: all.")] = None,
) -> None:
    """List benchmarks, or describe one with its options, files and sources."""
    if name is None:
        more = "* tried on made-up files only; details: discode bench list NAME"
        rows = BENCHMARKS.discover().items()
        about = {name: row.about + " *" * row.tried.startswith("made-up") for name, row in rows}
        print_list("benchmark", about, more)
        return
    row = lookup(BENCHMARKS, name, "benchmark")
    optional = f"; optional {', '.join(row.optional)}" if row.optional else ""
    lines = [
        f"{row.title}: {row.about}",
        f"files: {'; or '.join(' and '.join(form) for form in row.forms)}{optional}",
        f"source: {row.source}",
        f"licence: {row.licence}",
        f"cite: {row.citation}",
        *([f"tried on: {row.tried}"] if row.tried else []),
    ]
    if row.folders:
        lines.append(f"folder: --data, or in it {' or '.join(row.folders)}")
        places = ", ".join(place or "the folder itself" for place in row.image_folders)
        lines.append(f"images: in {places}")
    print_one(name, [*lines, *(["", row.help] if row.help else [])], (*row.options, LIMIT))


@app.command()
def check(data: flags.Data) -> None:
    """Show which benchmarks are present and complete; exit with 1 if a file is damaged."""
    rows = check_data(data)
    table = table_of("benchmark", "file", "state", "detail")
    for row in rows:
        table.add_row(*map(escape, (row.benchmark, row.file, row.state, row.detail)))
    stdout.print(table)
    if any(row.state == "damaged" for row in rows):
        raise typer.Exit(1)


@app.command()
def metrics(
    name: Annotated[str | None, typer.Argument(help="Metric to describe; default: all.")] = None,
) -> None:
    """List the metrics of `discode bench run`, or describe one with its options."""
    if name is None:
        about = {name: row.about for name, row in METRICS.discover().items()}
        about["scorefile:PATH"] = "scores of any metric from a file, as NAME=scorefile:PATH"
        more = "details: discode bench metrics NAME"
        print_list("metric", about, more)
        return
    row = lookup(METRICS, name, "metric")
    judge = METHODS.get(name.removeprefix("ref-"))
    options = row.options if judge is None else options_of(judge.make)
    print_one(name, [f"{name}: {row.about}", f"needs: {', '.join(sorted(row.needs))}"], options)


@app.command()
def pairs(
    benchmark: flags.BenchmarkName,
    data: flags.Data,
    references: Annotated[
        bool, typer.Option("--references/--no-references", help="Include the references.")
    ] = True,
) -> None:
    """Print the pairs of a benchmark as JSON lines, an input for `discode score`."""
    for pair in load_benchmark(benchmark, data).pairs:
        row: dict[str, Any] = {"id": pair.id, "image": str(pair.image), "caption": pair.caption}
        if references:
            row["references"] = list(pair.references)
        echo(json.dumps(row, ensure_ascii=False))


@app.command(cls=flags.Verb)
@with_judge
@flags.with_options("agreement", AgreementProtocol, "ties", "tau_m", panel=flags.STATISTICS)
def run(
    benchmark: flags.BenchmarkNames,
    data: flags.Data,
    metric: flags.MetricNames,
    context: typer.Context,
    config: flags.Config = None,
    limit: flags.Limit = None,
    skip_missing: Annotated[
        bool, flags.input_flag("--skip-missing", help="Skip benchmarks that --data does not have.")
    ] = False,
    measures: flags.Measures = None,
    resamples: flags.Resamples = 1000,
    seed: flags.Seed = 0,
    store: flags.Store = None,
    dry_run: flags.DryRun = False,
    output_: Annotated[
        str | None,
        flags.output_option(
            help="Run log, or a folder for BENCHMARK.json; existing logs are resumed and extended."
        ),
    ] = None,
    signature: flags.FullSignatures = False,
    save_config: flags.SaveConfig = None,
    *,
    spec: JudgeSpec,
    agreement: dict[str, Any],
) -> None:
    """Score benchmarks with metrics, and print the agreement with people."""
    protocol = AgreementProtocol(resamples=resamples, seed=seed, **agreement)
    if measures:
        check_measures(measures)
    labels = label_metrics(metric)
    _check_metrics(labels.values(), spec)
    out, is_folder = _output(output_, several=len(set(benchmark)) > 1)
    specs = list(dict.fromkeys(benchmark))
    loaded = _load(specs if limit is None else limited(specs, limit), data, skip_missing)
    paths = [out and (out / f"{each.name}.json" if is_folder else out) for each in loaded]
    logs = [
        _read_log(each, path, protocol) if path and path.exists() else None
        for each, path in zip(loaded, paths, strict=True)
    ]
    if save_config is not None:
        write_config(context, save_config)
    for each in loaded:
        for text in (*each.notes, *unknown_versions(each)):
            output.note(f"{each.name}: {text}" if len(loaded) > 1 else text, "dim")
    factory = MetricFactory(spec.model, spec.options, spec.prompt, spec.scale)
    if dry_run:
        judge = factory.open_judge()
        asked = questions_of(judge, loaded, labels)
        if not any(pairs for _, pairs in asked):
            raise InputError("--dry-run: none of these metrics uses the model")
        print_estimate(judge, [], store or (out and store_beside(out)), others=asked)
        return
    if out is not None and is_folder:
        output.make_folder(out)
    factory = replace(factory, store=store, default_store=out and store_beside(out))
    done: dict[str, RunLog] = {}
    problems: dict[tuple[str, str], list[str]] = {}
    stopped = ""
    for each, path, earlier in zip(loaded, paths, logs, strict=True):

        def save(log: RunLog, path: Path | None = path) -> None:
            done[log.benchmark] = log
            if path is not None and log.results:
                log.save(path)

        try:
            with output.progress() as bar:
                log, errors = run_metrics(
                    each, labels, factory, protocol, earlier=earlier, save=save,
                    progress=output.labelled_progress(bar),
                )  # fmt: skip
        except StoppedError as error:
            where = output.where_kept(factory.judge.store)
            stopped = f"stopped at {each.name}: {error.reason}; {where}"
            break
        save(log)
        for label, problem in errors.items():
            problems.setdefault((label, str(problem)), []).append(each.name)
    _report(done, problems, stopped, labels, measures or (), full=signature)


def limited(specs: Sequence[str], limit: int | None) -> list[str]:
    """Add ``--limit``, if it is given, to the options of benchmarks.

    >>> limited(["mceval", "foil:references=1"], 40)
    ['mceval:limit=40', 'foil:references=1,limit=40']
    """
    if limit is None:
        return list(specs)
    return [f"{spec}{',' if ':' in spec else ':'}{LIMIT.name}={limit}" for spec in specs]


def _check_metrics(specs: Collection[str], judge: JudgeSpec) -> None:
    """Raise, before data is read, for an unknown metric or an option without effect."""
    others = [spec for spec in specs if not asks_judge(spec)]
    for spec in others:
        if not spec.startswith("scorefile:"):
            find_metric(spec)
    if len(others) < len(specs) or {"vqascore", "prefer"} & {*others}:
        kind_of(judge.model or "embedded")[0].check(judge.options)
    elif unused := sorted({*judge.options, *(["model"] if judge.model else [])} - {"device"}):
        flag = "--model" if unused[0] == "model" else f"-M {unused[0]}"
        raise InputError(f"{flag} has no effect: none of these metrics uses a judge")


def _output(typed: str | None, *, several: bool) -> tuple[Path | None, bool]:
    if typed is None:
        return None, False
    if several or output.is_folder(typed):
        return output.output_folder(typed), True
    output.check_writable(Path(typed))
    return Path(typed), False


def _load(specs: list[str], data: Path, skip_missing: bool) -> list[Benchmark]:
    """Load benchmarks; raise if some are not in ``data``, or skip and report them."""
    loaded, missing = load_present(specs, data)
    if missing and not skip_missing:
        hint = f"missing: {', '.join(missing)} (use --skip-missing to skip them). "
        raise InputError((hint if len(specs) > 1 else "") + ". ".join(missing.values()))
    if not loaded:
        raise InputError(f"none of {', '.join(missing)} is in {data}; see discode bench check")
    for reason in missing.values():
        output.note(f"skipped: {reason}", "yellow")
    return [*loaded.values()]


def _read_log(benchmark: Benchmark, path: Path, protocol: AgreementProtocol) -> RunLog:
    """Read the log of an earlier run; raise if its questions differ."""
    log = RunLog.load(path)
    if not log.same_questions(RunLog.begin(benchmark, protocol, {})):
        raise InputError(
            f"{path} is a run of {log.benchmark} with other data or options; give another file"
        )
    return log


def _report(
    logs: Mapping[str, RunLog],
    problems: Mapping[tuple[str, str], Sequence[str]],
    stopped: str,
    labels: Mapping[str, str],
    measures: Sequence[str],
    *,
    full: bool,
) -> None:
    """Print the table and failures; exit with 2 if there is no result, with 1 if some failed."""
    wanted: dict[str, RunLog] = {}
    for name, log in logs.items():
        results = {label: log.results[label] for label in labels if label in log.results}
        if results:
            wanted[name] = replace(log, results=results)
    if wanted:
        echo(render_table(wanted, intervals=True, measures=measures))
    some_failed = bool(problems)
    for name, log in wanted.items():
        for label, result in log.results.items():
            failures = result.failures
            some_failed |= bool(failures)
            failed = f", {len(failures)} pairs failed" if failures else ""
            if lacking := len(result.errors) - len(failures):
                failed += f", {lacking} pairs without references skipped"
            if flipped := result.counts.get("flipped"):
                failed += f", {count_of(flipped, 'comparison')} flipped with the order"
            rate = result.measures["ties"].value
            ties = "no scores" if math.isnan(rate) else f"{100 * rate:.1f} % ties"
            prefix = f"{name}: " if len(logs) > 1 else ""
            output.note(f"{prefix}{label}: {ties}{failed}, {result.seconds:.1f} s")
            output.note(str(result.signature) if full else result.signature.short, "dim")
            for reason in [*failures.values()][:1]:
                output.note(f"  for example: {reason}", "red")
    alike: dict[tuple[str, str], list[str]] = {}  # one problem may affect all metrics
    for (label, why), names in problems.items():
        where = "" if len(names) == len(logs) else f"{', '.join(names)}: "
        alike.setdefault((where, why), []).append(label)
    for (where, why), those in alike.items():
        output.note(f"{where}{', '.join(those)}: {why}", "red")
    if stopped:
        output.note(stopped, "red")
        raise typer.Exit(1)
    if not wanted:
        raise typer.Exit(2)
    if some_failed:
        raise typer.Exit(1)


@app.command("explain", cls=flags.Verb)
@with_judge
def explain_(
    benchmark: flags.BenchmarkName,
    data: flags.Data,
    limit: flags.Limit = None,
    threshold: flags.Threshold = THRESHOLD,
    resamples: flags.Resamples = 1000,
    seed: flags.Seed = 0,
    method: flags.Method = "discode",
    store: flags.Store = None,
    dry_run: flags.DryRun = False,
    form: flags.TableFormat = "text",
    signature: flags.FullSignatures = False,
    *,
    spec: JudgeSpec,
) -> None:
    """Measure on foil how often `discode explain` blames wrong words, and right ones."""
    lookup(TABLE_FORMATS, form, "format")
    protocol = AgreementProtocol(resamples=resamples, seed=seed)
    loaded = load_benchmark(limited([benchmark], limit)[0], data)
    for text in loaded.notes:
        output.note(text, "dim")
    judge = spec.open(method=method, store=None if dry_run else store)
    asked = pairs_to_explain(loaded.bare_pairs()[0])
    if dry_run:
        print_estimate(judge, [asked], store)
        return
    with output.row_progress(RowCount(len(asked))) as progress:
        found = measure_localisation(judge, loaded, protocol, threshold, progress)
    rows = [
        ("wrong word blamed first", found.first.times(100), 100 * found.chance, str(found.wrong)),
        ("wrong word marked", found.marked.times(100), None, str(found.wrong)),
        ("right captions with a marked word", found.suspected.times(100), None, str(found.right)),
    ]
    echo(write_table(CellTable(("", "%", "chance", "captions"), rows, digits=1), form))
    output.note(f"95 % intervals from {resamples} resamples of images, seed {seed}")
    output.note(str(found.signature) if signature else found.signature.short, "dim")
    for name, reason in [*found.errors.items()][:1]:
        left_out = count_of(len(found.errors), "caption")
        output.note(f"{left_out} skipped, for example {name}: {reason}", "red")
        raise typer.Exit(1)


@app.command("table")
def table_(
    runs: flags.Runs,
    intervals: Annotated[bool, typer.Option("--intervals", help="Add 95 % intervals.")] = False,
    measures: flags.Measures = None,
    form: flags.TableFormat = "text",
) -> None:
    """Print runs in the paper's layout, with its numbers and the differences.

    LaTeX sets the best metric of each column in bold, and marks worse ones.
    """
    text = render_table(read_runs(runs), form, intervals=intervals, measures=measures or ())
    echo(text)


@app.command()
def published(
    table: Annotated[
        str | None, typer.Argument(help="Name of the table; default: list all.")
    ] = None,
    form: flags.TableFormat = "text",
) -> None:
    """Print a table of the paper, or list them."""
    if table is not None:
        echo(write_table(published_table(table), form))
        return
    listed = table_of("table", "what it has", "numbers")
    for name, about in PAPER_TABLES.items():
        listed.add_row(name, escape(about), str(len(published_cells(name))))
    stdout.print(listed)


@app.command("verify", cls=flags.Verb)
def verify_(
    data: flags.Data,
    benchmark: flags.BenchmarksIfAny = None,
    metric: flags.MetricsIfAny = None,
    form: flags.TableFormat = "text",
) -> None:
    """Compare published numbers with ours, by text metrics and the scores that authors released.

    Exit with 1 if a number is not reproduced any more.
    """
    lookup(TABLE_FORMATS, form, "format")
    _check_metrics(labels := label_metrics(metric or TEXT), JudgeSpec(None, None, None, {}))
    if not data.is_dir():
        raise InputError(f"no such folder: {data}")
    usual = [name for name, row in BENCHMARKS.items() if row.published_files or row.published_sizes]
    loaded, missing = load_present(benchmark or usual, data)
    if benchmark and missing:
        raise InputError(next(iter(missing.values())))
    cells: list[VerifiedCell] = []
    with output.progress() as bar:
        for each in loaded.values():
            cells += verify(each, data, labels, output.labelled_progress(bar))
    cells += [] if benchmark else [*verify_choices(data), *verify_intervals(data)]
    if benchmark and not cells:
        raise InputError(
            f"-b {', -b '.join(benchmark)}: no published number of a metric that is computed here; "
            "intervals of judges are verified without -b"
        )
    if not cells:
        raise InputError(f"{data} has no data with published numbers; see discode bench check")
    echo(write_table(verified_table(cells), form))
    if metric and (unused := labels.keys() - {cell.metric for cell in cells}):
        output.note(f"no published number here is of {', '.join(sorted(unused))}")
    if any(not cell.holds and cell.expected for cell in cells):
        raise typer.Exit(1)


@app.command("join-composite")
def join_composite_(
    rows: Annotated[Path, typer.Argument(help="FLEUR's annotations/composite.json.")],
    references: Annotated[Path, typer.Argument(help="VisCE2's result.parquet.")],
    typed: Annotated[str, flags.output_option(help="File, or a folder for composite.json.")],
) -> None:
    """Build the file of Composite from its public sources (see `bench list composite`)."""
    out = output.output_file(typed, "composite.json")
    text = join_composite(rows, references)
    with replacing(out) as temp:
        temp.write_text(text, encoding="utf-8")
    known = BENCHMARKS["composite"].files["composite.json"].sha256
    same = hashlib.sha256(text.encode()).hexdigest() == known
    verdict = "the version" if same else "not the version"
    output.note(f"written to {out}: {verdict} that reproduces the published numbers")


@app.command()
def plot(
    runs: flags.Runs,
    typed: Annotated[
        str, flags.output_option(help="Chart (.png, .svg or .pdf), or a folder for plot.png.")
    ],
) -> None:
    """Plot runs: one panel per benchmark, one line per metric, with intervals."""
    out = output.output_file(typed, "plot.png")
    plot_runs(read_runs(runs), out)
    output.note(f"written to {out}", "dim")
