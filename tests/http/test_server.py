"""The server on its own, without an application that does much."""

from __future__ import annotations

import http.client
import socket
import time
from contextlib import suppress

import pytest

pytest.importorskip("fastapi", reason="the server wants discode-eval[serve]")

from fastapi import FastAPI, Request

from discode._http import server
from discode._http.guard import SECURITY_HEADERS
from tests.helpers.servers import PATIENCE, in_thread


def test_a_head_that_never_ends_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    with in_thread(FastAPI()) as port:
        for start in (b"", b"GET / HTTP/1.1\r\nhost: localhost\r\n"):
            with (
                socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as raw,
                suppress(ConnectionError),  # it hung up before this was sent
            ):
                raw.sendall(start)
                assert raw.recv(4096) == b"", "it was answered"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # TLS to a server that speaks none
        b"GET / HTTP/1.1\r\n\r\n",  # no host
        b"GET /" + b"x" * (40 << 10),
        b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nno\r\n",
    ],
)
def test_what_is_no_http_is_refused_with_the_security_headers(sent: bytes) -> None:
    app = FastAPI()

    async def read_all(request: Request) -> None:
        await request.body()

    app.add_api_route("/", read_all, methods=["POST"])
    with (
        in_thread(app) as port,
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as raw,
    ):
        raw.sendall(sent)
        answer = http.client.HTTPResponse(raw)
        answer.begin()
        assert (answer.status, answer.read()) == (400, b"Invalid HTTP request received.")
        for name, value in SECURITY_HEADERS.items():
            assert answer.getheader(name) == value


def test_a_slow_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for the head alone."""
    monkeypatch.setattr(server, "HEAD_SECONDS", 2.0)
    app = FastAPI()
    app.add_api_route("/", lambda: time.sleep(2.2))
    with in_thread(app) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()


def test_answers_are_not_held_back_by_the_network_stack() -> None:
    with server.open_socket("127.0.0.1", 0) as listening:
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
