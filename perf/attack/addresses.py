"""URLs that lead inside, sent to a real service that fetches images by URL.

A listener on loopback counts connections: none may come. The service must answer alike whether a
host is private, has no address or no open port, so that nobody maps a network through it.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from pathlib import Path

import numpy as np

from perf.attack.harness import Report, serving, tracebacks
from tests.helpers.serving import Client

HOSTS = [
    "127.0.0.1", "127.1", "127.0.1", "127.255.255.254", "0.0.0.0", "0", "localhost", "LOCALHOST",
    "localhost.", "2130706433", "0x7f000001", "0x7f.1", "017700000001", "0177.0.0.1",
    "0x7f.0x0.0.1", "①②⑦.⓪.⓪.①", "127。0。0。1", "[::1]", "[::]", "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fe80::1]",
    "[fc00::1]", "[fd00:ec2::254]", "[fec0::1]", "[ff02::1]", "[2001:db8::1]", "[64:ff9b:1::a00:1]",
    "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "100.100.100.200",
    "169.254.169.254", "[::ffff:169.254.169.254]", "2852039166", "0xa9fea9fe", "192.0.0.192",
    "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "nowhere.invalid",
    "a.nowhere.invalid",
]  # fmt: skip
"""Loopback, link-local (where clouds keep keys), private, shared, documentation, multicast and
reserved ranges in every spelling; and two names that have no address anywhere."""


def attack(count: int, rng: np.random.Generator, folder: Path) -> Report:
    """Ask for an image at the first ``count`` addresses, each with the port of a listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        urls = [f"http://{host}:{port}/latest/meta-data.png" for host in HOSTS[:count]]
        reached: list[object] = []
        threading.Thread(target=_count, args=(listener, reached), daemon=True).start()
        answers: Counter[str] = Counter()
        other = []
        with serving(folder, "--model", "stand-in:", "--allow-urls") as (server, service):
            for url in urls:
                reply = Client(service).score(url, ["a cat"])
                message = json.loads(reply.body)["error"]["message"]
                answers[f"{reply.status}: {message}"] += 1
                if reply.status != 422:
                    other.append(f"{url} got {reply.status}")
    report = Report(f"addresses: {len(urls)} URLs that lead inside, one request each")
    report.count(answers)
    report.promise("all refused", other)
    report.promise("no connection", reached)
    report.promise("one wording", list(answers)[1:])
    report.promise("no traceback", tracebacks(server.stderr))
    return report


def _count(listener: socket.socket, reached: list[object]) -> None:
    while True:
        try:
            connection, whence = listener.accept()
        except OSError:  # closed: the attack is over
            return
        connection.close()
        reached.append(whence)
