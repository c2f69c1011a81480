"""The annotation application under load: 100 people at once, the server killed in the middle.

    python perf/annotate.py [--database URL] [--people P] [--judgments N] [--think S]

Makes a campaign, starts `discode mceval annotate` in a separate process and lets P people compare
captions over HTTP until N judgments are given, without a pause (the worst case) or with S seconds
of thought each. Halfway the server is killed with SIGKILL and started again. Afterwards the
database is checked: is every answer that was confirmed there, once, and did nobody get a task that
they may not have? The default is SQLite in a temporary folder; PostgreSQL by URL (its tables are
dropped).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
from PIL import Image as Pillow
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from mceval._checks import Checks
from mceval._states import prepare_images
from mceval._tables import Answer, Base, Candidate, Domain, Image, Slot
from mceval.database import Database
from mceval.people import invite
from mceval.rules import Rules, rank_of

HIDDEN = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')
CAPTION = re.compile(r'<p id="caption-\d"[^>]*>(.*?)</p>')
FORM = "application/x-www-form-urlencoded"


def fill(db: Database, judgments: int, folder: Path) -> int:
    """Make a campaign with at least this many judgments, three per image; the exact number.

    Its images are small files in a folder: a page takes an answer only if there is one.
    """
    rules = Rules(revise="agreed")
    db.create(rules, checks=Checks(gold_rate=0, quick_seconds=0))
    domains, count = ("real", "painting", "sketch", "quickdraw"), -(-judgments // 3)

    def work(session: Session) -> None:
        session.add_all(Domain(name=name, quota=-(-count // 4)) for name in domains)
        session.flush()
        for i in range(count):
            path = folder / f"{i}.png"
            Pillow.new("RGB", (8, 8), (i // 256 % 256, i % 256, 0)).save(path)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            row = Image(
                domain_id=i % 4 + 1, digest=digest, path=str(path), source=f"{i}", state="pool",
                rank=rank_of(rules, digest),
            )  # fmt: skip
            session.add(row)
            session.flush()
            session.add_all(
                Candidate(image_id=row.id, writer=w, text=f"{w} says {i}") for w in "abcd"
            )
        session.flush()
        prepare_images(session, 0.0)

    db.run(work)
    return 3 * count


class Server:
    """The application, as a process that can be killed and started again."""

    def __init__(self, database: str, *options: str) -> None:
        self.database = database
        self.options = options
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        # Answers that come too early to have been seen are refused; here that is all of them.
        code = "from mceval.queue import _leases; _leases.UNSEEN_SECONDS = 0; "
        code += "from discode._cli import main; main()"
        command = [sys.executable, "-c", code, "mceval", "annotate", self.database]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port), "--pause-every", "1000000", *self.options],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert "people work at" in line, line

    def end(self, number: int) -> None:
        """Send it a signal, and wait."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.communicate()


class Browser:
    """One person's keep-alive connection and cookie.

    ``site`` is the name by which they know the server, if it is not the server's own.
    """

    def __init__(self, port: int, site: str = "") -> None:
        self.port = port
        self.site = site
        self.cookie = ""
        self.pipe: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(
        self, path: str, form: dict[str, str] | None = None, origin: str = ""
    ) -> tuple[int, str]:
        """Send a request; OSError or EOFError if the server is gone.

        A connection that the server closed meanwhile, after some idle seconds, is opened again, as
        browsers do.
        """
        while True:
            reused = self.pipe is not None
            try:
                return await self._ask(path, form, origin)
            except (OSError, EOFError):
                if self.pipe is not None:
                    self.pipe[1].close()
                self.pipe = None
                if not reused:
                    raise

    async def _ask(self, path: str, form: dict[str, str] | None, origin: str) -> tuple[int, str]:
        if self.pipe is None:
            self.pipe = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        reader, writer = self.pipe
        body = urlencode(form).encode() if form is not None else b""
        head = f"{'GET' if form is None else 'POST'} {path} HTTP/1.1\r\n"
        head += f"host: {self.site or 'localhost'}\r\n"
        if form is not None and (origin or self.site):  # browsers send the origin of a form
            head += f"origin: {origin or 'http://' + self.site}\r\n"
        head += f"cookie: {self.cookie}\r\ncontent-type: {FORM}\r\ncontent-length: {len(body)}\r\n"
        writer.write(head.encode() + b"\r\n" + body)
        await writer.drain()
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        length = 0
        for line in lines:
            if line.lower().startswith("content-length:"):
                length = int(line.split(":")[1])
        text = (await reader.readexactly(length)).decode(errors="replace")
        found = re.search(r"set-cookie: (discode=[^;]*)", "\n".join(lines), re.I)
        if found:
            self.cookie = found[1]
        if "connection: close" in map(str.lower, lines):
            writer.close()
            self.pipe = None
        status = int(lines[0].split()[1])
        if status in (502, 504):
            raise ConnectionError("the proxy finds no server")
        return status, text


class Load:
    """The work of all people, and its results."""

    def __init__(self, server: Server, judgments: int, think: float) -> None:
        self.server = server
        self.think = think
        self.judgments = judgments
        self.confirmed: list[tuple[int, str]] = []
        self.pages: list[float] = []
        self.posts: list[float] = []
        self.broken = 0

    async def person(self, number: int, token: str) -> None:
        """Join, consent, and compare until there is nothing to do."""
        browser = Browser(self.server.port)
        await browser.ask("/join", {"token": token})
        _, page = await browser.ask("/guide")
        await browser.ask("/consent", {**fields(page), "agreed": "yes"})
        rng, idle = random.Random(number), 0
        await asyncio.sleep(self.think * rng.random())  # not all in one moment
        while idle < 20:
            try:
                start = time.perf_counter()
                status, page = await browser.ask("/task")
                assert status == 200, page
                captions = [unescape(text) for text in CAPTION.findall(page)]
                if not captions:
                    idle += 1
                    await asyncio.sleep(0.1)
                    continue
                self.pages.append(time.perf_counter() - start)
                idle = 0
                sent = fields(page)
                side = "left" if captions[0] < captions[1] else "right"
                await asyncio.sleep(self.think * (0.5 + rng.random()))
                start = time.perf_counter()
                status, page = await browser.ask("/task", {**sent, "side": side})
                self.posts.append(time.perf_counter() - start)
                assert status == 303, page
                self.confirmed.append((number, sent["submission"]))
            except (OSError, EOFError):
                self.broken += 1
                await asyncio.sleep(0.2)

    async def killer(self) -> None:
        """Kill the server halfway, and start it again."""
        while len(self.confirmed) < self.judgments / 2:
            await asyncio.sleep(0.05)
        self.server.end(signal.SIGKILL)
        await asyncio.to_thread(self.server.start)

    async def all(self, people: list[tuple[int, str]]) -> float:
        """Run everything; its seconds."""
        start = time.perf_counter()
        killer = asyncio.create_task(self.killer())
        await asyncio.gather(*(self.person(*one) for one in people))
        killer.cancel()  # if there were too few tasks, which faults() reports
        return time.perf_counter() - start


def fields(page: str) -> dict[str, str]:
    """Read the hidden fields of a page."""
    return {name: unescape(value) for name, value in HIDDEN.findall(page)}


def faults(db: Database, load: Load, judgments: int) -> list[str]:
    """List the faults of the database afterwards."""
    found = []
    with db.read() as session:
        rows = session.execute(
            select(Answer.person_id, Answer.submission, Answer.slot_id, Answer.round,
                   Answer.image_id, Answer.choice, Answer.swapped)
        ).all()  # fmt: skip
        kept = {(row[0], row[1]) for row in rows}
        lost = set(load.confirmed) - kept
        if lost:
            found.append(f"{len(lost)} confirmed answers are lost")
        for what, keys in (
            ("an answer kept twice", [row[1] for row in rows]),
            ("a slot answered twice", [(row[2], row[3]) for row in rows]),
            ("one person twice on an image", [(row[0], row[4]) for row in rows]),
        ):
            if len(set(keys)) != len(keys):
                found.append(f"{what}: {len(keys) - len(set(keys))}")
        votes = np.unique([row[4] for row in rows], return_counts=True)[1]
        if (votes != 3).any():
            found.append(f"{int((votes != 3).sum())} images without exactly three judgments")
        if len(rows) != judgments:
            found.append(f"{len(rows)} judgments, not {judgments}")
        if session.scalar(select(func.count()).where(Slot.state == "leased")):
            found.append("a task is still held")
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", default="", help="default: SQLite in a temporary folder")
    parser.add_argument("--people", type=int, default=100)
    parser.add_argument("--judgments", type=int, default=20_000)
    parser.add_argument("--think", type=float, default=0.0, help="seconds per answer, on average")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = args.database or str(Path(folder) / "campaign.db")
        with Database(url) as db:
            if not db.sqlite:
                Base.metadata.drop_all(db.engine)
            judgments = fill(db, args.judgments, Path(folder))
            invited = invite(db, [f"person {i}" for i in range(args.people)], "comparer", 0.0)
            server = Server(url)
            server.start()
            load = Load(server, judgments, args.think)
            took = asyncio.run(load.all([(one.person, one.token) for one in invited]))
            server.end(signal.SIGTERM)
            wrong = faults(db, load, judgments)
            kind = "SQLite" if db.sqlite else "PostgreSQL"
    print(
        f"{kind}: {judgments:,} judgments, {args.people} people at once, {os.cpu_count()} cores "
        f"with the people on them; killed halfway, {load.broken} requests broken off: "
        f"{'; '.join(wrong) or 'none lost, none twice'}"
    )
    print(f"{judgments / took:.0f} judgments per second (two requests each), {took:.0f} s")
    print(f"{'':12} {'p50 ms':>8} {'p95 ms':>8} {'p99 ms':>8} {'max':>8}")
    for name, times in (("task page", load.pages), ("answer", load.posts)):
        marks = [*np.percentile(times, (50, 95, 99)), max(times)]
        print(f"{name:12} " + " ".join(f"{1000 * value:8.0f}" for value in marks))
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
