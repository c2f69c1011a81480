"""The page in a real browser: Chromium of the system, driven by playwright."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from discode.images import demo_path
from discode.judge import load
from tests.helpers.chromium import Tabs, chromium
from tests.helpers.fake_model import FakeModel
from tests.helpers.serving import CAT, Client, running

pytestmark = pytest.mark.slow

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with running(load(FakeModel()), limits={"body": 1 << 20}) as client:
        yield client


class Visit(Tabs):
    """The page in a browser."""

    def __init__(self, browser: Any, client: Client, **options: Any) -> None:
        super().__init__(browser, f"http://127.0.0.1:{client.port}")
        self.page = self.open("/", **options)
        self.page.wait_for_selector("#examples button img")

    def scores(self) -> list[str]:
        self.page.wait_for_selector("#ranking > li")
        return [str(text) for text in self.page.locator("#ranking .value").all_inner_texts()]


@pytest.fixture
def visit(browser: Any, client: Client) -> Iterator[Visit]:
    visit = Visit(browser, client)
    yield visit
    visit.close()


def test_an_image_is_picked_and_captions_are_ranked(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    page.set_input_files("#file", demo_path() / "cat.jpg")
    page.get_by_label("Caption 1", exact=True).fill("a cat")
    page.get_by_label("Caption 2", exact=True).fill(EVIL)
    page.get_by_role("button", name="Add a caption").click()
    page.keyboard.type("a third one")
    page.get_by_role("button", name="Score").click()
    own = load(FakeModel()).score(CAT, ["a cat", EVIL, "a third one"])
    assert visit.scores() == [f"{value:.2f}" for value in sorted(own.value, reverse=True)]
    texts = page.locator("#ranking .caption").all_inner_texts()
    assert any(text.endswith(EVIL) for text in texts)  # as text
    assert page.locator("#ranking img").count() == 0  # and not as an image
    assert page.locator("#signature").inner_text() == str(own.signature)
    assert page.locator("#ranking svg[role=img]").count() == 3
    page.locator("#ranking summary").first.click()
    assert page.locator("#ranking table").first.locator("tbody tr").count() == 11
    page.get_by_role("button", name="Remove caption 2").click()
    assert page.locator("#captions textarea").count() == 2
    page.wait_for_timeout(200)  # a script would have run by now


def test_what_was_asked_is_in_the_explorer(visit: Visit) -> None:
    page = visit.page
    assert page.locator("#explore").is_hidden()
    for method, captions in (("discode", ["a cat", EVIL]), ("smoothing", ["a third one"])):
        page.set_input_files("#file", demo_path() / "cat.jpg")
        for number, text in enumerate(captions, 1):
            page.get_by_label(f"Caption {number}", exact=True).fill(text)
        if len(captions) == 1:
            page.get_by_label("Caption 2", exact=True).fill("")
        page.locator("#more").evaluate("more => more.open = true")
        page.select_option("#method", method)
        page.get_by_role("button", name="Score").click()
        page.locator("#after-name", has_text=method).wait_for()
        page.locator("#explore:not([hidden])").wait_for()
    page.locator("#explore", has_text="(2)").click()
    page.wait_for_selector(".row")
    rows = page.locator(".row .caption").all_inner_texts()
    assert rows == ["a cat", EVIL, "a third one"]
    for number, (text, method) in enumerate(
        zip(rows, ("discode", "discode", "smoothing"), strict=True)
    ):
        page.locator(".row").nth(number).click()
        own = load(FakeModel(), method=method).score(CAT, text)
        first, *others = page.locator("#item .scores tbody tr").all_inner_texts()
        assert first.startswith(method)
        assert f"{float(own):.3f}" in first
        assert len(others) == 1  # before the prior
        assert page.locator("#item svg.chart").count() == 1
        assert page.locator("#item .photo img").count() == 1
    page.locator(".row").first.click()
    page.get_by_role("button", name="Signature of discode").click()
    own = load(FakeModel()).score(CAT, "a cat")
    assert page.locator("#signature-text").inner_text() == str(own.signature)
    page.keyboard.press("Escape")
    assert page.locator("#filters select:visible").count() == 3  # metric, show, sort
    page.get_by_role("link", name="Ask again").click()
    page.wait_for_selector("#examples button img")
    assert page.locator("#explore").is_visible()


def test_an_image_is_dropped_or_pasted_and_lines_become_captions(visit: Visit) -> None:
    page = visit.page
    send = """([kind, encoded]) => {
        const bytes = Uint8Array.from(atob(encoded), (letter) => letter.charCodeAt(0));
        const data = new DataTransfer();
        data.items.add(new File([bytes], `${kind}.jpg`, { type: "image/jpeg" }));
        const name = kind === "drop" ? "dataTransfer" : "clipboardData";
        const event = kind === "drop" ? new DragEvent(kind, { [name]: data, bubbles: true })
            : new ClipboardEvent(kind, { [name]: data, bubbles: true });
        document.getElementById("drop").dispatchEvent(event);
    }"""
    for kind in ("drop", "paste"):
        page.evaluate(send, [kind, base64.b64encode(CAT).decode()])
        assert f"{kind}.jpg" in page.locator("#drop-text").inner_text()
        assert page.locator("#preview").is_visible()
    page.evaluate("""() => {
        const data = new DataTransfer();
        data.setData("text", "one cat\\n\\n two cats \\r\\nthree cats");
        document.querySelector("#captions textarea").dispatchEvent(
            new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
    }""")
    values = [area.input_value() for area in page.locator("#captions textarea").all()]
    assert [value for value in values if value] == ["one cat", "two cats", "three cats"]
    page.get_by_role("button", name="Score").click()
    assert len(visit.scores()) == 3


def test_the_keyboard_is_enough(visit: Visit) -> None:
    page = visit.page

    def focused(script: str) -> Any:
        return page.evaluate(f"() => document.activeElement.{script}")

    for _ in range(20):  # to an example
        page.keyboard.press("Tab")
        if focused("getAttribute('aria-label')") == "Example: coffee":
            break
    page.keyboard.press("Enter")
    page.wait_for_selector("#preview:not([hidden])")
    for _ in range(20):
        page.keyboard.press("Tab")
        if focused("getAttribute('aria-label')") == "Caption 1":
            break
    page.keyboard.press("Control+a")
    page.keyboard.type("a cup of coffee")
    page.keyboard.press("Enter")
    assert focused("getAttribute('aria-label')") == "Caption 2"
    page.keyboard.press("Control+Enter")
    assert len(visit.scores()) == 6
    assert focused("id") == "results-title"  # where a screen reader reads on


def test_mistakes_are_said(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    page.get_by_role("button", name="Score").click()
    assert page.get_by_role("status").inner_text() == "Choose an image first."
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"not an image")
    page.set_input_files("#file", broken)
    page.get_by_role("button", name="Score").click()
    assert page.get_by_role("status").inner_text() == "Write a caption first."
    page.get_by_label("Caption 1", exact=True).fill("a cat")
    page.get_by_role("button", name="Score").click()
    page.locator("#status", has_text="cannot be opened").wait_for()
    assert page.locator("#results").is_hidden()
    page.locator("#file").set_input_files(
        {"name": "huge.jpg", "mimeType": "image/jpeg", "buffer": b"x" * (2 << 20)}
    )
    page.get_by_role("button", name="Score").click()
    assert "over 1 MiB" in page.get_by_role("status").inner_text()
    # The browser's own word on the answer 422.
    assert [line for line in visit.complaints if "422" not in line] == []
    visit.complaints.clear()


def test_the_token_field_shows_where_one_is_wanted(browser: Any, visit: Visit) -> None:
    assert visit.page.locator("#token").is_hidden()
    with running(load(FakeModel()), token="secret") as guarded:
        second = Visit(browser, guarded, viewport={"width": 390, "height": 844})
        page = second.page
        page.wait_for_selector("#token")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Example: cat").click()
        page.get_by_role("button", name="Score").click()
        page.locator("#status", has_text="token").wait_for()
        page.get_by_label("Token").fill("secret")
        page.get_by_role("button", name="Score").click()
        assert len(second.scores()) == 6
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390  # a phone scrolls one way only
        second.complaints = [line for line in second.complaints if "401" not in line]
        second.close()
