"""Comparisons of two captions: both orders, ties, failures, scores instead, store and samples."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discode import InputError, Pair, load
from discode._preferences import PreferenceScores
from discode._prompts import PREFER, Prompt
from discode._scales import SCALES
from discode.readings._sampled import draws_of
from discode.readings._store import ReadingStore
from tests.helpers.chat_servers import compared, comparer, expected, served, serving
from tests.helpers.command_line import CAT, refused, run
from tests.helpers.fake_model import FakeModel, OneByOne

LONG, LONGER, SHORT = "a cat on a wall", "a cat on a wall.", "a cat"


def test_both_orders_are_asked_and_averaged() -> None:
    firsts, seconds = [LONG, LONG, SHORT], [SHORT, LONGER, SHORT]
    with serving(answers=comparer) as server:
        done = load(served(server)).prefer(CAT, firsts, seconds)
        asked = [captions for body in server.asked if (captions := compared(body))]
    truth = [expected(a, b) for a, b in zip(firsts, seconds, strict=True)]
    assert done.value == pytest.approx([value for value, _ in truth])
    assert done.flip == pytest.approx([flip for _, flip in truth])
    # A caption against itself is one question: its orders are the same.
    assert sorted(asked) == sorted(
        [(LONG, SHORT), (SHORT, LONG), (LONG, LONGER), (LONGER, LONG), (SHORT, SHORT)]
    )
    assert done.flags["tied"].tolist() == [False, False, True]
    assert done.flags["flipped"].tolist() == [False, True, True]
    assert done.signature["prompt"] == f"prefer-{PREFER.digest}"
    assert done.signature["preference"] == "orders"
    assert [row["other_caption"] for row in done.rows()] == seconds
    json.dumps([*done.rows()], allow_nan=False)


def test_exchanged_captions_have_the_complement() -> None:
    with serving(answers=comparer) as server:
        judge = load(served(server))
        ab, ba = judge.prefer(CAT, LONG, SHORT), judge.prefer(CAT, SHORT, LONG)
    assert float(ab) == pytest.approx(1 - float(ba))
    assert ab.flip == pytest.approx(ba.flip)


def test_a_failure_in_one_order_fails_the_comparison() -> None:
    def before(body: Any, times: int) -> Any:
        wrong = compared(body) == (SHORT, LONG)
        return (400, {}, {"error": {"message": "not this one"}}) if wrong else None

    with serving(answers=comparer, before=before) as server:
        done = load(served(server)).prefer(CAT, [LONG, LONG], [SHORT, LONGER])
    assert np.isnan(done.value).tolist() == np.isnan(done.flip).tolist() == [True, False]
    assert "not this one" in done.errors[0]
    assert [*done.errors] == [0]
    assert done.counts()["failed"] == 1
    first, _ = done.rows()
    assert first["preference"] is None
    assert "failed" in first["flags"]


def test_labels_that_a_server_leaves_out_are_bounded() -> None:
    def sure(body: Any) -> Any:
        p = {"A": 0.9, "x": 0.05} if compared(body) else {"0": 0.9}
        return [(next(iter(p)), p), ("<eos>", {"<eos>": 1.0})]

    with serving(answers=sure) as server:
        done = load(served(server)).prefer(CAT, LONG, SHORT)
    assert done.flags["truncated"].all()
    assert done.flip[0] == pytest.approx(1, abs=0.2)
    assert done.bound is not None
    assert 0 < done.bound[0] < 0.2
    assert abs(float(done) - 0.5) <= done.bound[0]


def test_answers_that_are_sampled() -> None:
    with serving(answers=comparer, logprobs=False) as server:
        judge = load(served(server))
        done = judge.prefer(CAT, [LONG] * 2, [SHORT, LONGER])
        asked = [body for body in server.asked if compared(body)]
    assert [body["n"] for body in asked] == [20] * 4  # one request per order
    assert done.flags["sampled"].all()
    assert done.stderr is not None
    assert ((done.stderr > 0) & (done.stderr < 0.2)).all()
    truth = np.array([expected(LONG, SHORT)[0], expected(LONG, LONGER)[0]])
    assert (np.abs(done.value - truth) < 5 * done.stderr).all()


def test_the_store_keeps_each_order(tmp_path: Path) -> None:
    store = tmp_path / "kept.db"
    with serving(answers=comparer) as server:
        judge = load(served(server), store=store)
        first, scored = judge.prefer(CAT, LONG, SHORT), judge.score(CAT, LONG)
        asked = len(server.asked)
        again = judge.prefer(CAT, SHORT, LONG)  # the same two questions
        assert len(server.asked) == asked
    assert float(again) == pytest.approx(1 - float(first), abs=1e-12)
    with ReadingStore(store) as opened:
        kept = {run.scale.name: count for run, count in opened.run_keys()}
    assert kept == {"unit": 1, "prefer": 2}
    replayed = load(f"recorded:{store}")
    assert float(replayed.prefer(CAT, LONG, SHORT)) == float(first)
    assert float(replayed.score(CAT, LONG)) == float(scored)  # by the prompt of ratings


def test_a_judge_of_one_caption_compares_scores(caplog: pytest.LogCaptureFixture) -> None:
    judge = load(OneByOne("logged"), scale="ten", method="smoothing")
    texts = ["a", "a cat", "abc", "no"]
    scores = judge.score(CAT, texts).value
    pairs = [(a, b) for a in range(3) for b in range(3)]
    with caplog.at_level(logging.WARNING, "discode"):
        done = judge.prefer(CAT, [texts[a] for a, _ in pairs], [texts[b] for _, b in pairs])
    truth = [(scores[a] > scores[b]) + (scores[a] == scores[b]) / 2 for a, b in pairs]
    assert done.value.tolist() == truth
    assert not done.flip.any()
    assert done.counts()["tied"] == 3
    assert done.counts()["flipped"] == 0
    assert done.signature["preference"] == "scores"
    assert "scores" in caplog.text
    failed = replace(judge, backend=OneByOne(rejects="no")).prefer(CAT, "a", "no")
    assert np.isnan(float(failed))
    assert failed.errors == {0: "rejected"}


def test_a_prompt_of_your_own() -> None:
    own = Prompt("own", None, "{caption} or {references}?")
    judge = load(FakeModel(), prompt=own, scale="prefer")
    assert judge.comparing().prompt is own
    assert judge.comparing().scale == SCALES["prefer"]
    assert load(FakeModel(), scale="prefer").prompt is PREFER
    assert judge.prefer(CAT, "x", "y").signature["prompt"] == f"own-{own.digest}"


def test_input_that_is_refused_or_fails() -> None:
    judge = load(FakeModel())
    with pytest.raises(InputError, match="2 first and 1 second"):
        judge.prefer(CAT, ["a", "b"], "c")
    with pytest.raises(InputError, match="2 references"):
        judge.prefer_pairs([Pair(CAT, "a", ("b", "c"))])
    with pytest.raises(InputError, match="0 references"):
        judge.prefer_pairs([(CAT, "a")])
    done = judge.prefer_pairs([(CAT, "a", ["b"]), (CAT, " ", ["b"]), (CAT, "a", [None])])
    assert [*done.errors] == [1, 2]
    assert "empty" in done.errors[1]
    with pytest.raises(InputError, match="3"):
        float(done)
    assert len(judge.prefer_pairs([])) == 0


def test_two_orders_are_joined_row_by_row() -> None:
    """Also where only one of them is truncated or sampled."""
    scale = SCALES["prefer"]
    judge = load(FakeModel(), scale=scale, method="smoothing")
    pairs = [Pair(CAT, a, (b,)) for a, b in (("a", "b"), ("b", "a"))]
    scores = judge.score_pairs(pairs)
    bounded = replace(
        scores, bound=np.array([0.2, np.nan]), stderr=np.array([0.3, 0.4]),
        flags={**scores.flags, "truncated": np.array([True, False])},
    )  # fmt: skip
    done = PreferenceScores.of_orders(bounded)
    assert done.bound is not None
    assert done.bound.tolist() == [0.1]
    assert done.stderr is not None
    assert done.stderr.tolist() == [0.25]
    assert done.flags["truncated"].tolist() == [True]
    assert draws_of(judge.read(pairs)).tolist() == [0, 0]


def test_the_command(tmp_path: Path) -> None:
    command = ("prefer", CAT, LONG, SHORT, "--model", "endpoint:tiny")
    with serving(answers=comparer) as server:
        here = ("--base-url", server.url)
        done = run(*command, *here, "--json")
        assert done.returncode == 0, done
        row = json.loads(done.stdout)
        assert (row["preference"], row["flip"]) == pytest.approx(expected(LONG, SHORT))
        assert (row["image"], row["caption"], row["other_caption"]) == (CAT, LONG, SHORT)
        asked = len(server.asked)
        priced = run(*command, *here, "--dry-run")
        assert "2 requests" in priced.stdout
        assert len(server.asked) == asked
        table = run(*command[:4], LONGER, *command[4:], *here)
        assert len(table.stdout.splitlines()) == 4  # three pairs of three captions
        assert f"{expected(LONG, SHORT)[0]:.3f}" in table.stdout
        assert "flipped" in table.stdout
        failing = run("prefer", "nothing.jpg", *command[2:], *here)
        assert failing.returncode == 1
        assert "nothing.jpg" in failing.stderr
        kept = ("--store", tmp_path / "kept.db")
        assert run(*command, *here, *kept).returncode == 0
        assert "0 requests" in run(*command, *here, *kept, "--dry-run").stdout
    refused(run("prefer", CAT, LONG), "two captions")
    refused(run("prefer", CAT, CAT, LONG), "cat.jpg")
    refused(run(*command[:4], "--dry-run"), "--dry-run", "endpoint:NAME")


@pytest.mark.usefixtures("shipped")
def test_the_embedded_judge_says_that_it_compares_scores() -> None:
    done = run("prefer", CAT, "a close up of a striped cat", "a brown dog", "--signature")
    assert done.returncode == 0, done
    assert "1.000" in done.stdout
    assert "scores" in done.stderr.partition("preference:")[0]
    assert "preference:scores" in done.stderr
