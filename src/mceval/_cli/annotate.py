"""discode mceval annotate: the web application in which people compare and revise captions."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from typer import Option

from discode._cli import flags
from discode._cli.output import note
from discode.errors import InputError, require
from mceval._cli.common import DatabaseArgument, PublicUrl, read_public_url


def annotate(
    database: DatabaseArgument,
    host: flags.Host = "127.0.0.1",
    port: flags.Port = 8100,
    images: flags.Images = None,
    public_url: PublicUrl = None,
    allow_host: flags.AllowHost = None,
    trust_proxy: Annotated[
        bool, Option("--trust-proxy", help="Trust X-Forwarded-For, set by your proxy.")
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
                f"{len(missing)} images are missing: {first_few(missing)}; restore them, or give "
                "--images FOLDER. Their tasks cannot be answered",
                "yellow",
            )
        where = origin or url_of(listening).rstrip("/")
        note(f"people work at {where} (Ctrl-C to stop); invitations are {where}/join/TOKEN")
        if not secure and host not in LOOPBACK:
            note(
                "invitations and cookies are sent unencrypted; put an https proxy in front of this "
                "server and give --public-url",
                "yellow",
            )
        serve_until_signal(app, listening, grace_seconds=20)
