"""Chat metrics against a real server on the loopback that answers by a rule."""

from __future__ import annotations

import base64
import io
import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from discode._pairs import Pair
from discode.backends._served.client import ChatAnswer, ChatClient
from discode.errors import BackendError, InputError
from discode.metrics._llm import chat_metric, clair, g_veval
from discode.readings._tokens import Token

KEY = "sk-secret"


class Server(ThreadingHTTPServer):
    """Keeps what it was asked; answers from ``script``, by a word of the question."""

    script: dict[str, tuple[int, Any]]
    asked: list[dict[str, Any]]
    keys: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        self.server.keys.append(self.headers["Authorization"])
        text = json.dumps(body["messages"])
        status, found = next(v for word, v in self.server.script.items() if word in text)
        if isinstance(found, list):  # one answer after the other
            status, found = found.pop(0)
        data = found if isinstance(found, bytes) else json.dumps(found).encode()
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = Server(("127.0.0.1", 0), Handler)
    made.script, made.asked, made.keys = {}, [], []
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def endpoint(server: Server, **options: Any) -> ChatClient:
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    return ChatClient(url, "tiny", **{"pause": 0.001, "tries": 2, **options})


def said(text: str, tokens: list[tuple[str, dict[str, float]]] | None = None) -> Any:
    content = [
        {"token": t, "top_logprobs": [{"token": k, "logprob": math.log(p)} for k, p in top.items()]}
        for t, top in tokens or []
    ]
    choice: dict[str, Any] = {"message": {"content": text}}
    return {"choices": [choice | ({"logprobs": {"content": content}} if tokens else {})]}


def test_clair(server: Server) -> None:
    server.script = {
        "a dog": (200, said('{"score": 85, "reason": "same"}')),
        "wordy": (200, said('Here you are:\n```json\n{"reason": "no", "score": "7.5"}\n```')),
        "refuses": (200, said("I cannot rate this.")),
        "beyond": (200, said('{"score": 101}')),
        "html": (200, b"<html>"),
        "odd": (200, {"choices": []}),
        "broken": (400, {"error": {"message": "too\nlong"}}),
    }
    captions = ["a dog", "wordy", "refuses", "beyond", "html", "odd", "broken", "a dog"]
    pairs = [Pair("no.jpg", text, ("a cat", "two {caption} cats")) for text in captions]
    pairs.append(Pair("no.jpg", "a dog"))
    metric = chat_metric(endpoint(server), "clair")
    done: list[int] = []
    scores = metric.score_pairs(pairs, progress=done.append)
    assert sorted(done) == [1] * 7 + [2]  # the dogs are one question
    assert sum(done) == len(pairs)
    nan = math.nan
    np.testing.assert_array_equal(scores.value, [0.85, 0.075, nan, nan, nan, nan, nan, 0.85, nan])
    assert 'no JSON with a number "score"' in scores.errors[2]
    assert "101 is not from 0 to 100" in scores.errors[3]
    assert "not an OpenAI chat completion" in scores.errors[4]
    assert scores.errors[6].endswith("answered 400: too long")
    assert "no references" in scores.errors[8]
    assert len(server.asked) == 7  # the second dog was not asked for
    assert set(server.keys) == {f"Bearer {KEY}"}
    body = next(body for body in server.asked if "wordy" in str(body))
    assert body["temperature"] == 0
    assert "logprobs" not in body
    assert "- a cat\n- two {caption} cats" in body["messages"][0]["content"]
    assert metric.needs == {"references"}
    assert "|metric:clair|model:tiny|prompt:ours-" in str(scores.signature)
    assert KEY not in repr(metric) + str(scores.signature) + str(list(scores.rows()))


def test_g_veval(server: Server, tmp_path: Path) -> None:
    image = tmp_path / "red.png"
    Image.new("RGB", (8, 8), "red").save(image)
    top = {"80": 0.5, "90": 0.25, "100": 0.05, "about": 0.1, "085": 0.1}
    good = [("It", {}), (" is $", {}), ("80", top), ("$.", {})]
    server.script = {
        "a dog": (200, said("It is $80$.", good)),
        "digits": (200, said("$85$", [("$", {}), ("8", {"8": 1.0}), ("5", {"5": 1.0}), ("$", {})])),
        "words": (200, said("It is good.", [("It", {}), (" is good.", {})])),
        "ends": (200, said("It is $", [("It is", {}), (" $", {})])),
        "plain": (200, said("It is $80$.")),
        "unseen": (200, said("$80$", [("$", {}), ("80", {"eighty": 1.0}), ("$", {})])),
        "price": (200, said("A sign: $5. It is $80$.", [("A sign: ", {}), ("$", {}), ("5", {}),
                                                        (". ", {}), *good])),
        "two": (200, said("$80$ $90$", [("$", {}), ("80", top), ("$ $", {}), ("90", top),
                                        ("$", {})])),
    }  # fmt: skip
    captions = list(server.script)
    pairs = [*(Pair(image, text) for text in captions), Pair(image.with_name("no.png"), "x")]
    metric = chat_metric(endpoint(server), "g-veval")
    scores = metric.score_pairs(pairs)
    expected = (80 * 0.5 + 90 * 0.25 + 100 * 0.05) / 0.8
    assert scores.value[0] == pytest.approx(expected)
    assert scores.value[6] == pytest.approx(expected)  # the price is no score
    for row, reason in {
        1: "85 in several tokens", 2: "no integer between", 3: "no integer between",
        4: "no log-probabilities", 5: "no integer from 0 to 100", 7: "more than one integer",
        8: "cannot read",
    }.items():  # fmt: skip
        assert reason in scores.errors[row]
        assert np.isnan(scores.value[row])
    content = server.asked[0]["messages"][0]["content"]
    assert server.asked[0]["top_logprobs"] == 5
    data = content[1]["image_url"]["url"].removeprefix("data:image/jpeg;base64,")
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (8, 8)
    assert metric.needs == {"image"}

    with_references = chat_metric(endpoint(server), "ref-g-veval")
    assert with_references.needs == {"image", "references"}
    scores = with_references.score_pairs([Pair(image, "a dog", ("a cat",)), Pair(image, "x")])
    assert scores.value[0] == pytest.approx(expected)
    assert "no references" in scores.errors[1]
    assert "Reference captions:\n- a cat" in server.asked[-1]["messages"][0]["content"][0]["text"]


def test_a_busy_server_is_asked_again(server: Server) -> None:
    busy = (503, {"error": {"message": "busy"}})
    server.script = {
        "soon": (0, [busy, (200, said('{"score": 1}'))]),
        "never": (503, {"message": "busy"}),
        "moved": (302, {}),
    }
    pairs = [Pair("x", text, ("y",)) for text in ("soon", "never", "moved")]
    scores = chat_metric(endpoint(server), "clair").score_pairs(pairs)
    np.testing.assert_array_equal(scores.value, [0.01, math.nan, math.nan])
    assert scores.errors[1].endswith("answered 503: busy (2 tries)")
    assert "answered 302" in scores.errors[2]
    assert len(server.asked) == 5


def test_a_mistake_ends_the_run_without_the_key(server: Server) -> None:
    for status in (401, 403, 404):
        server.script = {"a": (status, {"error": {"message": f"Incorrect key {KEY}"}})}
        with pytest.raises(InputError, match=r"\(Incorrect key \*\*\*\)") as caught:
            chat_metric(endpoint(server), "clair").score_pairs([Pair("x", "a", ("b",))])
        assert KEY not in str(caught.value)
    asked = len(server.asked)
    with pytest.raises(InputError):
        chat_metric(endpoint(server), "clair").score_pairs(
            [Pair("x", f"a {n}", ("b",)) for n in range(200)]
        )
    assert len(server.asked) < asked + 50  # the rest is not asked for


def test_no_server_and_no_key(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    server.script = {"a": (200, said('{"score": 0}'))}
    assert float(chat_metric(endpoint(server), "clair").score_pairs([Pair("x", "a", ("b",))])) == 0
    assert server.keys == [None]
    nobody = ChatClient("http://127.0.0.1:9/v1", "tiny", tries=1)
    scores = chat_metric(nobody, "clair").score_pairs([Pair("x", "a", ("b",))])
    assert "cannot be reached" in scores.errors[0]


def test_bad_options() -> None:
    for url, name, tries in (("file:///etc/passwd", "tiny", 1), ("http://localhost/v1", "", 1),
                             ("http://localhost/v1", "tiny", 0)):  # fmt: skip
        with pytest.raises(InputError):
            ChatClient(url, name, tries=tries)


def test_reading_refuses() -> None:
    scores = ChatAnswer('{"score": 0} for no match and {"score": 100} for one; here {"score": 85}')
    for answer in (ChatAnswer(""), ChatAnswer("$5", (Token("$5", {}),)), ChatAnswer("{}"), scores):
        with pytest.raises(BackendError):
            g_veval(answer)
        with pytest.raises(BackendError):
            clair(answer)
