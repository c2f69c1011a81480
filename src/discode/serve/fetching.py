"""Fetch images by URL for callers we do not trust: only from public addresses.

A name is resolved once, every address it has must be public, and the connection goes to a checked
address, not to the name again. Each redirect is checked like the first URL. Proxies of the
environment are not used.
"""

from __future__ import annotations

import http.client
import ipaddress
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import SplitResult, urljoin, urlsplit

from discode.errors import HttpError
from discode.serve.limits import parse_content_length, too_large
from discode.version import __version__

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str, int], list[str]]
REDIRECTS = 3
_log = logging.getLogger("discode.web")
_MOVED = (301, 302, 303, 307, 308)

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
        if any(one is not None and not is_public(str(one)) for one in inner):
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
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def fetch_image(
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
    end = time.monotonic() + seconds
    for _ in range(REDIRECTS + 1):
        with _open(url, end, resolve, public) as response:
            if response.status not in _MOVED:
                return _body(response, limit, end)
            target = response.getheader("location")
            if not target:
                raise _refused("it redirects without saying where to")
            try:
                url = urljoin(url, target)
            except ValueError:  # half an IPv6 address
                raise _refused("it redirects to something that is not a URL") from None
    raise _refused(f"more than {REDIRECTS} redirects")


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
        raise _refused("it holds a user name; leave it out")
    if any(ord(letter) <= 32 or ord(letter) > 126 for letter in parts.path + parts.query):
        raise _refused("escape what is not plain ASCII in it")
    return parts, host, port


@contextmanager
def _open(
    url: str, end: float, resolve: Resolver, public: Callable[[str], bool]
) -> Iterator[http.client.HTTPResponse]:
    parts, host, port = _parts(url)
    try:
        addresses = resolve(host, port)
    except (OSError, ValueError):  # ValueError: not a name that can be looked up
        raise _unreachable(url, "its host has no address") from None
    if not addresses or not all(public(address) for address in addresses):
        raise _unreachable(url, f"its host is not on the open internet: {', '.join(addresses)}")
    sockets: list[socket.socket] = []  # the connection, then the encrypted one around it
    response: http.client.HTTPResponse | None = None
    connection = http.client.HTTPConnection(host, port)
    # A server that sends one byte per second outlasts the socket's timeout, but not this timer.
    timer = threading.Timer(max(0.0, end - time.monotonic()), _shut_down, [sockets])
    timer.daemon = True
    try:
        sockets.append(socket.create_connection((addresses[0], port), timeout=_left(end)))
        timer.start()
        if parts.scheme == "https":
            context = ssl.create_default_context()
            secure = context.wrap_socket(
                sockets[0], server_hostname=host, do_handshake_on_connect=False
            )
            sockets[0] = secure
            secure.do_handshake()
        connection.sock = sockets[0]
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        default = 443 if parts.scheme == "https" else 80
        name = f"[{host}]" if ":" in host else host
        headers = {
            "Host": name if port == default else f"{name}:{port}",
            "Accept": "image/*",
            "Accept-Encoding": "identity",  # nothing is decompressed, so nothing can explode
            "User-Agent": f"discode/{__version__}",
            "Connection": "close",
        }
        connection.request("GET", target, headers=headers)
        response = connection.getresponse()
        yield response
    except (OSError, http.client.HTTPException) as error:
        why = "it took too long" if time.monotonic() >= end else f"the connection failed: {error}"
        raise _unreachable(url, why) from error
    finally:
        timer.cancel()
        if response is not None:
            response.close()
        connection.close()
        for opened in sockets:
            opened.close()


def _body(response: http.client.HTTPResponse, limit: int, end: float) -> bytes:
    if response.status != 200:
        raise _refused(f"the server there answered {response.status}")
    if response.getheader("content-encoding", "identity") != "identity":
        raise _refused("the server there compresses what it sends")
    given = response.getheader("content-length")
    length = None if given is None else parse_content_length(given)
    if given is not None and length is None:
        raise _refused("the server there sends an impossible length")
    if length is not None and length > limit:
        raise too_large(limit)
    body = bytearray()
    while chunk := response.read1(65536):
        body += chunk
        if len(body) > limit:
            raise too_large(limit)
        _left(end)
    if length is not None and len(body) != length:
        raise ConnectionError(f"{len(body)} of {length} bytes came")
    return bytes(body)


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _shut_down(sockets: list[socket.socket]) -> None:
    with suppress(OSError):  # closed already
        # The plain socket's method: that of an encrypted one is not for another thread.
        socket.socket.shutdown(sockets[0], socket.SHUT_RDWR)


def _unreachable(url: str, why: str) -> HttpError:
    """Return one answer for all that happens before a public server replies; the log says which.

    Whoever could tell a name that does not resolve from one that leads inside, or a closed port
    from an open one, would see our network through this service.
    """
    _log.warning("%.300r was not fetched: %s", url, why)
    return _refused("nothing could be fetched from there")


def _refused(why: str) -> HttpError:
    return HttpError(422, "bad_url", f"the image's URL cannot be used: {why}")
