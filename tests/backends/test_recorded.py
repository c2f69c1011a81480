from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import discode
from discode._prompts import FLEUR
from discode.backends._recorded import Recorded
from discode.errors import InputError
from discode.readings import Identity
from discode.readings._exchange import export_readings
from discode.readings._store import ReadingStore
from tests.helpers.fake_model import FakeModel


@pytest.mark.parametrize("form", ["r.db", "r.jsonl", "r.parquet"])
def test_replay_equals_the_model(tmp_path: Path, image: Path, form: str) -> None:
    if form.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="Parquet wants discode-eval[parquet]")
    captions = ["a", "bb", "ccc"]
    live = discode.load(FakeModel(), store=tmp_path / "r.db").score(image, captions)
    if form != "r.db":
        with ReadingStore(tmp_path / "r.db") as store:
            export_readings(store, tmp_path / form)
    replay = discode.load(f"recorded:{tmp_path / form}").score(image, captions)
    assert np.array_equal(live.value, replay.value)
    assert live.signature == replay.signature


def test_what_was_not_recorded_says_so(tmp_path: Path, image: Path) -> None:
    discode.load(FakeModel(), store=tmp_path / "r.db").score(image, "a")
    judge = discode.load(str(tmp_path / "r.db"))
    assert judge.prompt == FLEUR
    scores = judge.score(image, ["a", "b"])
    assert np.isnan(scores.value).tolist() == [False, True]
    assert "not recorded" in scores.errors[1]
    other = discode.load(str(tmp_path / "r.db"), scale="ten").score(image, "a")
    assert "the file has scale unit, not ten" in other.errors[0]
    gone = judge.score(tmp_path / "none.png", "a")
    assert "cannot read" in gone.errors[0]


def test_hidden_states_are_claimed_only_where_they_are(tmp_path: Path, image: Path) -> None:
    discode.load(FakeModel(), store=tmp_path / "r.db").score(image, "a")
    with pytest.raises(InputError, match="needs hidden"):
        discode.load(str(tmp_path / "r.db"), method="discode:solver=adam")


def test_several_models_need_a_name(tmp_path: Path, image: Path) -> None:
    for name in ("one", "two"):
        discode.load(FakeModel(name), store=tmp_path / "r.db").score(image, "a")
    with pytest.raises(InputError, match="one, two"):
        Recorded(tmp_path / "r.db")
    assert discode.load(f"recorded:{tmp_path / 'r.db'}#two").backend.identity.model == "two"
    with pytest.raises(InputError, match="choose one"):
        Recorded(f"{tmp_path / 'r.db'}#three")


def test_models_of_one_name_are_told_apart(tmp_path: Path, image: Path) -> None:
    path = tmp_path / "r.db"
    for revision, dtype in (("1", "bfloat16"), ("2", "bfloat16"), ("2", "float32")):
        identity = Identity("one", revision, dtype)
        model = type("Revised", (FakeModel,), {"identity": identity})()
        discode.load(model, store=path).score(image, "a")
    for choice in ("", "#one", "#one@2", "#one@3"):
        with pytest.raises(InputError, match="one@1, one@2@bfloat16, one@2@float32"):
            Recorded(f"{path}{choice}")
    assert Recorded(f"{path}#one@1").identity.revision == "1"
    judge = discode.load(f"{path}#one@2@float32")
    assert judge.backend.identity == Identity("one", "2", "float32")
    assert np.isfinite(float(judge.score(image, "a")))


@pytest.mark.parametrize("name", ["a#b.db", "a.db#b.db", "#.db"])
def test_a_file_may_have_the_mark_of_models_in_its_name(
    tmp_path: Path, image: Path, name: str
) -> None:
    path = tmp_path / name
    discode.load(FakeModel("one"), store=path).score(image, "a")
    for spec in (f"recorded:{path}", str(path), f"{path}#one"):
        assert np.isfinite(float(discode.load(spec).score(image, "a"))), spec
    with pytest.raises(InputError, match="choose one"):
        Recorded(f"{path}#two")


def test_a_model_that_ignores_references_is_replayed(tmp_path: Path, image: Path) -> None:
    references = ["a tabby", "a cat"]
    for takes, said in ((False, "ignored"), (True, "all")):
        model = FakeModel(f"takes {takes}")
        model.takes_references = takes
        live = discode.load(model, store=tmp_path / "r.db").score(image, "a", references)
        replay = discode.load(f"{tmp_path / 'r.db'}#takes {takes}").score(image, "a", references)
        assert replay.value == live.value
        assert replay.signature == live.signature
        assert replay.signature.get("references") == said


def test_an_own_template_is_replayed(tmp_path: Path, image: Path) -> None:
    (tmp_path / "mine.txt").write_text("Rate {caption}")
    judge = discode.load(FakeModel(), prompt=tmp_path / "mine.txt", store=tmp_path / "r.db")
    judge.score(image, "a")
    replay = discode.load(str(tmp_path / "r.db"))
    assert replay.prompt.free == "Rate {caption}"
    assert np.isfinite(float(replay.score(image, "a")))


def test_a_read_only_store_is_replayed(tmp_path: Path, image: Path) -> None:
    discode.load(FakeModel(), store=tmp_path / "r.db").score(image, "a")
    (tmp_path / "r.db").chmod(0o444)
    assert np.isfinite(float(discode.load(str(tmp_path / "r.db")).score(image, "a")))


def test_a_damaged_reading_is_named(tmp_path: Path, image: Path) -> None:
    path = tmp_path / "r.db"
    live = discode.load(FakeModel(), store=path).score(image, ["a", "b"])
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE readings SET answer_logp = stem_logp WHERE caption = 'a'")
    scores = discode.load(str(path)).score(image, ["a", "b", "c"])
    assert np.isnan(scores.value).tolist() == [True, False, True]
    assert scores.value[1] == live.value[1]
    assert "damaged" in scores.errors[0]
    assert str(path) in scores.errors[0]
    assert "not recorded" in scores.errors[2]
    again = discode.load(FakeModel(), store=path).score(image, ["a", "b"])  # asks, and mends
    assert again.value.tolist() == live.value.tolist()
    assert discode.load(str(path)).score(image, ["a", "b"]).errors == {}
