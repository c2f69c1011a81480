"""discode serve: the judge over HTTP, with a page."""

from __future__ import annotations

import logging
import os
from typing import Annotated

from discode._cli import flags
from discode._cli.flags import JudgeSpec, with_judge
from discode._cli.output import note
from discode.decoders import get_decoder
from discode.errors import InputError, require

TOKEN = "DISCODE_TOKEN"
"""The environment variable of the token, unless --token-env names another."""


@with_judge
def serve(
    host: flags.Host = "127.0.0.1",
    port: flags.Port = 8000,
    method: flags.Method = "discode",
    batch_size: flags.BatchSize = 64,
    store: flags.Store = None,
    token_env: Annotated[
        str | None,
        flags.server_flag(
            metavar="NAME",
            help=f"Environment variable with the token that callers need; default: {TOKEN}.",
        ),
    ] = None,
    allow_urls: Annotated[
        bool,
        flags.server_flag("--allow-urls", help="Fetch images by URL, from public addresses only."),
    ] = False,
    allow_host: flags.AllowHost = None,
    max_body: Annotated[int, flags.server_flag(metavar="MIB", help="MiB per request.")] = 20,
    max_captions: Annotated[
        int, flags.server_flag(metavar="N", help="Captions per request.")
    ] = 256,
    max_requests: Annotated[
        int, flags.server_flag(metavar="N", help="Concurrent requests; others get 503.")
    ] = 512,
    timeout: Annotated[
        float, flags.server_flag(metavar="SECONDS", help="Seconds per request.")
    ] = 60.0,
    access_log: Annotated[
        bool, flags.server_flag(help="Log each request on standard error.")
    ] = True,
    *,
    spec: JudgeSpec,
) -> None:
    """Serve the judge over HTTP: an API, and a page at /."""
    for module in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        require(module, "serve")
    from discode._http.guard import LOOPBACK, allowed_hosts
    from discode._http.server import open_socket, serve_until_signal, url_of
    from discode._serve.app import ServiceOptions, make_service
    from discode._serve.limits import Limits

    if get_decoder(method).requires:
        raise InputError("solver 'adam' cannot be served; use solver 'exact'")
    limits = Limits(
        body=max_body << 20, captions=max_captions, requests=max_requests, seconds=timeout
    )
    token = _token(token_env)
    hosts = allowed_hosts(host, allow_host or ())
    with open_socket(host, port) as listening:  # before a model is loaded for minutes
        judge = spec.open(method=method, store=store, batch_size=batch_size)
        service = make_service(
            judge,
            ServiceOptions(
                method=method, limits=limits, token=token, allow_urls=allow_urls, hosts=hosts
            ),
        )
        where = url_of(listening)
        note(f"{judge.backend.identity.model} at {where} (Ctrl-C to stop)")
        if token is None and host not in LOOPBACK:
            note(
                f"{where} is open to anyone who can reach it; set {TOKEN} to require a token",
                "yellow",
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
        raise InputError(f"the token in {name or TOKEN} is missing or has surrounding blanks")
    return token
