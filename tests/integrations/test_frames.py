"""Judge.score_frame on real pandas frames."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import discode
from discode.errors import InputError, MissingExtraError, install_hint
from tests.helpers.fake_model import FakeModel
from tests.helpers.samples import png

pandas = pytest.importorskip("pandas", reason="frames want discode-eval[pandas]")


@pytest.fixture
def judge() -> discode.Judge:
    return discode.load(FakeModel(rejects="bad"))


def test_scores_stand_beside_their_rows(judge: discode.Judge, image: Path) -> None:
    captions = ["a cat", "a bad one", "a dog", None, "a cup"]
    images = [str(image), image, png(), str(image), Image.new("RGB", (8, 8), "red")]
    frame = pandas.DataFrame({"caption": captions, "image": images, "n": range(5)},
                             index=[7, 7, 1, 2, 3])  # fmt: skip
    before = frame.copy()
    found = judge.score_frame(frame)
    assert frame.equals(before)
    assert list(found.index) == [7, 7, 1, 2, 3]
    assert list(found.columns) == ["caption", "image", "n", "score", "raw", "smoothing",
                                   "distribution", "flags", "error", "signature"]  # fmt: skip
    judged = [0, 2, 4]
    expected = judge.score(image, ["a cat", "a dog", "a cup"])
    assert np.array_equal(found["score"].iloc[judged], expected.value)
    assert found["score"].isna().tolist() == [False, True, False, True, False]
    assert found["error"].iloc[1] == "rejected"
    assert found["error"].iloc[3] == "row 3 has no caption"
    assert found["flags"].iloc[3] == ["failed"]
    means = found.groupby("n")["score"].mean()
    assert means[2] == expected[1]


def test_columns_may_have_other_names(judge: discode.Judge, image: Path) -> None:
    (image.parent / "COCO_000000000042.png").write_bytes(png())
    frame = pandas.DataFrame({"img": [image.name, "42"], "text": ["a cat", "a dog"],
                              "refs": [np.array(["x", "y"]), None], "score": [1, 2]})  # fmt: skip
    found = judge.score_frame(
        frame, image="img", caption="text", references="refs", images=image.parent, prefix="d_"
    )
    assert found["score"].tolist() == [1, 2]
    assert found["d_score"].notna().all()
    assert "references:some" in found["d_signature"].iloc[0]
    asked = judge.backend.asked  # type: ignore[attr-defined]  # a FakeModel
    asked.clear()
    twice = frame.drop(columns="score").rename(columns={"refs": "img"})
    for wrong, image_column, place in (
        (frame.rename(columns={"score": "flags"}), "img", "'flags'"),
        (frame, "img", "'score'"),
        (frame.rename(columns={"img": "images"}), "image", "'image'.*image="),
        (twice, "img", "'img'"),
        ({"image": [], "caption": []}, "image", "dict"),
    ):
        with pytest.raises(InputError, match=place):
            judge.score_frame(wrong, image=image_column, caption="text")
    assert asked == []


def test_image_ids_have_their_files_beside_them(judge: discode.Judge, tmp_path: Path) -> None:
    for name in ("000000000104.png", "x_105.png", "106.png", "hash107.png"):
        (tmp_path / name).write_bytes(png())
    frame = pandas.DataFrame({"image_id": [104, 105, 106, 107], "caption": ["a cat"] * 4})
    found = judge.score_frame(frame, image="image_id", images=tmp_path)
    names = [None if pandas.isna(file) else Path(file).name for file in found["file"]]
    assert names == ["000000000104.png", "x_105.png", "106.png", None]
    assert found["score"].isna().tolist() == [False, False, False, True]
    assert "107" in found["error"].iloc[3]
    with pytest.raises(InputError, match="'file'"):
        judge.score_frame(found[["image_id", "caption", "file"]], image="image_id", images=tmp_path)

    unknown = frame.assign(image_id=[104, 1, 2, 3])
    with pytest.raises(InputError, match=r"3 of 4.*annotations"):
        judge.score_frame(unknown, image="image_id", images=tmp_path)
    # A batch of a table may hold all of its unknown ids.
    batch = {name: unknown[name].tolist()[1:] for name in unknown}
    mapped = judge.map_fn(image="image_id", images=tmp_path)(batch)
    assert mapped["file"] == ["", "", ""]
    assert np.isnan(mapped["score"]).all()

    listed = [{"id": number, "file_name": "hash107.png"} for number in (1, 2, 3, 104)]
    (tmp_path / "instances.json").write_text(json.dumps({"images": listed}))
    found = judge.score_frame(
        unknown, image="image_id", images=tmp_path, annotations=tmp_path / "instances.json"
    )
    assert found["score"].notna().all()
    assert {Path(file).name for file in found["file"]} == {"hash107.png"}


def test_frames_without_rows_and_with_wrong_ones_only(judge: discode.Judge) -> None:
    empty = pandas.DataFrame({"image": [], "caption": []})
    assert len(judge.score_frame(empty)) == 0
    wrong = judge.score_frame(pandas.DataFrame({"image": [3.5, None], "caption": ["a", "b"]}))
    assert wrong["score"].isna().all()
    assert "row 0: an image cannot be float" in wrong["error"].iloc[0]


def test_what_is_missing_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    import discode.integrations

    for package, ask in (
        ("pandas", lambda: discode.decode(np.log(np.full(10, 0.1))).to_pandas()),
        ("torchmetrics", lambda: discode.integrations.DiscodeScore),
        ("evaluate", lambda: discode.integrations.DiscodeEvaluation),
    ):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MissingExtraError, match=re.escape(install_hint(package))):
            ask()
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        discode.integrations.Nothing  # noqa: B018  # asked for
