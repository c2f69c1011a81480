"""The page in a real browser: Chromium of the system, driven by playwright."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from discode._judge import load
from discode.images import demo_path
from tests.helpers.chromium import Tabs, chromium, wait_until
from tests.helpers.fake_model import FakeModel
from tests.helpers.serving import CAT, BusyModel, Client, running, wait_for

pytestmark = pytest.mark.slow

EVIL = "<img src=x onerror=alert(1)>"
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with running(limits={"body": 1 << 20}) as client:
        yield client


class Visit(Tabs):
    """The page in a browser."""

    def __init__(self, browser: Any, client: Client, **options: Any) -> None:
        super().__init__(browser, f"http://127.0.0.1:{client.port}")
        self.page = self.open("/", **options)
        assert [line for line in self.complaints if "401" not in line] == []  # its script runs
        self.page.evaluate("""() => Object.defineProperty(navigator, "clipboard", {
            value: { writeText: async (text) => { window.copied = text; } } })""")
        self.page.wait_for_selector("#examples button img")

    def copied(self, kind: str) -> str:
        """What a button copies; the clipboard itself belongs to the machine, so it is replaced."""
        self.page.get_by_role("button", name=f"Copy as {kind}").click()
        return str(self.page.evaluate("() => window.copied"))

    def ask(self, *captions: str, image: Any = None) -> list[str]:
        """Score captions of an image, the cat if none is named; the scores as shown."""
        self.page.set_input_files("#file", image or demo_path() / "cat.jpg")
        for number, text in enumerate(captions, 1):
            if number > self.page.locator("#captions textarea").count():
                self.page.get_by_role("button", name="Add a caption").click()
            self.page.get_by_label(f"Caption {number}", exact=True).fill(text)
        self.page.get_by_role("button", name="Score").click()
        return self.scores()

    def scores(self) -> list[str]:
        self.page.wait_for_selector("#ranking > li")
        return [str(text) for text in self.page.locator("#ranking .value").all_inner_texts()]


@pytest.fixture
def visit(browser: Any, client: Client) -> Iterator[Visit]:
    visit = Visit(browser, client)
    yield visit
    visit.close()


@pytest.mark.page
def test_an_image_is_picked_and_captions_are_ranked(visit: Visit) -> None:
    page = visit.page
    captions = ["a cat", EVIL, "a third one"]
    shown = visit.ask(*captions)
    own = load(FakeModel()).score(CAT, captions)
    assert shown == [f"{value:.2f}" for value in sorted(own.value, reverse=True)]
    texts = page.locator("#ranking .caption").all_inner_texts()
    assert any(text.endswith(EVIL) for text in texts)  # as text
    assert page.locator("#ranking img").count() == 0  # and not as an image
    assert page.locator("#signature").inner_text() == str(own.signature)
    assert page.locator("#ranking svg[role=img]").count() == 3
    page.locator("#ranking summary", has_text="Numbers").first.click()
    assert page.locator("#ranking table").first.locator("tbody tr").count() == 11
    page.get_by_role("button", name="Remove caption 2").click()
    assert page.locator("#captions textarea").count() == 2
    page.wait_for_timeout(200)  # a script would have run by now


def test_a_caption_judged_by_sentences_shows_the_lowest(browser: Any) -> None:
    judge, text = load(FakeModel(), by="sentence"), "A cat sits on a wall. It is striped."
    (own,) = judge.score(CAT, text).sentences or ()
    assert own is not None
    with running(judge) as client:
        answer = client.score(CAT, [text, "a cat"]).json["scores"]
        assert [row["sentences"] for row in answer] == [2, None]
        assert (answer[0]["lowest_sentence"], answer[0]["lowest_score"]) == own.lowest
        assert answer[0]["smoothing"] == pytest.approx(
            float(judge.with_method("smoothing").score(CAT, text))
        )
        assert [row["probabilities"] is None for row in answer] == [True, False]
        visit = Visit(browser, client)
        assert sorted(visit.ask(text, "a cat")) == sorted(f"{row['score']:.2f}" for row in answer)
        shown = visit.page.locator("#ranking > li", has_text=text).inner_text()
        assert "mean of 2 sentences" in shown
        assert f"{own.lowest[1]:.2f}: {own.lowest[0]}" in shown
        assert visit.page.locator("#ranking svg[role=img]").count() == 1
        visit.page.locator("#explore:not([hidden])").click()
        visit.page.locator(".row", has_text=text).click()
        assert visit.page.locator("#item svg.chart").count() == 0
        visit.close()


def test_what_was_asked_is_in_the_explorer(visit: Visit) -> None:
    page = visit.page
    assert page.locator("#explore").is_hidden()
    for method, captions in (("discode", ["a cat", EVIL]), ("smoothing", ["a third one", ""])):
        page.locator("#more").evaluate("more => more.open = true")
        page.select_option("#method", method)
        visit.ask(*captions)
        page.locator("#signature", has_text=f"decoder:{method}").wait_for()
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
        shown = [row.split() for row in page.locator("#item .scores tbody tr").all_inner_texts()]
        assert own.raw is not None
        assert own.smoothing is not None
        values = {"raw": own.raw[0], "smoothing": own.smoothing[0], method: float(own)}
        assert {row[0]: row[1] for row in shown} == {k: f"{v:.3f}" for k, v in values.items()}
        assert page.locator("#item svg.chart").count() == 1
        assert page.locator("#item .photo img").count() == 1
    page.locator(".row").first.click()
    page.get_by_role("button", name="Signature of discode").click()
    own = load(FakeModel()).score(CAT, "a cat")
    assert page.locator("#signature-text").inner_text() == str(own.signature)
    page.keyboard.press("Escape")
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
    assert len(visit.scores()) == 6  # an example is scored at once, and the focus stays
    for _ in range(20):
        page.keyboard.press("Tab")
        if focused("getAttribute('aria-label')") == "Caption 1":
            break
    page.keyboard.press("Control+a")
    page.keyboard.type("a cup of coffee")
    page.keyboard.press("Enter")
    assert focused("getAttribute('aria-label')") == "Caption 2"
    page.keyboard.press("Control+Enter")
    page.locator("#ranking .caption", has_text=re.compile(r"\. a cup of coffee$")).wait_for()
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
        page.locator("#status", has_text="token").wait_for()
        page.get_by_label("Token").fill("secret")
        page.get_by_role("button", name="Score").click()
        assert len(second.scores()) == 6
        assert "Bearer $DISCODE_TOKEN" in second.copied("curl")
        second.complaints = [line for line in second.complaints if "401" not in line]
        second.close()


def test_the_shipped_judge_shows_what_is_typical_and_takes_no_references(
    browser: Any, shipped: Path
) -> None:
    with running(load("embedded", threads=1)) as client:
        visit = Visit(browser, client)
        visit.page.get_by_role("button", name="Example: cat").click()
        assert len(visit.scores()) == 6
        legend = visit.page.locator("#legend").inner_text()
        assert "good 0.71" in legend
        assert "random 0.10" in legend
        assert visit.page.locator("#ranking .bar .mark").count() == 12
        assert legend.split()[:2] == ["smoothing", "discode"]
        facts = visit.page.locator("#ranking .sub").first.inner_text().split()
        assert facts[:5:2] == ["raw", "smoothing", "discode"]
        assert visit.page.locator("#ranking .chart .after").count() > 0
        assert visit.page.locator("#references").is_disabled()
        explain_by_keyboard(visit)
        visit.close()


def explain_by_keyboard(visit: Visit) -> None:
    """Show and hide the words of a caption; they stay in the explorer."""
    page, wrong = visit.page, "a white bird is standing on the beach"
    (own,) = load("embedded", threads=1).explain(CAT, wrong)
    assert [span.text for span in own.spans if span.marked] == ["beach"]
    caption = page.get_by_role("button", name=wrong)
    before = caption.inner_text()
    caption.focus()
    page.keyboard.press("Enter")
    item = page.locator("#ranking > li", has=page.locator(".effects"))
    item.wait_for()
    opened = item.locator(".words")
    plain = str(own).replace("-", "−")
    assert opened.inner_text() == plain  # in brackets, so not by colour alone
    assert "underline" in opened.locator("mark u").evaluate(
        "word => getComputedStyle(word).textDecorationLine"
    )
    shown = [text.replace("−", "-") for text in item.locator(".effects li").all_inner_texts()]
    names = [f"[{span.text}]" if span.marked else span.text for span in own.spans]
    effects = zip(names, own.spans, strict=True)
    assert shown == [f"{name} {span.shown_effect}" for name, span in effects]
    page.keyboard.press("Space")
    assert (opened.inner_text(), item.locator(".below").is_visible()) == (before, False)
    page.set_viewport_size(PHONE["viewport"])
    opened.click()
    assert opened.get_attribute("aria-expanded") == "true"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 800})
    page.locator("#explore").click()
    page.locator(".row", has_text=wrong).click()
    assert page.locator("#item .headline").inner_text() == plain
    assert page.locator("#item .effects li").count() == len(own.spans)


def test_while_it_works_that_shows_and_it_can_be_taken_back(browser: Any) -> None:
    model = BusyModel()
    model.free.clear()
    with running(load(model)) as client:
        visit = Visit(browser, client)
        page = visit.page
        page.get_by_role("button", name="Example: cat").click()
        wait_for(lambda: model.batches)  # the judge is busy with it
        assert page.get_by_role("button", name="Scoring").is_disabled()
        assert page.locator("#side").get_attribute("aria-busy") == "true"
        assert page.get_by_role("status").inner_text().startswith("6 captions")
        page.locator("#clock", has_text="s").wait_for()
        page.get_by_role("button", name="Example: coffee").click()  # instead of the first
        wait_for(lambda: client.requests_inside() == 1)
        page.get_by_role("button", name="Cancel").click()
        page.locator("#status", has_text="Cancelled.").wait_for()
        assert page.get_by_role("button", name="Score").is_enabled()
        assert page.get_by_role("button", name="Cancel").is_hidden()
        assert page.locator("#clock").inner_text() == ""
        wait_for(lambda: client.requests_inside() == 0)
        model.free.set()
        page.get_by_role("button", name="Example: city").click()
        assert len(visit.scores()) == 6
        visit.close()
    seen = [{pair.caption for pair in batch} for batch in model.batches]
    assert [len(captions) for captions in seen] == [6, 6]
    assert not any("coffee" in caption for captions in seen for caption in captions)


def test_scores_are_copied_as_curl_json_and_csv(visit: Visit, tmp_path: Path) -> None:
    name = """it's a "cat"; 1,2.jpg"""
    captions = ["it's $HOME; `a` \\ cat", "=SUM(A1)", "@x, <y>"]
    visit.ask(*captions, image={"name": name, "mimeType": "image/jpeg", "buffer": CAT})
    answer = json.loads(visit.copied("JSON"))
    assert [row["caption"] for row in answer["scores"]] == captions
    table = list(csv.DictReader(io.StringIO(visit.copied("CSV"))))
    assert [row["caption"] for row in table] == [captions[0], "'=SUM(A1)", "'@x, <y>"]
    for row, own in zip(table, answer["scores"], strict=True):
        assert float(row["score"]) == own["score"]
        assert float(row["smoothing"]) == own["smoothing"]
        assert (row["image"], row["method"]) == (name, "discode")
        assert row["signature"] == answer["signature"]
    command = visit.copied("curl")
    if shutil.which("curl"):
        (tmp_path / name).write_bytes(CAT)
        done = subprocess.run(
            ["sh", "-c", command.replace("curl", "curl -sS --noproxy '*'")],
            capture_output=True, cwd=tmp_path, check=True,
        )  # fmt: skip
        assert json.loads(done.stdout) == answer


def test_where_nothing_can_be_copied_the_text_is_shown(visit: Visit) -> None:
    page = visit.page
    page.evaluate("""() => Object.defineProperty(navigator.clipboard, "writeText", {
        value: () => Promise.reject(new Error("no permission")) })""")
    page.get_by_role("button", name="Example: cat").click()
    visit.scores()
    page.get_by_role("button", name="Copy as CSV").click()
    page.locator("#copied").wait_for()
    selected = page.evaluate("() => getSelection().toString()")
    assert selected == page.locator("#copied").input_value()
    assert selected.startswith("image,caption,method,raw,smoothing,score")
    page.get_by_role("button", name="Copy the signature").click()
    wait_until(page, "document.getElementById('copied').value.startsWith('discode:')")


@pytest.mark.page
def test_the_api_page_tells_what_openapi_does(browser: Any, client: Client) -> None:
    api = client.get("/openapi.json").json
    for options in ({}, {**PHONE, "color_scheme": "dark"}):
        tabs = Tabs(browser, f"http://127.0.0.1:{client.port}")
        page = tabs.open("/api", **options)
        page.locator("#paths section").first.wait_for()
        shown = [page.locator("#paths h2 code").nth(i).inner_text() for i in range(5)]
        assert shown == list(api["paths"])
        fields = set(page.locator("#paths th code").all_inner_texts())
        body = api["paths"]["/v1/score"]["post"]["requestBody"]["content"]
        assert set(body["application/json"]["schema"]["properties"]) <= fields
        assert {"scores[].probabilities", "signature", "422", "503"} <= fields
        assert page.get_by_text(", needed").count() == 8  # image and captions, in all four forms
        assert f"127.0.0.1:{client.port}/v1/score" in page.locator("#form-example").inner_text()
        if options:
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
        tabs.close()
