"""discode study: the paper's tables and figures, one command each, all of them run alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from discode.bench.agreement import AgreementProtocol
from discode.bench.layout import TABLE_FORMATS, write_table
from discode.bench.run import RunProgress
from discode.bench.runlog import RunLog
from discode.benchmarks import Benchmark, find_benchmark, find_folder, load_benchmark
from discode.cli import output
from discode.cli.bench import find_runs, read_runs
from discode.cli.model_options import (
    PANEL,
    BaseUrl,
    Device,
    Dtype,
    ModelOption,
    Threads,
    model_options,
)
from discode.cli.output import echo, store_beside
from discode.errors import InputError, lookup
from discode.metrics import MetricFactory
from discode.metrics.registry import asks_judge
from discode.options import fill_options, option_text
from discode.paper import STUDIES, Study, StudyResult, StudySetup
from discode.paper.base import file_stem

SUFFIXES = {"text": ".txt", "markdown": ".md", "latex": ".tex", "csv": ".csv"}

app = typer.Typer(help="The paper's tables and figures.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """The paper's tables and figures, on your models and data, beside the paper's numbers."""


DataFolder = Annotated[
    Path | None, typer.Option(help="The benchmark's folder, or a folder of such folders.")
]
BenchmarkSpecs = Annotated[
    list[str] | None,
    typer.Option(
        "--benchmark", "-b", metavar="NAME[:KEY=VALUE,...]",
        help="Repeat; by default those of the paper's table that --data has.",
    ),
]  # fmt: skip
RatingsFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Your own ratings or choices (docs/adding-a-benchmark.md), or the folder of a "
        "campaign's export, instead of --data.",
    ),
]
RunFiles = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="PATH",
        help="A run of discode bench run or of a study, or a folder of them; repeat. What its "
        "store of readings has is decoded again, never asked for.",
    ),
]
OutputFolder = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FOLDER",
        help="Write tables in all formats, figures, runs and readings there; runs and readings "
        "that are there already are used.",
    ),
]  # fmt: skip
Format = Annotated[str, typer.Option("--format", "-f", help="text, markdown, latex or csv.")]
Resamples = Annotated[int, typer.Option(help="Bootstrap resamples for the intervals; 0: none.")]
ModelSpecs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SPEC", rich_help_panel=PANEL, help="As for discode score; repeat for several."
    ),
]
StoreFile = Annotated[
    Path | None, typer.Option(rich_help_panel=PANEL, help="The readings; default: in --output.")
]


def _run(
    study: Study,
    own: Mapping[str, object],
    data: DataFolder = None,
    benchmark: BenchmarkSpecs = None,
    ratings: RatingsFile = None,
    log: RunFiles = None,
    out: OutputFolder = None,
    form: Format = "text",
    resamples: Resamples = 1000,
    model: ModelSpecs = None,
    model_option: ModelOption = None,
    store: StoreFile = None,
    threads: Threads = None,
    device: Device = None,
    dtype: Dtype = None,
    base_url: BaseUrl = None,
) -> None:
    """Run a study: the body of every command here."""
    lookup(TABLE_FORMATS, form, "format")
    protocol = AgreementProtocol(resamples=resamples)
    options = model_options(
        model_option, threads=threads, device=device, dtype=dtype, base_url=base_url
    )
    own = {name: value for name, value in own.items() if value is not None}
    chosen = fill_options(study.options, own, f"study {study.name!r}")
    specs = list(dict.fromkeys(benchmark or ()))
    files = find_runs(log or ())
    logs = read_runs(files)
    earlier: dict[str, RunLog] = {}
    if out is not None:
        output.make_folder(out)
        earlier = {path.stem: RunLog.load(path) for path in sorted((out / "runs").glob("*.json"))}
    benchmarks = _benchmarks(study, specs, data, ratings)
    if study.benchmarks and not benchmarks and not logs:
        raise InputError(
            f"{study.name} needs --data, a folder of benchmarks, --ratings, or --log, a run"
        )
    if log and not model:
        judges = _recorded(dict(zip(files, logs.values(), strict=True)))
    else:
        readings = None if out is None else store_beside(out)
        judges = {
            name or "embedded": MetricFactory(name, options, store=store, default_store=readings)
            for name in model or (None,)
        }
    with _progress() as progress:
        result = study.run(
            StudySetup(benchmarks, judges, logs, protocol, chosen, progress, earlier)
        )
    for text, loaded in benchmarks.items():
        for line in loaded.notes:
            output.note(f"{text}: {line}", "dim")
    lacking = [text for text in study.benchmarks if text not in benchmarks]
    if lacking and data is not None and not specs:
        output.note(f"not in {data}: {', '.join(lacking)}", "dim")
    _report(study, result, out, form)


@contextmanager
def _progress() -> Iterator[RunProgress]:
    """Yield what draws a bar per label; nothing is drawn before there is work."""
    with ExitStack() as stack:
        bar = output.progress()
        tasks: dict[str, Any] = {}

        def progress(label: str, step: int, total: int) -> None:
            if not tasks:
                stack.enter_context(bar)  # it leaves an empty line, also where there was no work
            if label not in tasks:
                tasks[label] = bar.add_task(label, total=total)
            bar.advance(tasks[label], step)

        yield progress


def _benchmarks(
    study: Study, specs: Sequence[str], data: Path | None, ratings: Path | None
) -> dict[str, Benchmark]:
    """Return the benchmarks of a study, by what was asked for."""
    if specs and not study.benchmarks:
        raise InputError(f"{study.name} needs no benchmark; leave -b {specs[0]} out")
    if ratings is not None:
        if data is not None or specs or not study.benchmarks:
            raise InputError("--ratings is a benchmark of your own; leave --data and -b out")
        if not ratings.exists():
            raise InputError(f"--ratings {ratings}: no such file or folder")
        campaign = (ratings / "mceval.jsonl").is_file()
        return {ratings.name: load_benchmark("mceval" if campaign else "custom", ratings)}
    if specs and data is None:
        raise InputError(f"-b {specs[0]} needs --data, the folder of the benchmark")
    return {} if data is None else _load(study, specs, data)


def _load(study: Study, given: Sequence[str], data: Path) -> dict[str, Benchmark]:
    """Load what was asked for, or what is there of the study's benchmarks."""
    loaded: dict[str, Benchmark] = {}
    lacking: list[str] = []
    for text in given or study.benchmarks:
        row, options = find_benchmark(text)
        if not given:
            try:
                row.find_files(find_folder(row, data))
            except InputError:
                lacking.append(text)
                continue
        loaded[text] = row.load(find_folder(row, data), options)
    if study.benchmarks and not loaded:
        paper = f"; discode bench published {study.paper[0]} prints the paper's table"
        raise InputError(
            f"{data} has none of {', '.join(lacking)}; discode bench list says where to get them"
            + (paper if study.paper else "")
        )
    return loaded


def _recorded(logs: Mapping[Path, RunLog]) -> dict[str, MetricFactory]:
    """Return a judge for the readings beside each log: they are replayed, and no model is asked."""
    judges: dict[str, MetricFactory] = {}
    for path, log in logs.items():
        stores = (store_beside(path), path.parent / "readings.db", path.parents[1] / "readings.db")
        store = next((place for place in stores if place.is_file()), None)
        if store is None:
            continue
        for label, result in log.results.items():
            model = result.signature.get("model")
            if asks_judge(label) and model:
                spec = f"recorded:{store}#{model}"
                judges.setdefault(spec, MetricFactory(model=spec))
    return judges


def _report(study: Study, result: StudyResult, out: Path | None, form: str) -> None:
    """Write a study, then print it: whoever reads may stop; exit with 1 if something failed."""
    if out is not None:
        for kind, suffix in SUFFIXES.items():
            if kind == "csv":
                for name, table in result.tables.items():
                    (out / f"{name}.csv").write_text(write_table(table, kind) + "\n", "utf-8")
                continue
            parts = [write_table(table, kind) for table in result.tables.values()]
            parts += result.findings if kind != "latex" else [f"% {f}" for f in result.findings]
            (out / f"{study.name}{suffix}").write_text("\n\n".join(parts) + "\n", "utf-8")
        for name, log in result.logs.items():
            (out / "runs").mkdir(exist_ok=True)
            log.save(out / "runs" / f"{file_stem(name)}.json")
        for name, text in result.files.items():
            (out / name).write_text(text, "utf-8")
        for name, draw in result.figures.items():
            draw(out / f"{name}.png")
    shown = list(result.tables.values())[: None if out is None else 1]
    echo("\n\n".join(write_table(table, form) for table in shown))
    for finding in result.findings if form == "text" else ():
        echo(f"\n{finding}")
    if out is not None:
        output.note(f"written to {out}", "dim")
    for problem in result.problems:
        output.note(problem, "red")
    if result.problems:
        raise typer.Exit(1)


def _command(study: Study) -> Callable[..., None]:
    """Return the command of a study: the options of all of them, and its own."""

    def command(**given: Any) -> None:
        own = {option.name: given.pop(option.name) for option in study.options}
        _run(study, own, **given)

    common = list(inspect.signature(_run, eval_str=True).parameters.values())[2:]
    extra = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                bool | None if isinstance(option.default, bool) else str | None,
                typer.Option(f"--{option.name.replace('_', '-')}",
                             help=f"{option.about[:1].upper()}{option.about[1:]}.",
                             show_default=bool(option.default) and option_text(option.default),
                             rich_help_panel="Of this study"),
            ],
        )
        for option in study.options
    ]  # fmt: skip
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [*(one.replace(kind=keyword) for one in common), *extra]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by typer
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__doc__ = f"{study.about[:1].upper()}{study.about[1:]}."
    return command


_COMMANDS = {name: _command(study) for name, study in STUDIES.items()}
for _name, _function in _COMMANDS.items():
    app.command(_name)(_function)
choose = _COMMANDS["decoders"]
