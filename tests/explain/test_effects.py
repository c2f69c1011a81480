"""What words add to a score, with a judge whose scores are known in closed form."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from discode._judge import Judge, load
from discode._scales import Scale, get_scale
from discode.backends._embedded import SHA256
from discode.decoders import get_decoder
from discode.errors import InputError
from discode.explain import KINDS, MAX_SPANS, Span
from discode.explain._effects import NO_SINGLE_WORD, NOT_READ, WORD_EFFECTS
from discode.images import demo_path
from discode.readings import Readings
from discode.readings._store import ReadingStore
from tests.helpers.fake_model import FakeModel, sure_of

CAT = demo_path() / "cat.jpg"


class Oracle(FakeModel):
    """Gives the highest digit, less three for every "snowboard", less one for every "red"."""

    def answer_to(self, caption: str, scale: Scale, *, hidden: bool) -> Readings:
        taken = 3 * caption.count("snowboard") + caption.count("red")
        return sure_of(len(scale.answers) - 1 - taken, scale)


def oracle(scale: str = "unit", rejects: str = "\0", store: ReadingStore | None = None) -> Judge:
    on = get_scale(scale)
    return Judge(Oracle(scale=on, rejects=rejects), get_decoder("raw"), scale=on, store=store)


def test_effects_are_differences_of_scores() -> None:
    (explained,) = oracle().explain(CAT, "a cat on a red snowboard")
    assert explained.score == pytest.approx(0.5)
    effects = {span.text: span.effect for span in explained.spans}
    # Without the snowboard it is not red either.
    assert effects == pytest.approx({"cat": 0.0, "red": -0.1, "snowboard": -0.4})
    assert [span.text for span in explained.spans if span.marked] == ["snowboard"]
    assert explained.worst is explained.spans[-1]
    assert str(explained) == "a cat on a red [snowboard -0.40]"
    assert explained.signature["explain"]


def test_no_single_word_is_to_blame_where_all_of_a_caption_is_wrong() -> None:
    for scale, words, wanted in (
        ("unit", "a red cat " * 8, True),
        ("ten", "a red cat " * 8, True),
        ("unit", "a red cat " * 6 + "on a snowboard", False),  # which is marked
        ("unit", "a red cat", False),  # the score is high
        ("unit", "a red cat " * 8 + "a cat " * MAX_SPANS, False),  # not all were looked at
    ):
        (explained,) = oracle(scale).explain(CAT, words, threshold=0.8)
        assert explained.wrong_throughout == wanted, (scale, words)
        assert (NO_SINGLE_WORD in explained._repr_html_()) == wanted
        assert explained.to_dict()["wrong_throughout"] == wanted


@pytest.mark.parametrize(
    ("threshold", "marked"), [(0.0, ["red", "snowboard"]), (0.79, ["snowboard"]), (0.81, [])]
)
def test_the_threshold_is_a_share_of_the_score(threshold: float, marked: list[str]) -> None:
    for scale in ("unit", "ten"):
        (explained,) = oracle(scale).explain(CAT, "a cat on a red snowboard", threshold=threshold)
        assert [span.text for span in explained.spans if span.marked] == marked, scale


@pytest.mark.parametrize(("threshold", "marked"), [(0.0, True), (0.29, True), (0.31, False)])
def test_of_a_low_score_a_share_of_a_third_of_the_scale_is_wanted(
    threshold: float, marked: bool
) -> None:
    """The score is 0.1; without "red" it is 0.1 higher: as much again, but little."""
    (explained,) = oracle().explain(CAT, "red on 2 snowboard snowboards", threshold=threshold)
    assert explained.score == pytest.approx(0.2)
    assert explained.spans[0].effect == pytest.approx(-0.1)
    assert explained.spans[0].marked == marked


@pytest.mark.parametrize("threshold", [-0.1, math.nan, "x", None])
def test_no_share_is_refused(threshold: Any) -> None:
    with pytest.raises(InputError):
        oracle().explain(CAT, "a cat", threshold=threshold)


def test_what_fails_is_nan_and_is_told() -> None:
    captions = ["a cat on a snowboard", "a dog"]
    both = oracle(rejects="something on").explain(CAT, captions)
    assert both[0].score == pytest.approx(0.6)
    cat, snowboard = both[0].spans
    assert (math.isnan(cat.effect), cat.marked, cat.error) == (True, False, "rejected")
    assert snowboard.effect == pytest.approx(-0.3)
    assert snowboard.error == ""
    assert both[0].error == "without 'cat': rejected"
    assert both[0].worst is snowboard
    assert both[1].error == ""
    row = json.loads(json.dumps(both[0].to_dict(), allow_nan=False))
    assert row["spans"][0]["effect"] is None
    (whole,) = oracle(rejects="snowboard").explain(CAT, "a cat on a snowboard")
    assert math.isnan(whole.score)
    assert all(math.isnan(span.effect) and not span.marked for span in whole.spans)
    assert whole.worst is None


def test_the_number_of_readings_is_bounded() -> None:
    judge = oracle()
    (explained,) = judge.explain(CAT, "a cat and " * 100)
    assert len(explained.spans) == MAX_SPANS
    assert explained.left_out == 100 - MAX_SPANS
    assert isinstance(judge.backend, Oracle)
    assert len(judge.backend.asked) == 1 + MAX_SPANS


def test_readings_are_kept(tmp_path: Path) -> None:
    with ReadingStore(tmp_path / "a.db") as store:
        first = oracle(store=store).explain(CAT, ["a cat on a red snowboard", "a cat"])
        again = oracle(store=store)
        assert again.explain(CAT, ["a cat on a red snowboard", "a cat"]) == first
        assert isinstance(again.backend, Oracle)
        assert again.backend.asked == []
    recorded = load(f"recorded:{tmp_path / 'a.db'}", method="raw")
    assert recorded.explain(CAT, "a cat on a red snowboard")[0].spans == first[0].spans


def test_a_notebook_shows_what_is_wrong_not_by_colour_alone() -> None:
    (explained,) = oracle().explain(CAT, "a <b>cat</b> on a red snowboard")
    page = explained._repr_html_()
    assert "<s>snowboard</s>" in page
    assert "<b>" not in page
    assert page.count("<s>") == 1


@pytest.mark.parametrize(
    ("effect", "shown"), [(-0.004, "+0.00"), (-0.0, "+0.00"), (-0.006, "-0.01")]
)
def test_what_rounds_to_zero_has_no_minus(effect: float, shown: str) -> None:
    assert str(Span(0, 3, "cat", "subject", "something", effect, marked=True)) == f"[cat {shown}]"


def test_a_caption_without_content_has_no_words() -> None:
    (explained,) = oracle().explain(CAT, "it is there")
    assert explained.spans == ()
    assert explained.worst is None
    assert str(explained) == "it is there"


@pytest.mark.usefixtures("shipped")
def test_the_shipped_judge_knows_its_right_words() -> None:
    ((revision, decoder),) = WORD_EFFECTS
    assert revision.endswith(SHA256[:8])
    effects = WORD_EFFECTS[revision, decoder]
    assert tuple(effects) == KINDS
    (explained,) = load("embedded").explain(CAT, "a close up of a striped cat on a snowboard")
    assert (explained.signature["revision"], explained.signature["decoder"]) == (revision, decoder)
    assert explained.signature["expected"] == "measured"
    assert explained.worst is not None
    assert explained.worst.text == "snowboard"
    assert explained.worst.expected == effects["noun"]


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize("method", ["raw", "smoothing", "discode:trust=9"])
def test_effects_of_right_words_are_those_of_the_decoder_they_were_measured_with(
    method: str,
) -> None:
    (explained,) = load("embedded", method=method).explain(CAT, "a cat on a snowboard")
    assert {span.expected for span in explained.spans} == {0.0}
    assert explained.signature["expected"] == "none"


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize("method", ["discode", "raw"])
def test_words_that_the_judge_does_not_read_have_no_effect(method: str) -> None:
    """Raw scores have ten values: a word that is read may have the effect 0."""
    place = "in the very same old place "
    judge = load("embedded", method=method)
    short, long = judge.explain(CAT, ["a cat " + place * 2, "a cat " + place * 30])
    assert (short.cut, long.cut) == (False, True)
    assert len(long.spans) == MAX_SPANS
    read = [span.error != NOT_READ for span in long.spans]
    assert read == sorted(read, reverse=True)  # the first ones
    assert len(short.spans) < sum(read) < MAX_SPANS
    assert [math.isfinite(span.effect) for span in long.spans] == read
    assert not any(span.marked for span in long.spans[sum(read) :])
    assert long.error == ""
    assert long.to_dict()["spans"][-1]["effect"] is None
