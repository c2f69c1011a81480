"""The module of evaluate, called as evaluate's own are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import discode
from discode.errors import InputError
from tests.helpers.fake_model import FakeModel

evaluate = pytest.importorskip("evaluate", reason="the module wants discode-eval[evaluate]")

CAPTIONS = ["a cat", "a bad one", "a dog runs"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", tmp_path / "cache")


@pytest.fixture
def judge() -> discode.Judge:
    return discode.load(FakeModel(rejects="bad"))


def module(judge: discode.Judge, **options: Any) -> Any:
    from discode.integrations import DiscodeEvaluation

    return DiscodeEvaluation(judge, **options)


def test_compute(judge: discode.Judge, image: Path) -> None:
    found = module(judge).compute(predictions=CAPTIONS, images=[str(image)] * 3)
    scores = judge.score(image, CAPTIONS)
    assert found["discode"] == pytest.approx(scores.mean())
    assert found["discode_scores"] == pytest.approx(scores.value.tolist(), nan_ok=True)
    assert found["failed"] == 1
    assert found["signature"] == str(scores.signature)
    both = evaluate.combine([module(judge), module(judge)], force_prefix=True)
    found = both.compute(predictions=CAPTIONS[:1], images=[str(image)])
    assert sum(key.endswith("discode") for key in found) == 2
    with pytest.raises((ValueError, InputError)):
        module(judge).compute(predictions=CAPTIONS, images=["a.png"])


def test_batches_open_images_and_files_that_are_missing(
    judge: discode.Judge, image: Path, tmp_path: Path
) -> None:
    one = module(judge)
    one.add_batch(predictions=CAPTIONS[:1], images=[Image.new("RGB", (8, 8), "red")])
    one.add(predictions=CAPTIONS[2], images=str(image))
    assert one.compute()["discode"] == pytest.approx(
        judge.score(image, [CAPTIONS[0], CAPTIONS[2]]).mean()
    )
    found = module(judge.with_store(tmp_path / "a.db")).compute(
        predictions=["a cat", "a cat"], images=["lost.png", str(image)]
    )
    assert found["failed"] == 1
    assert math.isnan(found["discode_scores"][0])
    assert found["discode"] == found["discode_scores"][1]


@pytest.mark.parametrize(
    "references",
    [[["a cat", "an animal"], ["a dog"]], [None, ["a dog"]], None,
     ["a cat", "a dog"], [["a cat"], "a dog"], [["a cat"]]],
)  # fmt: skip
def test_references_are_used_or_refused_as_score_does(
    judge: discode.Judge, image: Path, references: Any
) -> None:
    columns = {"predictions": CAPTIONS[::2], "images": [str(image)] * 2, "references": references}
    added = module(judge)
    try:
        own = judge.score([str(image)] * 2, CAPTIONS[::2], references)
    except InputError:
        with pytest.raises(InputError):
            module(judge).compute(**columns)
        with pytest.raises(InputError):
            added.add_batch(**columns)
        return
    added.add_batch(**columns)
    for found in (module(judge).compute(**columns), added.compute()):
        assert found["signature"] == str(own.signature)
        assert found["discode_scores"] == own.value.tolist()
