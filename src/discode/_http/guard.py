"""Middleware that refuses foreign hosts and pages and adds security headers."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from urllib.parse import urlsplit

from fastapi import Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from discode.errors import HttpError

LOOPBACK = ("localhost", "127.0.0.1", "::1")

SECURITY_HEADERS = {
    # Only our own files, images that a person chose, and our own API.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Sent with every response."""

ErrorHandler = Callable[[Request, Exception], Awaitable[Response]]
"""Makes an application's response to a failed request."""

_log = logging.getLogger("discode.web")
_access = logging.getLogger("discode.access")


class Guard:
    """Refuses foreign hosts and pages, and adds headers to every response, including errors.

    Each request is logged to ``discode.access``, at level INFO.

    Args:
        app: The application behind it.
        hosts: The host names that the server accepts, or None for any.
        headers: Added to responses that do not set them.
        on_error: Makes the response if the application raised.
        origin: The public origin of our pages ("https://NAME") behind a proxy, which may change the
            host name of requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: tuple[str, ...] | None,
        headers: Mapping[str, str],
        on_error: ErrorHandler,
        origin: str | None = None,
    ) -> None:
        self.app = app
        self.hosts = hosts
        self.headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self.on_error = on_error
        self.origin = origin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        started, status, begin = False, 499, time.monotonic()  # 499: the client hung up

        async def send_with_headers(message: Message) -> None:
            nonlocal started, status
            started = True
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name for name, _ in message["headers"]}
                message["headers"] += [item for item in self.headers if item[0] not in present]
                if message["status"] >= 400:  # the rest of a refused request is not read
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        request = Request(scope)
        try:
            origin = request.headers.get("origin")
            if origin is not None and origin == self.origin:
                origin = None  # our own page, by its public origin
            check_host(request.headers.get("host"), origin, self.hosts)
            await self.app(scope, receive, send_with_headers)
        except Exception as error:
            if started:  # a partly sent response cannot be replaced
                raise
            if not isinstance(error, HttpError):
                _log.exception("a request failed")
                error = HttpError(500, "failed", "the request failed on the server; see its log")
            await (await self.on_error(request, error))(scope, receive, send_with_headers)
        finally:
            client = (scope.get("client") or ("-",))[0]
            path = scope.get("raw_path", b"").decode("latin-1")  # escaped as it was sent
            seconds = time.monotonic() - begin
            _access.info("%s %s %r %d %.3fs", client, scope["method"], path, status, seconds)


def allowed_hosts(host: str, names: Iterable[str]) -> tuple[str, ...] | None:
    """Names that a server listening on ``host`` answers to, or None for any.

    ``names`` are allowed in addition to the loopback names. On loopback there is always a list.

    >>> allowed_hosts("127.0.0.1", ["Judge.example"])
    ('localhost', '127.0.0.1', '::1', 'judge.example')
    >>> allowed_hosts("0.0.0.0", []) is None
    True
    """
    further = sorted({name.lower() for name in names})
    return (*LOOPBACK, *further) if host in LOOPBACK or further else None


def check_host(host: str | None, origin: str | None, allowed: tuple[str, ...] | None) -> None:
    """Refuse requests from pages of other sites: by their origin, or by their host name.

    ``allowed`` are the host names of this server, or None for any. A server on loopback accepts
    only its own names, which prevents DNS rebinding.

    >>> check_host("127.0.0.1:8000", "http://127.0.0.1:8000", LOOPBACK)
    >>> check_host("evil.example", None, LOOPBACK)
    Traceback (most recent call last):
        ...
    discode.errors.HttpError: the host name 'evil.example' is not allowed; see --allow-host
    """
    name = _host_name(host or "")
    if (host and name is None) or (allowed is not None and name not in allowed):
        shown = (host or "")[:80] if name is None else name
        raise HttpError(
            421, "wrong_host", f"the host name {shown!r} is not allowed; see --allow-host"
        )
    if origin is not None and _netloc(origin) != (host or "").lower():
        raise HttpError(403, "foreign_page", "requests from pages of other sites are not allowed")


def _host_name(host: str) -> str | None:
    """The name in a Host header without its port; None if the header is malformed."""
    match = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([\w.-]*))(?::\d{0,5})?", host.lower(), re.ASCII)
    return None if match is None else match[1] or match[2]


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # a malformed IPv6 address
        return None
