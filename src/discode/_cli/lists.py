"""discode methods, scales, models: list them, or describe one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.markup import escape

from discode._cli import flags
from discode._cli.flags import model_options
from discode._cli.output import bars, echo, format_score, note, stdout, table_of
from discode._judge import load
from discode._pairs import make_pairs
from discode._scales import SCALES
from discode.backends import KINDS, kind_of
from discode.backends._local.catalog import CATALOG
from discode.decoders import METHODS, options_of
from discode.errors import InputError, lookup
from discode.images import demo_path
from discode.options import Option, option_text, options_text


def print_list(kind: str, about: Mapping[str, str], more: str) -> None:
    """Print one line per name, and the command that prints the details."""
    table = table_of(kind, "description")
    for name, text in about.items():
        table.add_row(name, escape(text))
    stdout.print(table)
    stdout.print(f"\n{more}", highlight=False, soft_wrap=True)


def print_one(name: str, lines: Sequence[str], options: tuple[Option, ...]) -> None:
    echo("\n".join(lines))
    print_options({f"{name}, after a colon ({name}:KEY=VALUE,...)": options})


def print_options(declared: Mapping[str, tuple[Option, ...]]) -> None:
    """Print the options of each name; names with the same options share a table."""
    takers: dict[tuple[Option, ...], list[str]] = {}
    for name, options in declared.items():
        takers.setdefault(options, []).append(name)
    for options, names in takers.items():
        if not options:
            continue
        stdout.print(f"\nOptions of {', '.join(names)}\n", highlight=False)
        table = table_of("option", "default", "allowed", "description")
        for row in options:
            default = "required" if row.required else option_text(row.default)
            table.add_row(*map(escape, (row.name, default, row.allowed_text, row.about)))
        stdout.print(table)


def methods(
    name: Annotated[str | None, typer.Argument(help="Method to describe; default: all.")] = None,
) -> None:
    """List the decoders, or describe one with its options."""
    if name is None:
        about = {name: method.about for name, method in METHODS.discover().items()}
        print_list("method", about, "default: discode; details: discode methods NAME")
        return
    method = lookup(METHODS, name, "method")
    lines = [f"options it sets: {options_text(method.options)}"] if method.options else []
    print_one(name, [f"{name}: {method.about}", *lines], options_of(method.make))


def scales() -> None:
    """List the rating scales."""
    table = table_of("scale", "stems", "answers, lowest first", "scores")
    for name, scale in SCALES.items():
        table.add_row(
            name,
            " ".join(repr(stem) for stem in scale.stems if stem) or "none",
            " ".join(scale.answers),
            f"{scale.minimum:g} to {scale.maximum:g}",
        )
    table.add_row("LOW-HIGH", "none", "any range: 1-7, 0-100, A-D; E-A if A is best", "its own")
    stdout.print(table)


TEST_CAPTION = "a close up of a striped cat"
"""Caption of the test request to an endpoint, with the cat of the demo."""


def _check(name: str, options: dict[str, Any]) -> None:
    """Check a model without downloading its weights, or the capabilities of a server."""
    kind, spec = kind_of(name)
    if kind in flags.SERVED:
        _check_endpoint(name, options)
        return
    if kind not in (KINDS["hf"], KINDS["vllm"]) or not spec:
        raise InputError(
            f"{name} cannot be checked; give ORG/NAME, a folder, endpoint:NAME or openai:NAME"
        )
    revision = options.pop("revision", None)
    if options:
        raise InputError("--check ORG/NAME takes only -M revision=REVISION")
    from discode.backends._local.check import check_model  # needs discode-eval[hf]

    _print_rows(check_model(spec, revision))


def _advise(name: str | None, options: dict[str, Any], gpu_memory: float | None) -> None:
    from discode.backends._local.advise import Machine, advise, advise_all  # needs discode-eval[hf]

    if name is None:
        machine = Machine.here(gpu_memory)
        table = table_of("NAME", "--model")
        for hub, way in advise_all(machine).items():
            table.add_row(escape(hub), escape(way))
        table.columns[0].no_wrap = True
        stdout.print(f"{machine}\n", highlight=False)
        stdout.print(table)
        stdout.print("\nestimated from parameters; by configuration: discode models --advise NAME")
        return
    kind, name = kind_of(name)
    revision = options.pop("revision", None)
    if options or kind not in (KINDS["hf"], KINDS["vllm"]) or not name:
        raise InputError("--advise takes a hub's ORG/NAME or a model folder, and -M revision=...")
    _print_rows(advise(name, revision, Machine.here(gpu_memory)))


def _check_endpoint(name: str, options: dict[str, Any]) -> None:
    """Print the capabilities of a model's servers and the distribution of one test answer."""
    from discode.backends._served.backend import Served
    from discode.backends._served.check import check_served_model

    image, judge = demo_path() / "cat.jpg", load(name, **options)
    if not isinstance(judge.backend, Served):
        raise InputError(f"{name} is not a served model")
    _print_rows(check_served_model(judge.backend, image))
    pairs = make_pairs(image, TEST_CAPTION)
    readings = judge.read(pairs)
    scores, plain = judge.decode(pairs, readings), judge.decode(pairs, readings, "smoothing")
    if reason := scores.errors.get(0):
        note(f"the answer to the test caption ({TEST_CAPTION}) is not a rating: {reason}", "red")
        raise typer.Exit(1)
    names = [
        f"{label} → {format_score(each.value[0])}"
        for label, each in (("token probabilities", plain), (judge.decoder.name, scores))
    ]
    title = f"test answer: cat.jpg, {TEST_CAPTION}"
    stdout.print("")
    if scores.distribution is not None and plain.distribution is not None:
        before, after = plain.distribution[0], scores.distribution[0]
        stdout.print(bars(title, scores.answers, before, after, (names[0], names[1])))
    for flag, on in scores.flags.items():
        if on[0]:
            note(f"the test answer is {flag} (docs/output.md)", "yellow")


def _print_rows(rows: Mapping[str, str]) -> None:
    table = table_of("", "")
    table.show_header = False
    for row in rows.items():
        table.add_row(*map(escape, row))
    table.columns[0].no_wrap = True
    stdout.print(table)


def models(
    name: Annotated[
        str | None, typer.Argument(help="Model for --check or --advise.", show_default=False)
    ] = None,
    options: Annotated[
        bool, typer.Option("--options", help="List the options of each kind of model.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Check whether the model can be a judge, without downloading its weights. A "
            "server is sent a few requests.",
        ),
    ] = False,
    advise: Annotated[
        bool,
        typer.Option(
            "--advise",
            help="Advise how to run the model on this machine, from its configuration alone; "
            "without NAME, the listed models, from their sizes.",
        ),
    ] = False,
    gpu_memory: Annotated[
        float | None,
        typer.Option(
            metavar="GB", min=1, help="GPU memory for --advise; default: that of this machine."
        ),
    ] = None,
    model_option: flags.ModelOption = None,
    base_url: flags.BaseUrl = None,
) -> None:
    """List vision-language models that can be judges, check one, or advise how to run them."""
    given = model_options(model_option, base_url=base_url)
    if check + advise + options > 1:
        raise InputError("--check, --advise and --options cannot be combined")
    if not name and (check or given):
        raise InputError("--check, --base-url and -M require a NAME")
    if name and not (check or advise):
        raise InputError(f"{name} requires --check or --advise")
    if gpu_memory is not None and not advise:
        raise InputError("--gpu-memory requires --advise")
    if advise:
        _advise(name, given, gpu_memory)
        return
    if check and name:
        _check(name, given)
        return
    if options:
        print_options(
            {
                f"{name}:": replace(kind, fixed=frozenset()).options()
                for name, kind in KINDS.discover().items()
            }
        )
        return
    widest = max(len(row.hub) for row in CATALOG)
    stdout.print("GB: size of the weights in bfloat16, and in 4 bit\n", highlight=False)
    notes = table_of("", "")
    for title, paper in (("the paper's models", True), ("others", False)):
        table = table_of(title, "GB", "4 bit", "captions", "tried")
        # Names are copied whole: a narrow terminal may break lines, but cells are never cut.
        table.width, table.columns[0].min_width = widest + 32, widest
        table.columns[1].justify = table.columns[2].justify = "right"
        for row in (row for row in CATALOG if bool(row.paper) == paper):
            table.add_row(
                row.hub,
                f"{row.memory:.0f}",
                f"{row.memory_4bit:.0f}",
                "packed" if row.packed else "plain",
                row.tested or "nothing",
            )
            code = "runs remote code (-M trust_remote_code=true)" if row.remote else ""
            if row.note or code:
                notes.add_row(row.hub.split("/")[1], "; ".join(filter(None, (code, row.note))))
        stdout.print(table, "", crop=False)
    notes.columns[0].no_wrap = True
    stdout.print(notes)
