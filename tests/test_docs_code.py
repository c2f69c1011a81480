"""What README.md, docs/integrations.md and the tutorial show is run, and agrees with its output."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

PAGES = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "make_outputs.py"))


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize("page", PAGES["PAGES"], ids=lambda page: page.stem)
def test_what_is_shown_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.stem == "campaign":
        pytest.importorskip("sqlalchemy", reason="campaigns need discode-eval[mceval]")
    PAGES["copy_images"](tmp_path)
    monkeypatch.chdir(tmp_path)
    for one in PAGES["replay"](page):
        assert PAGES["agree"](one.text, one.printed), f"{one.where}: printed\n{one.printed}"


@pytest.mark.usefixtures("shipped")
def test_the_service_is_shown_with_numbers_of_the_judge() -> None:
    page = PAGES["SERVING"].read_text(encoding="utf-8")
    assert PAGES["answered"](page) == page


def test_agreement_of_outputs() -> None:
    agree, renewed = PAGES["agree"], PAGES["renewed"]
    assert agree("mean 0.50", "mean  0.501")
    assert not agree("a", "b")
    assert not agree("mean 0.50", "mean 0.53")
    assert agree("a\n...", "a\nb c")
    assert renewed("old 1\n...\n", "new 1\nnew 2\n") == "new 1\n...\n"
