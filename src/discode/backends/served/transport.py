"""Connections to servers: an exchange ends in time, is not packed, and the key stays out of it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from discode.errors import BackendError

HIDDEN = "***"
"""Stands where a server repeated the key."""
_SECRET = 4  # characters: "x", for servers that want any key, is no secret
_MOST = 16 << 20  # bytes of an answer
_LOGGERS = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy")


def hide(text: str, key: str) -> str:
    """Return a text without the key, also as ``repr`` and JSON write it.

    >>> hide("no more for sk-secret", "sk-secret")
    'no more for ***'
    """
    if len(key) < _SECRET:
        return text
    for spelled in (key, repr(key)[1:-1], key.replace("/", "\\/")):
        text = text.replace(spelled, HIDDEN)
    return text


def parse(data: bytes, key: str) -> Any:
    """Return the JSON in ``data`` with the key hidden in every text; escapes do not show it."""
    found = json.loads(data)
    if len(key) < _SECRET or json.dumps(key)[1:-1] not in json.dumps(found):
        return found
    return _without(found, key)


def _without(found: Any, key: str) -> Any:
    if isinstance(found, str):
        return hide(found, key)
    if isinstance(found, list):
        return [_without(part, key) for part in found]
    if isinstance(found, dict):
        return {name: _without(part, key) for name, part in found.items()}
    return found


class _Discreet(logging.Filter):
    """Hides keys in what httpx logs: a server may write one behind its status."""

    def __init__(self) -> None:
        super().__init__()
        self.variables: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        said = text = record.getMessage()
        for variable in tuple(self.variables):
            text = hide(text, os.environ.get(variable, "").strip())
        if text != said:
            record.msg, record.args = text, ()
        return True


_discreet = _Discreet()


def keep_out_of_logs(variable: str) -> None:
    """Hide what an environment variable holds in the logs of httpx."""
    _discreet.variables.add(variable)
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_discreet)  # once, however often it is added


class _Line:
    """A client with one connection, which can be cut from another thread."""

    def __init__(self, client: httpx.Client) -> None:
        self.client, self.late = client, False
        self._socket: socket.socket | None = None

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Note the socket when httpx has opened one."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
            if self.late:
                self.cut()

    def cut(self) -> None:
        """End whatever waits for the connection."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Not an SSL socket's own, which takes its state away from who reads.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class Lines:
    """Connections, one a client: httpx's own pool looks through all of them at every request.

    httpx counts its timeout from one piece to the next, so a thread watches the whole exchange.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout, self._trust = timeout, httpx.create_ssl_context()
        self._idle: list[_Line] = []
        self._due: dict[_Line, float] = {}  # in order of time, since all have the same
        self._changed = threading.Condition()
        self._watched = self._closed = False

    def exchange(
        self, url: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, httpx.Headers, bytes]:
        """Post; return status, headers and body, or raise what httpx raises."""
        parts, size = [], 0
        with self._one() as line:
            try:
                with line.client.stream(
                    "POST", url, content=body,
                    headers={**headers, "Accept-Encoding": "identity"},
                    extensions={"trace": line.trace},
                ) as response:  # fmt: skip
                    packed = response.headers.get("Content-Encoding", "identity").strip().lower()
                    if packed not in ("", "identity"):
                        if response.status_code == 200:
                            raise BackendError("the answer is packed, though it was to be plain")
                        return response.status_code, response.headers, b""
                    for part in response.iter_raw():
                        parts.append(part)
                        size += len(part)
                        if size > _MOST:
                            raise BackendError(f"the answer is over {_MOST >> 20} MiB")
            except httpx.HTTPError:
                if not line.late:
                    raise
            if line.late:  # also where the end came as if the answer were whole
                raise httpx.ReadTimeout("too slow")
        return response.status_code, response.headers, b"".join(parts)

    @contextmanager
    def _one(self) -> Iterator[_Line]:
        """Lend the connection that was used last, or a new one, until its time is over."""
        try:
            line = self._idle.pop()
        except IndexError:
            line = _Line(
                httpx.Client(timeout=self._timeout, verify=self._trust, follow_redirects=False)
            )
        with self._changed:
            line.late = False
            self._due[line] = time.monotonic() + self._timeout
            if not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, daemon=True).start()
            if len(self._due) == 1:
                self._changed.notify()
        try:
            yield line
        finally:
            with self._changed:
                self._due.pop(line, None)
            self._idle.append(line)

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                if not self._due:
                    self._changed.wait()
                    continue
                line, end = next(iter(self._due.items()))
                left = end - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                del self._due[line]
                line.late = True
                line.cut()

    def close(self) -> None:
        """Close what is not lent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        while self._idle:
            self._idle.pop().client.close()
