"""HTTP connections: one deadline for the whole exchange, no compression, the key never shown."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from discode.errors import BackendError
from discode.files import parse_json

HIDDEN = "***"
"""Replaces the key where a server repeats it."""
_SECRET = 4  # characters: "x", for servers that want any key, is not a secret
_MAX_BYTES = 16 << 20  # of an answer
_CONNECT_SECONDS = 10.0  # a server that is there accepts a connection at once
_LOGGERS = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy")


def hide_key(text: str, key: str) -> str:
    """Return a text with the key replaced, also in the forms that ``repr`` and JSON give it.

    >>> hide_key("quota used up for sk-secret", "sk-secret")
    'quota used up for ***'
    """
    if len(key) < _SECRET:
        return text
    for form in (key, repr(key)[1:-1], key.replace("/", "\\/")):
        text = text.replace(form, HIDDEN)
    return text


def parse_without_key(data: bytes, key: str) -> Any:
    """Return the JSON in ``data`` with the key hidden in every string, however it was escaped."""
    parsed = parse_json(data.decode(), "it")
    if len(key) < _SECRET or json.dumps(key)[1:-1] not in json.dumps(parsed):
        return parsed
    return _hide_in(parsed, key)


def _hide_in(parsed: Any, key: str) -> Any:
    if isinstance(parsed, str):
        return hide_key(parsed, key)
    if isinstance(parsed, list):
        return [_hide_in(part, key) for part in parsed]
    if isinstance(parsed, dict):
        return {name: _hide_in(part, key) for name, part in parsed.items()}
    return parsed


class _KeyFilter(logging.Filter):
    """Hides keys in what httpx logs: a server may put one into its status message."""

    def __init__(self) -> None:
        super().__init__()
        self.variables: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        original = text = record.getMessage()
        for variable in tuple(self.variables):
            text = hide_key(text, os.environ.get(variable, "").strip())
        if text != original:
            record.msg, record.args = text, ()
        return True


_key_filter = _KeyFilter()


def keep_out_of_logs(variable: str) -> None:
    """Hide the value of an environment variable in the logs of httpx."""
    _key_filter.variables.add(variable)
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_key_filter)  # added twice, it is kept once


class _Connection:
    """An httpx client with one connection, which another thread can cut."""

    def __init__(self, client: httpx.Client) -> None:
        self.client, self.late = client, False
        self._socket: socket.socket | None = None
        self._received = False  # anything since the last request was sent

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Remember the socket when httpx has opened one, and refuse an answer to nothing.

        Where a server sends two answers to a request, the second was here before the next request
        was sent, and would be taken for its answer.
        """
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            stream = info["return_value"]
            self._socket = stream.get_extra_info("socket")
            stream.read = functools.partial(self._read, stream.read)
            if self.late:
                self.cut()
        elif event.endswith("receive_response_headers.started"):
            self._received = False
        elif event.endswith("receive_response_headers.complete") and not self._received:
            raise httpx.RemoteProtocolError("it sent more than one answer to a request")

    def _read(self, read: Callable[..., bytes], *args: Any, **options: Any) -> bytes:
        self._received = True
        return read(*args, **options)

    def cut(self) -> None:
        """Shut the socket down, which ends whatever waits for it."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Not the method of an SSL socket: it would drop state that the reader still uses.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class ConnectionPool:
    """Connections, one per httpx client: its own pool looks through all of them at each request.

    The timeout of httpx starts anew with each piece, so a thread watches the whole exchange.

    Attributes:
        reached: Whether a server has ever answered.
        told: Whether users were told that it does not; an answer makes this False again.
    """

    def __init__(self, timeout: float) -> None:
        self.reached = self.told = False
        self._timeout, self._ssl = timeout, httpx.create_ssl_context()
        self._idle: list[_Connection] = []
        self._deadlines: dict[_Connection, float] = {}  # earliest first: all have the same timeout
        self._changed = threading.Condition()
        self._watched = self._closed = False

    def post(
        self, url: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, httpx.Headers, bytes]:
        """Send a POST request; return status, headers and body, or raise what httpx raises."""
        parts, size = [], 0
        with self._borrow() as connection:
            try:
                with connection.client.stream(
                    "POST", url, content=body,
                    headers={**headers, "Accept-Encoding": "identity"},
                    extensions={"trace": connection.trace},
                ) as response:  # fmt: skip
                    self.reached = True
                    if response.status_code == 200:
                        self.told = False
                    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
                    if encoding not in ("", "identity"):
                        if response.status_code == 200:
                            raise BackendError(
                                "the answer is compressed, though we asked for plain"
                            )
                        return response.status_code, response.headers, b""
                    for part in response.iter_raw():
                        parts.append(part)
                        size += len(part)
                        if size > _MAX_BYTES:
                            raise BackendError(f"the answer is over {_MAX_BYTES >> 20} MiB")
            except httpx.HTTPError:
                if not connection.late:
                    raise
            if connection.late:  # also where the cut looked like the end of the answer
                raise httpx.ReadTimeout("too slow")
        return response.status_code, response.headers, b"".join(parts)

    @contextmanager
    def _borrow(self) -> Iterator[_Connection]:
        """Lend the connection that was used last, or a new one, and watch its deadline."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connect = min(self._timeout, _CONNECT_SECONDS)
            timeout = httpx.Timeout(self._timeout, connect=connect)
            connection = _Connection(
                httpx.Client(timeout=timeout, verify=self._ssl, follow_redirects=False)
            )
        with self._changed:
            connection.late = False
            self._deadlines[connection] = time.monotonic() + self._timeout
            if not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, daemon=True).start()
            if len(self._deadlines) == 1:
                self._changed.notify()
        try:
            yield connection
        finally:
            with self._changed:
                self._deadlines.pop(connection, None)
            self._idle.append(connection)

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                if not self._deadlines:
                    self._changed.wait()
                    continue
                connection, end = next(iter(self._deadlines.items()))
                left = end - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                del self._deadlines[connection]
                connection.late = True
                connection.cut()

    def close(self) -> None:
        """Close the connections that are not lent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        while self._idle:
            self._idle.pop().client.close()
