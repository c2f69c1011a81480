"""Options of models on the command line, the same for every verb that opens one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from discode.errors import InputError

Model = Annotated[
    str | None,
    typer.Option(
        help="embedded (the default), ORG/NAME of a hub or a folder (discode models), "
        "embedded:FILE.onnx, recorded:FILE, openai:NAME, or endpoint:NAME with --base-url."
    ),
]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model-option",
        "-M",
        metavar="KEY=VALUE",
        help="Any option of the model; repeat. discode models --options lists them.",
    ),
]
Threads = Annotated[int | None, typer.Option(help="-M threads: cores of the embedded model.")]
Device = Annotated[str | None, typer.Option(help="-M device: cuda, cuda:1, cpu or mps.")]
Dtype = Annotated[str | None, typer.Option(help="-M dtype: bfloat16, float16 or float32.")]
BaseUrl = Annotated[
    str | None, typer.Option(help="-M base_url: where endpoint:NAME is, http://localhost:8000/v1.")
]


def parse_pairs(given: list[str] | None, flag: str) -> dict[str, str]:
    """Read KEY=VALUE arguments of a repeatable ``flag``.

    >>> parse_pairs(["device=cuda", "batch-captions=4"], "-M")
    {'device': 'cuda', 'batch_captions': '4'}
    """
    values: dict[str, str] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        key, value = key.strip().replace("-", "_"), value.strip()
        if not equals or not key:
            raise InputError(f"{flag} {text!r} is not allowed; give KEY=VALUE")
        if values.get(key, value) != value:
            raise InputError(f"{flag} {key} is given twice, with different values")
        values[key] = value
    return values


def model_options(given: list[str] | None, **flags: object) -> dict[str, Any]:
    """Join -M KEY=VALUE with the flags of common options; None is a flag that was not given.

    >>> model_options(["top=40"], threads=None, device="cpu")
    {'device': 'cpu', 'top': '40'}
    """
    options: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    for name, value in parse_pairs(given, "-M").items():
        if name in options and str(options[name]) != value:
            raise InputError(
                f"{name} is given twice: --{name.replace('_', '-')} {options[name]} and -M "
                f"{name}={value}"
            )
        options[name] = value
    return options
