"""discode paper: the paper's tables and figures in one go, on your models and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from discode.bench.agreement import AgreementProtocol
from discode.bench.layout import TABLE_FORMATS, write_table
from discode.bench.run import label_metrics, measure_by
from discode.bench.runlog import RunLog
from discode.benchmarks import LIMIT, Benchmark, find_benchmark, find_folder, load_benchmark
from discode.cli import output
from discode.cli.bench import Limit, find_runs, limited, read_runs
from discode.cli.lists import print_options
from discode.cli.model_options import PANEL, with_model_options
from discode.cli.output import echo, store_beside
from discode.decoders import get_decoder
from discode.errors import DiscodeError, InputError, MissingExtraError, StoppedError, lookup
from discode.metrics import MetricFactory
from discode.metrics.registry import asks_judge, find_metric
from discode.options import fill_options, split_spec
from discode.paper import STUDIES, Study, StudyResult, StudySetup
from discode.paper.base import file_stem, is_lack
from discode.paper.page import write_page

SUFFIXES = {"text": ".txt", "markdown": ".md", "latex": ".tex"}

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
        help="A run of discode bench run or paper, or a folder of them; repeat. What its "
        "store of readings has is decoded again, never asked for.",
    ),
]
OutputFolder = Annotated[
    str | None,  # a Path would forget the slash that makes tables.v2/ a folder
    typer.Option(
        "--output", "-o", metavar="FOLDER",
        help="index.html with tables and figures, these in all formats, runs and readings; runs "
        "and readings that are there already are used.",
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


@with_model_options
def paper(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE[:KEY=VALUE,...]",
            help="Studies, each with its options; none: all whose data is there, or, without "
            "data and runs, a list of them.",
        ),
    ] = None,
    data: DataFolder = None,
    benchmark: BenchmarkSpecs = None,
    ratings: RatingsFile = None,
    log: RunFiles = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric", "-m", metavar="[LABEL=]NAME[:KEY=VALUE,...]",
            help="A metric that becomes a row wherever the paper has it (or everywhere, if it has "
            "it nowhere): clip-s:model=FOLDER, spice; repeat.",
        ),
    ] = None,
    limit: Limit = None,
    typed: OutputFolder = None,
    form: Format = "text",
    resamples: Resamples = 1000,
    model: ModelSpecs = None,
    store: StoreFile = None,
    *,
    options: dict[str, Any],
) -> None:  # fmt: skip
    """Make the paper's tables and figures on your models and data, beside the paper's numbers."""
    out = output.output_folder(typed)
    if not any((tables, data, benchmark, ratings, log, metric, limit, out, model, options, store)):
        table = output.table_of("study", "what it shows", "in the paper")
        for row in STUDIES.values():
            table.add_row(row.name, row.about, ", ".join(row.paper))
        output.stdout.print(table)
        print_options({row.name: row.options for row in STUDIES.values()})
        return
    chosen = [split_spec(text) for text in tables or STUDIES]
    run_studies(
        [(lookup(STUDIES, name, "study"), options) for name, options in chosen],
        data, benchmark, ratings, log, out, form, resamples, model, options, store, limit, metric,
    )  # fmt: skip


def run_studies(
    studies: Sequence[tuple[Study, Mapping[str, object]]],
    data: Path | None,
    specs: Sequence[str] | None,
    ratings: Path | None,
    runs: Sequence[Path] | None,
    out: Path | None,
    form: str,
    resamples: int,
    models: Sequence[str] | None,
    judge_options: Mapping[str, Any],
    store: Path | None,
    limit: int | None = None,
    metrics: Sequence[str] | None = None,
) -> None:
    """Run studies, which share judges, readings and data, and print and write what they found.

    What one of several lacks or fails at is said at the end, and the others are made.
    """
    lookup(TABLE_FORMATS, form, "format")
    # Published numbers have scipy's m in τ_c; ratings of one's own have none beside them.
    protocol = AgreementProtocol(resamples=resamples, tau_m="people" if ratings else "scipy")
    planned = [
        (study, fill_options(study.options, options, f"study {study.name!r}"))
        for study, options in studies
    ]
    rows = _rows(metrics or ())
    several = len(planned) > 1
    source = _Source(data, list(dict.fromkeys(specs or ())), ratings, limit)
    source.check([study for study, _ in planned])
    files = find_runs(runs or ())
    logs = {
        name: measure_by(replace(log.protocol, tau_m=protocol.tau_m), log)
        for name, log in read_runs(files).items()
    }
    earlier: dict[str, RunLog] = {}
    if out is not None:
        output.make_folder(out)
        earlier = {path.stem: RunLog.load(path) for path in sorted((out / "runs").glob("*.json"))}
    if runs and not models:
        judges = _recorded(dict(zip(files, logs.values(), strict=True)))
    else:
        shared = MetricFactory(
            None, judge_options, store=store,
            default_store=None if out is None else store_beside(out),
        )  # fmt: skip
        judges = {name or "embedded": replace(shared, model=name) for name in models or (None,)}
    setup = StudySetup({}, judges, logs, protocol, kept=earlier, metrics=rows)
    for factory in judges.values() if several else ():
        # A model that cannot be opened, or loaded to know this, is a mistake, no gap in tables.
        factory.judge.backend.capabilities  # noqa: B018
    results: list[tuple[Study, StudyResult]] = []
    errors: dict[str, DiscodeError] = {}
    with output.progress() as bar:
        setup = replace(setup, progress=output.labelled_progress(bar))
        for study, values in planned:
            try:
                result = _make(study, values, source, setup)
            except StoppedError:
                raise
            except DiscodeError as error:
                if not several:
                    raise
                errors[study.name] = error
                continue
            results.append((study, result if out is None else _write(study, result, out)))
            kept = {file_stem(name): log for name, log in result.logs.items()}
            setup = replace(setup, kept={**setup.kept, **kept})
    if not results:
        raise next(iter(errors.values()))
    _show(results, errors, out, form, source.notes())


def _make(
    study: Study, values: Mapping[str, Any], source: _Source, setup: StudySetup
) -> StudyResult:
    """Make one study of its benchmarks."""
    benchmarks = source.load(study)
    if study.benchmarks and not benchmarks and not setup.logs:
        raise InputError(
            f"{study.name} needs --data, a folder of benchmarks, --ratings, or --log, a run"
        )
    return study.run(replace(setup, benchmarks=benchmarks, options=values))


def _rows(specs: Sequence[str]) -> dict[str, str]:
    """Return metrics by label, that of a judge being its name; mistakes in names are errors."""
    rows: dict[str, str] = {}
    for label, spec in label_metrics(specs).items() if specs else ():
        if asks_judge(spec):
            get_decoder(spec.removeprefix("ref-"))
        elif not spec.startswith("scorefile:"):
            find_metric(spec)
        rows[spec if asks_judge(spec) else label] = spec
    return rows


@dataclass
class _Source:
    """The benchmarks of studies, each loaded once: those that were named, or those in ``data``."""

    data: Path | None
    specs: Sequence[str]
    ratings: Path | None
    limit: int | None
    loaded: dict[str, Benchmark | None] = field(default_factory=dict)

    def check(self, studies: Sequence[Study]) -> None:
        """Raise for what no study could use."""
        LIMIT.convert(self.limit)
        for spec in self._limited(self.specs):
            find_benchmark(spec)
        if self.ratings is not None and (self.data is not None or self.specs):
            raise InputError("--ratings is a benchmark of your own; leave --data and -b out")
        if (self.specs or self.ratings) and not any(study.benchmarks for study in studies):
            names = ", ".join(study.name for study in studies)
            raise InputError(f"{names} needs no benchmark; leave -b and --ratings out")
        if self.specs and self.data is None:
            raise InputError(f"-b {self.specs[0]} needs --data, the folder of the benchmark")
        if self.data is not None and not self.data.exists():
            raise InputError(f"no such folder: {self.data}")

    def load(self, study: Study) -> dict[str, Benchmark]:
        """Return the benchmarks of a study by what was asked for."""
        if not study.benchmarks:
            return {}
        if self.ratings is not None:
            names = [self.ratings.name]
        elif self.data is None:
            return {}
        else:
            names = self._limited(self.specs or study.benchmarks)
        for name in names:
            if name not in self.loaded:
                self.loaded[name] = self._read(name)
        present = {name: each for name in names if (each := self.loaded[name]) is not None}
        if not present:
            raise InputError(
                f"{self.data} has none of {', '.join(study.benchmarks)}; discode bench list says "
                "where to get them, and discode bench published prints the paper's tables"
            )
        return present

    def _limited(self, specs: Sequence[str]) -> list[str]:
        return list(specs) if self.limit is None else limited(specs, self.limit)

    def _read(self, name: str) -> Benchmark | None:
        """Return a benchmark, None where ``data`` lacks one that nobody named."""
        if self.ratings is not None:
            campaign = (self.ratings / "mceval.jsonl").is_file()
            kind = "mceval" if campaign else "custom"
            return load_benchmark(kind, self.ratings, {LIMIT.name: self.limit})
        row, options = find_benchmark(name)
        folder = find_folder(row, self.data or "")
        if not self.specs:
            try:
                row.find_files(folder)
            except InputError:
                return None
        return row.read(folder, options)

    def notes(self) -> list[str]:
        """Return what there is to say about the data."""
        lines = [
            f"{name}: {line}" for name, each in self.loaded.items() if each for line in each.notes
        ]
        lacking = [name for name, each in self.loaded.items() if each is None]
        return [*lines, *([f"not in {self.data}: {', '.join(lacking)}"] if lacking else [])]


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
                who = [model, *(result.signature.get(part) for part in ("revision", "dtype"))]
                spec = f"recorded:{store}#{'@'.join(filter(None, who))}"
                judges.setdefault(spec, MetricFactory(model=spec))
    return judges


def show_result(study: Study, result: StudyResult, out: Path | None, form: str) -> None:
    """Write a study, then print it: whoever reads may stop; exit with 1 if parts failed."""
    _show([(study, result if out is None else _write(study, result, out))], {}, out, form, ())


def _show(
    results: Sequence[tuple[Study, StudyResult]],
    errors: Mapping[str, DiscodeError],
    out: Path | None,
    form: str,
    notes: Sequence[str],
) -> None:
    """Print what studies found, and say what is missing; exit with 1 if parts failed.

    Where all tables are written, the first of a single study alone is printed.
    """
    gaps = _gaps(results, errors)
    if out is not None:
        write_page(results, [*notes, *(line for line, _ in gaps)], out)
    if out is None or len(results) + len(errors) == 1:
        for _, result in results:
            shown = list(result.tables.values())[: None if out is None else 1]
            echo("\n\n".join(write_table(table, form) for table in shown))
            for finding in result.findings if form == "text" else ():
                echo(f"\n{finding}")
    else:
        echo(f"{', '.join(study.name for study, _ in results)}: {out / 'index.html'}")
    for line in notes:
        output.note(line, "dim")
    if out is not None:
        output.note(f"written to {out}", "dim")
    for line, failed in gaps:
        output.note(line, "red" if failed else "yellow")
    if any(failed for _, failed in gaps):
        raise typer.Exit(1)


def _gaps(
    results: Sequence[tuple[Study, StudyResult]], errors: Mapping[str, DiscodeError]
) -> list[tuple[str, bool]]:
    """Return a line for each thing that is missing, and whether something failed."""
    gaps: dict[tuple[str, str, bool], list[str]] = {}
    for name, error in errors.items():
        gaps.setdefault(("not made", str(error), not is_lack(error)), []).append(name)
    for study, result in results:
        for line in result.left_out:
            gaps.setdefault(("left out", line, False), []).append(study.name)
        for line in result.problems:
            gaps.setdefault(("failed", line, True), []).append(study.name)
    return [
        (f"{kind}: {', '.join(names)}: {line}", failed)
        for (kind, line, failed), names in gaps.items()
    ]


def _write(study: Study, result: StudyResult, out: Path) -> StudyResult:
    """Write tables in all formats, the sentences, runs, other files and figures.

    Where figures cannot be drawn, the result that is returned says so.
    """
    for kind, suffix in SUFFIXES.items():
        parts = [write_table(table, kind) for table in result.tables.values()]
        parts += [f"% {line}" if kind == "latex" else line for line in result.findings]
        (out / f"{study.name}{suffix}").write_text("\n\n".join(parts) + "\n", "utf-8")
    for name, table in result.tables.items():
        (out / f"{name}.csv").write_text(write_table(table, "csv") + "\n", "utf-8")
    for name, log in result.logs.items():
        (out / "runs").mkdir(exist_ok=True)
        log.save(out / "runs" / f"{file_stem(name)}.json")
    for name, text in result.files.items():
        (out / name).write_text(text, "utf-8")
    try:
        for name, draw in result.figures.items():
            draw(out / f"{name}.png")
    except MissingExtraError as error:
        return replace(result, figures={}, left_out=[*result.left_out, f"figures: {error}"])
    return result
