from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from discode.errors import InputError
from mceval._checks import Checks, Evidence, careless_reason, coin_odds
from mceval.queue._leases import is_gold_turn
from mceval.rules import (
    Draw,
    Rules,
    draw_captions,
    is_swapped,
    normalized,
    random_bits,
    rank_of,
    verdict,
)

CAPTIONS = {"w1": "a dog", "w2": "a cat", "w3": "a cow", "w4": "a fox"}


@given(st.integers(), st.text("0123456789abcdef", min_size=1), st.permutations(list(CAPTIONS)))
def test_draws_depend_on_seed_and_image_alone(seed: int, digest: str, order: list[str]) -> None:
    rules = Rules(seed=seed)
    found = draw_captions(rules, digest, {writer: CAPTIONS[writer] for writer in order})
    assert found == draw_captions(rules, digest, CAPTIONS)
    assert found is not None
    assert len({found.reference, *found.pair}) == 3


def test_every_draw_is_as_likely() -> None:
    """24 ways to draw a reference and an ordered pair: χ² against equal shares."""
    counts = Counter(draw_captions(Rules(), f"{i}", CAPTIONS) for i in range(6000))
    assert len(counts) == 24
    assert stats.chisquare(list(counts.values())).pvalue > 0.001
    sides = [is_swapped(Rules(), f"{i}", person) for i in range(100) for person in range(40)]
    assert stats.binomtest(sum(sides), len(sides)).pvalue > 0.001
    assert len({rank_of(Rules(), f"{i}") for i in range(1000)}) == 1000


def test_the_same_captions_are_not_compared() -> None:
    for few in ({"w1": "a dog"}, {"w1": "a dog", "w2": "A dog "}):
        alike = dict.fromkeys(CAPTIONS, "a fox") | few
        assert all(draw_captions(Rules(), f"{i}", alike) is None for i in range(50))


@pytest.mark.parametrize("same", ["A cat.", "a\u00a0CAT", "a cat .", "a c\uff41t", "a cat..."])
def test_form_and_full_stop_make_no_other_caption(same: str) -> None:
    """Composed, decomposed or wide letters, and how a sentence ends, say nothing of an image."""
    assert normalized(same) == normalized("a cat")
    assert normalized("un caf\u00e9") == normalized("un cafe\u0301.")
    assert normalized("a cat?") != normalized("a cat") != normalized("a car")
    three = {"w1": "a cat", "w2": same, "w3": "a dog", "w4": "a dog."}
    assert all(draw_captions(Rules(), f"{i}", three) is None for i in range(20))


def test_with_two_equal_texts_every_role_is_still_drawn() -> None:
    """3,000 draws with two equal texts: in 1,001 the reference used to be one of the compared."""
    equal = CAPTIONS | {"w2": CAPTIONS["w1"]}
    references = Counter[str]()
    for i in range(3000):
        found = draw_captions(Rules(), f"{i}", equal)
        assert found is not None
        assert equal[found.reference] not in {equal[one] for one in found.pair}
        references[found.reference] += 1
    assert all(abs(references[writer] - 750) < 120 for writer in CAPTIONS), "each is as likely"


def test_different_texts_are_drawn_as_before() -> None:
    """A campaign that began with an earlier version draws the same captions."""
    for i in range(200):
        order = sorted(CAPTIONS, key=lambda one: random_bits(0, "draw", f"{i}", one))
        assert draw_captions(Rules(), f"{i}", CAPTIONS) == Draw(order[0], (order[1], order[2]))


@settings(max_examples=200)
@given(st.sampled_from([1, 2, 3, 5]), st.sampled_from(["all", "majority"]), st.data())
def test_verdict_by_brute_force(people: int, consensus: str, data: Any) -> None:
    assume(people % 2 or consensus == "all")
    rules = Rules(people=people, consensus=consensus)
    votes = data.draw(st.lists(st.integers(0, 1), max_size=people))
    found = verdict(rules, votes)
    if len(votes) < people:
        assert found.state == "waiting"
    elif consensus == "all":
        assert (found.state == "agreed") == (len(set(votes)) == 1)
    else:
        assert found.state == "agreed"
        assert found.choice == int(sum(votes) > people / 2)


def test_a_vote_too_many() -> None:
    with pytest.raises(InputError):
        verdict(Rules(), [0, 0, 0, 0])


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (Rules, {"people": 0}),
        (Rules, {"writers": 2}),
        (Rules, {"consensus": "most"}),
        (Rules, {"people": 2, "consensus": "majority"}),
        (Rules, {"seed": "x"}),
        (Rules, {"flags": 0}),
        (Rules, {"second_look": 1}),
        (Checks, {"gold_rate": 1.5}),
        (Checks, {"gold_after": 0}),
        (Checks, {"gold_careful": 0.5}),
        (Checks, {"gold_odds": 1.0}),
    ],
)
def test_invalid_rules_and_checks(kind: Any, given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(given))):
        kind(**given)


def test_faults() -> None:
    assert careless_reason(Checks(), Evidence()) == ""
    assert careless_reason(Checks(), Evidence(gold=4, right=0)) == ""
    assert careless_reason(Checks(), Evidence(gold=5, right=3)) == ""
    assert "1 of 5" in careless_reason(Checks(), Evidence(gold=5, right=1))
    assert careless_reason(Checks(), Evidence(compared=11, quick=5)) == ""
    half = Evidence(compared=10, quick=5)
    assert "5 of 10" in careless_reason(Checks(), half)
    none = Checks(quick_most=0.0)
    assert careless_reason(none, Evidence(compared=10, quick=0)) == ""
    assert careless_reason(none, Evidence(compared=10, quick=1)) != ""


@pytest.mark.parametrize(("gold", "right"), [(5, 1), (6, 2), (20, 14), (40, 40), (2000, 0)])
def test_odds_are_those_of_the_exact_probabilities(gold: int, right: int) -> None:
    careful = Fraction(9, 10) ** right * Fraction(1, 10) ** (gold - right)
    exact = Fraction(1, 2**gold) / careful
    if gold < 100:
        assert coin_odds(Checks(), gold, right) == pytest.approx(float(exact))
    else:
        assert coin_odds(Checks(), gold, right) > 1e300, "as large as a number can be"


def ended_by(share: float, gold: int) -> float:
    """The probability that somebody's part has ended by so many gold questions, step by step."""
    here, out = {0: 1.0}, 0.0
    for count in range(1, gold + 1):
        after: dict[int, float] = {}
        for right, weight in here.items():
            after[right + 1] = after.get(right + 1, 0.0) + weight * share
            after[right] = after.get(right, 0.0) + weight * (1 - share)
        here = {}
        for right, weight in after.items():
            if careless_reason(Checks(), Evidence(gold=count, right=right)):
                out += weight
            else:
                here[right] = weight
    return out


def test_a_coin_is_found_and_careful_people_stay() -> None:
    """As docs/mceval.md has it. Ville's inequality promises 2 % at most for careful people."""
    assert ended_by(0.9, 200) < 0.0092
    assert ended_by(0.95, 200) < 0.0006
    assert [round(100 * ended_by(0.5, gold)) for gold in (10, 20, 30)] == [69, 94, 99]
    assert ended_by(0.0, 5) == 1.0


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.15, 1 / 3, 0.7, 1.0])
def test_every_block_of_tasks_has_one_gold_question(rate: float) -> None:
    for person in range(5):
        places = [count for count in range(400) if is_gold_turn(7, person, count, rate)]
        assert abs(len(places) - 400 * rate) <= 1
        for tasks in range(1, 400, 7):
            met = sum(place < tasks for place in places)
            assert abs(met - tasks * rate) <= 1 + rate, "nobody meets more, or fewer"
    assert not any(is_gold_turn(7, 1, count, 0.0) for count in range(100))


def test_places_of_gold_questions_are_drawn() -> None:
    places = Counter(
        next(count for count in range(20) if is_gold_turn(0, person, count, 0.1))
        for person in range(1000)
    )
    assert set(places) == set(range(10))
    assert stats.chisquare(list(places.values())).pvalue > 1e-4
