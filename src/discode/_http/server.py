"""Serve an ASGI application on a socket until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from discode._http.guard import SECURITY_HEADERS
from discode.errors import InputError

HEAD_SECONDS = 15.0
"""How long a connection may take to send a request's head."""


class _Connection(H11Protocol):
    """Closes connections that send no complete request head within :data:`HEAD_SECONDS`.

    What is not HTTP never reaches the application: its answer gets the security headers here.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel_timer()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read as a request."""
        headers = SECURITY_HEADERS | {
            "content-type": "text/plain; charset=utf-8",
            "content-length": str(len(msg)),
            "connection": "close",
        }
        for event in (
            h11.Response(status_code=400, headers=[*headers.items()], reason=b"Bad Request"),
            h11.Data(data=msg.encode("ascii")),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _update_timer(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel_timer()  # the head is here; the application limits the body's time
        elif self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket, or say in a line why there is none; port 0 takes a free one."""
    if not 0 <= port <= 65535:
        raise InputError(f"cannot listen on port {port}; give one from 0 to 65535")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"cannot listen on {host}:{port}: {why}; give another --port") from None
    # Connections inherit it. An answer goes out as head and body: Nagle's algorithm would hold
    # the body back until the client confirms the head, 40 ms later.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def url_of(listening: socket.socket) -> str:
    """Return the URL of a listening socket.

    >>> with open_socket("127.0.0.1", 0) as listening:
    ...     url_of(listening).rpartition(":")[0]
    'http://127.0.0.1'
    """
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: ASGIApp, *, grace_seconds: float) -> uvicorn.Server:
    """Return a server that, once ended, has ``grace_seconds`` to answer what it accepted."""
    # It warns of every malformed form. The sender is told; strangers must not fill the log.
    logging.getLogger("python_multipart").setLevel("ERROR")
    config = uvicorn.Config(
        app,
        http=_Connection,
        ws="none",
        lifespan="on",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=2048,
        h11_max_incomplete_event_size=32 << 10,  # of a request's head
        timeout_graceful_shutdown=int(grace_seconds) + 1,
    )
    return uvicorn.Server(config)


def serve_until_signal(app: ASGIApp, listening: socket.socket, *, grace_seconds: float) -> None:
    """Serve until SIGINT or SIGTERM; then refuse new requests, answer those accepted, return."""
    server = make_server(app, grace_seconds=grace_seconds)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            # The server raises the signal again when it is done: by then it was obeyed.
            signal.signal(number, lambda number, frame: None)
    server.run(sockets=[listening])
