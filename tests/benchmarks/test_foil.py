from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discode.benchmarks import Preferences, load_benchmark
from discode.errors import InputError
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


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda c: c["annotations"][0].update(foil="yes"), "annotation 0: foil must be true or"),
        (
            lambda c: c["annotations"][0].update(id=12),
            "annotation 0: id '12' has a foil but no cap",
        ),
        (lambda c: c["annotations"][0].update(image_id=7), "annotation 0: image_id 7 is not among"),
        (lambda c: c["annotations"][0].update(foil=False), "id '11' has two captions"),
        (lambda c: c["annotations"][0].pop("caption"), "annotation 0 has no 'caption'"),
        (lambda c: c.update(annotations=[]), "foilv1.0_test_2017.json"),
        (lambda c: c.update(annotations=3), "annotations must be a list"),
        (lambda c: c.pop("images"), "has no 'images'"),
        (lambda c: c.clear(), "must be an object with entries"),
    ],
)
def test_broken_original(tmp_path: Path, change: Callable[[Any], object], match: str) -> None:
    mini.write(tmp_path / "foilv1.0_test_2017.json", mini.changed(mini.FOIL, change))
    with pytest.raises(InputError, match=match):
        load_benchmark("foil", tmp_path)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda c: c["11"].pop("foil"), "entry '11' has no 'foil'"),
        (lambda c: c["11"].update(image_file="x.jpg"), "entry '11': the number in image_file"),
        (lambda c: c["11"].update(mturk={}), "entry '11' has no 'caption'"),
    ],
)
def test_broken_valse(tmp_path: Path, change: Callable[[Any], object], match: str) -> None:
    mini.write(tmp_path / "foil-it.json", mini.changed(mini.VALSE, change))
    with pytest.raises(InputError, match=match):
        load_benchmark("foil", tmp_path)
