from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discode.benchmarks import Preferences, load_benchmark
from discode.errors import InputError
from tests.helpers import mini_benchmarks as mini


def test_domains_are_categories(tmp_path: Path) -> None:
    (tmp_path / "images" / "real").mkdir(parents=True)
    (tmp_path / "images" / "real" / "1.png").touch()
    mini.write(tmp_path / "mceval.jsonl", mini.MCEVAL)
    made = load_benchmark("mceval", tmp_path)
    assert isinstance(made.judgments, Preferences)
    assert made.judgments.category == ("real", "sketch")
    assert made.judgments.chosen.tolist() == [0, 1]
    assert [pair.id for pair in made.pairs[:2]] == ["real/1.png#0", "real/1.png#1"]
    assert made.pairs[0].references == ("a brown dog",)
    assert made.pairs[3].references == ("a house", "a drawn house")
    assert made.pairs[0].image == str(tmp_path / "images" / "real" / "1.png")
    assert made.pairs[2].image == str(tmp_path / "images" / "sketch" / "1.png")
    assert "1 of 2 images missing" in made.notes[0]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda c: c[1].update(preference=2), "line 2: preference must be a number from 0 to 1"),
        (lambda c: c[1].update(preference=None), "line 2: preference"),
        (lambda c: c[1].update(candidates=["x"] * 3), "line 2: candidates must be two, not 3"),
        (lambda c: c[1].update(candidates="xy"), "line 2: candidates must be a list of texts"),
        (lambda c: c[1].pop("domain"), "line 2 has no 'domain'"),
        (lambda c: c[1].update(reference=5), "line 2: reference must be a list of texts"),
        (lambda c: c[1].update(image="real/1.png"), "line 2: 'real/1.png'"),
        (lambda c: c.clear(), "mceval.jsonl"),
    ],
)
def test_broken_rows(tmp_path: Path, change: Callable[[Any], object], match: str) -> None:
    mini.write(tmp_path / "mceval.jsonl", mini.changed(mini.MCEVAL, change))
    with pytest.raises(InputError, match=match):
        load_benchmark("mceval", tmp_path)
