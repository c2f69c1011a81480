from __future__ import annotations

from pathlib import Path

from discode.benchmarks import Preferences, load_benchmark
from tests.helpers import mini_benchmarks as mini


def test_valse(tmp_path: Path) -> None:
    mini.write(tmp_path / "foil-it.json", mini.VALSE)
    made = load_benchmark("foil", tmp_path)
    assert isinstance(made.judgments, Preferences)
    assert [made.pairs[i].caption for i in made.judgments.left] == [
        "A bowl of food.", "Food on a table.",
    ]  # fmt: skip
    assert [made.pairs[i].caption for i in made.judgments.right] == [
        "A bottle of food.", "Food on a bed.",
    ]  # fmt: skip
    assert made.judgments.chosen.tolist() == [0, 0]
    assert made.image.tolist() == [0] * 4
    assert made.notes[0] == f"no references: captions_val2014.json is not in {tmp_path}"
    valid = load_benchmark("foil", tmp_path, {"pairs": "valid", "references": "0"})
    assert len(valid.judgments) == 1
    assert valid.notes[0] == "1 choices dropped: annotators did not agree"


def test_the_original_with_cocos_captions(tmp_path: Path) -> None:
    mini.write(tmp_path / "foilv1.0_test_2017.json", mini.FOIL)
    mini.write(tmp_path / "captions_val2014.json", mini.COCO)
    made = load_benchmark("foil", tmp_path)
    assert [pair.caption for pair in made.pairs] == [
        "A bowl of food.", "A bottle of food.", "A cup of food.",
    ]  # fmt: skip
    assert isinstance(made.judgments, Preferences)
    assert made.judgments.left.tolist() == [0, 0]
    assert made.judgments.right.tolist() == [1, 2]
    # The caption is not a reference of itself, nor of its foil.
    assert made.pairs[1].references == ("Food in a bowl.", "Lunch.", "A meal", "Some food")
    assert set(made.checksums) == {"foilv1.0_test_2017.json", "captions_val2014.json"}
    one = load_benchmark("foil", tmp_path, {"references": "1"})
    assert one.pairs[0].references == ("Food in a bowl.",)
    none = load_benchmark("foil", tmp_path, {"references": "0"})
    assert none.pairs[0].references == ()


def test_too_few_references_are_counted(tmp_path: Path) -> None:
    mini.write(tmp_path / "foil-it.json", mini.VALSE)
    short = mini.changed(mini.COCO, lambda c: c["annotations"].__delitem__(slice(3, None)))
    mini.write(tmp_path / "captions_val2014.json", short)
    made = load_benchmark("foil", tmp_path)
    assert made.notes[0] == "2 choices have fewer than 4 references"
