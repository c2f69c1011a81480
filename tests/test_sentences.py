"""Captions judged by their sentences: where one ends, and what becomes of their scores."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import discode
from discode._judge import Judge
from discode._scores import COLUMNS
from discode._sentences import MAX_SENTENCES, sentence_weights, split_sentences
from tests.helpers.command_line import CAT, call, refused
from tests.helpers.fake_model import FakeModel

TEXT = "A cat sits on a wall. It is striped! A man rides a bike, e.g. a red one."
SENTENCES = ["A cat sits on a wall.", "It is striped!", "A man rides a bike, e.g. a red one."]
LONG = (
    f"{TEXT} There is a long and very old wooden fence behind the cat in the green garden. {TEXT}"
)


@pytest.mark.parametrize(
    ("between", "sentences"),
    [
        (" ", ["a cat"]),
        (" ", ["a man rides a horse.", "there is a dog."]),
        (" ", ["Mr. Fox is 1.5 m tall.", "He left at 5 p.m. and met J. Smith.", "Who knows?"]),
        ("  ", ["It costs approx. 3 dollars etc. at No. 5.", "No.", "It is free."]),
        (
            " ",
            ['A sign says "Stop." on a wall.', '"Go!" he said.', '"Left."', "(It is old.)", "OK"],
        ),
        (" ", ["A cat ... on a mat…", "Another one.", "Yes!!", "OK"]),
        (
            "\n",
            ["I see:\n- a dog", "- a cat,\nwhich sleeps", "1. One thing", "2. Another.", "More"],
        ),
        (" ", ["A dog.", "It runs. 😀 ..."]),
        ("", ["一只猫。", "“狗在跑！”", "真的？", "是"]),
    ],
)
def test_where_sentences_end(between: str, sentences: list[str]) -> None:
    assert split_sentences(between.join(sentences)) == sentences


@given(
    st.lists(st.sampled_from([*"aZ1. \n!?…。'\")*-:,😀", "Mr", "e.g", "etc", "..."]), max_size=80)
)
def test_sentences_are_the_text(parts: list[str]) -> None:
    text = "".join(parts)
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    place = 0
    for sentence in sentences:  # as they stand there, one after the other
        place = text.index(sentence, place) + len(sentence)
        assert len(sentences) == 1 or any(map(str.isalnum, sentence))
    assert len(sentences) <= MAX_SENTENCES + 1


@pytest.mark.parametrize("more", [0, 1, 8, 400])
def test_what_follows_the_last_sentence_weighs_what_it_holds(more: int) -> None:
    """The score of N sentences is their mean: here of 32 alike, and the rest, which are alike."""
    text = "A cat sits. " * 32 + "A man rides a horse. " * more
    scores = discode.load(FakeModel(), by="sentence").score(CAT, text)
    assert scores.sentences is not None
    (parts,) = scores.sentences
    assert parts is not None
    assert len(parts.texts) == 32 + (more > 0)
    each = [*parts.value[:32], *[parts.value[-1]] * more]
    assert scores.value[0] == pytest.approx(np.mean(each))
    whole = split_sentences("A dog... runs. 🙂! " * 30)
    assert sum(sentence_weights(whole)) == 30
    assert len(whole) <= MAX_SENTENCES + 1


def judge(by: str, **options: object) -> Judge:
    return discode.load(FakeModel(**options), by=by)  # type: ignore[arg-type]  # its fields


def test_a_caption_has_the_mean_of_its_sentences() -> None:
    parts = judge("caption").score(CAT, SENTENCES)
    model = FakeModel()
    scores = discode.load(model, by="sentence").score(CAT, ["a cat", TEXT])
    assert sorted(model.asked) == sorted(["a cat", *SENTENCES])  # no caption as a whole besides
    for name in ("value", "raw", "smoothing"):
        np.testing.assert_allclose(
            getattr(scores, name)[1], getattr(parts, name).mean(), rtol=1e-15
        )
    assert scores.value[0] == judge("caption").score(CAT, "a cat").value[0]
    assert scores.signature["by"] == "sentence"
    assert scores.sentences is not None
    assert scores.sentences[0] is None
    assert scores.sentences[1] is not None
    assert scores.sentences[1].texts == tuple(SENTENCES)
    assert scores.sentences[1].value == tuple(parts)
    low = int(parts.value.argmin())
    assert scores.sentences[1].lowest == (SENTENCES[low], parts[low])
    row = list(scores.rows())[1]
    assert (row["sentences"], row["lowest_sentence"], row["lowest_score"], row["distribution"]) == (
        3, SENTENCES[low], parts[low], None,
    )  # fmt: skip


def test_readings_keep_their_sentences() -> None:
    """Whoever decodes them later, in whatever order, gets the same."""
    by_sentence = judge("sentence")
    pairs = discode.make_pairs(CAT, ["a cat", TEXT, "a dog"])
    readings = by_sentence.read(pairs)
    scores = by_sentence.decode(pairs, readings)
    again = discode.decode(readings.take([2, 1]))
    assert again.value.tolist() == scores.value[[2, 1]].tolist()
    assert again.signature == scores.signature
    joined = discode.Readings.concat(readings.scale, [readings.take([0]), readings.take([1])])
    assert discode.decode(joined).value.tolist() == scores.value[:2].tolist()
    assert scores.sentences is not None
    assert scores[[2, 1]].sentences == (None, scores.sentences[1])
    whole = judge("caption").score(CAT, ["a cat", "a dog"])
    assert discode.Scores.join([whole, scores[1:2]])[[0, 2, 1]].sentences == scores.sentences


def test_a_failed_sentence_fails_its_caption() -> None:
    scores = judge("sentence", rejects="bike").score(CAT, ["a cat", TEXT])
    assert np.isnan(scores.value).tolist() == [False, True]
    assert scores.flags["failed"].tolist() == [False, True]
    assert scores.errors == {1: "sentence 3 of 3: rejected"}
    assert list(scores.rows())[1]["lowest_sentence"] is None


def test_readings_are_stored_by_sentence(tmp_path: Path) -> None:
    model, done = FakeModel(), list[int]()
    stored = discode.load(model, by="sentence", store=tmp_path / "readings.db")
    pairs = discode.make_pairs(CAT, [TEXT, "a cat", TEXT])
    first = stored.score_pairs(pairs, progress=done.append)
    assert sum(done) == len(pairs)  # of pairs, not of sentences
    assert len(model.asked) == len({*model.asked}) == 4
    assert stored.score_pairs(pairs).value.tolist() == first.value.tolist()
    replace(stored, by="caption").score(CAT, SENTENCES)
    assert len(model.asked) == 4


@pytest.mark.usefixtures("shipped")
def test_captions_that_are_too_long_are_judged_by_sentences() -> None:
    endless = "a cat " + "and a very old cat " * 40
    captions = ["a cat", TEXT, LONG, endless]
    shipped = discode.load("embedded")
    auto, whole, parts = (
        replace(shipped, by=by).score(CAT, captions) for by in ("auto", "caption", "sentence")
    )
    assert whole.flags["cut"].tolist() == [False, False, True, True]
    assert auto.flags["cut"].tolist() == [False, False, False, True]
    assert auto.value[[0, 1, 3]].tolist() == whole.value[[0, 1, 3]].tolist()
    np.testing.assert_allclose(auto.value[2], parts.value[2], atol=1e-6)  # batched otherwise
    assert whole.sentences is None
    assert auto.sentences is not None
    assert [each is not None for each in auto.sentences] == [False, False, True, False]
    assert {scores.signature["by"] for scores in (auto, whole, parts)} == {
        "auto", "caption", "sentence",
    }  # fmt: skip


@pytest.mark.usefixtures("shipped")
def test_score_files_say_so(tmp_path: Path) -> None:
    source = tmp_path / "pairs.jsonl"
    captions = ["a cat", TEXT]
    source.write_text("".join(json.dumps({"image": CAT, "caption": c}) + "\n" for c in captions))
    options = ("--by", "sentence", "-m", "raw", "--store", store := tmp_path / "readings.db")
    for out in ("scores.jsonl", "scores.csv", "folder"):
        done = call("score", "-i", source, "-o", tmp_path / out, "--signature", *options)
        assert done.returncode == 0, done.stderr
        assert "|by:sentence|" in done.stderr
    lines = (tmp_path / "scores.jsonl").read_text()
    assert lines == next((tmp_path / "folder").glob("part-*.jsonl")).read_text()
    rows = [json.loads(line) for line in lines.splitlines()]
    assert [list(row) for row in rows] == [list(COLUMNS)] * 2
    assert [row["sentences"] for row in rows] == [None, 3]
    assert all("|by:sentence|" in row["signature"] for row in rows)
    parts = discode.load("embedded", method="raw", store=store).score(CAT, SENTENCES)
    lowest = SENTENCES[int(parts.value.argmin())], float(parts.value.min())
    assert (rows[1]["lowest_sentence"], rows[1]["lowest_score"]) == lowest
    with (tmp_path / "scores.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert [row["sentences"] for row in cells] == ["", "3"]
    assert (cells[1]["lowest_sentence"], float(cells[1]["lowest_score"])) == lowest
    shown = call("score", CAT, TEXT, *options, "--show").stdout
    assert "lowest of 3 sentences" in shown
    assert SENTENCES[2] in shown
    refused(call("score", CAT, TEXT, "--by", "words"), "words", "auto, caption, sentence")
