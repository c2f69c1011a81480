"""Requests of every kind to a real service: valid ones, wrong ones, and what is no HTTP at all.

A valid request gets the library's own scores, whatever its neighbours do. Everything else gets a
status that says whose fault it is, never 500; what hangs up costs nothing.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import discode
from discode.images import demo_path
from perf.attack.harness import PATIENCE, Report, serving, tracebacks
from perf.attack.images import mutated

CLIENTS = 12
MOST_MB = 1536
"""Memory that the service may take with 12 clients: model, images being decoded, bodies."""
LIMIT = 20 << 20
"""Bytes of a body, the service's default."""
CAPTIONS = ["a cat", "a brown dog runs", "a red cup of coffee on a table", "two people"]


@dataclass(frozen=True)
class Sent:
    """What is sent, which statuses are right, and how the sender behaves.

    Who sends half a request says that nothing more follows (``ends``), or waits for a time-out.
    """

    kind: str
    data: bytes
    right: frozenset[int]
    image: str = ""
    captions: tuple[str, ...] = ()
    waits: bool = True
    ends: bool = False


def post(body: bytes, kind: str = "application/json", **more: str) -> bytes:
    """Return a request with a body."""
    headers = {
        "host": "localhost", "content-type": kind, "content-length": str(len(body)),
        "connection": "close", **{name.replace("_", "-"): value for name, value in more.items()},
    }  # fmt: skip
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /v1/score HTTP/1.1\r\n{head}\r\n".encode() + body


def ask(image: Any, captions: Any, **more: Any) -> bytes:
    """Return a request in JSON; bytes become a data URL."""
    if isinstance(image, bytes):
        image = f"data:image/jpeg;base64,{base64.b64encode(image).decode()}"
    return post(json.dumps({"image": image, "captions": captions, **more}).encode())


def form(image: bytes, captions: tuple[str, ...]) -> bytes:
    """Return a request as a form."""
    part = "--x\r\ncontent-disposition: form-data; name="
    body = "".join(f'{part}"captions"\r\n\r\n{text}\r\n' for text in captions)
    body += f'{part}"image"; filename="p"\r\n\r\n'
    return post(body.encode() + image + b"\r\n--x--\r\n", "multipart/form-data; boundary=x")


def malformed(cat: bytes) -> Iterator[tuple[str, bytes, set[int]]]:
    """Yield (kind, request, right statuses) of what is well-formed HTTP, and no valid request."""
    refused = {400, 413, 422}
    good = json.dumps({"image": "data:,", "captions": ["a"]}).encode()
    for text in (
        b"",
        b"{",
        b"nul",
        b"[1, 2]",
        b'"a"',
        b"\xff\xfe{",
        good[:-1],
        good + b"}",
        b"NaN",
    ):
        yield "not JSON, or no object", post(text), refused
    yield "UTF-16", post(good.decode().encode("utf-16")), refused
    for piece, depth in ((b"[", 100_000), (b'{"a":', 50_000)):
        yield "deep JSON", post(piece * depth), refused
        inner = piece * depth + b"1" + (b"]" if piece == b"[" else b"}") * depth
        yield "deep JSON", post(b'{"captions": ' + inner + b"}"), refused
    for piece in (b"[],", b"1,", b'"",', b"{},"):
        whole = b'{"captions": [' + piece * 500_000 + b"1]}"
        yield "millions of values", post(whole), refused
    odd: list[Any] = [
        None,
        7,
        1e400,
        True,
        [],
        {},
        [7],
        ["a", None],
        [["a"]],
        "a" * 5000,
        ["a"] * 300,
    ]
    for value in odd:
        yield "wrong types", ask(cat, value), refused
        yield "wrong types", ask(value, ["a"]), refused
    for value in (7, ["a"], {"a": 1}):
        yield "wrong types", ask(cat, ["a"], method=value), refused
        if value != ["a"]:
            yield "wrong types", ask(cat, ["a"], references=value), refused
    yield "unknown fields", ask(cat, ["a"], model="x"), refused
    yield "half characters", ask(cat, ["\ud800"]), refused
    for name in ("nope", "discode:" + "sigma2=1," * 9999, "../../x.json", "discode:trust=1e999",
                 "paper-adam", "discode:sigma2=nan", "\0", "discode:alpha_clip=9:1"):  # fmt: skip
        yield "methods", ask(cat, ["a"], method=name), refused
    for url in ("http://127.0.0.1:1/", "file:///etc/passwd", "data:image/png;base64,????", "x"):
        yield "image addresses", ask(url, ["a"]), refused
    for data in (b"", b"GIF89a", b"\x89PNG\r\n\x1a\n" + b"\0" * 64, b"%!PS-Adobe-3.0 EPSF-3.0\n"):
        yield "no images", ask(data, ["a"]), refused
        yield "no images", form(data, ("a",)), refused
    yield "too long", post(b" " * (LIMIT + 1)), {413}
    yield "too long", ask(b"\0" * LIMIT, ["a"]), {413}
    yield "other types", post(good, "text/plain"), {415}
    yield "other types", post(good, "application/json; charset=\xff"), refused | {415}
    yield "broken forms", post(b"--x", "multipart/form-data; boundary=x"), refused
    yield "broken forms", post(b"--x\r\n\r\n", "multipart/form-data"), refused
    yield "broken forms", post(form(cat, ("a",))[:-9], "multipart/form-data; boundary=x"), refused
    yield "broken forms", post(b"a=1&" * 1000, "application/x-www-form-urlencoded"), {415}
    for path, right in (("GET /nowhere", {404}), ("GET /v1/score", {405}), ("DELETE /", {405}),
                        ("GET /../../etc/passwd", {404}), ("GET /%00", {404}),
                        ("POST /v1/score/../x", {404, 405})):  # fmt: skip
        head = f"{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        yield "other paths", head.encode(), right | {400}
    yield "other hosts", post(good, host="evil.example"), {400, 403, 421}
    yield "other origins", post(good, origin="http://evil.example"), {400, 403, 422}


def no_http() -> Iterator[bytes]:
    """Yield what is no HTTP, or hardly: it is refused, closed, or taken for what it resembles."""
    get, score = b"GET / HTTP/1.1\r\n", b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\n"
    yield b"\r\n\r\n"
    yield b"hello\r\n\r\n"
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500  # TLS
    yield b"GET / HTTP/9.9\r\nhost: localhost\r\n\r\n"
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield b"GET /\r\n\r\n"
    yield b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n"
    yield get + b"\r\n"
    yield get + b"host localhost\r\n\r\n"
    yield get + b"host: a\r\nhost: b\r\n\r\n"
    yield get + b"host: localhost\r\nx: " + b"a" * 70_000 + b"\r\n\r\n"
    yield get + b"host: localhost\r\nx: \0\r\n\r\n"
    yield score + b"content-length: -1\r\n\r\n"
    yield score + b"content-length: 1\r\ncontent-length: 2\r\n\r\n{}"
    yield score + b"content-length: 9" + b"9" * 5000 + b"\r\n\r\n"
    yield score + b"transfer-encoding: chunked\r\n\r\nzz\r\n\r\n"


def mixed(count: int, rng: np.random.Generator) -> list[Sent]:
    """Return ``count`` requests, two of five valid, in random order."""
    files = sorted(demo_path().glob("*.jpg"))
    wrong = list(malformed(files[0].read_bytes()))
    noise = list(no_http())
    made: list[Sent] = []

    def valid() -> Sent:
        file = files[rng.integers(len(files))]
        start = int(rng.integers(len(CAPTIONS)))
        captions = tuple((CAPTIONS * 2)[start : start + int(rng.integers(1, 4))])
        data = file.read_bytes()
        sent = form(data, captions) if rng.random() < 0.5 else ask(data, list(captions))
        return Sent("valid", sent, frozenset({200}), file.name, captions)

    for number in range(count):
        part = number % 20
        if part < 8:
            made.append(valid())
        elif part < 14:
            kind, data, right = wrong[(number // 20 * 6 + part - 8) % len(wrong)]
            made.append(Sent(kind, data, frozenset(right)))
        elif part < 16:
            image = mutated(rng, number)[1]
            made.append(Sent("damaged images", ask(image, ["a cat"]), frozenset({200, 422})))
        elif part < 18:
            data = noise[(number // 20 * 2 + part - 16) % len(noise)]
            right = {0, 200, 400, 404, 421}
            made.append(Sent("no HTTP", data, frozenset(right), ends=True))
        else:
            whole = valid().data
            end = len(whole) if part == 18 else int(rng.integers(1, len(whole)))
            made.append(Sent("hangs up", whole[:end], frozenset({-1}), waits=False))
    return [made[i] for i in rng.permutation(count)]


async def send(port: int, sent: Sent) -> tuple[int, bytes]:
    """Return the status and the body; 0 where the connection was closed, -1 where we closed it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent.data)
        if not sent.waits:
            await asyncio.wait_for(writer.drain(), PATIENCE)
            return -1, b""
        if sent.ends:
            writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
    except OSError:  # refused while it was still being sent; what was answered may be there
        answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    found = re.match(rb"HTTP/1\.1 (\d{3})", head)
    return (int(found[1]) if found else 0), body


async def send_all(port: int, sent: list[Sent]) -> list[tuple[int, bytes]]:
    """Send everything, a few at a time; the answers in order."""
    answers: list[tuple[int, bytes]] = [(0, b"")] * len(sent)
    waiting = iter(range(len(sent)))

    async def client() -> None:
        for number in waiting:
            try:
                answers[number] = await send(port, sent[number])
            except OSError:  # closed by the service, with nothing more to read
                answers[number] = (0, b"")

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return answers


def attack(count: int, rng: np.random.Generator, folder: Path) -> Report:
    """Send ``count`` requests, and compare the valid ones with the library."""
    sent = mixed(count, rng)
    with serving(folder, "--model", "embedded") as (server, port):
        answers = asyncio.run(send_all(port, sent))
        healthz = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        alive, _ = asyncio.run(send(port, Sent("health", healthz, frozenset({200}))))
    report = Report(f"requests: {count}, {CLIENTS} at once")
    statuses: dict[str, Counter[int]] = {}
    for one, (status, _) in zip(sent, answers, strict=True):
        statuses.setdefault(one.kind, Counter())[status] += 1
    for kind, found in sorted(statuses.items(), key=lambda item: -item[1].total()):
        names = {0: "closed", -1: "left"}
        shown = ", ".join(f"{names.get(s, s)}: {n}" for s, n in sorted(found.items()))
        report.say(kind, shown)
    report.promise("no 500", [
        f"{one.kind}: {one.data[:80]!r}" for one, (status, _) in zip(sent, answers, strict=True)
        if status >= 500
    ])  # fmt: skip
    report.promise("every status says what was wrong", [
        f"{one.kind}: {status} for {one.data[:300]!r}"
        for one, (status, _) in zip(sent, answers, strict=True) if status not in one.right
    ])  # fmt: skip
    report.promise("valid ones get the library's scores", _compare(sent, answers))
    ended = server.wait()
    fault = [] if (alive, ended) == (200, 0) else [f"{alive}, exit code {ended}"]
    report.promise("it is healthy, and ends when told", fault)
    report.promise("no traceback", tracebacks(server.stderr))
    report.promise(f"within {MOST_MB} MB ({server.peak_mb})",
                   [server.peak_mb] if server.peak_mb > MOST_MB else [])  # fmt: skip
    return report


def _compare(sent: list[Sent], answers: list[tuple[int, bytes]]) -> list[str]:
    judge = discode.load("embedded")
    known: dict[tuple[str, tuple[str, ...]], np.ndarray] = {}
    wrong = []
    for one, (status, body) in zip(sent, answers, strict=True):
        if one.kind != "valid":
            continue
        key = one.image, one.captions
        if key not in known:
            known[key] = judge.score(demo_path() / one.image, list(one.captions)).value
        rows = json.loads(body)["scores"] if status == 200 else []
        if [row["caption"] for row in rows] != list(one.captions):
            wrong.append(f"{status}: {body[:100]!r}")
        elif not np.allclose([row["score"] for row in rows], known[key], atol=1e-5):
            wrong.append(f"{one.image}: {rows} are not {known[key]}")
    return wrong
