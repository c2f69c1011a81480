"""A crowd platform's page in a browser: what it shows, and what it sends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from discode.images import demo_path
from mceval._web.rendering import CrowdPages
from tests.helpers.chromium import chromium, ready
from tests.helpers.servers import PATIENCE

CAPTIONS = ("a tower by the <b>water</b>", "a tree & a cat")
IMAGE = "https://images.example/1.jpg"


class Platform:
    """A platform that shows one task again and again, and keeps what is sent to it."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.sent: list[tuple[str, dict[str, str]]] = []
        self.complaints: list[str] = []
        self.image_there = True
        self.html = ""

    def show(self, kind: str, assignment: str = "A1") -> Any:
        captions = CAPTIONS[: 2 if kind == "compare" else 1]
        self.html = CrowdPages().page(kind, IMAGE, captions)
        page = self.browser.new_page(viewport={"width": 1280, "height": 1600})
        page.set_default_timeout(1000 * PATIENCE)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.route(re.compile("^https?://"), self.answer)
        home = "https://workersandbox.mturk.com"
        page.goto(f"https://task.example/?assignmentId={assignment}&turkSubmitTo={home}")
        return page

    def answer(self, route: Any) -> None:
        request = route.request
        if request.url == IMAGE and self.image_there:
            route.fulfill(body=(demo_path() / "city.jpg").read_bytes(), content_type="image/jpeg")
        elif request.url == IMAGE:
            route.fulfill(status=404)
        elif request.method == "POST":
            form = dict(parse_qsl(request.post_data or "", keep_blank_values=True))
            self.sent.append((request.url, form))
            route.fulfill(body="thank you", content_type="text/html")
        else:
            if urlsplit(request.url).hostname != "task.example":
                self.complaints.append(f"asked for {request.url}")
            route.fulfill(body=self.html, content_type="text/html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def platform(browser: Any) -> Iterator[Platform]:
    made = Platform(browser)
    yield made
    assert made.complaints == []


@pytest.mark.page
def test_the_choice_is_the_caption_wherever_it_stands(platform: Platform) -> None:
    seen = set()
    for _ in range(40):
        page = platform.show("compare")
        page.click("#guide summary")  # it is open, and the captions are below
        first = page.text_content("#caption-1")
        page.wait_for_selector("#choice:not(.waiting)")
        ready(page)
        page.keyboard.press("1")
        page.wait_for_url("**/externalSubmit")
        page.close()
        url, form = platform.sent[-1]
        assert url == "https://workersandbox.mturk.com/mturk/externalSubmit"
        assert form["assignmentId"] == "A1"
        assert CAPTIONS[int(form["choice"])] == first
        assert form["swapped"] == form["choice"]  # the first button was pressed
        seen.add(form["swapped"])
        if len(seen) == 2:
            break
    assert seen == {"0", "1"}


def test_an_image_that_does_not_load_is_flagged_not_judged(platform: Platform) -> None:
    platform.image_there = False
    page = platform.show("compare")
    page.wait_for_selector("#choice.waiting")
    page.keyboard.press("1")
    assert page.is_hidden("[data-key='1']")
    page.keyboard.press("f")
    page.check("#flag input[value='The image does not load']")
    page.click("#flag button.second")
    page.wait_for_url("**/externalSubmit")
    page.close()
    (one,) = platform.sent
    assert one[1] == {
        "assignmentId": "A1", "pass": "flag", "more": "",
        "reason": "The image does not load",
    }  # fmt: skip


def test_a_revision_and_the_guide(platform: Platform) -> None:
    page = platform.show("revise")
    assert page.is_visible("#guide article")  # the first time, and then when it is wanted
    page.reload()
    assert page.is_hidden("#guide article")
    assert page.input_value("#text") == CAPTIONS[0]
    page.click("#answer button.first")  # unchanged, and not said to be right
    page.wait_for_timeout(100)
    assert platform.sent == []
    page.fill("#text", "a tower")
    ready(page)
    page.keyboard.press("Control+Enter")
    page.wait_for_url("**/externalSubmit")
    page.close()
    assert platform.sent[-1][1] == {"assignmentId": "A1", "text": "a tower"}


def test_a_preview_sends_nothing(platform: Platform) -> None:
    page = platform.show("compare", "ASSIGNMENT_ID_NOT_AVAILABLE")
    page.click("#guide summary")
    page.wait_for_selector("#choice:not(.waiting)")
    assert page.is_visible("#preview")
    page.click("[data-key='2']")
    page.wait_for_timeout(100)
    page.close()
    assert platform.sent == []
