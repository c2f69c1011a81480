"""A campaign with images, its application on loopback, and people who work over HTTP."""

from __future__ import annotations

import hashlib
import html
import itertools
import random
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image as Pillow

from discode._http.guard import LOOPBACK
from mceval._checks import Checks
from mceval._web.app import AnnotationOptions, make_annotation_app
from mceval.database import Database
from mceval.people import Invitation, invite
from mceval.rules import Rules
from tests.helpers.campaigns import CALM, WRITERS, Picture, begin
from tests.helpers.servers import PATIENCE, in_thread

EVIL = "<script>alert('caption')</script> \"quoted\" & '); DROP TABLE answer; --"


def draw_image(path: Path, seed: int) -> None:
    """Write an image of coloured blocks that is like no other."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 255, (6, 8, 3), np.uint8)
    image = Pillow.fromarray(blocks).resize((160, 120), Pillow.Resampling.BICUBIC)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def images_in(folder: Path, names: Mapping[str, int]) -> dict[str, list[Path]]:
    """Write so many images per domain."""
    found: dict[str, list[Path]] = {}
    for number, (name, count) in enumerate(names.items()):
        for i in range(count):
            path = folder / name / f"{i}.png"
            draw_image(path, 1000 * number + i)
            found.setdefault(name, []).append(path)
    return found


def make_campaign(
    db: Database,
    images: Mapping[str, list[Path]],
    quota: int,
    *,
    rules: Rules | None = None,
    gold: int = 0,
    name: str = "A test of captions",
    checks: Checks = CALM,
    **settings: Any,
) -> None:
    """Make a campaign of files; every second caption tries to be code."""
    begin(
        db, rules or Rules(),
        {
            word: (quota, [
                Picture(str(path), f"{word}/{path.name}", file_digest(path), tuple(
                    f"{writer} {EVIL if i % 2 else 'says'} {word} {path.stem}"
                    for i, writer in enumerate(WRITERS)
                ))
                for path in paths
            ])
            for word, paths in images.items()
        },
        [
            Picture(str(path), "", file_digest(path), (f"a {i}", f"b {i}"))
            for i, path in enumerate(next(iter(images.values()))[:gold])
        ],
        name=name, checks=checks, **settings,
    )  # fmt: skip


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def served(
    db: Database, folder: Path, count: int, *roles: str, quota: int | None = None,
    rules: Rules | None = None, checks: Checks = CALM, **options: Any,
) -> Iterator[list[Worker]]:  # fmt: skip
    """Serve a campaign of so many images; yield a worker of each role."""
    make_campaign(db, images_in(folder, {"a": count}), quota or count, rules=rules, checks=checks)
    people = [invite(db, [f"{role} {i}"], role, 0.0)[0] for i, role in enumerate(roles)]
    with running(db, **options) as where:
        yield [Worker(where, person) for person in people]


@contextmanager
def running(db: Database, **options: Any) -> Iterator[str]:
    """Serve in a thread; the address. Unless told otherwise, every request is a second later.

    So people who answer at once have looked at the page as long as they must.
    """
    clock = itertools.count(time.time()).__next__
    app = make_annotation_app(
        db, AnnotationOptions(**{"hosts": LOOPBACK, "clock": clock, **options})
    )
    with in_thread(app) as port:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            for browser in _browsers:
                browser.close()
            _browsers.clear()


_browsers: list[httpx.Client] = []


class Worker:
    """A person with a browser that runs no scripts."""

    def __init__(self, where: str, invitation: Invitation, *, accuracy: float = 1.0) -> None:
        self.invitation = invitation
        self.accuracy = accuracy
        self.rng = random.Random(invitation.person)
        self.http = httpx.Client(base_url=where, follow_redirects=True, timeout=PATIENCE)
        _browsers.append(self.http)

    def knock(self) -> httpx.Response:
        """Open the invitation and join; the page after that."""
        door = self.http.get(f"/join/{self.invitation.token}")
        assert door.status_code == 200, door.text
        return self.http.post("/join", data={"token": fields(door)["token"]})

    def join(self) -> httpx.Response:
        """Join and consent; the page after that."""
        page = self.knock()
        if 'name="agreed"' in page.text:
            page = self.post("/consent", page, agreed="yes")
        return page

    def post(self, path: str, page: httpx.Response, **more: str) -> httpx.Response:
        """Send the form of a page, with what a person filled in."""
        return self.http.post(path, data={**fields(page), **more})

    def answer(self, page: httpx.Response) -> httpx.Response:
        """Answer the task on a page as well as this person can; the next page."""
        if kind(page) == "revise":
            # of a gold question, "b 3" is the wrong caption and "a 3" the right one
            given = re.sub(r"^b (\d+)$", r"a \1", texts(page)[0])
            return self.post("/task", page, text=f"{given}, revised")
        return self.post("/task", page, side=self.side(page))

    def side(self, page: httpx.Response) -> str:
        left, right = texts(page)
        good = self.rng.random() < self.accuracy
        return "left" if (left < right) == good else "right"

    def work(self, limit: int = 10_000) -> int:
        """Work until there is nothing; how many answers were given."""
        page = self.http.get("/task")
        done = 0
        while kind(page) in ("compare", "revise", "pause") and done < limit:
            if kind(page) == "pause":
                page = self.http.get("/task")
                continue
            assert page.status_code == 200, page.text
            page = self.answer(page)
            done += 1
        return done


def fields(page: httpx.Response) -> dict[str, str]:
    """The hidden fields of a page."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text)
    return {name: html.unescape(value) for name, value in found}


def texts(page: httpx.Response) -> list[str]:
    """The captions of a page: of both sides, or the one to revise."""
    found = re.findall(r'<p id="caption-\d"[^>]*>(.*?)</p>', page.text, re.S)
    found = found or re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", page.text, re.S)
    return [html.unescape(text) for text in found]


def kind(page: httpx.Response) -> str:
    """What a page is."""
    for name, words in {
        "compare": "Which caption is better overall", "revise": "Improve this caption",
        "look": "Is this caption right?",
        "pause": "Time for a break", "wait": "Come back later", "done": "There are no tasks left",
        "guide": "Before you begin", "admin": "<h1>Overview", "ended": "has ended",
    }.items():  # fmt: skip
        if words in page.text:
            return name
    return f"{page.status_code}: {page.text[-300:]}"
