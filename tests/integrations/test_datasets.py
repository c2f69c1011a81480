"""Judge.map_fn in Dataset.map of the real datasets library."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import discode
from tests.helpers.fake_model import FakeModel
from tests.helpers.samples import png

datasets = pytest.importorskip("datasets", reason="Dataset.map wants discode-eval[datasets]")

CAPTIONS = ["a cat", "a dog", "a bad one", "a cup of tea", "x"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


@pytest.fixture
def judge() -> discode.Judge:
    return discode.load(FakeModel(rejects="bad"))


@pytest.mark.parametrize("batched", [True, False])
def test_rows_and_batches(judge: discode.Judge, image: Path, batched: bool) -> None:
    data = datasets.Dataset.from_dict({"image": [str(image)] * 5, "caption": CAPTIONS})
    # Two rows a time: the first batch has no error, and Arrow must take the second's.
    found = data.map(judge.map_fn(), batched=batched, batch_size=2, writer_batch_size=2)
    scores = judge.score(image, CAPTIONS)
    assert found.column_names == ["image", "caption", "score", "raw", "error", "signature"]
    assert np.array_equal(found["score"], scores.value, equal_nan=True)
    assert list(found["error"]) == ["", "", "rejected", "", ""]
    assert set(found["signature"]) == {str(scores.signature)}
    arrays = data.with_format("numpy").map(judge.map_fn(), batched=batched).with_format(None)
    assert np.array_equal(arrays["score"], scores.value, equal_nan=True)


def test_images_of_the_library_and_other_names(judge: discode.Judge, image: Path) -> None:
    data = datasets.Dataset.from_dict(
        {"photo": [{"bytes": png(), "path": None}, {"bytes": None, "path": str(image)}, None],
         "text": ["a cat", "a dog", "a cup"], "refs": [["x"], ["y", "z"], []]},
        features=datasets.Features({
            "photo": datasets.Image(), "text": datasets.Value("string"),
            "refs": [datasets.Value("string")],
        }),
    )  # fmt: skip
    function = judge.map_fn(image="photo", caption="text", references="refs", prefix="discode_")
    for one in (data, data.cast_column("photo", datasets.Image(decode=False))):
        found = one.map(function, batched=True)
        assert list(found["discode_error"]) == ["", "", "row 2 has no image"]
        values = judge.score([png(), image], ["a cat", "a dog"], [["x"], ["y", "z"]]).value
        assert list(found["discode_score"])[:2] == pytest.approx(values.tolist())
        assert math.isnan(found["discode_score"][2])


@pytest.mark.usefixtures("shipped")
def test_the_second_time_is_from_the_cache(image: Path) -> None:
    from datasets.fingerprint import Hasher

    judge = discode.load("embedded", threads=1)
    function = judge.map_fn()
    before = Hasher.hash(function)
    function({"image": str(image), "caption": "a cat"})
    assert Hasher.hash(function) == before
    other = replace(judge, decoder=discode.get_decoder("raw"))
    assert Hasher.hash(other.map_fn()) != before
    again = pickle.loads(pickle.dumps(judge))  # as workers get it
    assert again.signature == judge.signature
    assert Hasher.hash(again.map_fn()) == before
    assert float(again.score(image, "a cat")) == float(judge.score(image, "a cat"))
