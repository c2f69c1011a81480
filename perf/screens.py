"""Pictures of every page of the annotation application, to be looked at.

    python perf/screens.py FOLDER

Wants discode-eval[annotate,dev] and Chromium. A small campaign with the package's own images is
worked on until every page can be met; each page is pictured at 1280x800, 390x844 and 844x390,
light and dark, and the six are put on one sheet, FOLDER/NAME.png.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image as Pillow

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sqlalchemy import select, update

from discode.images import demo_path
from mceval._checks import Checks
from mceval._crowd import CrowdTask
from mceval._tables import Campaign, Candidate, Image
from mceval._web.crowd_page import CrowdPages
from mceval.database import Database
from mceval.people import invite, withdraw
from mceval.rules import Rules
from tests.helpers.annotating import make_campaign, running
from tests.helpers.campaigns import WRITERS
from tests.helpers.chromium import chromium

SIZES = ((1280, 800), (390, 844), (844, 390))
SCHEMES = ("light", "dark")
CAPTIONS = (
    "a close view of something on a wooden table beside a window, with some light from the left",
    "a photo of an object that somebody has put down in the middle of the picture",
    "an animal is looking at something, and behind it is a wall that is painted in two colours",
    "a drawing of a thing",
)
Act = Callable[[Any], object]


class Album:
    """The pages as one person after another meets them."""

    def __init__(self, browser: Any, db: Database, where: str, folder: Path) -> None:
        self.browser, self.db, self.where, self.folder = browser, db, where, folder
        self.people = 0

    def token(self, role: str) -> tuple[int, str]:
        """Invite somebody."""
        self.people += 1
        (one,) = invite(self.db, [f"Ada Lovelace {self.people}"], role, 0.0)
        return one.person, one.token

    def enter(self, role: str, options: dict[str, Any], *, consent: bool = True) -> tuple[int, Any]:
        """Join as somebody new; the person and the page."""
        person, token = self.token(role)
        page = self.browser.new_context(**options).new_page()
        page.goto(f"{self.where}/join/{token}")
        page.get_by_role("button", name="Come in").click()
        if role != "admin":
            page.wait_for_url("**/guide")
            if consent:
                page.get_by_label("I have read this").check()
                page.get_by_role("button", name="Begin").click()
                page.wait_for_url("**/task")
        return person, page

    def sheet(self, name: str, take: Callable[[dict[str, Any]], Any]) -> None:
        """Picture a page six times, and put the pictures side by side."""
        rows = []
        for scheme in SCHEMES:
            row = []
            for width, height in SIZES:
                size = {"width": width, "height": height}
                options: dict[str, Any] = {"viewport": size, "color_scheme": scheme}
                if width < 1000:
                    options |= {"has_touch": True, "is_mobile": True}
                page = take(options)
                page.wait_for_timeout(250)
                row.append(Pillow.open(io.BytesIO(page.screenshot())))
                page.context.close()
            rows.append(row)
        wide = sum(image.width for image in rows[0]) + 40
        sheet = Pillow.new("RGB", (wide, 2 * 844 + 20), "grey")
        for number, row in enumerate(rows):
            x = 0
            for image in row:
                sheet.paste(image, (x, number * 864))
                x += image.width + 20
        sheet.save(self.folder / f"{name}.png")
        print(name)

    def page(self, name: str, role: str, path: str = "", act: Act | None = None) -> None:
        """Picture what somebody of a role sees at an address, after an action."""

        def take(options: dict[str, Any]) -> Any:
            _, page = self.enter(role, options)
            if path:
                page.goto(self.where + path)
            if act is not None:
                act(page)
            return page

        self.sheet(name, take)

    def plain(self, name: str, path: Callable[[], str]) -> None:
        """Picture what a stranger sees."""

        def take(options: dict[str, Any]) -> Any:
            page = self.browser.new_context(**options).new_page()
            page.goto(path() if path().startswith("file:") else self.where + path())
            return page

        self.sheet(name, take)


def write_captions(db: Database) -> None:
    """Give the captions words, and the campaign an introduction."""

    def work(session: Any) -> None:
        for one in session.scalars(select(Candidate)).all():
            one.text = CAPTIONS[WRITERS.index(one.writer)]
        words = "A study of the University of Examples. Questions: captions@example.org"
        session.execute(update(Campaign).values(instructions=words, pay_per_hour=15.0))

    db.run(work)


def reject(page: Any) -> None:
    """Send back what somebody revised."""
    page.get_by_role("button", name="Reject").click()
    page.locator("#undo").wait_for()


def flag(page: Any) -> None:
    """Flag the image on a page."""
    page.locator("#flag summary").click()
    page.get_by_role("radio", name="The image is offensive or private").check()
    page.get_by_role("button", name="Flag", exact=True).click()
    page.locator("#undo").wait_for()


def take_all(album: Album, folder: Path) -> None:
    """Picture every page."""
    large: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
    album.plain("home", lambda: "/")
    album.plain("join", lambda: f"/join/{album.token('comparer')[1]}")
    album.plain("unknown-invitation", lambda: "/join/nobody")
    album.sheet("guide", lambda options: album.enter("both", options, consent=False)[1])
    album.page("guide-end", "both", "/guide", lambda page: page.evaluate("scrollTo(0, 1e6)"))
    album.page("compare", "comparer")
    album.page("compare-answered", "comparer", act=lambda page: (
        page.locator("[data-key='1']").click(), page.locator("#undo").wait_for()))  # fmt: skip
    album.page("compare-skip", "comparer", act=lambda page: page.locator("#skip summary").click())
    album.page("compare-criterion", "comparer", act=lambda page: (
        page.locator(".criterion summary").first.click()))  # fmt: skip
    album.page("compare-zoom", "comparer", act=lambda page: page.locator("#zoom").click())
    album.page("sign-out", "comparer", act=lambda page: page.locator("#sign-out summary").click())
    album.page("revise", "reviser", act=lambda page: (
        page.locator("#text").fill("a red cup on a wooden table beside a window")))  # fmt: skip
    _, page = album.enter("reviser", large)
    for _ in range(3):
        page.locator("#text").fill("a red cup on a wooden table, beside a window in the morning")
        page.get_by_role("button", name="Send my version").click()
        page.locator("#undo").wait_for()
    album.page("look", "reviser")
    _, page = album.enter("reviser", large)
    reject(page)
    album.page("pause", "comparer", "/pause")
    album.page("leave", "comparer", "/pause",
               lambda page: page.locator("#withdraw summary").click())  # fmt: skip
    album.page("done", "study")

    def leave(options: dict[str, Any]) -> Any:
        person, page = album.enter("comparer", options)
        withdraw(album.db, person, 1.0)
        page.goto(album.where)
        return page

    album.sheet("ended", leave)
    for _ in range(2):
        flag(album.enter("comparer", large)[1])
    album.page("organisers", "admin", "/admin")
    album.page("organisers-people", "admin", "/admin#people")
    album.page("organisers-flags", "admin", "/admin#flags")
    album.page("organisers-act", "admin", "/admin#flags", lambda page: (
        page.locator("summary", has_text="Take down").first.click()))  # fmt: skip
    album.page("organisers-person", "admin", "/admin/person/2")
    album.page("invitations", "admin", "/admin/invitations")

    def links(page: Any) -> None:
        names = f"Xenia {album.people}\nYannick {album.people}"
        page.get_by_label("Names, one per line").fill(names)
        page.get_by_role("button", name="Invite").click()

    album.page("links", "admin", "/admin/invitations", links)
    with album.db.read() as session:
        image = session.scalars(select(Image).where(Image.first.is_not(None))).first()
    assert image is not None
    pages = CrowdPages("Thank you for your work.")
    for kind, captions in (("compare", CAPTIONS[:2]), ("revise", CAPTIONS[:1])):
        task = CrowdTask("0", kind, "photo", Path(image.path).as_uri(), tuple(captions), 3)
        path = folder / f"crowd-{kind}.html"
        path.write_text(pages.page(kind, task.image_url, task.captions), encoding="utf-8")
        album.plain(f"crowd-{kind}", path.as_uri)


def main() -> None:
    """Make the sheets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Database(f"{folder}/campaign.db") as db:
        rules = Rules(people=9, second_look=True)
        images = sorted(demo_path().glob("*.jpg"))
        make_campaign(
            db, {"photo": images[:4], "drawing": images[4:8]}, 4, rules=rules,
            checks=Checks(gold_rate=0.0, quick_seconds=0.0), name="Captions of the city",
            lease_seconds=1.0,  # whoever was pictured does not hold a task for long
        )  # fmt: skip
        write_captions(db)
        with (
            Database(f"{folder}/campaign.db") as served,  # settings are read once
            running(served) as where,
            chromium() as browser,
        ):
            take_all(Album(browser, served, where, args.folder), Path(folder))


if __name__ == "__main__":
    main()
