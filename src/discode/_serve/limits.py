"""Limits of the service: sizes of requests, requests at once, and the callers' token."""

from __future__ import annotations

import hmac
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fastapi import Request

from discode.errors import HttpError, InputError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one request, and of all requests together.

    Attributes:
        body: Bytes in a request's body, and in an image fetched by URL.
        captions: Captions per request; with their variants, where words are asked for.
        references: References per request.
        characters: Characters per caption or reference.
        requests: Requests worked on at once; further ones get 503.
        held: Bytes of their bodies together.
        seconds: To send the body (else 408), and from then to the answer (else 504).
    """

    body: int = 20 << 20
    captions: int = 256
    references: int = 64
    characters: int = 4000
    requests: int = 512
    held: int = 1 << 30
    seconds: float = 60.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise InputError(f"{name}={value} is not allowed; give a number above 0")


class LoadLimiter:
    """Counts requests in progress and the bytes they hold; refuses those over the limits.

    >>> limiter = LoadLimiter(Limits(requests=1))
    >>> with limiter.admit():
    ...     with limiter.admit():
    ...         pass
    Traceback (most recent call last):
        ...
    discode.errors.HttpError: 1 requests are already in progress; try again
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.requests = 0
        self.held = 0

    @contextmanager
    def admit(self) -> Iterator[HeldBytes]:
        """Count a request, and the bytes it holds, until the block ends."""
        if self.requests >= self.limits.requests:
            raise _busy(f"{self.requests} requests are already in progress")
        self.requests += 1
        held = HeldBytes(self)
        try:
            yield held
        finally:
            self.requests -= 1
            self.held -= held.count


class HeldBytes:
    """The bytes that one request holds in memory."""

    def __init__(self, limiter: LoadLimiter) -> None:
        self.limiter = limiter
        self.count = 0

    def add(self, count: int) -> None:
        """Hold more bytes, or refuse: 413 if this request is too large, 503 if all together are."""
        limits = self.limiter.limits
        if self.count + count > limits.body:
            raise too_large(limits.body)
        if self.limiter.held + count > limits.held:
            raise _busy("the images in progress use all memory reserved for them")
        self.count += count
        self.limiter.held += count

    async def read(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield the body in chunks, or refuse it as soon as it is too long."""
        limit = self.limiter.limits.body
        length = parse_content_length(request.headers.get("content-length", "0"))
        if length is None or length > limit:
            raise too_large(limit)
        async for chunk in request.stream():
            self.add(len(chunk))
            yield chunk


def too_large(limit: int) -> HttpError:
    return HttpError(413, "too_large", f"the request is over {limit} bytes; send a smaller image")


def _busy(why: str) -> HttpError:
    return HttpError(503, "busy", f"{why}; try again", {"retry-after": "1"})


def check_token(header: str | None, token: str | None) -> None:
    """Raise unless the ``Authorization`` header carries the token, where one is required.

    >>> check_token("Bearer secret", "secret")
    >>> check_token("Bearer guess", "secret")
    Traceback (most recent call last):
        ...
    discode.errors.HttpError: a token is needed: send the header Authorization: Bearer TOKEN
    """
    if token is None:
        return
    scheme, _, given = (header or "").partition(" ")
    # Headers are Latin-1 to the server, whatever the client meant. Compared in constant time.
    same = hmac.compare_digest(given.strip().encode("latin-1", "replace"), token.encode())
    if scheme.lower() != "bearer" or not same:
        raise HttpError(
            401,
            "unauthorized",
            "a token is needed: send the header Authorization: Bearer TOKEN",
            {"www-authenticate": 'Bearer realm="discode"'},
        )


def parse_content_length(text: str) -> int | None:
    """Return the number of bytes that a Content-Length names; None where it is not a length.

    >>> parse_content_length("17"), parse_content_length("²"), parse_content_length("9" * 5000)
    (17, None, None)
    """
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None
