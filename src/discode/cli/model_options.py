"""Options of models on the command line, the same for every verb that opens one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from discode.errors import InputError
from discode.options import parse_options

PANEL = "Judge"
"""The heading of these options in the help of a verb."""

Model = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=PANEL,
        help="embedded (the default), ORG/NAME of a hub or a folder (discode models), "
        "embedded:FILE.onnx, recorded:FILE, openai:NAME, or endpoint:NAME with --base-url.",
    ),
]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model-option",
        "-M",
        metavar="KEY=VALUE",
        rich_help_panel=PANEL,
        help="Any option of the model; repeat. discode models --options lists them.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(rich_help_panel=PANEL, help="-M threads: cores of the embedded model."),
]
Device = Annotated[
    str | None, typer.Option(rich_help_panel=PANEL, help="-M device: cuda, cuda:1, cpu or mps.")
]
Dtype = Annotated[
    str | None,
    typer.Option(rich_help_panel=PANEL, help="-M dtype: bfloat16, float16 or float32."),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=PANEL,
        help="-M base_url: where endpoint:NAME is, http://localhost:8000/v1.",
    ),
]


def model_options(typed: list[str] | None, **flags: object) -> dict[str, Any]:
    """Join -M KEY=VALUE with the flags of common options; None is a flag that was not given.

    >>> model_options(["top=40"], threads=None, device="cpu")
    {'device': 'cpu', 'top': '40'}
    """
    options: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    for name, value in parse_options(typed or (), "-M").items():
        if name in options and str(options[name]) != value:
            raise InputError(
                f"{name} is given twice: --{name.replace('_', '-')} {options[name]} and -M "
                f"{name}={value}"
            )
        options[name] = value
    return options
