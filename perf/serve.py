"""The service under load: many clients at once, none lost.

    python perf/serve.py [--model embedded|fake] [--clients C] [--requests N] [--captions K]

Starts `discode serve` as a process of its own and asks it from C clients (keep-alive connections,
asyncio) until N requests are answered; each has K captions of one of the demo's photographs.
Every answer is checked: status 200, its own captions in order, the library's own scores.
`fake` is a judge that answers by a rule in no time, so that what is measured is the service; the
clients share the machine's cores with it. The same number of requests by one client, one after
the other, is the ratio's base.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from discode._judge import load
from discode._pairs import Pair
from discode._prompts import Prompt
from discode._scales import Scale
from discode.backends import KINDS, Backend, Blocks, Kind
from discode.images import demo_path
from discode.readings import Identity, Readings

DIGITS = np.log(np.arange(1.0, 11.0) / 60)


class Fake(Backend):
    """A judge whose digits depend on the caption's length alone."""

    identity = Identity("fake")

    def __init__(self, spec: str) -> None:
        """Take what stands after the colon, and do nothing with it."""

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Blocks:
        """Read N pairs."""
        rows = [np.roll(DIGITS, len(pair.caption)) for pair in pairs]
        answers = np.repeat(np.array(rows)[:, None], 2, axis=1)
        stems = np.log(np.array([[0.9, 0.05]] * len(pairs)))
        yield range(len(pairs)), Readings(scale, answers, stems)


KINDS["fake"] = Kind("a fake", __name__, "Fake")


def requests(count: int, captions: int) -> list[tuple[bytes, list[str], bytes]]:
    """Return (image, captions, body) for each request; bodies are forms."""
    images = [path.read_bytes() for path in sorted(demo_path().glob("*.jpg"))]
    made = []
    for number in range(count):
        image = images[number % len(images)]
        texts = [f"{'a cat and ' * (k % 4)}a dog, number {number % 50}" for k in range(captions)]
        fields = "".join(
            f'--x\r\ncontent-disposition: form-data; name="captions"\r\n\r\n{text}\r\n'
            for text in texts
        )
        head = '--x\r\ncontent-disposition: form-data; name="image"; filename="p"\r\n\r\n'
        made.append((image, texts, (fields + head).encode() + image + b"\r\n--x--\r\n"))
    return made


async def ask(reader: Any, writer: Any, body: bytes) -> tuple[int, Any]:
    """Send one request over an open connection; return status and answer."""
    head = (
        "POST /v1/score HTTP/1.1\r\nhost: localhost\r\n"
        f"content-type: multipart/form-data; boundary=x\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length"))
    return int(lines[0].split()[1]), json.loads(await reader.readexactly(length))


async def load_with(
    port: int, clients: int, asked: list[tuple[bytes, list[str], bytes]]
) -> tuple[float, list[float], list[tuple[int, Any]]]:
    """Return the seconds of all, the seconds of each, and the answers."""
    seconds = [float("nan")] * len(asked)
    answers: list[tuple[int, Any]] = [(0, None)] * len(asked)
    waiting = iter(range(len(asked)))

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        for number in waiting:
            start = time.perf_counter()
            answers[number] = await ask(reader, writer, asked[number][2])
            seconds[number] = time.perf_counter() - start
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return time.perf_counter() - start, seconds, answers


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("embedded", "fake"), default="fake")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--captions", type=int, default=2)
    parser.add_argument(
        "--alone", type=int, default=100, help="requests of one client, for the ratio"
    )
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        from discode._cli import main as command

        sys.argv = ["discode", "serve", "--port", "0", "--model", args.model, "--timeout", "300"]
        command()
        return
    asked = requests(args.requests, args.captions)
    with subprocess.Popen(
        [sys.executable, __file__, "--serve", "--model", args.model],
        stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stderr is not None
        try:
            found = re.search(r":(\d+) ", server.stderr.readline())
            assert found
            port = int(found[1])
            asyncio.run(load_with(port, 1, asked[:4]))  # warm
            alone = asked[: args.alone]
            one, each_alone, _ = asyncio.run(load_with(port, 1, alone))
            took, each, answers = asyncio.run(load_with(port, args.clients, asked))
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
    judge = load(args.model)
    kept: dict[tuple[bytes, tuple[str, ...]], list[float]] = {}
    lost = 0
    for (image, texts, _), (status, answer) in zip(asked, answers, strict=True):
        key = (image, tuple(texts))
        if key not in kept:
            kept[key] = judge.score(image, texts).value.tolist()
        rows = answer["scores"] if status == 200 else []
        lost += [row["caption"] for row in rows] != texts
        lost += bool(rows) and not np.allclose([row["score"] for row in rows], kept[key])
    print(
        f"{args.model}, {args.requests:,} requests of {args.captions} captions, {args.clients} "
        f"clients, {os.cpu_count()} cores with the clients on them: {lost} lost or wrong"
    )
    print(f"{'':16} {'requests/s':>11} {'p50 ms':>9} {'p95 ms':>9} {'p99 ms':>9}")
    for name, total, parts in (("one client", one, each_alone), ("all", took, each)):
        marks = " ".join(f"{1000 * x:9.1f}" for x in np.percentile(parts, (50, 95, 99)))
        print(f"{name:16} {len(parts) / total:11.1f} {marks}")
    print(
        f"x{len(each) / took / (len(each_alone) / one):.1f} the requests per second of one client"
    )
    if lost:
        sys.exit(1)


if __name__ == "__main__":
    main()
