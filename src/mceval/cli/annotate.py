"""discode mceval annotate: the web application in which people compare and revise captions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from discode.cli.output import stderr
from discode.errors import InputError, require
from mceval.cli.common import DatabaseArgument, read_public_url


def annotate(
    database: DatabaseArgument,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: any free one.")] = 8100,
    images: Annotated[
        Path | None, typer.Option(help="Where the images are now, if they were moved.")
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(help="The address that people use, if there is a proxy before this server."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further name that this server answers to; repeat."),
    ] = None,
    trust_proxy: Annotated[
        bool, typer.Option("--trust-proxy", help="Believe X-Forwarded-For: a proxy sets it.")
    ] = False,
    pause_every: Annotated[int, typer.Option(help="Suggest a break after this many answers.")] = 40,
) -> None:
    """Serve the pages in which people compare and revise captions."""
    for module in ("fastapi", "uvicorn", "jinja2", "sqlalchemy"):
        require(module, "annotate")
    from discode.http.guard import LOOPBACK, allowed_hosts
    from discode.http.server import open_socket, serve_until_signal, url_of
    from mceval.database import open_database
    from mceval.web.app import AnnotationOptions, make_annotation_app
    from mceval.web.images import CampaignImages

    if pause_every < 1:
        raise InputError(f"--pause-every {pause_every} is not allowed; give 1 or more")
    public = read_public_url(public_url) if public_url is not None else None
    hosts = allowed_hosts(host, [*(allow_host or ()), *([public.host] if public else [])])
    secure = public is not None and public.origin.startswith("https:")
    with open_database(database) as db, open_socket(host, port) as listening:
        options = AnnotationOptions(
            images=images, hosts=hosts, origin=public.origin if public else None, secure=secure,
            trust_proxy=trust_proxy, pause_every=pause_every,
        )  # fmt: skip
        app = make_annotation_app(db, options)
        missing = CampaignImages(db, images).missing()
        if missing:
            shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            stderr.print(
                f"{len(missing)} images are not where they were: {shown}; put them back, or say "
                "with --images FOLDER where they are now. Nobody can answer a task whose image "
                "does not load",
                style="yellow", markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip
        where = public.origin if public else url_of(listening).rstrip("/")
        stderr.print(
            f"people work at {where} (Ctrl-C ends it); invitations are {where}/join/TOKEN",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
        if not secure and host not in LOOPBACK:
            stderr.print(
                "invitations and cookies travel unencrypted; put a proxy with https before this "
                "server and give --public-url",
                style="yellow", markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip
        serve_until_signal(app, listening, grace_seconds=20)
