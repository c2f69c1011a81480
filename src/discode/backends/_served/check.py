"""Report what the servers of a model support."""

from __future__ import annotations

from discode.backends._served.backend import Served
from discode.backends._served.server import ModelServer, ServerFeatures
from discode.backends._served.transport import wait_for
from discode.errors import BackendError, StoppedError, UnreachableError
from discode.images import ImageSource


def check_served_model(backend: Served, image: ImageSource) -> dict[str, str]:
    """Report in words what the servers of a model support; raises if none can be a judge.

    Each receives one request with an image and a few without.
    """
    servers = backend.reachable_servers()
    features = servers[0].find_features()
    missing = "no; answers outside the likeliest tokens are missing"
    several = len(servers) > 1
    return {
        "model": f"{features.model} at {', '.join(server.client.host for server in servers)}",
        "log-probabilities": f"{features.top} per position" if features.top else "no",
        "thinking": _thinking(features),
        "samples": _samples(servers[0]),
        "token ids": "yes, for every answer"
        if features.token_ids or servers[0].generates()
        else missing,
        "begun answers": "yes (-M read=forced)"
        if features.top and all(wait_for(server.continues()) for server in servers)
        else "no (-M read=forced is refused)",
        **{
            f"images ({server.client.host})" if several else "images": _images(server, image)
            for server in servers
        },
    }


def _thinking(features: ServerFeatures) -> str:
    if features.thinking == "thinking":
        return "on"
    return f"switched off ({features.thinking})" if features.thinking else "no"


def _samples(server: ModelServer) -> str:
    """How many answers it returns to one request; tried with two."""
    chosen = "" if server.find_features().top else "; used, since there are no log-probabilities"
    if server.returns_several():
        return f"yes, several answers per request{chosen}"
    return f"yes, one answer per request{chosen}"


def _images(server: ModelServer, image: ImageSource) -> str:
    try:
        tokens = server.image_tokens(image)
    except (StoppedError, UnreachableError):
        raise
    except BackendError as error:
        return f"no: {error}"
    if tokens is None:
        return "accepted; the server does not count tokens, so it may ignore them"
    if tokens <= 0:
        return "no: they are accepted and ignored (no tokens are read for them)"
    server.try_images()
    kept = ", and kept by their names" if server.keeps_images else ""
    return f"yes ({tokens:,} tokens for the test image){kept}"
