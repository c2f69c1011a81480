from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from discode.benchmarks import Ratings, load_benchmark
from discode.errors import InputError
from tests.helpers import mini_benchmarks as mini


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return mini.flickr8k(tmp_path)


def test_expert_drops_own_captions_and_flattens(folder: Path) -> None:
    made = load_benchmark("flickr8k-expert", folder)
    assert [pair.caption for pair in made.pairs] == ["A pair of cats .", "A boat .", "A dog runs ."]
    assert [pair.id for pair in made.pairs] == [
        "a.jpg#b.jpg#2", "b.jpg#c.jpg#0", "c.jpg#a.jpg#0",
    ]  # fmt: skip
    assert made.pairs[0].references[0] == "A dog runs ."
    assert all(len(pair.references) == 5 for pair in made.pairs)
    judged = made.judgments
    assert isinstance(judged, Ratings)
    assert judged.pair.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert judged.value.tolist() == [1, 1, 2, 1, 2, 3, 2, 2, 2]
    assert judged.rater.tolist() == [0, 1, 2] * 3
    assert made.repeats().tolist() == [3, 3, 3]
    assert made.notes == (
        "1 rows dropped: the caption is one of the image's own references",
        f"2 of 3 images missing, sought in {folder / 'Flicker8k_Dataset'}",
    )
    assert Path(str(made.pairs[0].image)).is_file()
    assert made.pairs[1].image == str(folder / "Flicker8k_Dataset" / "b.jpg")


def test_expert_options(folder: Path) -> None:
    options = {"experts": "average", "self_references": "keep"}
    made = load_benchmark("flickr8k-expert", folder, options)
    assert isinstance(made.judgments, Ratings)
    assert made.judgments.value.tolist() == [4, 4 / 3, 2, 2]
    assert made.repeats().tolist() == [1, 1, 1, 1]
    assert made.options == options


def test_cf_cleans_references(folder: Path) -> None:
    made = load_benchmark("flickr8k-cf", folder)
    assert isinstance(made.judgments, Ratings)
    assert made.judgments.value == pytest.approx([1, 0, 1 / 3, 0.25])
    assert [len(pair.references) for pair in made.pairs] == [4, 4, 5, 4]
    assert "One dog outside ." not in made.pairs[1].references
    assert "Dog ." not in made.pairs[3].references  # by its text: the id is another image's
    assert made.notes[0] == "2 references removed: they are judged captions of the image"
    kept = load_benchmark("flickr8k-cf", folder, {"references": "all"})
    assert [len(pair.references) for pair in kept.pairs] == [5] * 4


def test_clipscores_json_reads_the_same(tmp_path: Path) -> None:
    rows = {"a": [("x  y .", [1.0, 2.0, 3.0]), ("a one", [4.0, 4.0, 4.0])], "b": [("z", [2.0] * 3)]}
    mini.write(tmp_path / "flickr8k.json", mini.clipscore(rows))
    made = load_benchmark("flickr8k-expert", tmp_path)
    assert isinstance(made.judgments, Ratings)
    assert [pair.caption for pair in made.pairs] == ["x y .", "z"]
    assert made.pairs[0].references == ("a one", "a two")
    assert made.judgments.value.tolist() == [1, 2, 3, 2, 2, 2]
    assert made.judgments.rater.tolist() == [0, 1, 2, 0, 1, 2]
    share = {"a": [("x", [0.25]), ("a one", [1.0]), ("y", [float("nan")])]}
    mini.write(tmp_path / "crowdflower_flickr8k.json", mini.clipscore(share))
    crowd = load_benchmark("flickr8k-cf", tmp_path)
    assert isinstance(crowd.judgments, Ratings)
    assert crowd.judgments.value.tolist() == [0.25, 1]
    assert crowd.pairs[0].references == ("a two",)
    assert "1 ratings left out: the file has NaN for them" in crowd.notes
    assert not np.isnan(crowd.judgments.value).any()


def test_files_that_cannot_be_decoded(folder: Path) -> None:
    (folder / "ExpertAnnotations.txt").write_bytes(b"\xff\xfe\t\t")
    with pytest.raises(InputError, match="cannot read"):
        load_benchmark("flickr8k-expert", folder)
    (folder / "Flickr8k.token.txt").unlink()
    with pytest.raises(
        InputError, match=r"Flickr8k.token.txt not in .*; source: Flickr8k_text.zip"
    ):
        load_benchmark("flickr8k-expert", folder)
