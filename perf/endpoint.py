"""Throughput of a served model: python perf/endpoint.py [--requests 2000] [--slots 32]

A server in a process of its own answers after ``--latency`` ms (50): at most ``slots`` requests at
a time, 429 to the others. Ideal is what the slots can serve; exits with 1 where less than 85 % was
reached. ``--images 16 --keeps`` asks about several images, which the server keeps by their
names.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import re
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import discode
from discode._pairs import Pair
from discode.backends._served.backend import Served
from discode.backends._served.transport import wait_for
from discode.images import demo_path

ENOUGH = 0.85
DIGITS = [0.02, 0.02, 0.03, 0.05, 0.08, 0.1, 0.2, 0.4, 0.06, 0.02]


def answer() -> bytes:
    """Return a chat completion that says 0.7."""
    places = [("0", {"0": 0.9, "1": 0.1}), (".", {".": 0.99})]
    places.append(("7", {str(n): p for n, p in enumerate(DIGITS)}))
    content = [
        {
            "token": token,
            "logprob": math.log(p[token]),
            "top_logprobs": [{"token": t, "logprob": math.log(q)} for t, q in p.items()],
        }
        for token, p in places
    ]
    choice = {"message": {"content": "0.7"}, "logprobs": {"content": content}}
    usage = {"prompt_tokens": 600, "completion_tokens": 4}
    return json.dumps({"model": "m", "choices": [choice], "usage": usage}).encode()


async def serve(slots: int, latency: float, keeps: bool, port: Connection) -> None:
    """Answer until the process ends."""
    body, in_flight, received = answer(), 0, 0
    took: list[float] = []
    kept: set[bytes] = set()

    def known(asked: bytes) -> bool:
        """Whether it has the image, now at the latest."""
        name = re.findall(rb'"uuid": "(\w+)"', asked)
        if keeps and b'"image_url": null' not in asked:
            kept.update(name)
        return not keeps or kept.issuperset(name)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal in_flight, received
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = head.split(b"content-length:")[1].split(b"\r\n")[0]
                asked = await reader.readexactly(int(length))
                received += len(asked)
                status, said, more = b"429 Too Many", b"{}", b"Retry-After: 1\r\n"
                if b" /took " in head:
                    status = b"200 OK"
                    said = json.dumps([sum(took) / len(took), received]).encode()
                elif b" /tokenize " in head and keeps:
                    status, said = b"200 OK", b'{"tokens": [], "token_strs": []}'
                elif b"/chat/completions" not in head:
                    status = b"404 Not Found"
                elif not known(asked):
                    status = b"400 Bad Request"
                elif in_flight < slots:
                    in_flight += 1
                    start = time.perf_counter()
                    await asyncio.sleep(latency)
                    took.append(time.perf_counter() - start)
                    in_flight -= 1
                    status, said, more = b"200 OK", body, b""
                length = b"Content-Length: %d\r\n\r\n" % len(said)
                writer.write(b"HTTP/1.1 " + status + b"\r\n" + more + length + said)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, limit=1 << 24)
    port.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def run(slots: int, latency: float, keeps: bool, port: Connection) -> None:
    """Run the server; the target of its process."""
    asyncio.run(serve(slots, latency, keeps, port))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--latency", type=float, default=50.0, help="of an answer, in milliseconds")
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--keeps", action="store_true", help="the server keeps images")
    args = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    latency = args.latency / 1e3
    server = multiprocessing.Process(
        target=run, args=(args.slots, latency, args.keeps, theirs), daemon=True
    )
    server.start()
    backend = Served("m", base_url=f"http://127.0.0.1:{ours.recv()}/v1")
    with tempfile.TemporaryDirectory() as folder:
        judge = discode.load(backend, store=Path(folder) / "run.db")
        cat = (demo_path() / "cat.jpg").read_bytes()
        images = [cat + n.to_bytes(4, "big") for n in range(args.images)]  # not seen after its end
        pairs = [
            Pair(images[n % args.images], f"a caption, number {n}") for n in range(args.requests)
        ]
        start, cpu = time.perf_counter(), time.process_time()
        scores = judge.score_pairs(pairs)
        measured = time.perf_counter() - start
        cpu = time.process_time() - cpu
    took, received = wait_for(backend.client.fetch_json("took", {}))
    server.terminate()
    ideal = args.requests * latency / args.slots
    share, throttle = ideal / measured, backend.client.throttle
    print(f"{args.requests} requests, {args.slots} slots, {args.latency:g} ms each")
    print(f"ideal {ideal:.2f} s, measured {measured:.2f} s: {share:.1%} of the ideal")
    busy = args.requests * took / args.slots / measured
    print(f"an answer took the server {took * 1e3:.1f} ms; its slots were busy {busy:.1%} of it")
    print(f"{throttle.sent} sent, {throttle.limit} at a time at the end; {cpu:.2f} s of CPU")
    print(f"{args.requests / measured:.0f} requests/s, {received / 1e6:.1f} MB")
    print(f"load of the machine {os.getloadavg()[0]:.1f}; failed {scores.counts()['failed']}")
    sys.exit(0 if share >= ENOUGH and not scores.counts()["failed"] else 1)


if __name__ == "__main__":
    main()
