"""Chromium of the system, driven by playwright, for tests of pages."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.helpers.servers import PATIENCE

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
         "--disable-component-update", "--disable-quic", "--no-first-run"]  # fmt: skip


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser; skip the test where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="pages: discode-eval[dev]")
    found = os.environ.get("CHROMIUM") or next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if found is None:
        pytest.skip("no chromium found; install one, or set CHROMIUM")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=found, args=FLAGS, timeout=1000 * PATIENCE
        )
        yield opened
        opened.close()


class Tabs:
    """Pages of one site, and everything about them that a person would not like."""

    def __init__(self, browser: Any, url: str) -> None:
        self.browser = browser
        self.url = url
        self.complaints: list[str] = []
        self.contexts: list[Any] = []

    def open(self, path: str, **options: Any) -> Any:
        """Open a page in a context of its own (its own cookies)."""
        context = self.browser.new_context(reduced_motion="reduce", **options)
        context.set_default_timeout(1000 * PATIENCE)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", lambda line: self.complaints.append(line.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._dialog)
        page.on("request", self._request)
        page.goto(self.url + path)
        return page

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.url, f"blob:{self.url}")):
            self.complaints.append(f"asked for {request.url}")

    def close(self) -> None:
        """Close all pages; there must have been nothing to complain about."""
        for context in self.contexts:
            context.close()
        assert self.complaints == []


def wait_until(page: Any, script: str) -> None:
    """Wait until an expression is true in a page that does not navigate meanwhile.

    It is asked again from here: playwright's own ``wait_for_function`` repeats it inside the page,
    where the content security policy forbids that.
    """
    end = time.monotonic() + PATIENCE
    while not page.evaluate(script):
        if time.monotonic() > end:
            raise TimeoutError(f"it never came true: {script}")
        page.wait_for_timeout(20)


def ready(page: Any) -> None:
    """Wait until an annotation page takes answers: not before anybody can have seen it."""
    early = "document.querySelector('#answer .first:disabled, #undo button:disabled')"
    wait_until(page, f"document.readyState === 'complete' && !{early}")
