"""The documentation as a whole: every link leads somewhere, and the site builds."""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from typer.main import get_command

from discode._cli import app

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("training/*.md"),
     *ROOT.glob(".github/**/*.md")]
)  # fmt: skip
FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)|(?:src|href)=\"([^\"]+)\"")
# Pages that are made when the site is built, by docs/hooks.py.
MADE = {"docs/cli.md", "docs/modules.md"}


def prose(page: Path) -> str:
    """The text of a page without its code."""
    return re.sub(r"`[^`\n]+`", "code", FENCED.sub("", page.read_text(encoding="utf-8")))


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and the anchor of every link of a page that stays in this repository."""
    for found in LINK.finditer(prose(page)):
        target = found[1] or found[2]
        if not re.match(r"[a-z]+:|//", target):
            path, _, anchor = target.partition("#")
            yield unquote(path), unquote(anchor)


@lru_cache
def anchors(page: Path) -> frozenset[str]:
    """What a link to a page may have after its "#": a slug per heading, and ids given by hand."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    found = set(re.findall(r"(?:id|name)=\"([^\"]+)\"|\{ ?#([\w.-]+)", text))
    names = {name for pair in found for name in pair}
    for heading in re.findall(r"^#+ +(.+?)(?: *\{.*\})?$", text, re.MULTILINE):
        shown = re.sub(r"!?\[([^]]*)\]\([^)]*\)|[`*]", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")
        names |= {slug, re.sub(r"-+", "-", slug).strip("-")}  # GitHub's, and the site's
    return frozenset(names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), f"{path} leaves the repository"
        if target.relative_to(ROOT).as_posix() in MADE:
            continue
        assert target.exists(), f"{path} is not there"
        # Anchors of Python names are made by the site, which checks them itself.
        if anchor and target.suffix == ".md" and not anchor.startswith("discode."):
            assert anchor in anchors(target), f"{path}#{anchor}: no such heading"


def options_of(command: Any) -> set[str]:
    """The options of a command and of all below it."""
    options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    if not hasattr(command, "list_commands"):
        return options
    names = command.list_commands(None)  # mceval is found when it is asked for
    return options.union(*(options_of(command.get_command(None, name)) for name in names))


def test_hints_install_from_the_checkout() -> None:
    """The distribution is not on PyPI; messages take the command from errors.install_hint alone."""
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("src/**/*.html"), *ROOT.glob("examples/**/*")]
    for path in filter(Path.is_file, [*PAGES, *sources]):
        text = path.read_text(encoding="utf-8", errors="replace")
        assert not re.search(r"pip install[^`\n]*discode", text), path
        if path.suffix == ".py" and path.name != "errors.py":
            assert not re.search(r"pip install[^`\n]*\.\[", text), path


def test_the_flag_generated_is_described_alike() -> None:
    meaning = "the model wrote the rating itself, or words before it"
    for place in ("docs/output.md", "src/discode/readings/_base.py",
                  "src/discode/_serve/page/index.html"):  # fmt: skip
        text = " ".join((ROOT / place).read_text(encoding="utf-8").split())
        assert meaning in text.replace("The model", "the model"), place


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_options_that_are_named_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        pytest.skip("it names options of earlier versions")
    pytest.importorskip("sqlalchemy", reason="the options of mceval need discode-eval[mceval]")
    named = re.findall(r"`(--[a-z][\w-]+)", FENCED.sub("", page.read_text(encoding="utf-8")))
    scripts = (
        path for name in ("docs", "perf", "training") for path in ROOT.glob(f"{name}/**/*.py")
    )
    known = {"--help", "--stop-timeout", *options_of(get_command(app))}  # the second is docker's
    known |= {
        one for path in scripts for one in re.findall(r'"(--[\w-]+)"', path.read_text("utf-8"))
    }
    assert set(named) <= known


@pytest.mark.slow
@pytest.mark.full
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    for module in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(module, reason="the site wants discode-eval[docs]")
    if not (ROOT / "mkdocs.yml").is_file():
        pytest.skip("no mkdocs.yml here")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        capture_output=True, text=True, cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert (tmp_path / "index.html").is_file()


@pytest.mark.parametrize("name", ["hooks", "griffe_docstrings", "make_messages"])
def test_examples_of_the_scripts_that_make_the_site(name: str) -> None:
    for package in ("mkdocs", "griffe"):
        pytest.importorskip(package, reason="the site wants discode-eval[docs]")
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results = doctest.testmod(module)
    assert results.attempted
    assert not results.failed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_fences_are_closed(page: Path) -> None:
    fences = re.findall(r"^ *(?:```|~~~)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) % 2 == 0


def test_what_the_code_tells_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "make_blocks.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
