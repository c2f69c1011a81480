"""discode serve: the judge over HTTP, with a page for people."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from discode.backends import Runtime, open_backend
from discode.backends.embedded import introduce
from discode.cli.output import stderr
from discode.decoders import get_decoder
from discode.errors import InputError, require
from discode.judge import load

TOKEN = "DISCODE_TOKEN"
"""The variable a token is looked for in, unless --token-env names another."""


def serve(
    model: Annotated[
        str | None,
        typer.Option(
            help="embedded (the default), ORG/NAME of a hub or a folder (discode models), "
            "embedded:FILE.onnx, or recorded:FILE."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: any free one.")] = 8000,
    token_env: Annotated[
        str | None, typer.Option(help=f"Variable that holds the callers' token; default: {TOKEN}.")
    ] = None,
    allow_urls: Annotated[
        bool, typer.Option("--allow-urls", help="Fetch pictures by URL, from public addresses.")
    ] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name this server answers to; repeat.")
    ] = None,
    method: Annotated[str, typer.Option("--method", "-m", help="The default decoder.")] = "discode",
    scale: Annotated[str | None, typer.Option("--scale", "-s", help="unit, ten, five, ...")] = None,
    prompt: Annotated[
        str | None, typer.Option(help="fleur, caption-last, or a text file of your own.")
    ] = None,
    store: Annotated[Path | None, typer.Option(help="Keep readings here and reuse them.")] = None,
    batch_size: Annotated[int, typer.Option(help="Pairs a batch.")] = 64,
    max_body: Annotated[int, typer.Option(help="MiB a request.")] = 20,
    max_captions: Annotated[int, typer.Option(help="Captions a request.")] = 256,
    max_requests: Annotated[int, typer.Option(help="Requests at once; more get 503.")] = 512,
    timeout: Annotated[float, typer.Option(help="Seconds a request.")] = 60.0,
    threads: Annotated[int | None, typer.Option(help="Cores to use; default: all.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda, cuda:1, cpu; a local model's.")] = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16, float16 or float32.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.")] = None,
    batch_captions: Annotated[
        int | None, typer.Option(help="Captions of a picture at once; default: by memory.")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    quantize: Annotated[
        str | None, typer.Option(help="4bit, 8bit or fp8: a large model in less memory.")
    ] = None,
    device_map: Annotated[
        str | None, typer.Option(help="auto: a large model over several GPUs.")
    ] = None,
) -> None:
    """Serve the judge over HTTP: an API, and a page at /."""
    for module in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        require(module, "serve")
    from discode.http.guard import LOOPBACK, allowed_hosts
    from discode.http.server import open_socket, serve_until_signal, url_of
    from discode.serve.app import ServiceOptions, make_service
    from discode.serve.limits import Limits

    if get_decoder(method).requires:
        raise InputError("solver 'adam' is not served; use solver 'exact'")
    limits = Limits(
        body=max_body << 20, captions=max_captions, requests=max_requests, seconds=timeout
    )
    token = _token(token_env)
    hosts = allowed_hosts(host, allow_host or ())
    trust = trust_remote_code or None
    runtime = Runtime(threads, device, dtype, revision, batch_captions, trust, quantize, device_map)
    with open_socket(host, port) as listening:  # before a model is loaded for minutes
        backend = open_backend("embedded" if model is None else model, runtime)
        judge = load(
            backend, method=method, prompt=prompt, scale=scale, store=store, batch_size=batch_size
        )
        if model is None:
            introduce(backend.identity)
        options = ServiceOptions(
            method=method, limits=limits, token=token, allow_urls=allow_urls, hosts=hosts
        )
        where = url_of(listening)
        stderr.print(
            f"{backend.identity.model} judges at {where} (Ctrl-C ends it)",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
        if token is None and host not in LOOPBACK:
            stderr.print(
                f"anybody who reaches {where} can ask it; set {TOKEN} to want a token",
                style="yellow", markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip
        serve_until_signal(
            make_service(judge, options), listening, grace_seconds=2 * limits.seconds
        )


def _token(name: str | None) -> str | None:
    token = os.environ.get(name or TOKEN)
    if name is not None and not token:
        raise InputError(f"--token-env {name}: that variable is not set, or empty")
    if token is not None and (not token.strip() or token != token.strip()):
        raise InputError(f"the token in {name or TOKEN} is blank, or has blanks around it")
    return token
