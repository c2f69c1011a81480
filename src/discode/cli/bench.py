"""discode bench: benchmarks with human judgments."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from discode.bench.agreement import AgreementProtocol
from discode.bench.run import label_metrics, run_metrics
from discode.bench.runlog import RunLog
from discode.bench.tables import TABLE_FORMATS, render_table
from discode.benchmarks import BENCHMARKS, load_benchmark
from discode.benchmarks.check import check_data, unknown_versions
from discode.cli import output
from discode.cli.model_options import (
    BaseUrl,
    Device,
    Dtype,
    Model,
    ModelOption,
    Threads,
    model_options,
    parse_pairs,
)
from discode.cli.output import stderr, stdout, store_beside, table_of
from discode.errors import InputError
from discode.metrics import METRICS, MetricFactory
from discode.metrics.bert import DEFAULT_BERT
from discode.metrics.clip import DEFAULT_CLIP

app = typer.Typer(help="Benchmarks with human judgments.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Benchmarks with human judgments."""


@app.command("list")
def list_() -> None:
    """List the benchmarks, the options of their protocols, and what to fetch."""
    table = table_of("benchmark", "what it is", "options, the default first")
    for name, row in BENCHMARKS.items():
        options = [
            f"{key}={'|'.join(dict.fromkeys((option.default, *option.values)))}"
            + (f" ({option.allowed})" if option.allowed else "")
            for key, option in row.options.items()
        ]
        table.add_row(name, escape(row.about), escape("\n".join(options)))
    stdout.print(table)
    for name, row in BENCHMARKS.items():
        stdout.print(f"\n{name}", style="bold", highlight=False)
        files = "; or ".join(" and ".join(form) for form in row.forms)
        for title, words in (
            ("files", files + (f"; optional {', '.join(row.optional)}" if row.optional else "")),
            ("source", row.source),
            ("licence", row.licence),
            ("cite", row.citation),
        ):
            stdout.print(f"  {title}: {words}", markup=False, highlight=False, soft_wrap=True)


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
    """List the metrics of discode bench run."""
    table = table_of("metric", "needs", "what it is")
    for row in METRICS.values():
        table.add_row(row.name, ", ".join(sorted(row.needs)), escape(row.about))
    table.add_row("scorefile:PATH", "", "any metric's scores, from a file; NAME=scorefile:PATH")
    stdout.print(table)


@app.command()
def pairs(
    benchmark: Annotated[str, typer.Option(help="As discode bench list has it.")],
    data: Annotated[Path, typer.Option(help="The benchmark's folder.")],
    option: Annotated[
        list[str] | None, typer.Option("--option", help="KEY=VALUE of the protocol; repeat.")
    ] = None,
) -> None:
    """Print a benchmark's pairs as JSON lines, for a metric of your own to score."""
    for pair in load_benchmark(benchmark, data, parse_pairs(option, "--option")).pairs:
        row = {"id": pair.id, "image": str(pair.image), "caption": pair.caption,
               "references": list(pair.references)}  # fmt: skip
        typer.echo(json.dumps(row, ensure_ascii=False))


@app.command()
def run(
    benchmark: Annotated[str, typer.Option(help="As discode bench list has it.")],
    data: Annotated[Path, typer.Option(help="The benchmark's folder.")],
    metric: Annotated[
        list[str], typer.Option("--metric", "-m", help="Repeat; discode bench metrics lists them.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--json", help="Keep the run here; a second run adds to it, or resumes."),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="KEY=VALUE of the protocol; repeat.")
    ] = None,
    ties_: Annotated[
        str, typer.Option("--ties", help="Ties of preferences: wrong or half.")
    ] = "wrong",
    resamples: Annotated[int, typer.Option(help="Of the intervals' bootstrap.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    model: Model = None,
    model_option: ModelOption = None,
    prompt: Annotated[str | None, typer.Option(help="As for discode score.")] = None,
    scale: Annotated[str | None, typer.Option(help="As for discode score.")] = None,
    store: Annotated[
        Path | None, typer.Option(help="The judge's readings; default: beside --json.")
    ] = None,
    threads: Threads = None,
    device: Device = None,
    dtype: Dtype = None,
    base_url: BaseUrl = None,
    clip_model: Annotated[str | None, typer.Option(help="CLIP's hub name or folder.")] = None,
    pac_weights: Annotated[Path | None, typer.Option(help="PAC-S's weights for it.")] = None,
    bert_model: Annotated[str | None, typer.Option(help="BERTScore's model.")] = None,
    endpoint: Annotated[str | None, typer.Option(help="URL for g-veval and clair.")] = None,
    endpoint_model: Annotated[str | None, typer.Option(help="Its chat model.")] = None,
) -> None:
    """Score a benchmark with metrics, and print them beside the paper's numbers."""
    protocol = AgreementProtocol(ties_, resamples, seed)
    labels = label_metrics(metric)
    if out is not None:
        output.check_writable(out)
    earlier = RunLog.load(out) if out is not None and out.exists() else None
    loaded = load_benchmark(benchmark, data, parse_pairs(option, "--option"))
    if earlier is not None and not earlier.same_questions(RunLog.begin(loaded, protocol, {})):
        raise InputError(
            f"{out} is a run of {earlier.benchmark} with other data or options; give another file"
        )
    for note in (*loaded.notes, *unknown_versions(loaded)):
        stderr.print(note, style="dim", markup=False, highlight=False, soft_wrap=True)
    factory = MetricFactory(
        model=model,
        options=model_options(
            model_option, threads=threads, device=device, dtype=dtype, base_url=base_url
        ),
        prompt=prompt,
        scale=scale,
        store=store,
        default_store=None if out is None else store_beside(out),
        clip_model=clip_model or DEFAULT_CLIP,
        pac_weights=pac_weights,
        bert_model=bert_model or DEFAULT_BERT,
        endpoint=endpoint,
        endpoint_model=endpoint_model,
    )
    with output.progress() as bar:
        tasks: dict[str, Any] = {}

        def progress(label: str, step: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bar.add_task(label, total=total)
            bar.advance(tasks[label], step)

        log, problems = run_metrics(
            loaded, labels, factory, protocol, earlier=earlier,
            save=None if out is None else lambda log: log.save(out), progress=progress,
        )  # fmt: skip
    if out is not None and log.results:
        log.save(out)
    wanted = {label: log.results[label] for label in labels if label in log.results}
    if wanted:
        name = out.stem if out is not None else benchmark
        stdout.print(
            render_table({name: replace(log, results=wanted)}, intervals=True), markup=False,
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    for label, result in wanted.items():
        failed = f", {len(result.errors)} pairs failed" if result.errors else ""
        rate = result.measures["ties"].value
        ties = "no scores" if math.isnan(rate) else f"{100 * rate:.1f} % ties"
        line = f"{label}: {ties}{failed}, {result.seconds:.1f} s"
        stderr.print(line, markup=False, highlight=False, soft_wrap=True)
        stderr.print(
            str(result.signature), style="dim", markup=False, highlight=False, soft_wrap=True
        )
        for reason in dict.fromkeys([*result.errors.values()][:1]):
            stderr.print(f"  such as: {reason}", style="red", markup=False, soft_wrap=True)
    for label, reason in problems.items():
        stderr.print(f"{label}: {reason}", style="red", markup=False, soft_wrap=True)
    if not wanted:
        raise typer.Exit(2)
    if problems or any(result.errors for result in wanted.values()):
        raise typer.Exit(1)


def _runs(paths: list[Path]) -> dict[str, RunLog]:
    stems = [path.stem for path in paths]
    return {
        path.stem if stems.count(path.stem) == 1 else str(path): RunLog.load(path) for path in paths
    }


@app.command("table")
def table_(
    runs: Annotated[list[Path], typer.Argument(help="What discode bench run --json wrote.")],
    form: Annotated[
        str, typer.Option("--format", "-f", help="text, markdown, latex or csv.")
    ] = "text",
    intervals: Annotated[bool, typer.Option("--intervals", help="With 95 % intervals.")] = False,
) -> None:
    """Print runs in the paper's layout, its numbers and the difference beside ours."""
    if form not in TABLE_FORMATS:
        raise InputError(f"--format {form} is not allowed; give one of {', '.join(TABLE_FORMATS)}")
    typer.echo(render_table(_runs(runs), form, intervals=intervals))


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(help="What discode bench run --json wrote.")],
    out: Annotated[Path, typer.Option("--output", "-o", help=".png, .svg or .pdf.")],
) -> None:
    """Plot runs: one panel per benchmark, one line per metric, with intervals."""
    from discode.bench.figures import plot_runs

    output.check_writable(out)
    plot_runs(_runs(runs), out)
    stderr.print(f"written to {out}", style="dim", markup=False, soft_wrap=True)
