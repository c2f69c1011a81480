"""discode study: the paper's tables and figures."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from discode.backends import open_backend
from discode.cli import output
from discode.cli.model_options import BaseUrl, Device, Dtype, ModelOption, model_options
from discode.errors import InputError
from discode.images import demo_path
from discode.studies import cost as study

app = typer.Typer(help="The paper's tables and figures.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """The paper's tables and figures."""


@app.command()
def cost(
    model: Annotated[
        str | None, typer.Option(help="A local model: ORG/NAME of a hub or a folder.")
    ] = None,
    model_option: ModelOption = None,
    random_weights: Annotated[
        str | None,
        typer.Option(help="An architecture instead: llava-next-8b, -13b, -34b, tiny."),
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    base_url: BaseUrl = None,
    captions: Annotated[int, typer.Option(help="Captions per image, for the batch columns.")] = 16,
) -> None:
    """Time the model and the decoders: the paper's computational overhead for scoring."""
    if captions < 1:
        raise InputError(f"--captions {captions} is not allowed; give 1 or more")
    options = model_options(model_option, device=device, dtype=dtype, base_url=base_url)
    if model is not None and random_weights is None:
        backend = open_backend(model, options)
    elif random_weights is not None and model is None:
        from discode.backends.local.backend import Local
        from discode.backends.local.random_weights import random_model

        backend = open_backend(Local(random_model(random_weights, device, dtype), read="forced"))
    else:
        raise InputError("give either --model or --random-weights")
    images = [demo_path() / name for name in ("astronaut.jpg", "cat.jpg", "coffee.jpg", "city.jpg")]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("method", "backbone s", "scoring s", "overhead %", "packed s", "batched s", "%"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in study.measure(backend, backend.prompt, images, captions):
        table.add_row(
            row.method,
            f"{row.backbone:.4f}",
            f"{row.scoring:.6f}",
            f"{row.overhead:.4f}",
            f"{row.backbone_batch:.4f}",
            f"{row.scoring_batch:.7f}",
            f"{row.overhead_batch:.5f}",
        )
    output.stdout.print(table)
    identity = backend.identity
    output.stdout.print(
        f"{identity.model} {identity.revision} {identity.dtype}; one pair at a time, then "
        f"{captions} captions per image packed and 512 readings per batch",
        style="dim",
        markup=False,
        highlight=False,
    )
