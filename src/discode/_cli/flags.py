"""The flags of the command line. Each is declared here once and means the same in every verb."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer
import typer.core

from discode._cli.config import read_config
from discode._cli.output import note
from discode._judge import load
from discode.backends import KINDS, kind_of
from discode.backends._recorded import split_recording
from discode.backends._served.throttle import COLLECTING, RequestThrottle
from discode.bench._layout import TABLE_FORMATS
from discode.bench._tables import RATING_MEASURES
from discode.errors import DiscodeError, InputError
from discode.options import Configurable, Option, options_of, parse_options

INPUT, JUDGE, OUTPUT = "Input", "Judge", "Output"
MODEL, STATISTICS, LARGE, SERVER = "Model options", "Statistics", "Large runs", "Server"
FURTHER = (MODEL, STATISTICS, LARGE, SERVER)
"""Panels that --options prints instead of --help."""
SERVED = (KINDS["openai"], KINDS["endpoint"])
"""Kinds of models on a server."""
NOT_SERVED = "--dry-run requires a served model: openai:NAME or endpoint:NAME"

input_flag = partial(typer.Option, rich_help_panel=INPUT)
judge_flag = partial(typer.Option, rich_help_panel=JUDGE)
model_flag = partial(typer.Option, rich_help_panel=MODEL)
output_flag = partial(typer.Option, rich_help_panel=OUTPUT)
statistics_flag = partial(typer.Option, rich_help_panel=STATISTICS)
large_flag = partial(typer.Option, rich_help_panel=LARGE)
server_flag = partial(typer.Option, rich_help_panel=SERVER)

# Input
ImageArgument = Annotated[str | None, typer.Argument(help="Image file.")]
Captions = Annotated[list[str] | None, typer.Argument(help="Captions to score against the image.")]
Source = Annotated[
    list[Path] | None,
    input_flag(
        "--input", "-i", metavar="PATH",
        help="Pairs in CSV, TSV, JSONL, Parquet, COCO JSON or WebDataset tars: a file, folder or "
        "pattern; repeatable.",
    ),
]  # fmt: skip
Images = Annotated[
    Path | None,
    input_flag(metavar="FOLDER", help="Folder of the images."),
]
Annotations = Annotated[
    Path | None,
    input_flag(metavar="FILE", help="COCO annotations with the file names of images."),
]
References = Annotated[
    list[str] | None,
    input_flag("--reference", "-r", metavar="TEXT", help="Reference caption; repeatable."),
]
Top = Annotated[
    int | None,
    output_flag(min=1, metavar="N", help="Only the N rows with the lowest scores."),
]
_DATA = input_flag(
    metavar="FOLDER",
    help="Folder of a benchmark or of several, or hf://datasets/OWNER/NAME.",
)
Data = Annotated[Path, _DATA]
DataIfAny = Annotated[Path | None, _DATA]
DataFolders = Annotated[list[Path] | None, _DATA]
_BENCHMARK = input_flag(
    "--benchmark",
    "-b",
    metavar="NAME",
    help="NAME[:KEY=VALUE,...] from `discode bench list`; repeatable.",
)
BenchmarkName = Annotated[str, _BENCHMARK]
BenchmarkNames = Annotated[list[str], _BENCHMARK]
BenchmarksIfAny = Annotated[list[str] | None, _BENCHMARK]
Limit = Annotated[
    int | None, input_flag(metavar="N", help="Use a fixed subset of N images per benchmark.")
]
Runs = Annotated[
    list[Path], typer.Argument(help="Run logs from `bench run -o`; a folder means every log in it.")
]
RunLogs = Annotated[
    list[Path] | None,
    input_flag(
        "--log", metavar="PATH",
        help="Run log or folder of logs, whose stored readings are decoded again; repeatable.",
    ),
]  # fmt: skip
Ratings = Annotated[
    Path | None,
    input_flag(
        metavar="PATH",
        help="Your own ratings (docs/adding-a-benchmark.md) or an exported campaign.",
    ),
]
_own_flag = partial(typer.Option, rich_help_panel="Your own log-probabilities")
_READINGS = _own_flag(
    metavar="FILE",
    help="Table with a column per answer (1, logp_1, ...), or log_probs as in `discode decode`.",
)
Readings = Annotated[Path, _READINGS]
ReadingsIfAny = Annotated[list[Path] | None, _READINGS]
RatingColumns = Annotated[
    list[str] | None,
    _own_flag(
        "--rating-column",
        metavar="COLUMN",
        help="Column of human ratings in --readings; if repeated, the first that a file has.",
    ),
]
Where = Annotated[
    list[str] | None,
    _own_flag(
        "--where",
        metavar="CONDITION",
        help="Use only rows such as parsed_score>=1; repeatable.",
    ),
]
Threshold = Annotated[
    float,
    judge_flag(metavar="X", help="Blame above which a word is marked, as a share of the score."),
]
FailedAs = Annotated[
    float | None, input_flag(help="Score for failed rows of score files; default: leave them out.")
]

# Judge
_MODEL = judge_flag(
    metavar="NAME",
    help="embedded (default), ORG/NAME or a folder (see `discode models`), embedded:FILE.onnx, "
    "recorded:FILE, openai:NAME, or endpoint:NAME with --base-url.",
)
Model = Annotated[str | None, _MODEL]
Models = Annotated[list[str] | None, _MODEL]
_METHOD = judge_flag(
    "--method", "-m", metavar="NAME",
    help="NAME[:KEY=VALUE,...] from `discode methods`, or a preset FILE.json.",
)  # fmt: skip
Method = Annotated[str, _METHOD]
MethodIfAny = Annotated[str | None, _METHOD]
Methods = Annotated[list[str] | None, _METHOD]
_METRIC = judge_flag(
    "--metric", "-m", metavar="NAME",
    help="[LABEL=]NAME[:KEY=VALUE,...], a metric from `discode bench metrics` or a method; "
    "repeatable.",
)  # fmt: skip
MetricNames = Annotated[list[str], _METRIC]
MetricsIfAny = Annotated[list[str] | None, _METRIC]
_SCALE = judge_flag("--scale", "-s", metavar="NAME", help="Rating scale: unit, ten, five, 1-7, ...")
Scale = Annotated[str | None, _SCALE]
Scales = Annotated[list[str] | None, _SCALE]
Prompt = Annotated[
    str | None, judge_flag(metavar="NAME", help="One of `discode prompts`, or a text file.")
]
BatchSize = Annotated[int | None, model_flag(metavar="N", help="Pairs per batch.")]
_STORE = judge_flag(
    metavar="FILE",
    help="Readings to reuse and extend; default: with -o.",
)
Store = Annotated[Path | None, _STORE]
Stores = Annotated[list[Path] | None, _STORE]
DryRun = Annotated[
    bool, judge_flag("--dry-run", help="Print what would be sent to a server, and stop.")
]
ModelOption = Annotated[
    list[str] | None,
    model_flag(
        "--model-option", "-M", metavar="KEY=VALUE",
        help="Any option of the model (see `discode models --options`); repeatable.",
    ),
]  # fmt: skip
Threads = Annotated[int | None, model_flag(help="Cores for the embedded model (-M threads).")]
Device = Annotated[str | None, model_flag(help="cuda, cuda:1, cpu or mps (-M device).")]
Dtype = Annotated[str | None, model_flag(help="bfloat16, float16 or float32 (-M dtype).")]
BaseUrl = Annotated[
    str | None,
    model_flag(
        metavar="URL",
        help="Address of endpoint:NAME, such as http://localhost:8000/v1; separate several by "
        "commas (-M base_url).",
    ),
]

# Output
AsJson = Annotated[bool, output_flag("--json", help="Print JSON instead of a table.")]
Show = Annotated[bool, output_flag("--show", help="Draw the first distributions.")]
TableFormat = Annotated[
    str,
    output_flag("--format", "-f", metavar="NAME", help=f"Tables as {', '.join(TABLE_FORMATS)}."),
]
FullSignatures = Annotated[bool, output_flag("--signature", help="Print full signatures.")]
SaveConfig = Annotated[
    Path | None, output_flag(metavar="FILE", help="Write these flags to a TOML file.")
]
Title = Annotated[str, output_flag(metavar="TEXT", help="Title of the page or card.")]
MinScoreIfAny = Annotated[
    float | None,
    output_flag(metavar="X", help="Also write samples scoring at least this to OUTPUT/passed."),
]
# The type of -o is str: a Path would lose the slash that makes scores.v2/ a folder.
output_option = partial(output_flag, "--output", "-o", metavar="PATH")


# Statistics
_RESAMPLES = statistics_flag(metavar="N", help="Resamples of tests and intervals.")
Resamples = Annotated[int, _RESAMPLES]
ResamplesIfAny = Annotated[int | None, _RESAMPLES]
Seed = Annotated[int, statistics_flag(help="Random seed.")]
Folds = Annotated[int, statistics_flag(metavar="N", help="Folds of images for cross-validation.")]
Calibration = Annotated[
    Path | None,
    statistics_flag(
        metavar="FILE", help="File of `discode calibrate`, to add columns people, low and high."
    ),
]
_MEASURE = statistics_flag(
    "--measure", metavar="NAME",
    help=f"Measure of agreement: {', '.join(RATING_MEASURES)}; default: the benchmark's.",
)  # fmt: skip
Measure = Annotated[str | None, _MEASURE]
Measures = Annotated[list[str] | None, _MEASURE]

# Server
Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")]
Port = Annotated[int, typer.Option(help="Port; 0 for any free one.")]
AllowHost = Annotated[
    list[str] | None, server_flag(metavar="NAME", help="Further name of this server; repeatable.")
]


def _print_further(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.command.format_help(context, context.make_formatter(), further=True)  # type: ignore[call-arg]
        raise typer.Exit


Further = Annotated[
    bool,
    typer.Option(
        "--options",
        is_eager=True,
        expose_value=False,
        callback=_print_further,
        help="List the remaining options.",
    ),
]


def _use_config(context: typer.Context, path: Path | None) -> Path | None:
    if path is not None:
        read_config(context, path)
    return path


Config = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE.toml",
        is_eager=True,
        callback=_use_config,
        help="Flags as --save-config writes them; typed flags count instead.",
    ),
]


class JudgeSpec:
    """A judge as the flags describe it; ``open`` is :func:`~discode._judge.load` with them."""

    def __init__(
        self, model: str | None, prompt: str | None, scale: str | None, options: dict[str, Any]
    ) -> None:
        self.model, self.prompt, self.scale, self.options = model, prompt, scale, options
        self.open = partial(load, model, prompt=prompt, scale=scale, **options)

    @property
    def recording(self) -> Path | None:
        """The file that the judge's readings are replayed from."""
        kind, name = kind_of(self.model or "embedded")
        return split_recording(name)[0] if kind is KINDS["recorded"] else None


_JUDGE = {"model": Model, "prompt": Prompt, "scale": Scale}
_OPTIONS = {"threads": Threads, "device": Device, "dtype": Dtype, "base_url": BaseUrl}


def with_options(
    argument: str, declaring: type[Configurable], *names: str, panel: str | None = None,
    **renamed: str,
) -> Callable[[Callable[..., None]], Callable[..., None]]:  # fmt: skip
    """Add flags for declared options to a verb, which receives their values as ``argument``.

    Options that are called otherwise on the command line are ``renamed``, option to flag.
    """
    spelled = {**{name: name for name in names}, **renamed}
    rows = {spelled[row.name]: row for row in options_of(declaring) if row.name in spelled}

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def joined(**typed: Any) -> None:
            values = {row.name: typed.pop(name) for name, row in rows.items()}
            verb(**typed, **{argument: values})

        flags = {name: _option_flag(name, row, panel) for name, row in rows.items()}
        defaults = {name: row.default for name, row in rows.items()}
        return _with_flags(joined, verb, argument, flags, defaults=defaults)

    return decorate


def _option_flag(name: str, row: Option, panel: str | None) -> Any:
    words = ", ".join(each for each in row.allowed if isinstance(each, str))
    text = f"{row.about[:1].upper()}{row.about[1:]}{words and f' ({words})'}."
    flag = f"--{name.replace('_', '-')}"
    metavar = "NAME" if words else None
    more = typer.Option(flag, help=text, metavar=metavar, rich_help_panel=panel)
    return Annotated[type(row.default), more]


def with_judge(verb: Callable[..., None]) -> Callable[..., None]:
    """Add the flags of a judge to a verb, which receives them as its argument ``spec``."""

    @functools.wraps(verb)
    def joined(model: str | None, prompt: str | None, scale: str | None, **others: Any) -> None:
        if others.get("dry_run") and kind_of(model or "embedded")[0] not in SERVED:
            raise InputError(NOT_SERVED)
        verb(spec=JudgeSpec(model, prompt, scale, others.pop("options")), **others)

    return with_model_options(_with_flags(joined, verb, "spec", _JUDGE, "options"))


def with_model_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Add the flags that models share to a verb, which receives them as its argument ``options``.

    When the verb ends, requests to servers and their cost are printed.
    """

    @functools.wraps(verb)
    def joined(model_option: list[str] | None, **typed: Any) -> None:
        typed.pop("further", None)  # its callback has printed them
        flags = {name: typed.pop(name) for name in _OPTIONS}
        throttles: list[RequestThrottle] = []
        COLLECTING.append(throttles)
        try:
            verb(**typed, options=model_options(model_option, **flags))
        except DiscodeError:  # whose message is the only line
            throttles.clear()
            raise
        finally:
            COLLECTING.remove(throttles)
            for throttle in throttles:
                if throttle.sent:
                    note(throttle.usage(), "dim")

    return _with_flags(
        joined, verb, "options", {"model_option": ModelOption, **_OPTIONS, "further": Further}
    )


def _with_flags(
    joined: Callable[..., None],
    verb: Callable[..., None],
    argument: str,
    flags: Mapping[str, Any],
    *more: str,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[..., None]:
    """Replace an argument of ``verb`` by flags in the signature of ``joined``."""
    own = inspect.signature(verb, eval_str=True).parameters
    parameters = [each for each in own.values() if each.name != argument]
    keyword = inspect.Parameter.KEYWORD_ONLY
    for name, kind in flags.items():
        default = defaults.get(name, False if kind is Further else None)
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=kind))
    parameters += [inspect.Parameter(name, keyword, annotation=dict[str, Any]) for name in more]
    # Typer looks at both.
    joined.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    joined.__annotations__ = {each.name: each.annotation for each in parameters}
    return joined


def model_options(typed: list[str] | None, **flags: object) -> dict[str, Any]:
    """Join -M KEY=VALUE with the flags of common options; None is a flag that was not given.

    >>> model_options(["top=40"], threads=None, device="cpu")
    {'device': 'cpu', 'top': '40'}
    """
    options: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    for name, value in (parse_options(typed, "-M") if typed else {}).items():
        if name != "options" and name in inspect.signature(load).parameters:
            raise InputError(f"-M {name}=...: no model option; discode models --options lists them")
        if name in options and str(options[name]) != value:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} {options[name]} and -M {name}={value} differ; give one")
        options[name] = value
    return options


class _Verb:
    """Help in two parts, for verbs with ``--options``: that flag lists the FURTHER panels."""

    def format_help(self, ctx: Any, formatter: Any, *, further: bool = False) -> None:
        """Print the help, or with ``further`` the options that it leaves out."""
        params: list[Any] = self.params  # type: ignore[attr-defined]
        has_more = any(each.opts == ["--options"] and each.is_eager for each in params)
        for each in params if has_more else ():
            each.hidden = (getattr(each, "rich_help_panel", None) in FURTHER) != further
        super().format_help(ctx, formatter)  # type: ignore[misc]


class Verb(_Verb, typer.core.TyperCommand):
    """A verb. An option that takes one value may be given once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; by itself Click silently takes the last of repeated options."""
        order: list[Any] = self.make_parser(ctx).parse_args(args=[*args])[2]
        for each, times in Counter(order).items():
            if times > 1 and not (each.multiple or each.is_flag or each.count):
                ctx.fail(f"{each.opts[0]} is given {times} times, and takes one value")
        return super().parse_args(ctx, args)


class VerbGroup(_Verb, typer.core.TyperGroup):
    """A verb that has verbs of its own."""
