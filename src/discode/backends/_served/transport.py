"""HTTP in one event loop: a deadline for the whole exchange, no compression, the key hidden.

The loop runs in a background thread, so that callers stay synchronous.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import httpx

from discode._files import parse_json
from discode.errors import BackendError

T = TypeVar("T")

HIDDEN = "***"
"""Replaces the key if a server repeats it."""
_SECRET = 4  # characters: "x", for servers that accept any key, is not a secret
_MAX_BYTES = 16 << 20  # of an answer
_CONNECT_SECONDS = 10.0  # a running server accepts a connection at once
_LOGGERS = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy")


def hide_key(text: str, key: str) -> str:
    """Replace the key in a text, also as escaped by ``repr`` and JSON.

    >>> hide_key("quota used up for sk-secret", "sk-secret")
    'quota used up for ***'
    """
    if len(key) < _SECRET:
        return text
    for form in (key, repr(key)[1:-1], key.replace("/", "\\/")):
        text = text.replace(form, HIDDEN)
    return text


def parse_without_key(data: bytes, key: str) -> Any:
    """Parse JSON with the key hidden in every string, however it was escaped."""
    parsed = parse_json(data.decode(), "it")
    repeated = len(key) >= _SECRET and json.dumps(key)[1:-1] in json.dumps(parsed)
    return _hide_in(parsed, key) if repeated else parsed


def _hide_in(parsed: Any, key: str) -> Any:
    if isinstance(parsed, list):
        return [_hide_in(part, key) for part in parsed]
    if isinstance(parsed, dict):
        return {name: _hide_in(part, key) for name, part in parsed.items()}
    return hide_key(parsed, key) if isinstance(parsed, str) else parsed


_key_variables: set[str] = set()


def _hide_keys(record: logging.LogRecord) -> bool:
    """Hide keys in httpx's logs: a server may put one into its status message."""
    original = text = record.getMessage()
    for variable in tuple(_key_variables):
        text = hide_key(text, os.environ.get(variable, "").strip())
    if text != original:
        record.msg, record.args = text, ()
    return True


def keep_out_of_logs(variable: str) -> None:
    _key_variables.add(variable)
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_hide_keys)  # a filter is added only once


_loops: dict[int, asyncio.AbstractEventLoop] = {}  # by process: a fork inherits no thread
_starting = threading.Lock()


def start(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine in the background event loop of this process."""
    with _starting:
        if os.getpid() not in _loops:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, daemon=True).start()
    return asyncio.run_coroutine_threadsafe(coroutine, _loops[os.getpid()])


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    future = start(coroutine)
    try:
        return future.result()
    finally:
        future.cancel()  # after Ctrl-C; no effect on a finished one


class Connections:
    """Connections to one server, one per httpx client.

    A single client with a pool searches all its connections at each request: 5 times the CPU time
    with 64 connections.

    Attributes:
        reached: Whether the server has ever answered.
        announced: Whether a warning about waiting was logged since the last answer.
    """

    def __init__(self, timeout: float) -> None:
        self.reached = self.announced = False
        self._timeout, self._ssl = timeout, httpx.create_ssl_context()
        self._process = os.getpid()
        self._idle: list[httpx.AsyncClient] = []

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, httpx.Headers, bytes]:
        """Send a POST request and return status, headers and body; raises httpx's errors."""
        if self._process != os.getpid():  # connections belong to the process that opened them
            self._process, self._idle = os.getpid(), []
        client = self._idle.pop() if self._idle else self._connect()
        try:
            return await asyncio.wait_for(self._post(client, url, body, headers), self._timeout)
        except asyncio.TimeoutError:
            raise httpx.ReadTimeout("too slow") from None
        finally:
            self._idle.append(client)

    def _connect(self) -> httpx.AsyncClient:
        timeout = httpx.Timeout(None, connect=min(self._timeout, _CONNECT_SECONDS))
        return httpx.AsyncClient(timeout=timeout, verify=self._ssl)

    async def _post(
        self, client: httpx.AsyncClient, url: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, httpx.Headers, bytes]:
        headers = {**headers, "Accept-Encoding": "identity"}
        extensions = {"trace": _refuse_early_answers()}
        async with client.stream(
            "POST", url, content=body, headers=headers, extensions=extensions
        ) as response:
            self.reached = True
            if response.status_code == 200:
                self.announced = False
            if response.headers.get("Content-Encoding", "").strip().lower() not in ("", "identity"):
                if response.status_code == 200:
                    raise BackendError("the answer is compressed, which was not requested")
                return response.status_code, response.headers, b""
            data = bytearray()
            async for part in response.aiter_raw():
                data += part
                if len(data) > _MAX_BYTES:
                    raise BackendError(f"the answer exceeds {_MAX_BYTES >> 20} MiB")
        return response.status_code, response.headers, bytes(data)

    def close(self) -> None:
        """Schedule closing the connections in the loop.

        Called when an object is garbage-collected, in any thread, so it takes no lock.
        """
        for client in self._idle if self._process == os.getpid() else ():
            asyncio.run_coroutine_threadsafe(client.aclose(), _loops[self._process])


def _refuse_early_answers() -> Callable[[str, object], Awaitable[None]]:
    """Make a trace that rejects an answer that arrived before its request was sent.

    If a server sends two answers to a request, the second would be taken as the answer to the next
    request. It is already there, whereas reading a new one takes a turn of the event loop.
    """
    turned = asyncio.Event()

    async def trace(event: str, _: object) -> None:
        if event == "http11.receive_response_headers.started":
            turned.clear()
            asyncio.get_running_loop().call_soon(turned.set)
        elif event == "http11.receive_response_headers.complete" and not turned.is_set():
            raise httpx.RemoteProtocolError("it sent several answers to one request")

    return trace
