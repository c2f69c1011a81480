"""Relative links of README.md and of everything it leads to point to files that exist."""

from __future__ import annotations

import doctest
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    ROOT / "training/README.md",
]
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
MADE = {"docs/cli.md"}  # when the site is built


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_hold(page: Path) -> None:
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    for link in LINK.findall(text):
        if not re.match(r"[a-z]+:", link):
            target = (page.parent / link.partition("#")[0]).resolve()
            made = target.is_relative_to(ROOT) and target.relative_to(ROOT).as_posix() in MADE
            assert made or target.exists(), f"{page.name} links to {link}"


@pytest.mark.parametrize("name", ["hooks", "griffe_docstrings"])
def test_examples_of_the_scripts_that_make_the_site(name: str) -> None:
    for package in ("mkdocs", "griffe"):
        pytest.importorskip(package, reason="the site wants discode[docs]")
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results = doctest.testmod(module)
    assert results.attempted
    assert not results.failed
