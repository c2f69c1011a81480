"""Servers on the loopback that behave like vLLM, OpenAI's, llama.cpp's, and like broken ones.

Also what tests of served models share: a backend for such a server, pairs, a completion.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from discode.backends.served.backend import Served
from discode.pairs import Pair

KEY = "sk-very/secret"
Body = dict[str, Any]
Place = tuple[str, dict[str, float]]
"""A token that was written, and the probabilities of the likeliest ones in its place."""

VOCABULARY = [
    "<eos>",
    *"0123456789.",
    "the",
    " 0",
    *(f"{n:02}" for n in range(100)),
    *"ABCDE",
    "1.",
]


class Server(ThreadingHTTPServer):
    """Counts what it was asked, by the question's text, and what it answered."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.asked: list[Body] = []
        self.paths: Counter[str] = Counter()
        self.keys: set[str | None] = set()
        self.succeeded: Counter[str] = Counter()
        self.answers: Callable[[Body], list[Place]] = digits
        self.tokens = False  # whether it has /tokenize and logprob_token_ids
        self.before: Callable[[Body, int], tuple[int, dict[str, str], Any] | None] = nothing
        self.seen: Counter[str] = Counter()
        self.post: Callable[[Handler, Body], Any] | None = None
        """Answers every request instead, where it is given."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, *_: Any) -> None:
        """Say nothing: some connections are cut on purpose."""


def nothing(body: Body, times: int) -> None:
    return None


def question(body: Body) -> str:
    content = body["messages"][0]["content"]
    return content if isinstance(content, str) else str(content[-1]["text"])


def caption(body: Body) -> str:
    """The caption that the question is about; "" for the trial."""
    text = question(body)
    return text.split("Caption: ")[1].splitlines()[0] if "Caption: " in text else ""


def digits(body: Body) -> list[Place]:
    """Write "0.d"; d and the probabilities depend on the caption."""
    seed = sum(caption(body).encode())
    p = [1.0 + (seed * (n + 3)) % 11 for n in range(10)]
    tail = {str(n): 0.9 * value / sum(p) for n, value in enumerate(p)}
    rest = {"the": 0.05, " 0": 0.01, "12": 0.02}
    best = max(tail, key=lambda n: tail[n])
    return [
        ("0", {"0": 0.7, "1": 0.2, "the": 0.05}),
        (".", {".": 0.99, "the": 0.01}),
        (best, tail | rest),
        ("<eos>", {"<eos>": 0.9, "5": 0.05}),
    ]


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet per answer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        if server.post is not None:
            self.send(200, {}, server.post(self, body))
            return
        with server.lock:
            server.paths[self.path] += 1
            server.keys.add(self.headers["Authorization"])
        if self.path == "/tokenize" and server.tokens:
            # A tokenizer of single digits, with some of two.
            ids = [n for n, token in enumerate(VOCABULARY) if len(token) < 3]
            self.send(200, {}, {"tokens": ids, "token_strs": [VOCABULARY[n] for n in ids]})
            return
        if self.path != "/v1/chat/completions":
            self.send(404, {}, {"error": {"message": "not found"}})
            return
        name = caption(body)
        with server.lock:
            server.asked.append(body)
            server.seen[name] += 1
            times = server.seen[name]
        early = server.before(body, times)
        if early is not None:
            self.send(*early)
            return
        with server.lock:
            server.succeeded[name] += 1
        self.send(200, {}, self.completion(body))

    def completion(self, body: Body) -> Any:
        places = self.server.answers(body)
        ids = body.get("logprob_token_ids") if self.server.tokens else None
        content = []
        for token, p in places[: body.get("max_tokens", 99)]:
            likeliest = sorted(p, key=lambda t: -p[t])[: body.get("top_logprobs", 0)]
            names = [VOCABULARY[i] for i in ids] if ids else likeliest
            content.append(
                {
                    "token": token,
                    "logprob": math.log(p[token]),
                    "top_logprobs": [
                        {"token": t, "logprob": math.log(p.get(t, 1e-9))}
                        for t in dict.fromkeys([token, *names] if ids else names)
                    ],
                }
            )
        text = "".join(token for token, _ in places)
        choice: Any = {"message": {"content": text}}
        if body.get("logprobs"):
            choice["logprobs"] = {"content": content}
        usage = {"prompt_tokens": 1000, "completion_tokens": len(content)}
        return {"choices": [choice], "usage": usage, "model": body["model"] + "-2026"}

    def send(self, status: int, headers: dict[str, str], found: Any) -> None:
        data = found if isinstance(found, bytes) else json.dumps(found).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()
        if int(headers.get("Content-Length", len(data))) > len(data):
            self.close_connection = True  # cut in the middle

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(**options: Any) -> Iterator[Server]:
    """Run a server; options are its attributes."""
    server = Server()
    for name, value in options.items():
        assert hasattr(server, name)
        setattr(server, name, value)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def slots(count: int, seconds: float, retry_after: str = "0.05") -> Any:
    """A rule: ``count`` requests at a time, 429 to the others, an answer after ``seconds``."""
    free = threading.Semaphore(count)

    def before(body: Body, times: int) -> tuple[int, dict[str, str], Any] | None:
        if not free.acquire(blocking=False):
            return 429, {"Retry-After": retry_after}, {"error": {"message": "slow down"}}
        time.sleep(seconds)
        free.release()
        return None

    return before


def served(server: Server, **options: Any) -> Served:
    return Served("tiny", base_url=server.url, **{"pause": 0.01, "tries": 2, **options})


def pairs_of(image: Path, count: int) -> list[Pair]:
    return [Pair(image, f"caption {n}") for n in range(count)]


def completion(**more: Any) -> dict[str, Any]:
    """A chat completion that says 0.7, every digit equally likely."""
    tops = [{"token": str(d), "logprob": math.log(0.1)} for d in range(10)]
    places = [{"token": t, "logprob": -0.1, "top_logprobs": tops} for t in ("0", ".", "7")]
    choice = {"message": {"content": "0.7"}, "logprobs": {"content": places}}
    return {"choices": [choice], "model": "tiny", **more}
