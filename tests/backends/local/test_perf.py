"""The measurements of local models run and say what they should."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.helpers.local_models import LOCAL_MODEL_MARKS

pytestmark = [*LOCAL_MODEL_MARKS, pytest.mark.full]


def test_packing_prints_its_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Path(__file__).parents[3] / "perf" / "packing.py"
    arguments = [
        str(script),
        "--arch",
        "tiny",
        "--device",
        "cpu",
        "--images",
        "2",
        "--captions",
        "6",
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(script), run_name="__main__")
    table = capsys.readouterr().out
    assert "matrix products" in table
    ratio = float(table.split("| x")[1].split(" ")[0])
    assert ratio > 0  # what it is depends on the machine


def test_families_before_and_after(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "perf" / "families.py"
    measured = runpy.run_path(str(script))["before_and_after"]
    (mass, generated, _), (mass_after, generated_after, _) = measured(
        tmp_path, "llava_next_vicuna", "space"
    )
    assert mass < 0.1 < 0.9 < mass_after
    assert (generated, generated_after) == (24, 0)
