from __future__ import annotations

import json
from pathlib import Path

import pytest

from discode.benchmarks import Preferences, Ratings, load_benchmark
from discode.errors import InputError

RATINGS = """image,caption,references,rating,rater
a.jpg,"a dog, running","[""r1"", ""r2""]",4,ann
a.jpg,"a dog, running","[""r1"", ""r2""]",5,bob
a.jpg,a cat,"[""r1"", ""r2""]",1,ann
b.jpg,a boat,one reference,2.5,
"""
PREFERENCES = [
    {"image": "a.jpg", "caption_a": "x", "caption_b": "y", "preference": "b", "category": "easy"},
    {"image": "b.jpg", "caption_a": "x", "caption_b": "y", "preference": 0, "references": ["r"]},
]


def test_ratings(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text(RATINGS)
    made = load_benchmark("custom", tmp_path)
    assert isinstance(made.judgments, Ratings)
    assert made.judgments.value.tolist() == [4, 5, 1, 2.5]
    assert made.judgments.pair.tolist() == [0, 0, 1, 2]
    assert made.judgments.rater.tolist() == [0, 1, 0, 2]
    assert [pair.id for pair in made.pairs] == ["a.jpg#0", "a.jpg#1", "b.jpg#0"]
    assert made.pairs[0].references == ("r1", "r2")
    assert made.pairs[2].references == ("one reference",)
    mean = load_benchmark("custom", tmp_path, {"raters": "average", "scale": "1-5"})
    assert isinstance(mean.judgments, Ratings)
    assert mean.judgments.value.tolist() == [4.5, 1, 2.5]
    named = tmp_path / "mine.csv"
    (tmp_path / "ratings.csv").rename(named)
    assert load_benchmark("custom", named).pairs == made.pairs


def test_preferences(tmp_path: Path) -> None:
    path = tmp_path / "preferences.jsonl"
    path.write_text("\n".join(map(json.dumps, PREFERENCES)))
    made = load_benchmark("custom", tmp_path)
    assert isinstance(made.judgments, Preferences)
    assert made.judgments.chosen.tolist() == [1, 0]
    assert made.judgments.category == ("easy", "all")
    assert [pair.id for pair in made.pairs] == ["a.jpg#0a", "a.jpg#0b", "b.jpg#1a", "b.jpg#1b"]
    assert made.pairs[2].references == ("r",)


GOOD = {"image": "a.jpg", "caption": "x", "rating": 1}


def test_nought_is_a_name(tmp_path: Path) -> None:
    path = tmp_path / "ratings.jsonl"
    rows = [{**GOOD, "id": 0, "rater": 0}, {**GOOD, "id": 0, "rater": 1}]
    path.write_text("\n".join(map(json.dumps, rows)))
    made = load_benchmark("custom", path)
    assert isinstance(made.judgments, Ratings)
    assert made.pairs[0].id == "0"
    assert made.judgments.rater.tolist() == [0, 1]


def test_a_scale_below_zero_and_words_that_tables_use(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("image,caption,rating\na.jpg,a,-3\nb.jpg,b,-1\n")
    assert len(load_benchmark("custom", tmp_path, {"scale": "-5--1"}).judgments) == 2
    with pytest.raises(InputError, match="-3"):
        load_benchmark("custom", tmp_path, {"scale": "-2--1"})
    row = json.dumps(PREFERENCES[0]).replace("easy", "mean")
    (tmp_path / "ratings.csv").unlink()
    (tmp_path / "preferences.jsonl").write_text(row)
    with pytest.raises(InputError, match="cannot be called 'mean'"):
        load_benchmark("custom", tmp_path)


def test_columns_are_guessed_as_score_does(tmp_path: Path) -> None:
    (tmp_path / "COCO_val_000000000103.jpg").touch()
    table = tmp_path / "mine.csv"
    table.write_text("Image ID,Text,Refs,Human Score,annotator\n103,a dog,a pet,4,x\n7,b,,2,y\n")
    made = load_benchmark("custom", table)
    assert isinstance(made.judgments, Ratings)
    assert made.judgments.value.tolist() == [4, 2]
    assert made.judgments.rater.tolist() == [0, 1]
    assert [(Path(str(p.image)).name, p.caption, p.references) for p in made.pairs] == [
        ("COCO_val_000000000103.jpg", "a dog", ("a pet",)), ("7", "b", ()),
    ]  # fmt: skip
    assert made.missing == {1}
    assert any("images=" in note for note in made.notes)


def test_image_ids_by_cocos_annotations(tmp_path: Path) -> None:
    """As in ``discode score``: ids without a single file are counted, and annotations find them."""
    (tmp_path / "sub").mkdir()
    for name in ("sub/2423894412_d952d5d103.jpg", "000000000007.jpg", "x_7.jpg", "8.jpg"):
        (tmp_path / name).touch()
    table = tmp_path / "mine.csv"
    table.write_text("image_id,caption,rating\n" + "".join(f"{n},a,1\n" for n in (103, 7, 7, 8)))
    made = load_benchmark("custom", table)
    assert made.missing == {0, 1}
    assert made.notes[0].startswith("2 image ids")
    assert "annotations=FILE" in made.notes[0]
    notes = tmp_path / "coco.json"
    files = {103: "sub/2423894412_d952d5d103.jpg", 7: "x_7.jpg", 8: "8.jpg"}
    notes.write_text(json.dumps({"images": [{"id": n, "file_name": f} for n, f in files.items()]}))
    made = load_benchmark(f"custom:annotations={notes}", table)
    assert (made.missing, made.notes) == (frozenset(), ())
    assert {Path(str(pair.image)) for pair in made.pairs} == {
        tmp_path / file for file in files.values()
    }
    with pytest.raises(InputError, match=r"none\.json"):
        load_benchmark("custom:annotations=none.json", table)


def test_named_columns_and_a_named_folder(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.jpg").touch()
    table = tmp_path / "mine.jsonl"
    row = {"file": "a.jpg", "said": "a dog", "rating": 1, "fluency": 5}
    table.write_text(json.dumps(row))
    names = f"image=file,caption=said,rating=fluency,images={tmp_path / 'pictures'}"
    made = load_benchmark(f"custom:{names}", table)
    assert isinstance(made.judgments, Ratings)
    assert made.judgments.value.tolist() == [5]
    assert made.options["rating"] == "fluency"  # other numbers than those of another column
    assert (made.missing, made.notes) == (frozenset(), ())
    with pytest.raises(InputError, match=r"'fluent'.*fluency"):
        load_benchmark(f"custom:{names.replace('fluency', 'fluent')}", table)
    with pytest.raises(InputError, match=r"no image .*wanted.*it has: file, said.*custom:image="):
        load_benchmark("custom:caption=said", table)
    with pytest.raises(InputError, match="nowhere"):
        load_benchmark("custom:images=nowhere", table)
    table.write_text(json.dumps({"image": "a.jpg", "caption": "a dog", "grade": 5}))
    with pytest.raises(InputError, match=r"human_score.*it has: image, caption, grade.*rating="):
        load_benchmark("custom", table)
