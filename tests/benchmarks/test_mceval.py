from __future__ import annotations

from pathlib import Path

from discode.benchmarks import Preferences, load_benchmark
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
