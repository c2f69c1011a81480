"""The annotation pages in a real browser: Chromium of the system, driven by playwright."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from discode.mceval.database import Database
from discode.mceval.people import invite
from discode.mceval.tables import Answer, Pass, Person, Void
from tests.helpers.annotating import EVIL, images_in, make_campaign, running
from tests.helpers.chromium import Tabs, chromium, wait_until

pytestmark = pytest.mark.slow

PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "has_touch": True,
    "is_mobile": True,
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


class Site(Tabs):
    """A campaign in a browser."""

    def __init__(self, browser: Any, db: Database, url: str) -> None:
        super().__init__(browser, url)
        self.db = db

    def visit(self, role: str, name: str = "Ada <b>Lovelace</b>", **options: Any) -> Any:
        """Join by an invitation and consent; the page."""
        (one,) = invite(self.db, [name], role, 0.0)
        page = self.open(f"/join/{one.token}", **options)
        assert page.get_by_role("heading").inner_text() == f"Welcome, {one.name}"
        page.get_by_role("button", name="Come in").click()
        page.wait_for_url(lambda url: "/join" not in url)
        if one.role != "admin":
            page.get_by_label("I have read this").check()
            page.get_by_role("button", name="Begin").click()
            page.wait_for_url("**/task")
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= page.viewport_size["width"], "it scrolls one way only"
        return page

    def count(self, table: Any) -> int:
        with self.db.read() as session:
            return session.scalar(select(func.count()).select_from(table)) or 0


@pytest.fixture
def site(browser: Any, sqlite: Database, tmp_path: Path) -> Iterator[Site]:
    make_campaign(sqlite, images_in(tmp_path, {"photo": 8, "sketch": 8}), 6)
    with running(sqlite) as url:
        site = Site(browser, sqlite, url)
        yield site
        site.close()


def captions(page: Any) -> list[str]:
    return [str(text) for text in page.locator(".caption p").all_inner_texts()]


def done(page: Any, count: int) -> None:
    page.locator(".mine", has_text=f"{count} done by you").wait_for()


def test_comparing_by_keyboard(site: Site) -> None:
    page = site.visit("comparer")
    assert page.evaluate("document.querySelector('#image').naturalWidth") == 160
    first = captions(page)
    assert any(EVIL in text for text in first), "shown as text"
    page.keyboard.press("1")
    done(page, 1)
    assert captions(page) != first
    page.keyboard.press("u")
    done(page, 0)
    assert captions(page) == first
    page.keyboard.press("2")
    done(page, 1)
    with site.db.read() as session:
        rows = session.scalars(select(Answer).order_by(Answer.id)).all()
        assert rows[0].choice != rows[1].choice
        assert session.scalars(select(Void.answer_id)).all() == [rows[0].id]
    page.keyboard.press("s")
    wait_until(page, "document.activeElement.value === 'I cannot tell which is better'")
    page.keyboard.press("1")  # not an answer while a reason is picked
    page.keyboard.press("Escape")
    assert page.locator("#skip[open]").count() == 0
    assert site.count(Answer) == 2
    before = captions(page)
    page.keyboard.press("f")
    page.get_by_role("radio", name="Other").check()
    page.get_by_label("In your own words").last.fill("1 u s: <i>blurred</i>")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert captions(page) != before
    with site.db.read() as session:
        assert session.scalars(select(Pass.reason)).all() == ["Other: 1 u s: <i>blurred</i>"]


def test_looking_closely(site: Site) -> None:
    page = site.visit("comparer")
    scale = "new DOMMatrix(getComputedStyle(document.querySelector('#viewer > img')).transform).a"
    page.keyboard.press("z")
    assert page.locator("#viewer").is_visible()
    assert page.evaluate(scale) == 1
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(scale) == pytest.approx(1.4)
    page.mouse.wheel(0, -400)
    wait_until(page, f"{scale} > 2")
    page.keyboard.press("0")
    assert page.evaluate(scale) == 1
    page.keyboard.press("1")
    page.keyboard.press("Escape")
    assert page.locator("#viewer").is_hidden()
    assert page.evaluate("document.activeElement.id") == "zoom"
    assert site.count(Answer) == 0, "keys belong to the image while it is large"
    page.keyboard.press("Enter")
    assert page.locator("#viewer").is_visible()
    page.get_by_role("button", name="Close").click()


def test_revising_with_the_changes_shown(site: Site) -> None:
    page = site.visit("reviser")
    area = page.get_by_label("Improve this caption")
    before = area.input_value()
    assert page.locator("#diff").inner_text() == "None yet."
    assert "Keep it as it is" in page.locator("#answer .first").inner_text()
    area.fill(before.replace("photo", "<b>painting</b>").replace("sketch", "drawing") + " at night")
    assert page.locator("#diff ins").last.inner_text() == "at night"
    assert page.locator("#diff del").count() == 1
    assert page.locator("#diff b").count() == 0
    page.get_by_role("button", name="Start over").click()
    assert area.input_value() == before
    area.fill("a caption\nof my own")
    page.keyboard.press("Control+Enter")
    done(page, 1)
    with site.db.read() as session:
        assert session.scalars(select(Answer.text)).all() == ["a caption of my own"]


def test_on_a_phone(site: Site) -> None:
    page = site.visit("comparer", **PHONE)
    page.get_by_role("button", name="Caption 2 is better").tap()
    done(page, 1)
    page.locator("#zoom").tap()
    assert page.locator("#viewer").is_visible()
    page.get_by_role("button", name="Close").tap()
    page.locator("#skip summary").tap()
    page.get_by_label("I do not know what is shown").check()
    with page.expect_navigation():
        page.get_by_role("button", name="Skip", exact=True).tap()
    assert site.count(Pass) == 1
    page.get_by_role("button", name="Undo").tap()
    done(page, 0)


def test_without_scripts(site: Site) -> None:
    page = site.visit("comparer", java_script_enabled=False)
    page.get_by_role("button", name="Caption 1 is better").click()
    done(page, 1)
    page.get_by_role("button", name="Undo").click()
    done(page, 0)
    page.locator("#skip summary").click()
    page.get_by_label("I cannot tell which is better").check()
    with page.expect_navigation():
        page.get_by_role("button", name="Skip", exact=True).click()
    page = site.visit("reviser", java_script_enabled=False)
    page.get_by_label("Improve this caption").fill("by hand")
    page.get_by_role("button", name="Send").click()
    done(page, 1)
    assert site.count(Pass) == 1


def test_organising(site: Site) -> None:
    worker = site.visit("comparer", "Carl <i>Sloppy</i>")
    worker.keyboard.press("1")
    done(worker, 1)
    for options in ({}, PHONE):
        page = site.visit("admin", "Boss", **options)
        assert page.get_by_role("heading", name="Overview").is_visible()
        assert page.locator("table tbody th").first.inner_text() == "photo"
        page.get_by_role("link", name="Carl <i>Sloppy</i>").click()
        page.get_by_role("heading", name="Put this work back in the queue").wait_for()
    page.get_by_label("Reason").fill("asleep")
    page.get_by_role("button", name="Put it back").click()
    assert site.count(Void) == 0, "not without the tick"
    page.get_by_label("Yes, put all of it back").check()
    page.get_by_role("button", name="Put it back").click()
    page.locator(".state.careless").wait_for()
    assert site.count(Void) == 1
    with site.db.read() as session:
        (reason,) = session.scalars(select(Person.reason).where(Person.state == "careless")).all()
    assert reason == "asleep (by Boss)"
