"""A service on a socket, until somebody ends it."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from discode.errors import InputError


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket, or say in a line why there is none; port 0 takes a free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot listen on {host}:{port}: {why}; give another --port") from None


def address(listening: socket.socket) -> str:
    """Return the URL of a listening socket.

    >>> with open_socket("127.0.0.1", 0) as listening:
    ...     address(listening).rpartition(":")[0]
    'http://127.0.0.1'
    """
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: ASGIApp, *, patience: float) -> uvicorn.Server:
    """Return a server; ended, it answers what it took in, for ``patience`` seconds at most."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=2048,
        h11_max_incomplete_event_size=32 << 10,  # of a request's head
        timeout_graceful_shutdown=int(patience) + 1,
    )
    return uvicorn.Server(config)


def serve(
    app: ASGIApp, listening: socket.socket, *, patience: float, ready: Callable[[], None]
) -> None:
    """Serve until SIGINT or SIGTERM; then refuse what is new, answer what was accepted, return."""
    server = make_server(app, patience=patience)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            # The server raises the signal again when it is done: by then it was obeyed.
            signal.signal(number, lambda number, frame: None)
    ready()
    server.run(sockets=[listening])
