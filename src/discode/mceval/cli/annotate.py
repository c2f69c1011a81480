"""discode mceval annotate: the web application in which people compare and revise captions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from discode.cli.output import stderr
from discode.errors import InputError, require
from discode.mceval.cli.campaign import Db


def annotate(
    database: Db,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: any free one.")] = 8100,
    images: Annotated[
        Path | None, typer.Option(help="Where the pictures are now, if they were moved.")
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(help="The address people use, where a proxy stands before this server."),
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name this server answers to; repeat.")
    ] = None,
    trust_proxy: Annotated[
        bool, typer.Option("--trust-proxy", help="Believe X-Forwarded-For: a proxy sets it.")
    ] = False,
    pause_every: Annotated[int, typer.Option(help="Suggest a break after so many answers.")] = 40,
) -> None:
    """Serve the pages in which people compare and revise captions."""
    for module in ("fastapi", "uvicorn", "jinja2", "sqlalchemy"):
        require(module, "annotate")
    from discode.http.limits import LOOPBACK
    from discode.http.server import address, open_socket, serve
    from discode.mceval.database import open_database
    from discode.mceval.web.app import Options, make_app

    if pause_every < 1:
        raise InputError(f"--pause-every {pause_every} is not allowed; give 1 or more")
    public = urlsplit(public_url or "")
    if public_url is not None and (public.scheme not in ("http", "https") or not public.hostname):
        raise InputError(f"--public-url {public_url!r} is no address; give https://NAME")
    names = {name.lower() for name in (*(allow_host or ()), public.hostname) if name}
    hosts = (*LOOPBACK, *sorted(names)) if host in LOOPBACK or names else None
    secure = public.scheme == "https"
    with open_database(database) as db, open_socket(host, port) as listening:
        options = Options(
            images=images, hosts=hosts, secure=secure, trust_proxy=trust_proxy,
            pause_every=pause_every,
        )  # fmt: skip
        app = make_app(db, options)
        where = (public_url or address(listening)).rstrip("/")
        stderr.print(
            f"people work at {where} (Ctrl-C ends it); invitations are {where}/join/TOKEN",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
        if not secure and host not in LOOPBACK:
            stderr.print(
                "invitations and cookies travel unencrypted; put a proxy with https before it and "
                "give --public-url",
                style="yellow", markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip
        serve(app, listening, patience=20)
