"""Servers that lie, repeat the key, drip, compress or ask us to wait: each fails one row only."""

from __future__ import annotations

import gzip
import json
import logging
import math
import time
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

import discode
from discode._pairs import Pair
from discode._prompts import FLEUR
from discode._scales import UNIT
from discode.backends import read_all
from discode.backends._served.backend import Served
from discode.backends._served.client import ChatClient, _retry_after
from discode.backends._served.transport import Connections
from discode.errors import BackendError, InputError
from tests.helpers.chat_servers import (
    KEY,
    Body,
    Handler,
    Server,
    caption,
    completion,
    pairs_of,
    served,
)
from tests.helpers.ports import closed_port


def test_the_key_is_hidden_wherever_it_is_repeated(
    server: Server, image: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    spelled = "".join(f"\\u{ord(letter):04x}" for letter in KEY)
    split = completion()
    for place, text in zip(
        split["choices"][0]["logprobs"]["content"], ("0", KEY[:5], KEY[5:]), strict=True
    ):
        place["token"] = text

    def before(body: Body, times: int) -> Any:
        said = {
            "": json.dumps(completion(model="tiny-KEY")).replace("KEY", spelled).encode(),
            "cut": b"x" * 195 + KEY.encode(),
            "json": {"error": {"message": {"you": [KEY]}}},
            "words": KEY.replace("/", "\\/").encode(),
            "model": json.dumps({"error": {"message": "KEY"}}).replace("KEY", spelled).encode(),
        }
        name = caption(body)
        if name == "split":
            return 200, {}, split
        return (200 if not name else 418, {"X-You": KEY}, said[name]) if name in said else None

    server.before = before
    path = tmp_path / "run.db"
    judge = discode.load(served(server), store=path)
    names = ["cut", "json", "words", "model", "split"]
    scores = judge.score_pairs([Pair(image, name) for name in names])
    assert "revision:tiny-***" in str(judge.signature)
    assert set(scores.errors) == set(range(5))
    assert "the server repeats the key" in scores.errors[4]
    assert "***" in scores.errors[1]
    said = str(judge.signature) + str(scores.errors) + caplog.text + str(path.read_bytes())
    assert KEY not in said
    assert KEY[:6] not in said  # nor half of it


def test_the_key_in_a_broken_protocol(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    lines = [
        f"HTTP/1.1 200 {KEY}\r\n{KEY}\r\n\r\n",
        f"HTTP/1.1 403 {KEY}\r\nContent-Length: 0\r\n\r\n",
    ]

    def post(handler: Handler, body: Body) -> Any:
        handler.wfile.write(lines.pop(0).encode())
        handler.wfile.flush()
        handler.close_connection = True
        raise ConnectionError

    server.post = post
    chat = ChatClient(server.url, "tiny", tries=1)
    with pytest.raises(BackendError, match=server.url) as broken:
        chat([], max_tokens=1)
    with pytest.raises(InputError, match=server.url) as refused:
        chat([], max_tokens=1)
    assert KEY not in str(broken.value) + str(refused.value) + caplog.text
    assert "***" in caplog.text


def test_keys_that_are_words(server: Server, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("token", "x", "0"):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        assert not read_all(served(server), pairs_of(image, 2), FLEUR, UNIT).errors


@pytest.mark.parametrize(
    "usage",
    [None, {}, [], "much", {"prompt_tokens": 5}, {"prompt_tokens": None, "completion_tokens": 1},
     {"prompt_tokens": -5, "completion_tokens": -1}, {"prompt_tokens": 0, "completion_tokens": 0},
     {"prompt_tokens": math.inf, "completion_tokens": 1},
     {"prompt_tokens": 10**400, "completion_tokens": 1}],
)  # fmt: skip
def test_usage_that_is_none(server: Server, image: Path, usage: Any) -> None:
    server.before = lambda body, times: (200, {}, completion(usage=usage))
    backend = served(server, prices="1,1", max_cost=1.0)
    assert not read_all(backend, pairs_of(image, 3), FLEUR, UNIT).errors
    throttle = backend.client.throttle
    assert 3 * throttle.highest_cost <= throttle.spent < 1
    assert throttle.spent > 0


def test_a_long_wait_stops_all(server: Server, image: Path) -> None:
    server.before = lambda body, times: (
        (429, {"Retry-After": "9999"}, {"error": {"message": "tomorrow"}})
        if caption(body)
        else None
    )
    backend = served(server)
    readings = read_all(backend, pairs_of(image, 100), FLEUR, UNIT)
    assert len(readings.errors) == 100
    assert len(server.asked) < 12
    assert "9999 s" in backend.stopped


def test_retry_after_as_a_date() -> None:
    now = datetime.now(timezone.utc)

    def asked(seconds: float, **more: str) -> float:
        until = format_datetime(now + timedelta(seconds=seconds), usegmt=True)
        return _retry_after(httpx.Headers({"Retry-After": until, **more}))

    date = format_datetime(now, usegmt=True)
    assert asked(30, Date=date) == 30
    assert asked(9999, Date=date) == 9999
    assert 1 <= asked(100) <= 100  # by our own clock
    assert asked(9999) == 120
    assert asked(-30) == asked(-30, Date=date) == 0
    for odd in ("soon", "nan", "inf", "-5", "Wed, 99 Oct 2026 07:28:00 GMT"):
        assert _retry_after(httpx.Headers({"Retry-After": odd})) == 0


def test_compressed_answers(server: Server, image: Path) -> None:
    bomb = gzip.compress(b" " * 1_000_000)
    heads: list[Any] = []

    def before(body: Body, times: int) -> Any:
        compressed = {"Content-Encoding": "gzip"}
        if caption(body) == "caption 1" and times == 1:
            return 500, compressed, bomb
        return (200, compressed, bomb) if caption(body) == "caption 0" else None

    server.before = before
    readings = read_all(served(server), pairs_of(image, 3), FLEUR, UNIT)
    assert set(readings.errors) == {0}
    assert "the answer is compressed" in readings.errors[0]

    def post(handler: Handler, body: Body) -> Any:
        heads.append(handler.headers["Accept-Encoding"])
        return completion()

    server.post = post
    ChatClient(server.url, "tiny")([], max_tokens=1)
    assert heads == ["identity"]


def test_a_second_answer_is_not_the_next_ones(server: Server, image: Path) -> None:
    """A server that answers twice: both are in one packet, on a connection that is kept."""
    extra = json.dumps(completion(model="extra")).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(extra)}\r\n\r\n".encode()

    def post(handler: Handler, body: Body) -> Any:
        data = json.dumps(completion(model=body["messages"][0]["content"])).encode()
        handler.wfile.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data + head + extra
        )
        handler.send = lambda *_: None  # type: ignore[method-assign]  # all is sent

    server.post = post
    chat = ChatClient(server.url, "tiny", pause=0.001)
    for name in ("first", "second", "third"):
        assert chat([{"role": "user", "content": name}], max_tokens=1).model == name


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "overloaded", "code": 529}},
        {"error": {"message": "overloaded", "code": "server_error"}},
        {"object": "error", "message": "overloaded", "code": 503},
    ],
)
def test_an_error_with_status_200_is_tried_again(server: Server, image: Path, body: Body) -> None:
    server.before = lambda asked, times: (
        (200, {}, body)
        if caption(asked) == "caption 0" or (caption(asked) and times == 1)
        else None
    )
    readings = read_all(served(server), pairs_of(image, 2), FLEUR, UNIT)
    assert set(readings.errors) == {0}
    assert "overloaded (2 tries)" in readings.errors[0]


@pytest.mark.parametrize("dripping", ["headers", "body", "chunks"])
def test_timeout_bounds_the_whole(
    server: Server, dripping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = {
        "headers": b"HTTP/1.1 200 OK\r\nX-Slow: ",
        "body": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
        "chunks": b"HTTP/1.1 200 OK\r\n\r\n",
    }[dripping]
    to_the_end: list[bool] = []

    def post(handler: Handler, body: Body) -> Any:
        handler.wfile.write(start)
        for _ in range(1200):  # until the client cuts the connection
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.05)
        to_the_end.append(True)
        raise ConnectionError

    chat = ChatClient(server.url, "tiny", tries=1)
    server.post = lambda handler, body: completion()
    assert chat([], max_tokens=1).text == "0.7"
    server.post = post
    with monkeypatch.context() as soon:
        soon.setattr(chat._connections, "_timeout", 0.5)
        with pytest.raises(BackendError, match="did not answer"):
            chat([], max_tokens=1)
    assert not to_the_end
    assert chat.throttle._refused == 0  # a slow answer does not lower the limit
    server.post = lambda handler, body: completion()
    assert chat([], max_tokens=1).text == "0.7"  # the same client, another connection


def test_what_a_refusal_allows(
    server: Server, image: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = ["top_logprobs: at most 5 (see http://h/v1/top/12)"]
    server.before = lambda body, times: (
        (400, {}, {"error": {"message": words[0]}}) if body["top_logprobs"] > 5 else None
    )
    assert served(server).server_features().top == 5
    assert "returns 5 log-probabilities" in caplog.text
    for complaint in ("quota of 7 images used", "see http://h/logprobs/12"):
        words[0] = complaint
        server.asked.clear()
        with pytest.raises(InputError, match=complaint):
            served(server, samples=0).server_features()
        assert len(server.asked) == 1


def test_routes_differ() -> None:
    def model(url: str) -> str:
        return Served("tiny", base_url=url).models[0]

    assert Served("gpt-4o").models == ["openai:gpt-4o"]

    assert model("http://h:1/v1") == model("http://h:1/v1/") == model("http://h:1") == "tiny@h:1"
    assert model("http://h:1/a/v1") == "tiny@h:1/a/v1"
    assert model("http://h:1/b/v1") == "tiny@h:1/b/v1"


def test_a_dead_address_fails_at_once(image: Path) -> None:
    with closed_port() as port:
        backend = Served("tiny", base_url=f"http://127.0.0.1:{port}/v1")
        with pytest.raises(InputError, match=r"cannot be reached: .*; is a server running there\?"):
            read_all(backend, [Pair(image, "a")], FLEUR, UNIT)
    assert backend.client.throttle.sent == 2  # to /tokenize, and the trial


def test_a_server_that_was_there_is_waited_for_and_that_is_said(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("discode.backends._served.client._SILENT_WAIT", 0.0)
    chat = ChatClient(server.url, "tiny", pause=0.001)
    chat([{"role": "user", "content": "first"}], max_tokens=1)
    real, lost = chat._connections.post, iter([True] * 5 + [False])

    async def post(*request: Any) -> Any:
        if next(lost):
            raise httpx.ConnectError("refused")
        return await real(*request)

    monkeypatch.setattr(chat._connections, "post", post)
    chat([{"role": "user", "content": "again"}], max_tokens=1)
    (record,) = caplog.records  # once, not five times
    assert "of 8 tries" in record.getMessage()
    assert f"{server.url} cannot be reached: refused" in record.getMessage()


def test_a_missing_key_is_said_before_anything_is_sent(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setattr(Connections, "post", lambda *_: pytest.fail("something was sent"))
    other = {"base_url": "http://localhost:9/v1", "key_variable": "MY_KEY"}
    for backend, variable in (
        (Served("gpt"), "OPENAI_API_KEY"),
        (Served("tiny", **other), "MY_KEY"),
    ):
        assert backend.estimate([Pair(image, "a")], FLEUR, UNIT).requests == 1  # needs no key
        with pytest.raises(InputError, match=variable):
            discode.load(backend).score(image, "a")
