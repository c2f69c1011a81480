"""The page of a report in a real browser: Chromium of the system, driven by playwright."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discode._report import write_captioners, write_report
from discode._report.disagreement import disagreement
from discode.bench import RunLog, run_metrics
from discode.bench._agreement import measure_agreement
from discode.bench._systems import join_systems
from tests.helpers.chromium import Tabs, chromium, wait_until
from tests.helpers.fake_runs import QUICK, FakeFactory, FakeMetric, preferred, rated
from tests.helpers.reports import HOSTILE, TEXTS, explain_custom, make_custom, run_custom

pytestmark = pytest.mark.slow

PHONE = {"width": 390, "height": 844}
SCREEN = {"width": 1280, "height": 900}
ITEMS = 20_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """hostile.html has hostile captions, images and bars; large.html has 20,000 items."""
    folder = tmp_path_factory.mktemp("pages")
    log = run_custom(make_custom(folder / "custom"), folder / "run.json")
    explain_custom(folder / "custom", folder / "run.json")
    write_report(
        folder / "hostile.html", {"run": log}, data=[folder], resamples=100,
        stores=[folder / "run.json.readings.db"], title=HOSTILE[0],
    )  # fmt: skip
    write_report(folder / "large.html", _large_logs(), resamples=100)
    files = {name: folder / f"{name}.csv" for name in ("short", "long")}
    for name, path in files.items():
        rows = [f"{n},{name} caption {n},{(n * len(name)) % 7}" for n in range(9)]
        path.write_text("\n".join(["id,caption,score", *rows, "9,a failed one,"]))
    write_captioners(folder / "captioners.html", join_systems(files), resamples=100)
    write_captioners(folder / "one.html", join_systems({"long": files["long"]}), resamples=100)
    return folder


def _large_logs() -> dict[str, RunLog]:
    metrics = {"long": FakeMetric(0, 6.0, ["id"]), "noisy": FakeMetric(1, 30.0, ["id"])}
    benches = (rated(10), preferred(ITEMS - 100))
    return {
        bench.name: run_metrics(bench, {m: m for m in metrics}, FakeFactory(**metrics), QUICK)[0]
        for bench in benches
    }


class Report(Tabs):
    """A report in a browser, opened from its file."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        super().__init__(browser, path.as_uri())
        self.page = self.open("", **options)
        self.page.wait_for_selector(".row")

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:image/")):
            self.complaints.append(f"asked for {request.url}")

    def count(self) -> str:
        return str(self.page.locator("#count").inner_text())

    def column(self, name: str) -> list[str]:
        return [str(text) for text in self.page.locator(f".row .{name}").all_inner_texts()]


def opened(name: str) -> Any:
    """A fixture: a report on a screen, which must have had nothing to complain about."""

    @pytest.fixture
    def report(browser: Any, pages: Path) -> Iterator[Report]:
        report = Report(browser, pages / name, viewport=SCREEN)
        yield report
        report.close()

    return report


hostile, large = opened("hostile.html"), opened("large.html")


def test_hostile_captions_are_text(hostile: Report) -> None:
    page = hostile.page
    scripts = page.locator("script").count()
    for number, text in enumerate(TEXTS):
        page.locator(".row").nth(0).click()
        for _ in range(number):
            page.keyboard.press("j")
        shown = page.locator("#item .headline").inner_text()
        shown = re.sub(r"\[(\w+) −\d\.\d\d\]", r"\1", shown)  # a marked word
        plain = re.sub(r"[\x00-\x1f\u202e\u2066]", lambda c: f"U+{ord(c[0]):04X}", text)
        assert re.sub(r"\s+", " ", shown) == re.sub(r"\s+", " ", plain)
        assert "reference of 0" in page.locator("#item .references").inner_text()
        assert page.locator("#item script, #item [onerror]").count() == 0
    assert page.locator("h1").inner_text() == HOSTILE[0]
    assert page.locator("script").count() == scripts
    # A marked code stands for what would turn the line around, and nothing of it is left.
    assert not page.evaluate("/[\\u202a-\\u202e\\u2066-\\u2069]/.test(document.body.innerText)")
    page.wait_for_timeout(200)  # a script would have run by now; a dialog is a complaint


@pytest.mark.page
def test_an_item_has_its_image_scores_bars_and_flags(hostile: Report, pages: Path) -> None:
    page = hostile.page
    log = RunLog.load(pages / "run.json")
    signatures = [str(result.signature) for result in log.results.values()]
    assert page.locator("#provenance .signature code").all_inner_texts() == signatures
    page.get_by_role("button", name="Signature of discode").first.click()
    assert page.locator("#signature-text").inner_text() == str(log.results["discode"].signature)
    page.keyboard.press("Escape")
    assert page.locator("#signature").is_hidden()
    page.locator(".row").nth(5).click()
    assert (
        page.locator("#item .photo img").evaluate(
            "image => image.decode().then(() => image.naturalWidth)"
        )
        == 288
    )
    rows = page.locator("#item .scores tbody tr").all_inner_texts()
    for row, (label, result) in zip(rows, log.results.items(), strict=True):
        assert row.startswith(label)
        assert f"{result.value[5]:.3g}"[:4] in row
    assert page.locator("#item svg.chart").count() == 1  # raw and smoothing share discode's
    assert page.locator("#item svg.chart rect").count() == 22
    page.locator("#item details summary").first.click()
    assert page.locator("#item details tbody tr").count() == 11
    # Its words were explained, those of other images were not.
    page.select_option("#metric", "discode")
    assert "[dog −0.41]" in page.locator("#item .headline").inner_text()
    assert page.locator("#item .effects li").all_inner_texts()[0] == "[dog] −0.41"
    assert page.locator("#item .effects li").count() == 3
    page.select_option("#show", "wrong")
    assert hostile.count() == "2 of 27 items"
    page.locator(".row").first.click()
    shown = page.locator("#item .headline").inner_text()
    assert shown.startswith('{{[DATA −0.71]}} "[quoted −0.24]" & <!--')
    page.select_option("#show", "all")
    page.locator(".row").nth(8).click()  # "rejected one"
    assert "rejected" in page.locator("#item .problems").inner_text()
    assert page.locator("#item .verdict .bad").count() == 3
    page.select_option("#show", "failed")
    # Rejected ones, and all of the image that is not there.
    assert hostile.count() == f"{2 + len(TEXTS)} of 27 items"
    page.keyboard.press("End")
    page.locator(".row").last.click()
    assert page.locator("#item .notice").inner_text() == "This image is not in the page."


def test_twenty_thousand_items_need_few_nodes(large: Report) -> None:
    page = large.page
    assert large.count() == f"{ITEMS:,} items"
    nodes = "document.querySelectorAll('#list *').length"
    most = page.evaluate(nodes)
    for share in (0.1, 0.5, 0.999):
        page.evaluate(
            f"list => list.scrollTop = {share} * list.scrollHeight", page.query_selector("#list")
        )
        wanted = int(share * ITEMS)
        near = f"(row) => Math.abs(row.ariaRowIndex - {wanted}) < 30"
        wait_until(page, f"[...document.querySelectorAll('.row')].some({near})")
        most = max(most, page.evaluate(nodes))
        assert page.locator(".row").count() < 40
    assert most < 1000
    page.locator("#list").focus()
    page.keyboard.press("End")
    assert page.locator(".bar .place").inner_text() == f"{ITEMS:,} of {ITEMS:,}"
    assert page.locator(".row[aria-selected=true]").is_visible()


def test_filters_and_search(large: Report) -> None:
    page, logs = large.page, _large_logs()
    choices = logs["pascal50s"]
    page.select_option("#benchmark", label="Pascal-50S")
    assert large.count() == f"{ITEMS - 100:,} of {ITEMS:,} items"
    page.select_option("#category", "=HC")
    assert large.count() == f"{(ITEMS - 100) // 2:,} of {ITEMS:,} items"
    page.select_option("#metric", "noisy")
    page.select_option("#show", "against")
    apart = disagreement(choices, "noisy")
    wrong = int((apart[::2] >= 0).sum())  # every second one is HC
    assert large.count() == f"{wrong:,} of {ITEMS:,} items"
    page.select_option("#show", "split")
    both = np.stack([disagreement(choices, name)[::2] for name in ("long", "noisy")])
    split = int(((both > 0).any(axis=0) & (both < 0).any(axis=0)).sum())
    assert large.count() == f"{split:,} of {ITEMS:,} items"
    page.select_option("#category", "")
    page.select_option("#show", "all")
    page.fill("#query", "1234#0")
    wait_until(page, "document.getElementById('count').textContent.startsWith('2 of')")
    found = page.locator(".row .caption bdi").all_inner_texts()
    assert {"1234#0", "11234#0"} <= {*found}
    page.fill("#query", "no such item")
    page.get_by_text("No item is left by these filters.").wait_for()
    page.select_option("#benchmark", label="Composite")
    page.fill("#query", "")
    wait_until(page, f"document.getElementById('count').textContent === '100 of {ITEMS:,} items'")
    page.select_option("#show", "above")
    above = int((disagreement(logs["composite"], "noisy").round() >= 30).sum())
    assert large.count() == f"{above} of {ITEMS:,} items"


def test_columns_sort_both_ways(large: Report) -> None:
    page, logs = large.page, _large_logs()
    page.select_option("#benchmark", label="Composite")
    for name in ("People", "Score"):
        page.locator("#columns").get_by_role("button", name=name).click()
        down = [float(text.replace("−", "-")) for text in large.column(f"c-{name.lower()}")]
        assert down == sorted(down, reverse=True)
        assert page.locator("#columns [aria-sort=descending]").inner_text() == name
        page.locator("#columns").get_by_role("button", name=name).click()
        up = [float(text.replace("−", "-")) for text in large.column(f"c-{name.lower()}")]
        assert up == sorted(up)
    value = np.sort(logs["composite"].results["long"].value)
    assert np.isclose(up[0], value[0], atol=0.01)
    table = page.locator("table.agreement").first
    labels = table.locator("tbody th").all_inner_texts()
    assert labels == ["long", "noisy"]  # the better one first
    table.get_by_role("button", name="τc").click()
    assert table.locator("tbody th").all_inner_texts() == ["noisy", "long"]


def test_the_keyboard_is_enough(large: Report) -> None:
    page = large.page

    def place() -> str:
        return str(page.locator(".bar .place").inner_text()).partition(" ")[0]

    page.keyboard.press("?")
    assert "search" in page.get_by_role("dialog").inner_text()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert place() == "3"
    page.keyboard.press("k")
    page.keyboard.press("PageDown")
    assert place() == "12"
    page.keyboard.press("Home")
    assert place() == "1"
    page.keyboard.press("/")
    page.keyboard.type("jk?d")  # letters, not keys
    assert page.input_value("#query") == "jk?d"
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    page.keyboard.press("Escape")
    for key, box in (("m", "#metric"), ("b", "#benchmark"), ("w", "#show"), ("s", "#sort")):
        before = page.input_value(box)
        page.keyboard.press(key)
        assert page.input_value(box) != before
    page.keyboard.press("r")
    assert page.locator("#columns [aria-sort=ascending]").inner_text() == "People"


def test_dark_follows_the_system_and_the_button_and_paper_is_white(
    browser: Any, pages: Path
) -> None:
    def paper(page: Any) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    report = Report(browser, pages / "hostile.html", color_scheme="dark")
    assert paper(report.page) == "rgb(20, 24, 28)"
    report.page.keyboard.press("d")
    assert paper(report.page) == "rgb(251, 250, 247)"
    report.page.get_by_role("button", name="Colours").click()
    report.page.reload()
    assert report.page.locator("#theme").inner_text() == "Colours: dark"
    assert paper(report.page) == "rgb(20, 24, 28)"
    report.page.set_viewport_size({"width": 718, "height": 1000})  # A4 with its margins
    report.page.emulate_media(media="print")
    assert paper(report.page) == "rgb(255, 255, 255)"
    assert report.page.evaluate("document.documentElement.scrollWidth") <= 718
    for selector, seen in (("table.agreement thead", True), ("#provenance .signature code", True),
                           ("#explorer", False), ("#nav", False)):  # fmt: skip
        assert report.page.locator(selector).first.is_visible() == seen
    report.close()


@pytest.mark.parametrize("name", ["hostile.html", "large.html", "captioners.html"])
def test_a_phone_scrolls_one_way_only(browser: Any, pages: Path, name: str) -> None:
    report = Report(browser, pages / name, viewport=PHONE, has_touch=True)
    page = report.page
    wide = "document.documentElement.scrollWidth"
    assert page.evaluate(wide) <= PHONE["width"]
    assert page.locator("#item").is_hidden()
    page.locator(".row").nth(1).tap()
    assert page.locator("#item").is_visible()
    assert page.evaluate("document.getElementById('item').scrollWidth") <= PHONE["width"]
    page.get_by_role("button", name="Next item").tap()
    assert page.locator(".bar .place").inner_text().startswith("3 of")
    page.get_by_role("button", name="Back to the list").tap()
    assert page.locator("#item").is_hidden()
    page.get_by_role("button", name="Signature of").first.tap()
    assert page.evaluate(wide) <= PHONE["width"]
    report.close()


def test_captioners_have_means_and_rows_of_their_own(browser: Any, pages: Path) -> None:
    report = Report(browser, pages / "captioners.html", viewport=SCREEN)
    page = report.page
    assert report.count() == "20 items"
    assert page.locator("#tables tbody th").all_inner_texts()[:2] == ["short", "long"]
    assert page.locator("#people, #cost").filter(visible=True).count() == 0
    page.select_option("#category", "=long")
    assert report.count() == "10 of 20 items"
    assert set(page.locator(".row .c-score").all_inner_texts()[:9]) <= {f"{n}.00" for n in range(7)}
    page.select_option("#show", "failed")
    page.locator(".row").click()
    assert "no score" in page.locator("#item .beside .chosen .bad").inner_text()
    assert "NaN" not in page.locator("main").inner_html()
    report.close()


def test_one_captioner_is_in_no_group(browser: Any, pages: Path) -> None:
    for name, groups in ("captioners.html", True), ("one.html", False):
        report = Report(browser, pages / name, viewport=SCREEN)
        page = report.page
        assert ("Group" in page.locator(".agreement thead").inner_text()) == groups
        assert ("group" in page.locator("#agreement-hint").inner_text()) == groups
        assert "long" in page.locator("#tables tbody th").all_inner_texts()
        report.close()


def test_captioners_are_side_by_side_and_sorted_by_difference(browser: Any, pages: Path) -> None:
    report = Report(browser, pages / "captioners.html", viewport=SCREEN)
    page = report.page
    page.select_option("#sort", "apart")
    wanted = sorted((abs((5 * n) % 7 - (4 * n) % 7) for n in range(9)), reverse=True)
    shown = [f"{each}.00" for each in wanted for _ in range(2)]
    visible = report.column("c-apart")
    assert len(visible) > 5
    assert visible == shown[: len(visible)]
    page.locator(".row").nth(1).click()
    beside = page.locator("#item .beside section")
    assert beside.locator("h4").all_inner_texts() == ["short", "long"]
    texts, scores = (beside.locator(part).all_inner_texts() for part in ("p", "b"))
    assert texts[0] == texts[1].replace("long", "short")
    assert abs(float(scores[0]) - float(scores[1])) == wanted[0]
    assert "long" in page.locator("#item .chosen").inner_text()
    boxes = [beside.nth(n).bounding_box() for n in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"]
    page.select_option("#show", "failed")
    assert page.locator(".row").count() == 2
    assert report.column("c-apart") == ["–", "–"]
    report.close()


def test_a_run_without_scores_and_one_of_one_item(browser: Any, tmp_path: Path) -> None:
    silent, _ = run_metrics(rated(3), {"a": "a"}, FakeFactory(a=FakeMetric(0, 2.0)), QUICK)
    lost = replace(
        silent.results["a"], value=np.full(len(silent.ids), np.nan),
        errors=dict.fromkeys(range(len(silent.ids)), "no answer"),
        measures=measure_agreement(
            silent.judgments, silent.image, np.full(len(silent.ids), np.nan), QUICK
        ),
    )  # fmt: skip
    tiny, _ = run_metrics(preferred(1), {"a": "a"}, FakeFactory(a=FakeMetric(0, 2.0)), QUICK)
    logs = {"silent": replace(silent, results={"a": lost, "b": lost}), "tiny": tiny}
    write_report(tmp_path / "odd.html", logs, resamples=100)
    report = Report(browser, tmp_path / "odd.html", viewport=PHONE)
    assert report.count() == "31 items"
    report.page.select_option("#show", "failed")
    assert report.count() == "30 of 31 items"
    report.page.locator(".row").first.click()
    assert "no answer" in report.page.locator("#item .problems").inner_text()
    assert "Not compared" in report.page.locator("#tables").inner_text()
    assert "NaN" not in report.page.locator("main").inner_html()
    report.close()
