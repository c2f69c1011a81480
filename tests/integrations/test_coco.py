"""CocoScorer in the place of pycocoevalcap's scorers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import discode
from discode.errors import InputError
from discode.images import demo_path
from discode.integrations import CocoScorer
from tests.helpers.fake_model import FakeModel
from tests.helpers.samples import png

GTS = {7: ["a cat", "an animal"], 3: ["a dog runs"], 5: ["a red cup", "a cup of coffee"]}
RES = {3: ["a dog"], 5: ["a cup of tea"], 7: ["a striped cat"]}
IMAGES = {3: png("red"), 5: png("green"), 7: png("blue")}


def test_the_interface_is_that_of_pycocoevalcap() -> None:
    cider = pytest.importorskip(
        "pycocoevalcap.cider.cider", reason="the oracle wants discode-eval[bench]"
    )
    judge = discode.load(FakeModel())
    ours, theirs = CocoScorer(IMAGES, judge), cider.Cider()
    table = {}
    for scorer in (ours, theirs):  # as COCOEvalCap.evaluate goes through its scorers
        score, scores = scorer.compute_score(GTS, RES)
        assert type(scores) is np.ndarray
        assert scores.shape == (3,)
        assert np.ndim(score) == 0
        assert scorer.method().isupper() or scorer.method() == "CIDEr"
        table[scorer.method()] = dict(zip(GTS.keys(), scores, strict=True))
    for name, (caption,) in RES.items():
        assert table["DISCODE"][name] == float(judge.score(IMAGES[name], caption))
    assert ours.compute_score(GTS, RES)[0] == pytest.approx(
        np.mean(list(table["DISCODE"].values()))
    )


def test_images_from_a_folder_by_number_or_by_name(tmp_path: Path) -> None:
    judge = discode.load(FakeModel())
    for number in GTS:
        (tmp_path / f"COCO_val2014_{number:012d}.png").write_bytes(IMAGES[number])
    by_number = CocoScorer(tmp_path, judge).compute_score(GTS, RES)
    assert by_number[1].tolist() == CocoScorer(IMAGES, judge).compute_score(GTS, RES)[1].tolist()
    gts, res = ({str(name): texts for name, texts in given.items()} for given in (GTS, RES))
    assert CocoScorer(tmp_path, judge).compute_score(gts, res)[1].tolist() == by_number[1].tolist()
    shutil.copy(demo_path() / "cat.jpg", tmp_path)
    path = str(tmp_path / "cat.jpg")
    for images, name in ((None, path), (tmp_path, "cat.jpg")):
        mean, each = CocoScorer(images, judge).compute_score({name: ["x"]}, {name: ["a cat"]})
        assert mean == each[0] == float(judge.score(path, "a cat"))


def test_references_and_annotations_as_coco_has_them() -> None:
    judge = discode.load(FakeModel())
    gts, res = (
        {
            name: [{"image_id": name, "caption": text} for text in texts]
            for name, texts in of.items()
        }
        for of in (GTS, RES)
    )
    scorer = CocoScorer(IMAGES, judge, references=True)
    assert scorer.compute_score(gts, res)[1].tolist() == scorer.compute_score(GTS, RES)[1].tolist()
    assert scorer.scores is not None
    assert scorer.scores.signature["references"] == "all"
    assert scorer.scores.captions == ("a striped cat", "a dog", "a cup of tea")


def test_what_cannot_be_judged_is_nan_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    judge = discode.load(FakeModel(rejects="tea"), store=tmp_path / "a.db")
    mean, each = CocoScorer(IMAGES | {3: "lost.png"}, judge).compute_score(GTS, RES)
    assert np.isnan(each).tolist() == [False, True, True]
    assert mean == each[0]
    assert "2 of 3 images were not judged" in caplog.text
    assert "image 3: cannot read lost.png" in caplog.text


def test_mistakes_are_named() -> None:
    scorer = CocoScorer(IMAGES, discode.load(FakeModel()))
    for gts, res, place in (
        (GTS, RES | {9: ["x"]}, "9"),
        (GTS, RES | {3: ["x", "y"]}, r"res\[3\]"),
        (GTS, RES | {3: "x"}, r"res\[3\]"),
        ({9: ["x"]}, {9: ["x"]}, "9"),
    ):
        with pytest.raises(InputError, match=place):
            scorer.compute_score(gts, res)
