"""What stands before every route: foreign hosts and pages are turned away, headers put on."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from fastapi import Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from discode.errors import HttpError
from discode.http.limits import check_host

Refusal = Callable[[Request, Exception], Awaitable[Response]]
"""How a service words a refusal."""

_log = logging.getLogger("discode.web")


class Guard:
    """Turns away foreign hosts and pages, and puts the headers on every answer, errors too."""

    def __init__(
        self,
        app: ASGIApp,
        hosts: tuple[str, ...] | None,
        headers: Mapping[str, str],
        refusal: Refusal,
    ) -> None:
        self.app = app
        self.hosts = hosts
        self.headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self.refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or turn away."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        begun = False

        async def headed(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] += [item for item in self.headers if item[0] not in given]
                if message["status"] >= 400:  # what is left of a refused body is not read
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        request = Request(scope)
        try:
            check_host(request.headers.get("host"), request.headers.get("origin"), self.hosts)
            await self.app(scope, receive, headed)
        except Exception as error:
            if begun:  # half an answer cannot be taken back
                raise
            if not isinstance(error, HttpError):
                _log.exception("a request failed")
                error = HttpError(500, "failed", "the server failed on this; its log says why")
            await (await self.refusal(request, error))(scope, receive, headed)
