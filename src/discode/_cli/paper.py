"""discode paper: the paper's tables and figures, with your models and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from discode._cli import flags, output
from discode._cli.bench import limited
from discode._cli.flags import with_model_options
from discode._cli.lists import print_options
from discode._cli.output import echo, store_beside
from discode._paper import STUDIES, Study, StudySetup
from discode._paper.base import is_lack
from discode.bench._agreement import AgreementProtocol
from discode.bench._layout import TABLE_FORMATS, write_table
from discode.bench._results import StudyResult, write_page, write_result
from discode.bench._run import label_metrics, measure_by
from discode.bench._runlog import RunLog, find_runs, read_runs
from discode.benchmarks import LIMIT, Benchmark, find_benchmark, load_benchmark, load_present
from discode.decoders import get_decoder
from discode.errors import DiscodeError, InputError, StoppedError, lookup
from discode.metrics import MetricFactory
from discode.metrics._registry import asks_judge, find_metric
from discode.options import fill_options, split_spec


@with_model_options
def paper(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE[:KEY=VALUE,...]",
            help="Tables to make; default: all whose data is there, or a list of them if no data "
            "is given.",
        ),
    ] = None,
    data: flags.DataIfAny = None,
    benchmark: flags.BenchmarksIfAny = None,
    ratings: flags.Ratings = None,
    log: flags.RunLogs = None,
    limit: flags.Limit = None,
    metric: flags.MetricsIfAny = None,
    resamples: flags.Resamples = 1000,
    model: flags.Models = None,
    store: flags.Store = None,
    typed: Annotated[
        str | None,
        flags.output_option(
            help="Folder for index.html, tables, figures, runs and readings; existing runs and "
            "readings are reused.", metavar="FOLDER",
        ),
    ] = None,
    form: flags.TableFormat = "text",
    *,
    options: dict[str, Any],
) -> None:  # fmt: skip
    """Make the paper's tables and figures with your models and data."""
    out = output.output_folder(typed)
    if not any((tables, data, benchmark, ratings, log, metric, limit, out, model, options, store)):
        table = output.table_of("study", "what it shows", "in the paper")
        for row in STUDIES.values():
            table.add_row(row.name, row.about, ", ".join(row.paper))
        output.stdout.print(table)
        print_options({row.name: row.options for row in STUDIES.values()})
        return
    lookup(TABLE_FORMATS, form, "format")
    planned = [_plan(text) for text in tables or STUDIES]
    usual = list(dict.fromkeys(name for study, _ in planned for name in study.benchmarks))
    if not usual and (benchmark or ratings):
        raise InputError(f"{planned[0][0].name} has no benchmarks: remove -b and --ratings")
    rows = _rows(metric or ())
    benchmarks = open_benchmarks(benchmark or (), data, ratings, limit, usual)
    # Published numbers use scipy's m in τ_c; your own ratings are not compared with them.
    protocol = AgreementProtocol(resamples=resamples, tau_m="people" if ratings else "scipy")
    files = find_runs(log or ())
    logs = {
        name: measure_by(replace(run.protocol, tau_m=protocol.tau_m), run)
        for name, run in read_runs(files).items()
    }
    kept: dict[str, RunLog] = {}
    if out is not None:
        output.make_folder(out)
        kept = {path.stem: RunLog.load(path) for path in sorted((out / "runs").glob("*.json"))}
    judges = open_judges(model or (), options, store, out, files)
    setup = StudySetup(benchmarks, judges, logs, protocol, kept=kept, metrics=rows)
    for factory in judges.values() if len(planned) > 1 else ():
        # A model that cannot be opened is an error, not a gap in the tables.
        factory.judge.backend.capabilities  # noqa: B018
    named = [*benchmarks] if benchmark or ratings else None
    work = [
        (study, values, (named or limited(study.benchmarks, limit)) if study.benchmarks else [])
        for study, values in planned
    ]
    made: dict[str, tuple[str, StudyResult]] = {}
    errors: dict[str, DiscodeError] = {}
    with output.progress() as bar:
        setup = replace(setup, progress=output.labelled_progress(bar))
        for study, values, names in work:
            chosen = {name: benchmarks[name] for name in names if name in benchmarks}
            try:
                if study.benchmarks and not chosen and not logs:
                    raise InputError(
                        f"{study.name} requires {' or '.join(study.benchmarks)} in --data, "
                        "--ratings FILE, or --log RUN"
                    )
                result = study.run(replace(setup, benchmarks=chosen, options=values))
            except StoppedError:
                raise
            except DiscodeError as error:
                errors[study.name] = error
                continue
            setup = replace(setup, kept={**setup.kept, **result.logs})
            written = result if out is None else write_result(study.name, result, out)
            made[study.name] = (study.about, written)
    if not made:
        raise next(iter(errors.values()))
    notes = [f"{name}: {line}" for name, each in benchmarks.items() for line in each.notes]
    lacking = [name for name in limited(usual, limit) if name not in benchmarks]
    if lacking and data is not None and named is None:
        notes.append(f"not in {data}: {', '.join(lacking)}")
    show_results(made, out, form, notes, errors)


def _plan(text: str) -> tuple[Study, dict[str, Any]]:
    name, typed = split_spec(text)
    study = lookup(STUDIES, name, "study")
    return study, fill_options(study.options, typed, f"study {name!r}")


def _rows(specs: Sequence[str]) -> dict[str, str]:
    """Check metrics and map labels to them; a decoder's label is its name."""
    rows: dict[str, str] = {}
    for label, spec in label_metrics(specs).items() if specs else ():
        if asks_judge(spec):
            get_decoder(spec.removeprefix("ref-"))
        elif not spec.startswith("scorefile:"):
            find_metric(spec)
        rows[spec if asks_judge(spec) else label] = spec
    return rows


def open_benchmarks(
    specs: Sequence[str],
    data: Path | None,
    ratings: Path | None,
    limit: int | None,
    usual: Sequence[str],
) -> dict[str, Benchmark]:
    """Open your own benchmark, those named, or the usual ones that ``data`` has."""
    LIMIT.convert(limit)
    if ratings is not None:
        if data is not None or specs:
            raise InputError("--ratings cannot be combined with --data or -b")
        if not ratings.exists():
            raise InputError(f"no such file or folder: {ratings}")
        kind = "mceval" if (ratings / "mceval.jsonl").is_file() else "custom"
        return {ratings.name: load_benchmark(kind, ratings, {LIMIT.name: limit})}
    wanted = limited(specs or usual, limit)
    for spec in wanted:
        find_benchmark(spec)
    if data is None:
        if specs:
            raise InputError(f"-b {specs[0]} requires --data, the folder of the benchmark")
        return {}
    if not data.exists():
        raise InputError(f"no such folder: {data}")
    loaded, missing = load_present(wanted, data)
    if specs and missing:
        raise InputError(next(iter(missing.values())))
    if usual and not loaded:
        raise InputError(
            f"{data} has none of {', '.join(usual)}; see discode bench list for sources, or "
            "discode bench published for the paper's tables"
        )
    return loaded


def open_judges(
    models: Sequence[str],
    options: Mapping[str, Any],
    store: Path | None,
    out: Path | None,
    runs: Sequence[Path],
) -> dict[str, MetricFactory]:
    """Open judges by name; for runs without a model, replay the readings stored with the runs."""
    if models or not runs:
        kept = None if out is None else store_beside(out)
        shared = MetricFactory(None, options, store=store, default_store=kept)
        return {name or "embedded": replace(shared, model=name) for name in models or (None,)}
    judges: dict[str, MetricFactory] = {}
    for path in runs:
        stores = (store_beside(path), path.parent / "readings.db", path.parents[1] / "readings.db")
        if (found := next((place for place in stores if place.is_file()), None)) is None:
            continue
        for label, result in RunLog.load(path).results.items():
            model = result.signature.get("model")
            if asks_judge(label) and model:
                who = [model, *(result.signature.get(part) for part in ("revision", "dtype"))]
                spec = f"recorded:{found}#{'@'.join(filter(None, who))}"
                judges.setdefault(spec, MetricFactory(model=spec))
    return judges


def show_results(
    results: Mapping[str, tuple[str, StudyResult]],
    out: Path | None,
    form: str,
    notes: Sequence[str] = (),
    errors: Mapping[str, DiscodeError] | None = None,
) -> None:
    """Print results and gaps; write the page to ``out`` if given. Exit with 1 if parts failed.

    Several results in a folder are named; of a single one, the first table is printed.
    """
    gaps: dict[tuple[str, str, bool], list[str]] = {}
    for name, error in (errors or {}).items():
        gaps.setdefault(("not made", str(error), not is_lack(error)), []).append(name)
    for name, (_, result) in results.items():
        for line in result.left_out:
            gaps.setdefault(("left out", line, False), []).append(name)
        for line in result.problems:
            gaps.setdefault(("failed", line, True), []).append(name)
    lines = {
        f"{kind}: {', '.join(names)}: {line}": failed
        for (kind, line, failed), names in gaps.items()
    }
    if out is not None:
        write_page(results, [*notes, *lines], out)
    if out is None or len(results) + len(errors or ()) == 1:
        for _, result in results.values():
            shown = list(result.tables.values())[: None if out is None else 1]
            echo("\n\n".join(write_table(table, form) for table in shown))
            for finding in result.findings if form == "text" else ():
                echo(f"\n{finding}")
    else:
        echo(f"{', '.join(results)}: {out / 'index.html'}")
    for line in notes:
        output.note(line, "dim")
    if out is not None:
        output.note(f"written to {out}", "dim")
    for line, failed in lines.items():
        output.note(line, "red" if failed else "yellow")
    if any(lines.values()):
        raise typer.Exit(1)
