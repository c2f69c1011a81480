"""Servers on the loopback that behave like vLLM, OpenAI's, llama.cpp's, and like broken ones.

Some think, by a template's switch, by an effort or always; some return no log-probabilities. The
one with SGLang's routes is a stand-in built from its source (serving_tokenize.py, serving_chat.py,
io_struct.py and tokenizer_manager.py of August 2026), not SGLang itself.

Also what tests of served models share: a backend for such a server, pairs, a completion.
"""

from __future__ import annotations

import json
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from discode._pairs import Pair
from discode.backends._served.backend import Served

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


TEMPLATE = ("<user>%(template)s", "%(said)s<end><assistant>")
"""What SGLang's stand-in writes around an image."""


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
        self.continues = False  # whether it goes on with a begun answer, as vLLM does
        self.image_tokens = 0  # that it counts for an image
        self.keeps = 0  # images that it keeps by their names, as vLLM does; 0: it ignores names
        self.images: dict[str, str] = {}
        self.uploads = 0
        self.dead = False
        self.before: Callable[[Body, int], tuple[int, dict[str, str], Any] | None] = nothing
        self.seen: Counter[str] = Counter()
        self.thinks: Callable[[Body], bool] = lambda body: False
        self.separates = True  # whether thoughts are apart from the message
        self.opens = True  # whether the model writes where its thoughts begin
        self.thoughts = 30  # their tokens
        self.logprobs = True
        self.choices = 100  # that it returns at most; 0: it refuses n
        self.refuses: set[str] = set()  # fields
        self.sglang = ""  # its routes: "native", or "bos" where /generate adds a token of its own
        self.post: Callable[[Handler, Body], Any] | None = None
        """Answers every request instead, where it is given."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def image(self, body: Body) -> str | None:
        """The image that is asked about, kept or sent; None where there is none.

        Raises KeyError for a name that it does not know.
        """
        content = body["messages"][0]["content"]
        if isinstance(content, str):
            return None
        part = content[0]
        with self.lock:
            name, url = part.get("uuid"), (part["image_url"] or {}).get("url")
            self.uploads += url is not None
            if not (self.keeps and name):
                return url
            if url is None:
                url = self.images[name]
            self.images.pop(name, None)
            self.images[name] = url  # the last that was used
            while len(self.images) > self.keeps:
                del self.images[next(iter(self.images))]
            return url

    def die(self) -> None:
        """Drop every connection, and take no new one."""
        self.dead = True
        self.shutdown()
        self.server_close()

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


def begun(body: Body) -> str:
    """What the answer begins with."""
    last = body["messages"][-1]
    return str(last["content"]) if last["role"] == "assistant" else ""


def rater(body: Body) -> list[Place]:
    """Go on after whatever was begun; what is likely depends on the caption and the image."""
    seed = sum(f"{caption(body)} {body['image']}".encode())
    one = 0.05 + 0.9 * (seed % 7) / 7
    written = begun(body)
    places: list[Place] = []
    while not places or places[-1][0] != "<eos>":
        p = _next(written, seed, one)
        token = max(p, key=lambda token: p[token])
        places.append((token, p))
        written += token
    return places


def _next(written: str, seed: int, one: float) -> dict[str, float]:
    """How likely the tokens are that may follow."""
    if not written:
        return {"0": 0.97 - one, "1": one, "the": 0.02}
    if written in ("0", "1"):
        return {".": 0.9 - 0.3 * int(written), "<eos>": 0.05 + 0.3 * int(written)}
    if written in ("0.", "1."):
        p = {str(n): 1.0 + (seed * (n + 3)) % 11 for n in range(10)}
        p["0"] += 20 * int(written[0])
        return {digit: 0.95 * value / sum(p.values()) for digit, value in p.items()}
    return {"<eos>": 0.8, "5": 0.1}


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


def compared(body: Body) -> tuple[str, str] | None:
    """The two captions that the question compares; None where it is about one."""
    parts = question(body).split("\n\n")
    named = {part[:3]: part[3:] for part in parts}
    return (named["A: "], named["B: "]) if "B: " in named else None


def comparer(body: Body) -> list[Place]:
    """Prefer the longer caption, and the first by 1 in the logit; rate a single one by digits."""
    if (captions := compared(body)) is None:
        return digits(body)
    logit = 0.3 * (len(captions[0]) - len(captions[1])) + 1
    a = 0.9 / (1 + math.exp(-logit))
    p = {"A": a, "B": 0.9 - a, "the": 0.05}
    return [(max(p, key=lambda token: p[token]), p), ("<eos>", {"<eos>": 0.9, "5": 0.05})]


def expected(first: str, second: str) -> tuple[float, float]:
    """Preference and flip by the rule that :func:`comparer` answers by."""
    d = 0.3 * (len(first) - len(second))
    forward, backward = (1 / (1 + math.exp(-x)) for x in (d + 1, d - 1))
    return (forward + backward) / 2, forward - backward


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet per answer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        if server.dead:
            self.close_connection = True
            return
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
        if server.sglang and self.path in ("/tokenize", "/detokenize", "/generate"):
            self.send(200, {}, getattr(self, self.path[1:])(body))
            return
        if self.path != "/v1/chat/completions":
            self.send(404, {}, {"error": {"message": "not found"}})
            return
        name = caption(body)
        body["image"] = None  # until it is known
        with server.lock:
            server.asked.append(body)
            server.seen[name] += 1
            times = server.seen[name]
        for field in server.refuses | ({"n"} if not server.choices else set()):
            if body.get(field) is not None and body.get(field) is not False:
                message = f"Unsupported parameter: {field} is not supported with this model"
                self.send(400, {}, {"error": {"message": message}})
                return
        early = server.before(body, times)
        if early is not None:
            self.send(*early)
            return
        try:
            body["image"] = server.image(body)
        except KeyError:
            message = "Cache miss for image at index 0 but data is not provided."
            self.send(400, {}, {"error": {"message": message}})
            return
        with server.lock:
            server.succeeded[name] += 1
        self.send(200, {}, self.completion(body))

    def tokenize(self, body: Body) -> Any:
        """SGLang's: of a text, or of messages by the chat template; a token is a character."""
        text = body.get("prompt")
        if text is None:
            shown = {"template": body.get("chat_template_kwargs"), "said": question(body).strip()}
            text = "<image>".join(TEMPLATE) % shown
        return {"tokens": [ord(c) for c in text], "count": len(text), "max_model_len": 4096}

    def detokenize(self, body: Body) -> Any:
        """SGLang's: of one list of tokens, or of each of several."""
        assert body["skip_special_tokens"] is False
        tokens = body["tokens"]
        if tokens and isinstance(tokens[0], list):
            return {"text": ["".join(map(chr, part)) for part in tokens]}
        return {"text": "".join(map(chr, tokens))}

    def generate(self, body: Body) -> Any:
        """SGLang's, whose prompt has been through the template."""
        _, text = body["text"].split("<image>")
        said, begun = text.split("<end><assistant>")
        image = {"type": "image_url", "image_url": {"url": body["image_data"]}}
        user = {"role": "user", "content": [image, {"type": "text", "text": said}]}
        messages = [user, *([{"role": "assistant", "content": begun}] if begun else [])]
        chat = {"model": "", "messages": messages, "image": body["image_data"]}
        with self.server.lock:
            self.server.asked.append(chat | {"native": body})
            self.server.succeeded[said] += 1
        limit = body["sampling_params"]["max_new_tokens"]
        places = self.server.answers(chat)[:limit]

        def triples(p: dict[str, float], tokens: list[str]) -> list[list[Any]]:
            return [[math.log(p.get(token, 1e-9)), ord(token[-1]), token] for token in tokens]

        top = [sorted(p, key=lambda t: -p[t])[: body["top_logprobs_num"]] for _, p in places]
        ids = [chr(number) for number in body["token_ids_logprob"]]
        assert body["return_text_in_logprobs"]
        assert body["return_logprob"]
        meta = {
            "finish_reason": {"type": "stop"},
            "prompt_tokens": 1000 + self.server.image_tokens + (self.server.sglang == "bos"),
            "completion_tokens": len(places),
            "output_token_logprobs": [triples(p, [token])[0] for token, p in places],
            "output_top_logprobs": [triples(p, t) for t, (_, p) in zip(top, places, strict=True)],
            "output_token_ids_logprobs": [triples(p, ids) for _, p in places],
        }
        return {"text": "".join(t for t, _ in places if t != "<eos>"), "meta_info": meta}

    def completion(self, body: Body) -> Any:
        if not self.server.continues:
            body = body | {"messages": body["messages"][:1]}
        places = self.server.answers(body)
        ids = body.get("logprob_token_ids") if self.server.tokens else None
        content = []
        places = [*self.thoughts(body), *places]
        for token, p in places[: body.get("max_tokens", body.get("max_completion_tokens", 99))]:
            likeliest = sorted(p, key=lambda t: -p[t])[: body.get("top_logprobs", 0)]
            names = [VOCABULARY[i] for i in ids] if ids else likeliest
            content.append(
                {
                    "token": token,
                    "logprob": math.log(p[token]),
                    "likely": [{"token": t, "logprob": math.log(p[t])} for t in p],
                    "top_logprobs": [
                        {"token": t, "logprob": math.log(p.get(t, 1e-9))}
                        for t in dict.fromkeys([token, *names] if ids else names)
                    ],
                }
            )
        shown = [self.choice(body, content, number) for number in range(self.choices_of(body))]
        blind = not isinstance(body["messages"][0]["content"], str) and body["image"] is None
        read = 400 if blind else 1000 + self.server.image_tokens * (body["image"] is not None)
        usage = {"prompt_tokens": read, "completion_tokens": len(content) * len(shown)}
        return {"choices": shown, "usage": usage, "model": body["model"] + "-2026"}

    def thoughts(self, body: Body) -> list[Place]:
        """Tokens before the answer, one of which is a rating that is not the answer."""
        if not self.server.thinks(body):
            return []
        words = ["<think>"] * self.server.opens + ["0.1"] + [" hm"] * self.server.thoughts
        return [(word, {word: 0.9}) for word in [*words, "</think>"]]

    def choices_of(self, body: Body) -> int:
        wanted: int = body.get("n", 1)
        return min(wanted, max(self.server.choices, 1))

    def choice(self, body: Body, content: list[Any], number: int) -> Any:
        """The answer itself, or one that is drawn from its places."""
        rng = random.Random(f"{caption(body)} {self.server.seen[caption(body)]} {number}")
        words = [place["token"] for place in content]
        if body.get("temperature"):
            after = words.index("</think>") + 1 if "</think>" in words else 0
            for at, place in [*enumerate(content)][after:]:
                p = {t["token"]: math.exp(t["logprob"]) for t in place["likely"]}
                p["?"] = max(0.0, 1 - sum(p.values()))
                words[at] = rng.choices([*p], [*p.values()])[0]
        text = "".join(word for word in words if word != "<eos>")
        message = {"content": text}
        if self.server.separates and self.server.thinks(body):
            before, _, after_them = text.partition("</think>")
            message = {"content": after_them or None, "reasoning_content": before}  # type: ignore[dict-item]
        choice: Any = {"message": message, "index": number}
        if body.get("max_tokens") == len(content):
            choice["finish_reason"] = "length"
        if body.get("logprobs") and self.server.logprobs:
            choice["logprobs"] = {
                "content": [{k: v for k, v in place.items() if k != "likely"} for place in content]
            }
        return choice

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
    """Run a server, which is asked without a proxy; options are its attributes."""
    server = Server()
    for name, value in options.items():
        assert hasattr(server, name)
        setattr(server, name, value)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
                patch.delenv(name, raising=False)
            yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def served(*servers: Server, **options: Any) -> Served:
    urls = ",".join(server.url for server in servers)
    return Served("tiny", base_url=urls, **{"pause": 0.01, "tries": 2, **options})


def pairs_of(image: Path, count: int) -> list[Pair]:
    return [Pair(image, f"caption {n}") for n in range(count)]


def completion(**more: Any) -> dict[str, Any]:
    """A chat completion that says 0.7, every digit equally likely."""
    tops = [{"token": str(d), "logprob": math.log(0.1)} for d in range(10)]
    places = [{"token": t, "logprob": -0.1, "top_logprobs": tops} for t in ("0", ".", "7")]
    choice = {"message": {"content": "0.7"}, "logprobs": {"content": places}}
    return {"choices": [choice], "model": "tiny", **more}
