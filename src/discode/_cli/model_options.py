"""Options of models on the command line, the same for every verb that opens one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from discode._cli.output import note
from discode.backends._served.throttle import COLLECTING, RequestThrottle
from discode.errors import DiscodeError, InputError
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
        help="-M base_url: where endpoint:NAME is, http://localhost:8000/v1; several with commas.",
    ),
]
_FLAGS = {"threads": Threads, "device": Device, "dtype": Dtype, "base_url": BaseUrl}


def with_model_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the options that models share, joined in its argument ``options``.

    What was sent to servers, and what that cost, is printed when the verb ends.
    """

    @functools.wraps(verb)
    def joined(model_option: list[str] | None, **typed: Any) -> None:
        flags = {name: typed.pop(name) for name in _FLAGS}
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

    own = inspect.signature(verb, eval_str=True).parameters
    parameters = [each for each in own.values() if each.name != "options"]
    for name, kind in {"model_option": ModelOption, **_FLAGS}.items():
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, keyword, default=None, annotation=kind))
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
        if name in options and str(options[name]) != value:
            raise InputError(
                f"{name} is given twice: --{name.replace('_', '-')} {options[name]} and -M "
                f"{name}={value}"
            )
        options[name] = value
    return options
