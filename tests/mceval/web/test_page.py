"""The annotation pages in a real browser: Chromium of the system, driven by playwright."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from mceval._tables import Answer, Candidate, Pass, Person, Void
from mceval.database import Database
from mceval.people import invite
from tests.helpers.annotating import EVIL, images_in, make_campaign, running
from tests.helpers.campaigns import scalar, scalars
from tests.helpers.chromium import Tabs, chromium, ready, wait_until

pytestmark = pytest.mark.slow

PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "has_touch": True,
    "is_mobile": True,
}
SIDEWAYS = PHONE | {"viewport": {"width": 844, "height": 390}}


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
        ready(page)
        return page

    def count(self, table: Any) -> int:
        return scalar(self.db, select(func.count()).select_from(table)) or 0


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
    ready(page)


@pytest.mark.page
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
    rows = scalars(site.db, select(Answer).order_by(Answer.id))
    assert rows[0].choice != rows[1].choice
    assert scalars(site.db, select(Void.answer_id)) == [rows[0].id]
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
    assert scalars(site.db, select(Pass.reason)) == ["Other: 1 u s: <i>blurred</i>"]


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
    wait_until(page, "document.activeElement.id === 'zoom'")  # a dialog says later that it closed
    assert site.count(Answer) == 0, "keys belong to the image while it is large"
    page.keyboard.press("Enter")
    assert page.locator("#viewer").is_visible()
    page.get_by_role("button", name="Close").click()


@pytest.mark.page
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
    assert scalars(site.db, select(Answer.text)) == ["a caption of my own"]


def test_a_double_click_or_key_answers_once(browser: Any, sqlite: Database, tmp_path: Path) -> None:
    """What hits the next page at once, or Undo twice, does nothing to it."""
    make_campaign(sqlite, images_in(tmp_path, {"photo": 4}), 4)
    clock = [time.time()]
    with running(sqlite, clock=lambda: clock[0]) as url:
        site = Site(browser, sqlite, url)
        page = site.visit("comparer")
        page.clock.install()
        page.clock.pause_at(clock[0] + 3600)

        def look() -> None:
            """Let as much time pass as anybody needs who looks, here and on the server."""
            clock[0] += 1
            page.clock.run_for(1000)

        look()
        for count, again in ((1, "click"), (2, "1"), (3, "u")):
            place = box(page, "#choice [data-key]")
            middle = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
            page.mouse.click(*middle)
            page.locator(".mine", has_text=f"{count} done by you").wait_for()
            grey = page.locator("#undo button")
            assert (grey.is_disabled(), bool(grey.get_attribute("title"))) == (True, True)
            if again == "click":
                page.mouse.click(*middle)
            else:
                page.keyboard.press(again)
            look()
            done(page, count)
            assert (grey.is_disabled(), grey.get_attribute("title")) == (False, None)
        assert (site.count(Answer), site.count(Void)) == (3, 0)
        page.locator("#undo button").dblclick()
        page.locator(".mine", has_text="2 done by you").wait_for()
        look()
        done(page, 2)
        assert site.count(Void) == 1
        site.close()


def test_what_is_written_outlives_the_session(site: Site) -> None:
    (one,) = invite(site.db, ["Ada"], "reviser", 0.0)
    page = site.open("/")

    def join() -> Any:
        page.goto(f"{site.url}/join/{one.token}")
        page.get_by_role("button", name="Come in").click()
        page.wait_for_url(lambda url: "/join" not in url)
        return page.get_by_label("Improve this caption")

    area = join()
    page.get_by_label("I have read this").check()
    page.get_by_role("button", name="Begin").click()
    page.wait_for_url("**/task")
    area.fill("my <b>own</b> words for it")
    ready(page)
    page.context.clear_cookies()
    page.keyboard.press("Control+Enter")
    page.get_by_role("heading", name="Who are you?").wait_for()
    assert page.locator("textarea").input_value() == "my <b>own</b> words for it"
    area = join()
    assert area.input_value() == "my <b>own</b> words for it"
    assert page.locator("#diff ins").count() > 0, "what was changed is shown"
    ready(page)
    page.keyboard.press("Control+Enter")
    done(page, 1)
    assert "own words" not in area.input_value().replace("</b>", ""), "the next task has its own"
    site.complaints.clear()  # of the 401


def lengthen(db: Database, times: int) -> None:
    """Make all captions long."""

    def work(session: Session) -> None:
        for one in session.scalars(select(Candidate)).all():
            one.text = f"{one.text} " + "and then there is more to see " * times

    db.run(work)


def box(page: Any, selector: str, number: int = 0) -> dict[str, float]:
    found: dict[str, float] = page.locator(selector).nth(number).bounding_box()
    return found


def test_both_captions_come_before_both_buttons(site: Site) -> None:
    lengthen(site.db, 30)
    page = site.visit("comparer", **PHONE)
    wait_until(page, "document.querySelector('#answer').dataset.missing === 'unread'")
    buttons = page.locator("#choice [data-key]")
    assert [buttons.nth(i).is_visible() for i in (0, 1)] == [False, False]
    assert "Read both captions" in page.locator("#choice").inner_text()
    page.keyboard.press("1")
    page.evaluate("document.querySelector('#answer').requestSubmit()")
    height = page.evaluate("document.documentElement.scrollHeight")
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")  # past the first caption
    page.wait_for_timeout(200)
    assert not buttons.first.is_visible(), "the end of the first caption was never in view"
    for y in range(0, int(height), 150):
        page.evaluate(f"scrollTo(0, {y})")
        page.evaluate("new Promise((d) => requestAnimationFrame(() => requestAnimationFrame(d)))")
    buttons.nth(1).wait_for()
    assert [buttons.nth(i).is_visible() for i in (0, 1)] == [True, True]
    assert site.count(Answer) == 0
    bottom = box(page, "#choice")
    assert bottom["y"] + bottom["height"] <= 844, "the bar is in view"
    page.evaluate("document.querySelector('#name-2').scrollIntoView({block: 'center'})")
    image = box(page, "#image")
    assert image["y"] >= 0, "long captions keep the image in sight"
    assert image["y"] + image["height"] < box(page, "#name-2")["y"]
    buttons.nth(1).tap()
    done(page, 1)


def test_a_page_without_its_image_takes_no_answer(site: Site) -> None:
    page = site.visit("comparer")
    lost = page.context
    lost.route("**/image/*", lambda route: route.abort())
    page.reload()
    page.get_by_text("The image did not load, so it cannot be answered").wait_for()
    assert not page.locator("#choice [data-key]").first.is_visible()
    page.keyboard.press("1")
    page.evaluate("document.querySelector('#answer').requestSubmit()")
    page.wait_for_timeout(200)
    assert site.count(Answer) == 0
    lost.unroute("**/image/*")
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("button", name="Caption 1 is better").click()
    done(page, 1)
    reviser = site.visit("reviser")
    reviser.context.route("**/image/*", lambda route: route.abort())
    reviser.reload()
    reviser.get_by_text("The image did not load").wait_for()
    reviser.get_by_label("Improve this caption").fill("written without looking")
    reviser.keyboard.press("Control+Enter")
    reviser.wait_for_timeout(200)
    assert site.count(Answer) == 1
    wanted = "Failed to load resource: net::ERR_FAILED"
    assert set(site.complaints) == {wanted}
    site.complaints.clear()


def test_single_keys_can_be_turned_off(site: Site) -> None:
    page = site.visit("comparer")
    assert page.locator("button kbd").first.is_visible()
    page.get_by_label("Single-key shortcuts").uncheck()
    for key in ("1", "2", "u", "s", "f", "z"):
        page.keyboard.press(key)
    page.wait_for_timeout(200)
    assert site.count(Answer) == 0
    assert page.locator("details.pass[open]").count() == 0
    assert page.locator("#viewer").is_hidden()
    page.reload()
    assert not page.locator("button kbd").first.is_visible(), "they stay off"
    page.goto(site.url + "/guide")
    page.get_by_label("Use single-key shortcuts").check()
    page.goto(site.url + "/task")
    page.locator("#choice [data-key]").first.wait_for()  # both captions are in view
    ready(page)
    page.keyboard.press("1")
    done(page, 1)


SMALL = """
[...document.querySelectorAll("a, button, summary, input, select, textarea")]
  .map((element) => [element, (element.closest("label") ?? element).getBoundingClientRect()])
  .filter(([element, box]) => box.width > 1 && (box.width < 24 || box.height < 24))
  .filter(([element]) => element.checkVisibility({ visibilityProperty: true }))
  .filter(([element]) => !element.closest(".jump"))
  .map(([element, box]) => `${element.outerHTML.slice(0, 80)} ${box.width}x${box.height}`)
"""


@pytest.mark.parametrize("options", [{}, PHONE, SIDEWAYS])
def test_targets_are_large_enough(site: Site, options: dict[str, Any]) -> None:
    worker = site.visit("both", **options)
    assert worker.evaluate(SMALL) == []
    worker.locator("#flag summary").click()
    assert worker.evaluate(SMALL) == []
    worker.get_by_role("radio", name="Other").check()
    worker.get_by_role("button", name="Flag", exact=True).click()
    worker.wait_for_selector("#undo")
    for path in ("/guide", "/pause"):
        worker.goto(site.url + path)
        assert worker.evaluate(SMALL) == [], path
    admin = site.visit("admin", "Boss", **options)
    for path in ("/admin", "/admin/invitations", "/admin/person/1"):
        admin.goto(site.url + path)
        assert admin.evaluate(SMALL) == [], path
        wide = admin.evaluate("document.documentElement.scrollWidth")
        assert wide <= admin.viewport_size["width"], f"{path}: tables scroll, pages do not"


@pytest.mark.page
def test_organising(site: Site) -> None:
    worker = site.visit("comparer", "Carl <i>Sloppy</i>")
    worker.keyboard.press("1")
    done(worker, 1)
    for options in ({}, PHONE):
        page = site.visit("admin", "Boss", **options)
        assert page.get_by_role("heading", name="Overview").is_visible()
        assert page.locator("table tbody th").first.inner_text() == "photo"
        page.get_by_role("link", name="Carl <i>Sloppy</i>").click()
        page.get_by_role("heading", name="Return this work to the queue").wait_for()
    page.get_by_label("Reason").first.fill("asleep")
    page.get_by_role("button", name="Return to the queue").click()
    assert site.count(Void) == 0, "not without the tick"
    page.get_by_label("Yes, return all of it").check()
    page.get_by_role("button", name="Return to the queue").click()
    page.locator(".state.careless").wait_for()
    assert site.count(Void) == 1
    (reason,) = scalars(site.db, select(Person.reason).where(Person.state == "careless"))
    assert reason == "asleep (by Boss)"


@pytest.mark.page
def test_inviting_on_a_page(site: Site) -> None:
    admin = site.visit("admin", "Boss")
    admin.get_by_role("link", name="Invitations").click()
    admin.get_by_label("Names, one per line").fill("Xenia\n\n Yannick <b>")
    admin.get_by_label("Role").select_option("reviser")
    admin.get_by_label("Days").fill("7")
    with admin.expect_navigation():
        admin.get_by_role("button", name="Invite").click()
    links = admin.locator(".links code").all_inner_texts()
    assert len(links) == 2
    assert all(link.startswith(f"{site.url}/join/") for link in links)
    admin.emulate_media(media="print")
    assert admin.locator(".links code").first.is_visible()
    assert not admin.get_by_role("navigation").is_visible()
    admin.emulate_media(media="screen")
    guest = site.open(links[1].removeprefix(site.url))
    assert guest.get_by_role("heading").inner_text() == "Welcome, Yannick <b>"
    guest.get_by_role("button", name="Come in").click()
    guest.wait_for_url("**/guide")
    admin.goto(site.url + "/admin/invitations")
    admin.get_by_label("Yes, end the old links").check()
    with admin.expect_navigation():
        admin.get_by_role("button", name="Make new links").click()
    assert admin.locator(".links b").all_inner_texts() == ["Xenia"], "the other has joined"
    admin.goto(links[0])
    assert "unknown or has expired" in admin.locator("main").inner_text()
    site.complaints.clear()  # of the 404
