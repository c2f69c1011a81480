"""The Chromium of the system, driven by playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
         "--disable-component-update", "--disable-quic", "--no-first-run"]  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 120_000  # ms until a wait for the page fails: a busy machine may be that slow


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser, or skip the test where it or playwright is missing."""
    api = pytest.importorskip("playwright.sync_api", reason="pages are tested with discode[dev]")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no chromium found; install one, or set CHROMIUM")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=FLAGS, timeout=PATIENCE)
        yield opened
        opened.close()
