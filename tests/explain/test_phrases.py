"""The words of a caption, and the captions that say nothing in their place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discode.explain import KINDS, find_spans

WORDS = """a an the two man men dogs dog riding rides ride is are sitting on with of red black and
white orange large tennis ball airplane glass beach quickly parked it's Ärger ﬁsh 日本 12 to"""


@pytest.mark.parametrize(
    ("caption", "kinds"),
    [
        ("a man rides a brown horse", "man:person rides:verb brown:adjective horse:noun"),
        ("two dogs playing in the snow", "two:number dogs:subject playing:verb snow:noun"),
        ("a black and white photo of a tennis ball", "black:adjective white:adjective "
         "tennis:modifier ball:subject"),
        ("a building with a clock", "building:subject clock:noun"),
        ("a parked car", "parked:adjective car:subject"),
        ("a car parked outside", "car:subject parked:verb"),
        ("people stand near a bus", "people:person stand:verb bus:noun"),
        ("it is there", ""),
    ],
)  # fmt: skip
def test_words_and_their_kinds(caption: str, kinds: str) -> None:
    assert " ".join(f"{span.text}:{span.kind}" for span in find_spans(caption)) == kinds


@pytest.mark.parametrize(
    ("caption", "word", "variant"),
    [
        ("a small dog on a bed", "dog", "something on a bed"),
        ("a small dog on a bed", "small", "a dog on a bed"),
        ("an orange cat", "orange", "a cat"),
        ("a orange", "orange", "something"),
        ("some old men on a bench", "men", "some people on a bench"),
        ("Two women eat pizza.", "women", "Some people eat pizza."),
        ("Two women eat pizza.", "Two", "Some women eat pizza."),
        ("the two women", "two", "the women"),
        ("a pair of boots", "boots", "a pair of things"),
        ("a man with a tennis racket", "racket", "a man with a tennis thing"),
        ("a man with an apple pie", "apple", "a man with a pie"),
        ("a man holding a bat", "holding", "a man with a bat"),
        ("a man sitting on a bed", "sitting", "a man on a bed"),
        ("a man is sitting on a bed", "sitting", "a man is on a bed"),
        ("a man is throwing a ball", "throwing", "a man is doing something with a ball"),
        ("a boy about to hit a ball", "hit", "a boy about to do something with a ball"),
        ("a dog running", "running", "a dog"),
        ("red", "red", "something"),
        ("an mp3 player", "player", "an mp3 person"),
        ("a bus on 42nd street", "42nd", "a bus on some street"),
    ],
)
def test_variants_are_english(caption: str, word: str, variant: str) -> None:
    (span,) = (span for span in find_spans(caption) if span.text == word)
    assert span.variant == variant


@given(st.one_of(st.text(), st.lists(st.sampled_from([*WORDS.split(), ",", "."])).map(" ".join)))
def test_spans_are_apart_and_variants_keep_the_rest(caption: str) -> None:
    end = 0
    for span in find_spans(caption):
        assert end <= span.start < span.end <= len(caption)
        assert caption[span.start : span.end] == span.text
        assert span.kind in KINDS
        assert span.variant != caption
        assert span.variant.strip()
        # What follows stays, but for capitals.
        assert span.variant.casefold().endswith(caption[span.end :].lstrip().casefold())
        end = span.end
