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
"""Maximum time to send the head of a request."""


class _Connection(H11Protocol):
    """Closes connections that send no complete request head within :data:`HEAD_SECONDS`.

    Malformed requests never reach the application; their responses get the security headers here.
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
            self._cancel_timer()  # the application limits the time of the body
        elif self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def open_socket(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 takes a free one."""
    if not 0 <= port <= 65535:
        raise InputError(f"port {port} is not allowed; give one from 0 to 65535")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"cannot listen on {host}:{port}: {why}; try another --port") from None
    # Connections inherit it. Head and body of a response are sent separately; Nagle's algorithm
    # would delay the body until the client confirms the head, by 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def url_of(listening: socket.socket) -> str:
    """URL of a listening socket.

    >>> with open_socket("127.0.0.1", 0) as listening:
    ...     url_of(listening).rpartition(":")[0]
    'http://127.0.0.1'
    """
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: ASGIApp, *, grace_seconds: float) -> uvicorn.Server:
    """Make a server that has ``grace_seconds`` to answer accepted requests when it stops."""
    # It warns about every malformed form, which would let strangers fill the log.
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
        h11_max_incomplete_event_size=32 << 10,  # head of a request
        timeout_graceful_shutdown=int(grace_seconds) + 1,
    )
    return uvicorn.Server(config)


def serve_until_signal(app: ASGIApp, listening: socket.socket, *, grace_seconds: float) -> None:
    """Serve until SIGINT or SIGTERM; then refuse new requests and finish accepted ones."""
    server = make_server(app, grace_seconds=grace_seconds)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            # The server raises the signal again at its end, where it must have no effect.
            signal.signal(number, lambda number, frame: None)
    server.run(sockets=[listening])
