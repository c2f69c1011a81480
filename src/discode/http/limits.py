"""What a service takes and what it turns away: sizes, a full house, tokens, foreign pages."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from urllib.parse import urlsplit

from discode.errors import HttpError, InputError

LOOPBACK = ("localhost", "127.0.0.1", "::1")

HEADERS = {
    # Nothing but our own files, pictures a person chose, and our own API.
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
"""Sent with every answer."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much one request, and all of them together, may want.

    Attributes:
        body: Bytes of a request's body, and of a picture fetched by URL.
        captions: Captions a request.
        references: References a request.
        characters: Characters a caption or reference.
        requests: Requests taken in at once; further ones get 503.
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
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                value = getattr(self, field.name)
                raise InputError(f"{field.name}={value} is not allowed; give a number above 0")


class Gate:
    """Counts the requests taken in and the bytes they hold; refuses what is over the limits.

    >>> gate = Gate(Limits(requests=1))
    >>> with gate.enter():
    ...     with gate.enter():
    ...         pass
    Traceback (most recent call last):
        ...
    discode.errors.HttpError: 1 requests are being worked on already; try again
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.requests = 0
        self.held = 0

    @contextmanager
    def enter(self) -> Iterator[Held]:
        """Take a request in until the block ends, and with it the bytes it held."""
        if self.requests >= self.limits.requests:
            raise _busy(f"{self.requests} requests are being worked on already")
        self.requests += 1
        held = Held(self)
        try:
            yield held
        finally:
            self.requests -= 1
            self.held -= held.bytes


class Held:
    """The bytes one request holds."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.bytes = 0

    def add(self, count: int) -> None:
        """Hold some more, or refuse: 413 where it is this request, 503 where it is all of them."""
        limits = self.gate.limits
        if self.bytes + count > limits.body:
            raise too_large(limits.body)
        if self.gate.held + count > limits.held:
            raise _busy("the pictures being worked on fill the memory set aside for them")
        self.bytes += count
        self.gate.held += count


def too_large(limit: int) -> HttpError:
    """Return the refusal of a body that is too long."""
    return HttpError(413, "too_large", f"the request is over {limit} bytes; send a smaller picture")


def _busy(why: str) -> HttpError:
    return HttpError(503, "busy", f"{why}; try again", {"retry-after": "1"})


def check_token(header: str | None, token: str | None) -> None:
    """Raise unless the ``Authorization`` header carries the token, where one is wanted.

    >>> check_token("Bearer secret", "secret")
    >>> check_token("Bearer guess", "secret")
    Traceback (most recent call last):
        ...
    discode.errors.HttpError: a token is needed: send the header Authorization: Bearer TOKEN
    """
    if token is None:
        return
    scheme, _, given = (header or "").partition(" ")
    # Headers are Latin-1 to the server, whatever the client meant; the time tells nothing.
    same = hmac.compare_digest(given.strip().encode("latin-1", "replace"), token.encode())
    if scheme.lower() != "bearer" or not same:
        raise HttpError(
            401,
            "unauthorized",
            "a token is needed: send the header Authorization: Bearer TOKEN",
            {"www-authenticate": 'Bearer realm="discode"'},
        )


def check_host(host: str | None, origin: str | None, allowed: tuple[str, ...] | None) -> None:
    """Raise where a page of another site asks: by its origin, or by a name that points here.

    ``allowed`` are the names this server answers to, or None for any. A server on loopback
    answers to its own names only, so that no site can reach it by a name of its own
    (DNS rebinding).

    >>> check_host("127.0.0.1:8000", "http://127.0.0.1:8000", LOOPBACK)
    >>> check_host("evil.example", None, LOOPBACK)
    Traceback (most recent call last):
        ...
    discode.errors.HttpError: this server does not answer to 'evil.example'; see --allow-host
    """
    name = _host_name(host or "")
    if (host and name is None) or (allowed is not None and name not in allowed):
        shown = (host or "")[:80] if name is None else name
        raise HttpError(
            421, "wrong_host", f"this server does not answer to {shown!r}; see --allow-host"
        )
    if origin is not None and _site(origin) != (host or "").lower():
        raise HttpError(403, "foreign_page", "pages of other sites may not ask this server")


def _host_name(host: str) -> str | None:
    """Return the name of a Host header without its port; None where it is no such header."""
    match = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([\w.-]*))(?::\d{0,5})?", host.lower(), re.ASCII)
    return None if match is None else match[1] or match[2]


def _site(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # half an IPv6 address
        return None


def read_length(text: str) -> int | None:
    """Return what a Content-Length says; None where it is no length that anything could have.

    >>> read_length("17"), read_length("²"), read_length("9" * 5000)
    (17, None, None)
    """
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None
