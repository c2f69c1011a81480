"""discode mceval annotate: the web application in which people compare and revise captions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from typer import Option

from discode._cli.output import note
from discode.errors import InputError, require
from mceval._cli.common import DatabaseArgument, read_public_url


def annotate(
    database: DatabaseArgument,
    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0: all.")] = "127.0.0.1",
    port: Annotated[int, Option(help="Port; 0: any free one.")] = 8100,
    images: Annotated[
        Path | None, Option(help="Where the images are now, if they were moved.")
    ] = None,
    public_url: Annotated[
        str | None,
        Option(help="The address that people use, if there is a proxy before this server."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="A further name that this server answers to; repeat."),
    ] = None,
    trust_proxy: Annotated[
        bool, Option("--trust-proxy", help="Believe X-Forwarded-For: a proxy sets it.")
    ] = False,
    pause_every: Annotated[int, Option(help="Suggest a break after this many answers.")] = 40,
) -> None:
    """Serve the pages in which people compare and revise captions."""
    for module in ("fastapi", "uvicorn", "jinja2", "sqlalchemy"):
        require(module, "annotate")
    from discode._http.guard import LOOPBACK, allowed_hosts
    from discode._http.server import open_socket, serve_until_signal, url_of
    from mceval._texts import first_few
    from mceval._web.app import AnnotationOptions, make_annotation_app
    from mceval._web.images import CampaignImages
    from mceval.database import open_database

    if pause_every < 1:
        raise InputError(f"--pause-every {pause_every} is not allowed; give 1 or more")
    origin = read_public_url(public_url) if public_url is not None else None
    names = [*(allow_host or ()), *([urlsplit(origin).hostname or ""] if origin else [])]
    hosts = allowed_hosts(host, names)
    secure = origin is not None and origin.startswith("https:")
    with open_database(database) as db, open_socket(host, port) as listening:
        options = AnnotationOptions(
            images=images, hosts=hosts, origin=origin, secure=secure,
            trust_proxy=trust_proxy, pause_every=pause_every,
        )  # fmt: skip
        app = make_annotation_app(db, options)
        missing = CampaignImages(db, images).missing()
        if missing:
            note(
                f"{len(missing)} images are not where they were: {first_few(missing)}; put them "
                "back, or say with --images FOLDER where they are now. Nobody can answer a task "
                "whose image does not load",
                "yellow",
            )
        where = origin or url_of(listening).rstrip("/")
        note(f"people work at {where} (Ctrl-C ends it); invitations are {where}/join/TOKEN")
        if not secure and host not in LOOPBACK:
            note(
                "invitations and cookies travel unencrypted; put a proxy with https before this "
                "server and give --public-url",
                "yellow",
            )
        serve_until_signal(app, listening, grace_seconds=20)
