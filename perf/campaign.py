"""A whole campaign of 40 scripted people, ten of them hostile, with crashes and a backup.

    python perf/campaign.py [--postgres] [--direct] [--quota Q] [--think S]

Images, captions and gold questions are generated (two gold questions on one image of the
campaign). `discode mceval init`, `candidates`, `people` and `annotate` run as commands, and people
work over HTTP through nginx, which uses another host name for the server; with --direct, or if
nginx is not installed, without it. Two people flag everything, two skip everything, two choose at
random, two do not look, two forge requests. The server is killed (SIGKILL) and restarted twice; in
between the campaign is backed up. Afterwards the database and the restored backup are checked
against the rules, and the numbers are printed. --postgres starts PostgreSQL in a temporary folder.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from html import unescape
from pathlib import Path

import numpy as np
from PIL import Image as Pillow
from sqlalchemy import func, select

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mceval._checks import Checks, Evidence, careless_reason
from mceval._report import domain_rows, person_rows
from mceval._tables import Answer, Candidate, Domain, Image, Pass, Person, Slot
from mceval.database import Database
from perf.annotate import CAPTION, Browser, Server, fields
from tests.helpers import postgres
from tests.helpers.campaigns import check_rules

DOMAINS = ("photo", "painting", "sketch", "infographic")
WRITERS = "abcd"
CAST = {"careful": 24, "reviser": 6, "flagger": 2, "skipper": 2, "coin": 2, "blind": 2, "forger": 2}
"""The number of people of each kind; revisers are careful, too."""
TEXT = re.compile(r"<textarea[^>]*>\n?(.*?)</textarea>", re.S)
QUICK = 0.25
"""Seconds; quicker answers count as careless here, since these people think fast."""


def discode(*words: object) -> str:
    """Run a command of `discode mceval`; its output."""
    code = "from discode._cli import main; main()"
    command = [sys.executable, "-c", code, "mceval", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr}")
    return done.stdout


def make_files(folder: Path, pool: int) -> None:
    """Write images of coloured blocks, four writers' captions and the gold questions."""
    rng = np.random.default_rng(0)
    rows = []
    for domain in DOMAINS:
        (folder / domain).mkdir()
        for i in range(pool):
            blocks = rng.integers(0, 255, (6, 8, 3), np.uint8)
            path = folder / domain / f"{i}.png"
            Pillow.fromarray(blocks).resize((160, 120), Pillow.Resampling.BICUBIC).save(path)
            rows.append((path, f"{domain} {i}"))
    for writer in WRITERS:
        with (folder / f"{writer}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["image", "caption"])
            out.writerows([path, f"{writer} sees {words} in many colours"] for path, words in rows)
    with (folder / "gold.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["image", "right", "wrong"])
        for i in range(24):  # the first two are on one image, and all on images of the campaign
            out.writerow([rows[max(1, i)][0], f"a right caption {i}", f"z wrong caption {i}"])


@contextmanager
def nginx(folder: Path, behind: int) -> Iterator[int]:
    """Start nginx in front of the server, with another host name for it; its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    temps = "".join(
        f"{name}_temp_path {folder}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log stderr crit;"
        "events { worker_connections 1024; }"
        f"http {{ access_log off; {temps} server {{ listen 127.0.0.1:{port}; location / {{"
        f"proxy_pass http://127.0.0.1:{behind};"
        "proxy_set_header X-Forwarded-For $remote_addr; }}}"
    )
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
        try:
            time.sleep(1)
            yield port
        finally:
            running.terminate()


class Show:
    """The work of all people, and its results."""

    def __init__(self, server: Server, port: int, site: str, think: float) -> None:
        self.server, self.port, self.site, self.think = server, port, site, think
        self.confirmed: dict[str, int] = {}
        self.flags = self.skips = self.broken = self.late = 0
        self.forged: Counter[str] = Counter()
        self.accepted: list[str] = []
        self.leases: list[str] = []
        self.first: dict[int, tuple[str, str]] = {}
        self.finished = False

    async def person(self, number: int, kind: str, token: str) -> None:
        """Join, consent, and work according to kind until there are no tasks."""
        browser, rng = Browser(self.port, self.site), random.Random(number)
        await browser.ask("/join", {"token": token})
        _, page = await browser.ask("/guide")
        await browser.ask("/consent", {**fields(page), "agreed": "yes"})
        while not self.finished:
            try:
                status, page = await browser.ask("/task")
                if status == 403:  # their part has ended
                    return
                sent = fields(page)
                if "submission" not in sent:
                    await asyncio.sleep(0.2)
                    continue
                await browser.ask(f"/image/{sent['lease']}")
                if kind == "forger":
                    await self.forge(browser, sent, number)
                    await asyncio.sleep(self.think)
                    continue
                if kind != "blind":
                    await asyncio.sleep(QUICK + self.think * (0.5 + rng.random()))
                await self.act(browser, number, kind, sent, page, rng)
            except (OSError, EOFError):
                self.broken += 1
                await asyncio.sleep(0.2)

    async def act(
        self, browser: Browser, number: int, kind: str, sent: dict[str, str], page: str,
        rng: random.Random,
    ) -> None:  # fmt: skip
        """Answer, skip or flag."""
        captions = [unescape(text) for text in CAPTION.findall(page)]
        if captions:
            self.first.setdefault(number, (captions[0], captions[1]))
        if kind in ("flagger", "skipper"):
            path = "/flag" if kind == "flagger" else "/skip"
            status, _ = await browser.ask(path, {**sent, "reason": "Other", "more": "I say so"})
            self.flags += (status, kind) == (303, "flagger")
            self.skips += (status, kind) == (303, "skipper")
            return
        if captions:
            right = captions[0] < captions[1]
            sure = {"coin": 0.5, "blind": 0.5}.get(kind, 0.97)
            form = {"side": "left" if right == (rng.random() < sure) else "right"}
        else:
            found = TEXT.search(page)
            text = unescape(found[1]) if found else ""
            text = text.replace("z wrong", "a right")  # a gold question: correct the error
            await asyncio.sleep(3 * QUICK)
            form = {"text": f"{text}, and a little more of it"}
        status, page = await browser.ask("/task", {**sent, **form})
        if status == 303:
            self.confirmed[sent["submission"]] = number
        else:
            self.late += 1

    async def forge(self, browser: Browser, sent: dict[str, str], number: int) -> None:
        """Send forged requests, all of which must be refused."""
        stranger = Browser(self.port, self.site)
        other = next((lease for lease in self.leases if lease != sent["lease"]), "x" * 24)
        self.leases = [*self.leases[-5:], sent["lease"]]
        side = {"side": "left"}
        tries: list[tuple[str, Browser, str, dict[str, str] | None, str]] = [
            ("no cookie", stranger, "/task", {**sent, **side}, ""),
            ("no form token", browser, "/task", {**sent, **side, "form_token": ""}, ""),
            ("another's task", browser, "/task", {**sent, **side, "lease": other}, ""),
            ("a made-up answer", browser, "/task", {**sent, **side, "submission": "a" * 43}, ""),
            ("another site's form", browser, "/task", {**sent, **side}, "http://evil.example"),
            ("a third side", browser, "/task", {**sent, "side": "both"}, ""),
            ("no answer", browser, "/task", sent, ""),
            ("text and side", browser, "/task", {**sent, **side, "text": "x"}, ""),
            ("a flag of another's task", browser, "/flag", {**sent, "lease": other}, ""),
            ("another's image", browser, f"/image/{other}", None, ""),
            ("the organisers' page", browser, "/admin", None, ""),
            ("somebody's work", browser, "/admin/person/1",
             {**sent, "action": "put_back", "reason": "x", "sure": "yes"}, ""),
            ("a guessed invitation", stranger, "/join", {"token": f"guess-{number}"}, ""),
        ]  # fmt: skip
        for what, one, path, form, origin in tries:
            status, _ = await one.ask(path, form, origin)
            if status >= 500:
                continue
            self.forged[what] += 1
            if status < 400:
                self.accepted.append(f"{what}: {status}")

    async def director(self, url: str, saved: Path) -> set[str]:
        """Kill, back up, kill, wait for the end; the answers confirmed before the backup."""
        known: set[str] = set()
        with Database(url) as db:
            total = _count(db, None)
            still, last = 0, 0
            steps = [(1 / 4, "kill"), (1 / 2, "save"), (3 / 4, "kill")]
            while still < 60:
                await asyncio.sleep(0.5)
                done = await asyncio.to_thread(_count, db, "done")
                still = still + 1 if len(self.confirmed) == last else 0
                last = len(self.confirmed)
                if steps and done >= steps[0][0] * total:
                    _, what = steps.pop(0)
                    if what == "kill":
                        self.server.end(signal.SIGKILL)
                        await asyncio.to_thread(self.server.start)
                    else:
                        known = set(self.confirmed)
                        await asyncio.to_thread(save, url, saved)
                if done >= total:
                    break
        self.finished = True
        return known

    async def all(self, people: list[tuple[int, str, str]], url: str, saved: Path) -> set[str]:
        """Let all people work; the answers confirmed before the backup."""
        found = await asyncio.gather(
            self.director(url, saved), *(self.person(*one) for one in people)
        )
        return found[0] or set()


def _count(db: Database, state: str | None) -> int:
    """Count the images in a state, or the sum of the quotas."""
    with db.read() as session:
        if state is None:
            return int(session.scalar(select(func.sum(Domain.quota))) or 0)
        return int(session.scalar(select(func.count()).where(Image.state == state)) or 0)


def save(url: str, target: Path) -> None:
    """Back up a campaign while people work."""
    if url.startswith("postgresql"):
        tool("pg_dump", "--format=custom", f"--file={target}", url)
    else:
        discode("backup", url, target)


def tool(name: str, *words: str) -> None:
    """Run a program of PostgreSQL."""
    where = postgres.programs()
    program = str(where / name) if where and (where / name).is_file() else name
    subprocess.run([program, *words], check=True)


def restore(url: str, saved: Path) -> str:
    """Restore the backup; its URL."""
    if not url.startswith("postgresql"):
        return str(saved)
    where = url.replace("/postgres?", "/restored?")
    tool("psql", "--quiet", "--command=CREATE DATABASE restored", url)
    tool("pg_restore", "--no-owner", f"--dbname={where}", str(saved))
    return where


def check(label: str, good: bool, words: str, wrong: list[str]) -> None:
    """Print a line, and record its label on failure."""
    print(f"{'ok ' if good else 'BAD'} {label}: {words}")
    if not good:
        wrong.append(label)


def report(db: Database, show: Show, kinds: dict[int, str], wrong: list[str]) -> None:
    """Print the checks of the rules and their results."""
    with db.read() as session:
        answers = session.execute(
            select(Answer.submission, Answer.person_id, Answer.kind, Answer.choice, Answer.swapped)
        ).all()
        kept = {row[0] for row in answers}
        people = {row.id: row for row in person_rows(session)}
        domains = domain_rows(session)
        flags = session.scalars(select(Pass.person_id).where(Pass.kind == "flag")).all()
        gone = session.scalars(select(Image.reason).where(Image.state == "discarded")).all()
        texts = {row.id: row.text for row in session.scalars(select(Candidate)).all()}
        done = session.scalars(select(Image).where(Image.state == "done")).all()
        golds = session.scalars(select(Image).where(Image.state == "gold")).all()
        votes = session.scalars(
            select(Answer.kind)
            .join(Image, Image.id == Answer.image_id)
            .where(Image.state == "gold")
        ).all()
        held = session.scalar(select(func.count()).where(Slot.state == "leased"))
        states = {row.id: row.state for row in session.scalars(select(Person)).all()}
    lost = set(show.confirmed) - kept
    check("answers", not lost and len(kept) == len(answers),
          f"{len(show.confirmed)} confirmed, {len(lost)} lost, {len(answers) - len(kept)} twice; "
          f"{show.broken} requests broken off, {show.late} refused as too late", wrong)  # fmt: skip
    quotas = [(row.name, row.done, row.quota) for row in domains if row.quota]
    check("quotas", all(done == quota for _, done, quota in quotas),
          ", ".join(f"{name} {done}/{quota}" for name, done, quota in quotas), wrong)  # fmt: skip
    reasons = Counter(re.sub(r"[:\d].*", "", why).strip() for why in gone)
    check("discarded", not any("flag" in why or "skip" in why for why in reasons),
          f"{len(gone)}: {dict(reasons)}; two people flagged {show.flags} times and two skipped "
          f"{show.skips} times", wrong)  # fmt: skip
    check("flags", len(flags) == show.flags, f"{len(flags)} kept of {show.flags}", wrong)
    for kind in ("coin", "blind"):
        found = [people[number] for number, one in kinds.items() if one == kind]
        # By chance, some know enough of the gold answers, or got too few to be judged.
        lucky = [
            row for row in found
            if not careless_reason(Checks(), Evidence(gold=row.gold, right=row.right))
        ]  # fmt: skip
        check(kind, all(row.state == "careless" or row in lucky for row in found),
              "; ".join(f"{row.state} after {row.answers} "
                        f"({row.reason or f'gold {row.right} of {row.gold}'})"
                        for row in found), wrong)  # fmt: skip
    fair = [people[n] for n, one in kinds.items() if one in ("careful", "reviser")]
    check("careful", all(row.state == "active" for row in fair),
          f"{len(fair)} people, {sum(row.answers for row in fair)} answers, "
          f"{sum(row.state != 'active' for row in fair)} ended by mistake", wrong)  # fmt: skip
    theirs = [row for row in answers if kinds.get(row[1]) == "forger"]
    check("forged", not show.accepted and not theirs,
          f"{sum(show.forged.values())} requests of {len(show.forged)} kinds, "
          f"{len(show.accepted)} accepted {show.accepted[:3]}", wrong)  # fmt: skip
    same = [i for i in done if i.reference in (texts[i.first or 0], texts[i.second or 0])]
    check("references", not same, f"{len(done)}, {len(same)} equal to a compared caption", wrong)
    shared = len(golds) - len({image.digest for image in golds})
    check("gold", set(votes) <= {"gold"},
          f"{len(votes)} answers to {len(golds)} questions, {shared} on an image that another has, "
          f"{sum(one != 'gold' for one in votes)} votes among them", wrong)  # fmt: skip
    where = [re.sub(r"^\w sees (\w+).*", r"\1", first) for first, _ in show.first.values()]
    begun = Counter(word for word in where if word in DOMAINS)
    check("order", len(begun) == len(DOMAINS) and max(begun.values()) < 0.6 * sum(begun.values()),
          f"first domain {dict(begun)}; {len(set(show.first.values()))} first tasks for "
          f"{len(show.first)} people", wrong)  # fmt: skip
    sides = [row[3] == int(row[4]) for row in answers if row[2] == "compare"]
    share, wide = float(np.mean(sides)), 3 * 0.5 / len(sides) ** 0.5
    check("sides", abs(share - 0.5) < wide, f"left chosen in {100 * share:.1f} %", wrong)
    kappa = ", ".join(f"{row.name} {row.kappa:.2f}" for row in domains if row.quota)
    print(f"    Fleiss' kappa: {kappa}; people {dict(Counter(states.values()))}; {held} tasks held")


def try_rules(db: Database, label: str, wrong: list[str]) -> None:
    """Check the paper's rules on a database."""
    try:
        check_rules(db, settled=False)
    except AssertionError as error:
        check(label, False, f"the rules do not hold: {error}", wrong)
    else:
        check(label, True, "the paper's rules hold", wrong)


def main() -> None:
    """Run the campaign, and print its numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--direct", action="store_true", help="without nginx")
    parser.add_argument("--quota", type=int, default=60, help="images per domain")
    parser.add_argument("--think", type=float, default=0.5, help="seconds per answer, on average")
    args = parser.parse_args()
    wrong: list[str] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="discode-show-")))
        url = str(folder / "camp.db")
        if args.postgres:
            url = stack.enter_context(postgres.server())
        make_files(folder, args.quota * 3 // 2)
        domains = [word for name in DOMAINS for word in ("--domain", f"{name}={folder / name}")]
        discode("init", url, *domains, "--per-domain", args.quota, "--gold", folder / "gold.csv",
                "--gold-rate", 0.25, "--quick-seconds", QUICK, "--lease-minutes", 1)  # fmt: skip
        for writer in WRITERS:
            discode("candidates", url, "--writer", writer, "--file", folder / f"{writer}.csv")
        people = []
        for kind, count in CAST.items():
            role = "reviser" if kind == "reviser" else "comparer"
            table = folder / f"{kind}.people.csv"
            names = [f"{kind} {i + 1}" for i in range(count)]
            discode("people", "invite", url, *names, "--role", role, "-o", table)
            with table.open(newline="") as file:
                people += [(int(row["person"]), kind, row["token"]) for row in csv.DictReader(file)]
        proxied = not args.direct and bool(shutil.which("nginx", path="/usr/sbin:/usr/bin:/bin"))
        server = Server(url)
        port, site = server.port, ""
        if proxied:
            port = stack.enter_context(nginx(folder, server.port))
            site = f"captions.example.org:{port}"
            server.options = ("--public-url", f"http://{site}", "--trust-proxy")
        server.start()
        stack.callback(lambda: server.end(signal.SIGTERM))
        show, saved = Show(server, port, site, args.think), folder / "saved"
        start = time.perf_counter()
        known = asyncio.run(show.all(people, url, saved))
        took = time.perf_counter() - start
        print(f"{'PostgreSQL' if args.postgres else 'SQLite'}, "
              f"{'through nginx' if proxied else 'without a proxy'}: {len(people)} people, "
              f"{took:.0f} s, killed twice")  # fmt: skip
        with Database(url) as db:
            report(db, show, {number: kind for number, kind, _ in people}, wrong)
            try_rules(db, "rules", wrong)
            with db.read() as session:
                kept = set(session.scalars(select(Answer.submission)).all())
        back = restore(url, saved)
        with Database(back) as db:
            db.check()
            with db.read() as session:
                there = set(session.scalars(select(Answer.submission)).all())
            lost = known - there
            check("backup", bool(known) and not lost and there <= kept,
                  f"made at {len(known)} confirmed answers while people worked, {len(lost)} lost, "
                  f"{len(there)} in it", wrong)  # fmt: skip
            try_rules(db, "restored", wrong)
        again = Server(back)
        again.start()
        browser = Browser(again.port)
        token = next(token for _, kind, token in people if kind == "careful")
        joined = asyncio.run(_works(browser, token))
        again.end(signal.SIGTERM)
        check("restored server", joined == 200, f"the next task page answers {joined}", wrong)
    if wrong:
        raise SystemExit(f"not as it should be: {', '.join(wrong)}")


async def _works(browser: Browser, token: str) -> int:
    await browser.ask("/join", {"token": token})
    status, _ = await browser.ask("/task")
    return status


if __name__ == "__main__":
    main()
