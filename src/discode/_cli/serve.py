"""discode serve: the judge over HTTP, with a page for people."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from discode._cli.model_options import Model, with_model_options
from discode._cli.output import note
from discode._judge import load
from discode.decoders import get_decoder
from discode.errors import InputError, require

TOKEN = "DISCODE_TOKEN"
"""The variable a token is looked for in, unless --token-env names another."""


@with_model_options
def serve(
    model: Model = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: any free one.")] = 8000,
    token_env: Annotated[
        str | None, typer.Option(help=f"Variable that holds the callers' token; default: {TOKEN}.")
    ] = None,
    allow_urls: Annotated[
        bool, typer.Option("--allow-urls", help="Fetch images by URL, from public addresses.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further name this server answers to; repeat."),
    ] = None,
    method: Annotated[
        str, typer.Option("--method", "-m", help="The default decoder, or a preset FILE.json.")
    ] = "discode",
    scale: Annotated[str | None, typer.Option("--scale", "-s", help="unit, ten, five, ...")] = None,
    prompt: Annotated[
        str | None, typer.Option(help="fleur, caption-last, or a text file of your own.")
    ] = None,
    store: Annotated[Path | None, typer.Option(help="Keep readings here and reuse them.")] = None,
    batch_size: Annotated[int, typer.Option(help="Pairs per batch.")] = 64,
    max_body: Annotated[int, typer.Option(help="MiB per request.")] = 20,
    max_captions: Annotated[int, typer.Option(help="Captions per request.")] = 256,
    max_requests: Annotated[
        int, typer.Option(help="Requests to this server at once; more get 503.")
    ] = 512,
    timeout: Annotated[float, typer.Option(help="Seconds per request.")] = 60.0,
    access_log: Annotated[
        bool, typer.Option(help="Print a line per request on standard error.")
    ] = True,
    *,
    options: dict[str, Any],
) -> None:
    """Serve the judge over HTTP: an API, and a page at /."""
    for module in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        require(module, "serve")
    from discode._http.guard import LOOPBACK, allowed_hosts
    from discode._http.server import open_socket, serve_until_signal, url_of
    from discode._serve.app import ServiceOptions, make_service
    from discode._serve.limits import Limits

    if get_decoder(method).requires:
        raise InputError("solver 'adam' is not served; use solver 'exact'")
    limits = Limits(
        body=max_body << 20, captions=max_captions, requests=max_requests, seconds=timeout
    )
    token = _token(token_env)
    hosts = allowed_hosts(host, allow_host or ())
    with open_socket(host, port) as listening:  # before a model is loaded for minutes
        judge = load(
            model, method=method, prompt=prompt, scale=scale, store=store, batch_size=batch_size,
            **options,
        )  # fmt: skip
        service = make_service(
            judge,
            ServiceOptions(
                method=method, limits=limits, token=token, allow_urls=allow_urls, hosts=hosts
            ),
        )
        where = url_of(listening)
        note(f"{judge.backend.identity.model} judges at {where} (Ctrl-C ends it)")
        if token is None and host not in LOOPBACK:
            note(
                f"anybody who reaches {where} can ask it; set {TOKEN} to require a token", "yellow"
            )
        if access_log:
            _print_access()
        serve_until_signal(service, listening, grace_seconds=2 * limits.seconds)


def _print_access() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log = logging.getLogger("discode.access")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def _token(name: str | None) -> str | None:
    token = os.environ.get(name or TOKEN, None if name is None else "")
    if token is not None and (not token or token != token.strip()):
        raise InputError(f"the token in {name or TOKEN} is missing, or has blanks around it")
    return token
