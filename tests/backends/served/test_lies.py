"""Servers that lie, repeat the key, drip, pack, and want us to wait: one row each, and no harm."""

from __future__ import annotations

import gzip
import json
import logging
import math
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import discode
from discode.backends.served.backend import Served
from discode.backends.served.client import Endpoint, _answer, _retry_after
from discode.errors import BackendError, InputError
from discode.pairs import Pair
from discode.prompts import FLEUR
from discode.scales import UNIT
from tests.helpers.chat_servers import Body, Handler, Server, caption, serving

KEY = "sk-very/secret"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


def served(server: Server, **options: Any) -> Served:
    return Served("tiny", base_url=server.url, **{"pause": 0.01, "tries": 2, **options})


def pairs_of(picture: Path, count: int) -> list[Pair]:
    return [Pair(picture, f"caption {n}") for n in range(count)]


def completion(**more: Any) -> dict[str, Any]:
    tops = [{"token": str(d), "logprob": math.log(0.1)} for d in range(10)]
    places = [{"token": t, "logprob": -0.1, "top_logprobs": tops} for t in ("0", ".", "7")]
    choice = {"message": {"content": "0.7"}, "logprobs": {"content": places}}
    return {"choices": [choice], "model": "tiny", **more}


def test_the_key_is_hidden_wherever_it_is_repeated(
    server: Server, picture: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
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
    scores = judge.score_pairs([Pair(picture, name) for name in names])
    assert "revision:tiny-***" in judge.signature
    assert set(scores.errors) == set(range(5))
    assert "the server repeats the key" in scores.errors[4]
    assert "***" in scores.errors[1]
    said = judge.signature + str(scores.errors) + caplog.text + str(path.read_bytes())
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
    chat = Endpoint(server.url, "tiny", tries=1)
    with pytest.raises(BackendError, match=r"cannot be reached: illegal header line$") as broken:
        chat([], max_tokens=1)
    with pytest.raises(InputError, match="may not do this") as refused:
        chat([], max_tokens=1)
    assert KEY not in str(broken.value) + str(refused.value) + caplog.text
    assert "***" in caplog.text


@pytest.mark.parametrize("key", ["token", "x", "0"])
def test_keys_that_are_words(
    server: Server, picture: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    assert not served(server).read(pairs_of(picture, 2), FLEUR, UNIT).errors


def test_odd_numbers_are_one_row(server: Server, picture: Path) -> None:
    def odd(**place: Any) -> Any:
        made = completion()
        made["choices"][0]["logprobs"]["content"][2] |= place
        return made

    said = {
        "digits": odd(logprob=-(10**400)),
        "digits above": odd(top_logprobs=[{"token": "7", "logprob": 10**400}]),
        "positive": odd(logprob=0.5),
        "nan": odd(top_logprobs=[{"token": "7", "logprob": math.nan}]),
        "null": odd(logprob=None),
    }
    server.before = lambda body, times: (
        (200, {}, said[caption(body)]) if caption(body) in said else None
    )
    pairs = [Pair(picture, name) for name in [*said, "good"]]
    readings = served(server).read(pairs, FLEUR, UNIT)
    assert set(readings.errors) == set(range(len(said)))
    assert all("not OpenAI's chat completion" in reason for reason in readings.errors.values())


@pytest.mark.parametrize(
    "usage",
    [None, {}, [], "much", {"prompt_tokens": 5}, {"prompt_tokens": None, "completion_tokens": 1},
     {"prompt_tokens": -5, "completion_tokens": -1}, {"prompt_tokens": 0, "completion_tokens": 0},
     {"prompt_tokens": math.inf, "completion_tokens": 1},
     {"prompt_tokens": 10**400, "completion_tokens": 1}],
)  # fmt: skip
def test_usage_that_is_none(server: Server, picture: Path, usage: Any) -> None:
    assert _answer(json.dumps(completion(usage=usage)).encode()).usage is None
    server.before = lambda body, times: (200, {}, completion(usage=usage))
    backend = served(server, prices="1,1", max_cost=1.0)
    assert not backend.read(pairs_of(picture, 3), FLEUR, UNIT).errors
    gate = backend.endpoint.gate
    assert 3 * gate.dearest <= gate.spent < 1
    assert gate.spent > 0


def test_answers_are_kept_soon(server: Server, picture: Path) -> None:
    """The first answers come out while the last is waited for."""
    ready = threading.Event()

    def before(body: Body, times: int) -> None:
        if caption(body) == "caption 5":
            ready.wait(10)

    server.before = before
    blocks = served(server).blocks(pairs_of(picture, 6), FLEUR, UNIT)
    start = time.perf_counter()
    rows, readings = next(blocks)
    assert time.perf_counter() - start < 5
    assert sorted(rows) == [0, 1, 2, 3, 4]
    assert len(readings) == 5
    ready.set()
    assert [rows for rows, _ in blocks] == [[5]]


def test_a_long_wait_stops_all(server: Server, picture: Path) -> None:
    server.before = lambda body, times: (
        (429, {"Retry-After": "9999"}, {"error": {"message": "tomorrow"}})
        if caption(body)
        else None
    )
    backend = served(server)
    start = time.perf_counter()
    readings = backend.read(pairs_of(picture, 100), FLEUR, UNIT)
    assert time.perf_counter() - start < 5
    assert len(readings.errors) == 100
    assert len(server.asked) < 12
    assert "asks to wait 9999 s" in backend.stopped


def test_retry_after_as_a_date() -> None:
    now = datetime.now(timezone.utc)

    def asked(seconds: float, **more: str) -> float:
        until = format_datetime(now + timedelta(seconds=seconds), usegmt=True)
        return _retry_after(httpx.Headers({"Retry-After": until, **more}))

    date = format_datetime(now, usegmt=True)
    assert asked(30, Date=date) == 30
    assert asked(9999, Date=date) == 9999
    assert 25 <= asked(30) <= 31
    assert asked(9999) == 120  # by a clock of our own
    assert asked(-30) == asked(-30, Date=date) == 0
    for odd in ("soon", "nan", "inf", "-5", "Wed, 99 Oct 2026 07:28:00 GMT"):
        assert _retry_after(httpx.Headers({"Retry-After": odd})) == 0


def test_packed_answers(server: Server, picture: Path) -> None:
    bomb = gzip.compress(b" " * 1_000_000)
    heads: list[Any] = []

    def before(body: Body, times: int) -> Any:
        packed = {"Content-Encoding": "gzip"}
        if caption(body) == "caption 1" and times == 1:
            return 500, packed, bomb
        return (200, packed, bomb) if caption(body) == "caption 0" else None

    server.before = before
    readings = served(server).read(pairs_of(picture, 3), FLEUR, UNIT)
    assert set(readings.errors) == {0}
    assert "the answer is packed" in readings.errors[0]

    def post(handler: Handler, body: Body) -> Any:
        heads.append(handler.headers["Accept-Encoding"])
        return completion()

    server.post = post
    Endpoint(server.url, "tiny")([], max_tokens=1)
    assert heads == ["identity"]


@pytest.mark.parametrize("dripping", ["headers", "body", "chunks"])
def test_timeout_bounds_the_whole(server: Server, dripping: str) -> None:
    start = {
        "headers": b"HTTP/1.1 200 OK\r\nX-Slow: ",
        "body": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
        "chunks": b"HTTP/1.1 200 OK\r\n\r\n",
    }[dripping]

    def post(handler: Handler, body: Body) -> Any:
        handler.wfile.write(start)
        for _ in range(60):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.05)
        raise ConnectionError

    server.post = post
    chat = Endpoint(server.url, "tiny", tries=1, timeout=0.4)
    begun = time.perf_counter()
    with pytest.raises(BackendError, match=r"gave no answer in 0.4 s"):
        chat([], max_tokens=1)
    assert time.perf_counter() - begun < 1.5
    server.post = lambda handler, body: completion()
    assert chat([], max_tokens=1).text == "0.7"  # the same client, another line


def test_what_a_refusal_allows(
    server: Server, picture: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = ["top_logprobs: at most 5 (see http://h/v1/top/12)"]
    server.before = lambda body, times: (
        (400, {}, {"error": {"message": words[0]}}) if body["top_logprobs"] > 5 else None
    )
    assert served(server).able().top == 5
    assert "gives 5 log-probabilities a place, not 20" in caplog.text
    for said in ("quota of 7 images used", "see http://h/logprobs/12"):
        words[0] = said
        server.asked.clear()
        with pytest.raises(InputError, match=f"cannot be asked: .*{said}|no log-prob.*{said}"):
            served(server).able()
        assert len(server.asked) == 1


def test_tokenize_is_counted(server: Server) -> None:
    server.tokens = True
    backend = served(server, max_requests=1)
    with pytest.raises(InputError, match="max_requests=1 is reached"):
        backend.able()
    assert dict(server.paths) == {"/tokenize": 1}


def test_routes_differ() -> None:
    def model(url: str) -> str:
        return Served("tiny", base_url=url).model

    assert model("http://h:1/v1") == model("http://h:1/v1/") == model("http://h:1") == "tiny@h:1"
    assert model("http://h:1/a/v1") == "tiny@h:1/a/v1"
    assert model("http://h:1/b/v1") == "tiny@h:1/b/v1"


def test_numbers_are_as_before(server: Server, picture: Path) -> None:
    server.before = lambda body, times: (200, {}, completion())
    readings = served(server).read(pairs_of(picture, 1), FLEUR, UNIT)
    np.testing.assert_allclose(np.exp(readings.answer_logp[0, 0]), 0.1)
