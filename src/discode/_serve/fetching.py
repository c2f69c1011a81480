"""Fetch images by URL for callers we do not trust: only from public addresses.

A name is resolved once, every address it has must be public, and the connection goes to a checked
address, not to the name again. Each redirect is checked like the first URL. Proxies of the
environment are not used.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

import h11

from discode._serve.limits import too_large
from discode._version import __version__
from discode.errors import HttpError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str, int], list[str]]
_tls = cache(ssl.create_default_context)
REDIRECTS = 3
_log = logging.getLogger("discode.web")

# Special ranges that some Pythons call global.
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(text)
    for text in ("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15",
                 "64:ff9b:1::/48", "fec0::/10", "3fff::/20", "5f00::/16")
)  # fmt: skip
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_public(text: str) -> bool:
    """Return whether an address is on the open internet.

    IPv4 inside IPv6 (mapped, 6to4, Teredo, NAT64) counts as what it leads to.

    >>> is_public("93.184.215.14"), is_public("169.254.169.254"), is_public("::ffff:127.0.0.1")
    (True, False, False)
    """
    address: Address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if any(part is not None and not is_public(str(part)) for part in inner):
            return False
        if address.ipv4_mapped is not None:
            return True
    return address.is_global and not (
        address.is_multicast
        or address.is_reserved
        or any(address in network for network in _NOT_PUBLIC)
    )


def resolve_host(host: str, port: int) -> list[str]:
    """Return the addresses of a host; a number in any spelling is resolved like a name."""
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


async def fetch_image(
    url: str,
    *,
    limit: int,
    seconds: float,
    resolve: Resolver = resolve_host,
    public: Callable[[str], bool] = is_public,
) -> bytes:
    """Return the body at an http or https URL, or raise :class:`~discode.errors.HttpError`.

    Args:
        url: Where the image is.
        limit: The most bytes it may have.
        seconds: For everything together, redirects included.
        resolve: Turns a name into addresses.
        public: Which addresses may be connected to.
    """

    async def follow(url: str) -> bytes:
        for _ in range(REDIRECTS + 1):
            async with _connect(url, resolve, public) as events:
                response = await anext(events)
                if not 300 <= response.status_code < 400:
                    return await _body(response, events, limit)
            try:
                url = urljoin(url, dict(response.headers)[b"location"].decode("latin-1"))
            except (KeyError, ValueError):  # ValueError: half an IPv6 address
                raise _refused("it redirects to something that is not a URL") from None
        raise _refused(f"more than {REDIRECTS} redirects")

    try:
        return await asyncio.wait_for(follow(url), seconds)
    except (OSError, asyncio.TimeoutError, h11.RemoteProtocolError) as error:
        raise _unreachable(url, f"the connection failed: {error!r}") from error


def _parts(url: str) -> tuple[SplitResult, str, int]:
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode() if parts.hostname else ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:  # also UnicodeError: a label too long
        raise _refused("it is not a URL") from None
    if parts.scheme not in ("http", "https") or not host:
        raise _refused("only http:// and https:// are fetched")
    if parts.username is not None or parts.password is not None:
        raise _refused("it contains a user name; remove it")
    if any(ord(letter) <= 32 or ord(letter) > 126 for letter in parts.path + parts.query):
        raise _refused("escape its non-ASCII characters")
    return parts, host, port


@asynccontextmanager
async def _connect(
    url: str, resolve: Resolver, public: Callable[[str], bool]
) -> AsyncIterator[AsyncIterator[Any]]:
    """Request a URL, and yield the response's head, then its data."""
    parts, host, port = _parts(url)
    try:
        addresses = await asyncio.get_running_loop().run_in_executor(None, resolve, host, port)
    except (OSError, ValueError):  # ValueError: not a name that can be looked up
        raise _unreachable(url, "its host has no address") from None
    if not addresses or not all(public(address) for address in addresses):
        raise _unreachable(url, f"its host is not on the open internet: {', '.join(addresses)}")
    secure = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        addresses[0],
        port,
        ssl=_tls() if secure else None,
        server_hostname=host if secure else None,
    )
    name = f"[{host}]" if ":" in host else host
    headers = {
        "Host": name if port == (443 if secure else 80) else f"{name}:{port}",
        "Accept": "image/*",
        "Accept-Encoding": "identity",  # nothing is decompressed, so nothing can explode
        "User-Agent": f"discode/{__version__}",
        "Connection": "close",
    }
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    protocol = h11.Connection(h11.CLIENT)

    async def events() -> AsyncIterator[Any]:
        while not isinstance(event := protocol.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                protocol.receive_data(await reader.read(65536))
            elif not isinstance(event, h11.InformationalResponse):
                yield event

    try:
        question = h11.Request(method="GET", target=target, headers=[*headers.items()])
        writer.write(protocol.send(question) or b"")
        yield events()
    finally:
        writer.transport.abort()


async def _body(response: h11.Response, events: AsyncIterator[Any], limit: int) -> bytes:
    headers = dict(response.headers)
    if response.status_code != 200:
        raise _refused(f"the server there answered {response.status_code}")
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise _refused("the server there compresses what it sends")
    if int(headers.get(b"content-length", 0)) > limit:  # h11 takes no other than a number
        raise too_large(limit)
    body = bytearray()
    async for event in events:
        body += event.data
        if len(body) > limit:
            raise too_large(limit)
    return bytes(body)


def _unreachable(url: str, why: str) -> HttpError:
    """Return one answer for every failure before a public server replies; the log has the details.

    A caller who could distinguish an unknown name from an internal one, or a closed port from an
    open one, could scan our network through this service.
    """
    _log.warning("%.300r was not fetched: %s", url, why)
    return _refused("nothing could be fetched from there")


def _refused(why: str) -> HttpError:
    return HttpError(422, "bad_url", f"the image's URL cannot be used: {why}")
