"""The server on its own, without an application that does much."""

from __future__ import annotations

import http.client
import socket
import time

import pytest

pytest.importorskip("fastapi", reason="the server wants discode[serve]")

from fastapi import FastAPI

from discode.errors import InputError
from discode.http import server
from tests.helpers.servers import PATIENCE, in_thread


def test_a_head_that_never_ends_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    with in_thread(FastAPI()) as port:
        for start in (b"", b"GET / HTTP/1.1\r\nhost: localhost\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as raw:
                raw.sendall(start)
                assert raw.recv(4096) == b"", "it was answered"


def test_a_slow_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for the head alone."""
    monkeypatch.setattr(server, "HEAD_SECONDS", 1.0)
    app = FastAPI()
    app.add_api_route("/", lambda: time.sleep(1.5))
    with in_thread(app) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()


def test_answers_are_not_held_back_by_the_network_stack() -> None:
    with server.open_socket("127.0.0.1", 0) as listening:
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_that_cannot_be_used_is_named() -> None:
    with server.open_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1:{port}"):
            server.open_socket("127.0.0.1", port)
    with pytest.raises(InputError, match="from 0 to 65535"):
        server.open_socket("127.0.0.1", 70000)
