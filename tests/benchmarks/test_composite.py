from __future__ import annotations

import json
from pathlib import Path

import pytest

from discode.bench import AgreementProtocol, RunLog
from discode.benchmarks import Ratings, load_benchmark
from discode.benchmarks._composite import join_composite
from discode.errors import InputError
from tests.helpers import mini_benchmarks as mini


def test_the_human_candidate_is_not_a_reference(tmp_path: Path) -> None:
    mini.write(tmp_path / "composite.json", mini.COMPOSITE)
    made = load_benchmark("composite", tmp_path)
    assert [pair.references for pair in made.pairs] == [*[("A dog",)] * 2, ()]
    assert [pair.id for pair in made.pairs] == ["a.jpg#0", "a.jpg#1", "x.jpg#0"]
    assert isinstance(made.judgments, Ratings)
    assert made.judgments.value.tolist() == [5, 1, 2, 3]
    assert made.judgments.pair.tolist() == [0, 1, 1, 2]  # the same caption twice is one pair
    assert made.notes[:2] == (
        "1 rows lack references: metrics that need them leave these out",
        "the human candidate removed from the references of 1 images",
    )
    kept = load_benchmark("composite", tmp_path, {"references": "all"})
    assert len(kept.pairs[0].references) == 2


def test_fleurs_form_without_references_or_positions(tmp_path: Path) -> None:
    mini.write(tmp_path / "composite.json", mini.FLEUR_COMPOSITE)
    made = load_benchmark("composite", tmp_path)
    assert len(made.judgments) == 4
    assert [pair.references for pair in made.pairs] == [()] * 3
    assert "no references in the file" in made.notes[0]


def test_one_source_alone(tmp_path: Path) -> None:
    mini.write(tmp_path / "composite.json", mini.COMPOSITE)
    made = load_benchmark("composite:source=8k", tmp_path)
    assert [pair.id for pair in made.pairs] == ["a.jpg#0", "a.jpg#1"]
    assert RunLog.begin(made, AgreementProtocol(), {}).options["source"] == "8k"
    assert len(load_benchmark("composite:source=coco", tmp_path).pairs) == 1
    with pytest.raises(InputError, match=r"source in composite\.json 'flickr30k'.*flickr8k, coco"):
        load_benchmark("composite:source=30k", tmp_path)
    with pytest.raises(InputError, match="allowed: all, 8k, 30k, coco"):
        load_benchmark("composite:source=8", tmp_path)


def test_images_are_in_the_folders_beside(tmp_path: Path) -> None:
    mini.write(tmp_path / "composite" / "composite.json", mini.COMPOSITE)
    (tmp_path / "flickr8k" / "images").mkdir(parents=True)
    (tmp_path / "flickr8k" / "images" / "a.jpg").touch()
    (tmp_path / "coco" / "val2014").mkdir(parents=True)
    (tmp_path / "coco" / "val2014" / "x.jpg").touch()
    made = load_benchmark("composite", tmp_path)
    assert made.pairs[0].image == str(tmp_path / "flickr8k" / "images" / "a.jpg")
    assert not any("missing" in note for note in made.notes)


def test_the_file_is_joined_from_its_public_sources(tmp_path: Path) -> None:
    mini.write(tmp_path / "fleur.json", mini.FLEUR_COMPOSITE)
    own = mini.COMPOSITE["flickr8k"][0]["references"]
    table = tmp_path / "visce2.jsonl"
    row = {"image_path": "flickr8k/images/a.jpg", "references": own, "candidate": "not read"}
    table.write_text(f"{json.dumps(row)}\n" * 2, encoding="utf-8")
    joined = join_composite(tmp_path / "fleur.json", table)
    assert json.loads(joined) == mini.COMPOSITE
    assert list(json.loads(joined)["coco"][0]) == list(mini.COMPOSITE["coco"][0])

    table.write_text(
        json.dumps(row) + "\n" + json.dumps(row | {"references": ["A"]}), encoding="utf-8"
    )
    with pytest.raises(InputError, match=r"line 2: a\.jpg"):
        join_composite(tmp_path / "fleur.json", table)
    table.write_text(json.dumps(row | {"image_path": "b.jpg"}), encoding="utf-8")
    with pytest.raises(InputError, match=r"has none of the images of fleur\.json"):
        join_composite(tmp_path / "fleur.json", table)
    table.write_text(json.dumps({"image_path": "b.jpg"}), encoding="utf-8")
    with pytest.raises(InputError, match="has no 'references'"):
        join_composite(tmp_path / "fleur.json", table)
