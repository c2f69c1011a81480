"""Scores as Python, numpy, pandas and a notebook take them."""

from __future__ import annotations

import pickle
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import discode
from discode._scores import Scores
from discode._scores_html import HTML_ROWS
from discode._signature import Signature, SignedDecoder
from discode._version import __version__
from discode.decoders import get_decoder
from discode.errors import InputError
from tests.helpers.fake_model import FakeModel

CAPTIONS = ["one", "a bad one", "three", "four and more"]


@pytest.fixture
def scores(image: Path) -> Scores:
    return discode.load(FakeModel(rejects="bad")).score(image, CAPTIONS)


def test_scores_are_their_values(scores: Scores) -> None:
    assert len(scores) == 4
    assert np.array_equal(np.asarray(scores), scores.value, equal_nan=True)
    assert np.asarray(scores, np.float32).dtype == np.float32
    assert np.array_equal(list(scores), scores.value, equal_nan=True)
    assert type(next(iter(scores))) is float
    assert np.nanmax(scores) == np.nanmax(scores.value)
    copied = np.array(scores)
    copied[:] = 0
    assert scores.value[0] > 0
    assert np.asarray(scores) is scores.value


def test_an_interval_is_over_images(scores: Scores) -> None:
    assert np.isnan(scores.interval().low)  # four captions of one image
    found = scores.interval(["a", "b", "c", ""])
    assert found.value == pytest.approx(scores.mean())
    assert np.nanmin(scores.value) <= found.low < found.value < found.high
    with pytest.raises(InputError, match="3 images"):
        scores.interval(["a", "b", "c"])
    with pytest.raises(InputError, match="level"):
        scores.interval(level=95)


def test_a_number_is_a_score_and_anything_else_is_scores(scores: Scores) -> None:
    assert type(scores[0]) is float
    assert scores[0] == scores.value[0] == scores[np.int64(-4)]
    with pytest.raises(IndexError):
        scores[4]
    for rows in (slice(1, 3), [1, 2], np.array([False, True, True, False]), np.array([1, -2])):
        part = scores[rows]
        assert isinstance(part, Scores)
        assert np.array_equal(part.value, scores.value[1:3], equal_nan=True)
        assert part.errors == {0: "rejected"}
        assert part.captions == ("a bad one", "three")
        assert part.counts()["failed"] == 1
        assert part.raw is not None
        assert part.distribution is not None
        assert len(part.raw) == len(part.distribution) == 2
        assert part.signature == scores.signature
    assert len(scores[[]]) == 0
    assert len(scores[scores.value > 2]) == 0
    assert scores[::-1].errors == {2: "rejected"}
    for wrong in ("score", [0.5], np.ones((2, 2), bool), None):
        with pytest.raises(InputError, match="rows are"):
            scores[wrong]  # type: ignore[index]  # that is what is tested
    with pytest.raises(InputError, match="a mask of 2 rows does not fit 4"):
        scores[np.array([True, False])]


def test_the_repr_is_one_line_whatever_there_is(scores: Scores) -> None:
    for some in (scores, scores[[0] * 5000], scores[:0]):
        shown = repr(some)
        assert "\n" not in shown
        assert len(shown) < 150
    assert "4 scores, mean 0." in repr(scores)
    assert "1 failed" in repr(scores)
    assert repr(scores[[0] * 9]).count("...") == 1


class Cells(HTMLParser):
    """Rows of cells, and whether every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.titles: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in {"table", "thead", "tbody", "tr", "th", "td", "span", "div"}
        self.open.append(tag)
        self.titles += [value or "" for name, value in attrs if name == "title"]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "tr" in self.open:
            self.rows[-1][-1] += data


def test_a_notebook_shows_a_small_escaped_table(image: Path) -> None:
    hostile = '<script>alert("x")</script>" onmouseover=\'y\' &amp;'
    captions = ["a cat", hostile, "a bad one", "long " * 4000]
    scores = discode.load(FakeModel(rejects="bad")).score(image, captions)
    text = scores._repr_html_()
    assert len(text) < 9000
    assert "<script" not in text
    found = Cells(text)
    assert found.rows[0] == [
        "", "image", "caption", "raw", "smoothing", "discode", "distribution", "",
    ]  # fmt: skip
    assert [row[2] for row in found.rows[1:4]] == captions[:3]
    assert found.rows[4][2].endswith("…")
    assert len(found.rows[4][2]) < 90
    assert scores.raw is not None
    assert scores.smoothing is not None
    three = (scores.raw[0], scores.smoothing[0], scores[0])
    assert [cell.strip() for cell in found.rows[1][3:6]] == [f"{value:.3f}" for value in three]
    assert found.rows[3][3:] == ["nan", "nan", "nan", "", "rejected"]
    assert {len(row[6]) for row in found.rows[1:] if row[6]} == {10}
    assert str(scores.signature) in found.titles
    width = re.search(r"width:(\d+)%", text)
    assert width is not None
    assert int(width[1]) == round(100 * scores[0])
    assert "1 failed" in text


def test_a_notebook_shows_the_first_rows_of_many(scores: Scores) -> None:
    found = Cells(scores[[0] * 1000]._repr_html_())
    assert len(found.rows) == 1 + HTML_ROWS
    assert "... and 980 more" in scores[[0] * 1000]._repr_html_()
    assert len(Cells(scores[:0]._repr_html_()).rows) == 1


def test_scores_to_pandas(scores: Scores, image: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="frames want discode-eval[pandas]")
    frame = scores.to_pandas()
    assert list(frame.columns) == [
        "image", "caption", "score", "raw", "smoothing", "distribution", "flags", "error",
        "signature",
    ]  # fmt: skip
    assert frame["score"].dtype == frame["raw"].dtype == np.float64
    assert np.array_equal(frame["score"].to_numpy(), scores.value, equal_nan=True)
    assert frame["caption"].tolist() == CAPTIONS
    assert set(frame["image"]) == {str(image)}
    assert set(frame["signature"]) == {str(scores.signature)}
    assert frame["error"].notna().tolist() == [False, True, False, False]
    given = discode.decode(np.log(np.full((2, 10), 0.1))).to_pandas()
    assert isinstance(given, pandas.DataFrame)
    assert list(given.columns)[:2] == ["score", "raw"]
    assert len(scores[:0].to_pandas()) == 0
    other = pandas.DataFrame({"score": np.asarray(scores), "same": scores})
    assert other["same"].equals(other["score"])


def test_numpy_takes_scores_for_their_values(scores: Scores) -> None:
    assert np.mean(scores) == np.mean(scores, axis=0) == scores.mean() > 0  # of those judged
    with pytest.raises(InputError, match=r"use scores\.value"):
        np.mean(scores, dtype=np.float32)
    judged = scores[[0, 2, 3]]
    for function in (np.mean, np.std, np.var, np.max, np.min, np.sum, np.median, np.sort, np.round):
        assert np.array_equal(function(judged), function(judged.value))
    assert np.array_equal(np.concatenate([judged, judged]), np.tile(judged.value, 2))
    assert scores == scores  # the same object, as a frozen thing in a set
    assert scores != scores[:]
    assert len({scores, scores}) == 1


@given(st.lists(st.text("a,%2C5=()|é ", min_size=1), max_size=3))
def test_a_decoder_is_read_back_from_its_signature(values: list[str]) -> None:
    """Commas separate options, and may be in them: words=a,b."""
    options = tuple((f"o{n}", "_".join(value.split())) for n, value in enumerate(values))
    decoder = SignedDecoder("mine", options)
    assert SignedDecoder.read(str(decoder)) == decoder
    assert SignedDecoder.read("raw(reading=greedy,x=50%)").options[1] == ("x", "50%")


def test_fields_are_asked_for_and_replaced() -> None:
    made = Signature.of(
        model="a model", references="as given", decoder=SignedDecoder("raw", (("x", "1"),))
    )
    assert str(made) == (
        f"discode:{__version__}|model:a_model|references:as_given|decoder:raw(x=1)"
    )
    assert made["model"] == "a_model"
    assert made.get("metric") == ""
    assert made.decoder == SignedDecoder("raw", (("x", "1"),))
    assert str(made.asked) == f"discode:{__version__}|model:a_model|references:as_given"
    assert str(made.with_fields(references="none")).endswith("|references:none|decoder:raw(x=1)")
    assert dict(made.with_fields(ties="half"))["ties"] == "half"
    assert pickle.loads(pickle.dumps(made)) == made
    assert hash(made) == hash(Signature(made.fields))


def test_what_was_written_is_read_back() -> None:
    made = discode.decode({"4": -0.3, "5": -1.6}, "paper", scale="five", missing="spread").signature
    assert Signature.read(str(made)) == Signature.read(dict(made)) == made
    assert made.decoder is not None
    assert made.decoder.make() == get_decoder("paper")


def test_the_former_name_of_an_option_is_read() -> None:
    text = "discode:0.1.0|decoder:discode(prior_variance=1,reading=joint,sigma2=0.1)|ties:wrong"
    read = Signature.read(text)
    assert read.decoder is not None
    assert dict(read.decoder.options)["stem"] == "joint"
    assert read == Signature.read(text.replace("reading", "stem"))
    assert get_decoder("smoothing:reading=joint") == get_decoder("smoothing:stem=joint")
