from __future__ import annotations

import numpy as np
import pytest

from discode._scales import (
    FIVE,
    LETTERS,
    SCALES,
    TEN,
    UNIT,
    Scale,
    find_rating,
    get_scale,
    why_no_rating,
)
from discode.errors import InputError


def test_the_scales() -> None:
    assert list(SCALES) == ["unit", "ten", "five", "letters", "yes-no", "prefer"]
    assert UNIT.stems == ("0.", "1.")
    assert (UNIT.minimum, UNIT.maximum) == (0.0, 1.0)
    assert TEN.answers == tuple("0123456789")
    assert FIVE.values == (1, 2, 3, 4, 5)
    assert LETTERS.answers == tuple("ABCDE")
    assert LETTERS.values == FIVE.values


def test_unit_score_replaces_what_is_below_the_point() -> None:
    got = UNIT.score(np.array([0, 0, 1, 1]), np.array([7.25, 0.0, 0.0, 0.4]))
    assert got == pytest.approx([0.725, 0.0, 1.0, 1.04], abs=1e-15)


def test_grades_where_one_is_best() -> None:
    scale = get_scale("6-1")
    assert scale.answers == ("6", "5", "4", "3", "2", "1")
    assert scale.values == (1, 2, 3, 4, 5, 6)


def test_a_scale_of_ones_own() -> None:
    mine = Scale("mood", ("bad", "fair", "good"), (0.0, 1.0, 2.0), "bad", "good", 1 / 3)
    assert (mine.minimum, mine.maximum) == (0.0, 2.0)
    assert mine.score(np.array([0]), np.array([1.5])).tolist() == [1.5]
    assert mine.unique_name.startswith("mood~")
    assert get_scale("1-7").unique_name == "1-7"
    with pytest.raises(InputError, match="a value for each"):
        Scale("mood", ("bad", "good"), (0.0,), "bad", "good", 0.5)
    with pytest.raises(InputError, match="mood"):
        Scale("mood", ("bad", "good"), (0.0, np.inf), "bad", "good", 0.5)
    with pytest.raises(InputError, match="mood"):
        Scale("mood", ("bad", "good"), (0.0, "1"), "bad", "good", 0.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="different answers"):
        Scale("mood", ("bad", "bad"), (0.0, 1.0), "bad", "bad", 0.5)


@pytest.mark.parametrize(
    "spec", ["LOW-HIGH (1-7, A-D, E-A)", "tenn", "3-3", "A-A", "0-999", "a-e", "", "-1-3", "1-"]
)
def test_bad_scales(spec: str) -> None:
    with pytest.raises(InputError, match=r"known|answers"):
        get_scale(spec)


MOOD = Scale("mood", ("bad", "fair", "good"), (0.0, 1.0, 2.0), "bad", "good", 1 / 3)


@pytest.mark.parametrize(
    ("scale", "text", "rating"),
    [
        (UNIT, "1.0", "1.0"),
        (UNIT, "Score: 0.85", "0.8"),
        (UNIT, "评分0.7分", "0.7"),
        (UNIT, "There is 1 dog: 0.7", "0.7"),
        (UNIT, "0.70, that is 0.7.", "0.7"),
        (UNIT, "0.8/1.0", "0.8"),
        (UNIT, "On a scale of 0.0 to 1.0: 0.9", "0.9"),
        (FIVE, "4.5", "4"),
        (FIVE, "4 out of 5", "4"),
        (FIVE, "15 dogs: 4", "4"),
        (FIVE, "1-5: 3", "3"),
        (TEN, "0.0", "0"),
        (get_scale("6-1"), "2/6", "2"),
        (get_scale("1-10"), "10/10", "10"),
        (LETTERS, "Rating: B.", "B"),
        (MOOD, "It is good.", "good"),
    ],
)
def test_the_rating_in_a_text(scale: Scale, text: str, rating: str) -> None:
    found = find_rating(text, scale)
    assert found is not None
    assert scale.stems[found.stem] + scale.answers[found.answer] == rating
    assert text[found.start :].startswith(rating)
    assert text[found.at :].startswith(scale.answers[found.answer])


@pytest.mark.parametrize(
    ("scale", "text"),
    [
        (UNIT, ""),
        (UNIT, "0,7"),
        (UNIT, "10.5"),
        (UNIT, "1.5"),
        (UNIT, "-0.5"),
        (UNIT, "8/10"),
        (UNIT, "I cannot rate this from 0.0 to 1.0"),
        (UNIT, "0.7 or 0.8"),
        (UNIT, "0.75, so 0.7"),
        (FIVE, "4 -5"),
        (FIVE, "the 4th"),
        (TEN, "0.7"),
        (LETTERS, "A dog runs"),  # prose
        (LETTERS, "A caption that fits: E"),
        (LETTERS, "DÉJÀ"),
        (MOOD, "bad to good"),
    ],
)
def test_a_text_without_one_rating(scale: Scale, text: str) -> None:
    assert find_rating(text, scale) is None
    assert repr(text) in why_no_rating(text, scale)
