from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discode.errors import InputError
from mceval._report import domain_rows, person_rows, task_timings
from mceval.database import Database
from mceval.people import mark_careless
from mceval.plan import Target, keep_probability, make_plan
from mceval.queue import Choice, heartbeat, next_task, submit, undo
from mceval.queue._leases import IDLE_SECONDS
from mceval.rules import Rules, verdict
from tests.helpers.campaigns import (
    ask,
    better,
    choose,
    fill,
    invite_people,
    new_submission,
    some,
    work_all,
)


@given(
    st.sampled_from([1, 3, 5]), st.sampled_from(["all", "majority"]), st.floats(0.5, 1),
    st.floats(0, 1),
)  # fmt: skip
def test_the_formula_by_enumeration(people: int, consensus: str, a: float, hard: float) -> None:
    rules = Rules(people=people, consensus=consensus)
    expected = wrong = 0.0
    for share, accuracy in ((1 - hard, a), (hard, 0.5)):
        for votes in itertools.product((0, 1), repeat=people):
            p = share * math.prod(accuracy if vote else 1 - accuracy for vote in votes)
            found = verdict(rules, votes)
            expected += p * (found.state == "agreed")
            wrong += p * (found.choice == 0)
    assert keep_probability(rules, a, hard) == pytest.approx((expected, wrong), abs=1e-12)
    if people == 3 and consensus == "all" and hard == 0:
        assert keep_probability(rules, a)[0] == pytest.approx(a**3 + (1 - a) ** 3)


@settings(max_examples=8)
@given(st.floats(0.6, 0.99), st.sampled_from([0.0, 0.2]))
def test_simulation_and_formula_agree_on_discards(accuracy: float, hard: float) -> None:
    target = Target(domains=2, images=1500, workers=20, accuracy=accuracy, spread=0.0, hard=hard)
    plan = make_plan(target, Rules(), rounds=10, seed=3)
    share = 1 - plan.expected.discard_rate
    # of the mean of 10 campaigns of 3,000 kept images: 5 standard errors
    error = 5 * np.sqrt(share * share * (1 - share) / 30_000)
    assert plan.simulated[1].discard_rate == pytest.approx(
        plan.expected.discard_rate, abs=error + 0.004
    )


def test_the_papers_order_of_magnitude() -> None:
    """6,000 images, 81 people, about 6,500 USD at about 23 USD an hour: 283 hours.

    The default seconds a task were chosen with that bill in view: this holds them in place.
    """
    plan = make_plan(Target(), Rules(), rounds=20)
    for need in (plan.expected, plan.simulated[1]):
        assert need.money == pytest.approx(6500, rel=0.15)
        assert need.hours == pytest.approx(6500 / 23, rel=0.15)
        assert need.shown == pytest.approx(6000 / (0.942**3 + 0.058**3), rel=0.02)
    assert plan.simulated[0].money < plan.expected.money < plan.simulated[2].money
    assert plan.pool > 1000 / (1 - plan.expected.discard_rate)


def test_options_cost_or_save() -> None:
    base = make_plan(Target(), Rules(), rounds=1).expected
    later = make_plan(Target(), Rules(revise="agreed"), rounds=1).expected
    assert later.revisions == 6000 < base.revisions
    assert make_plan(Target(fee=0.2), Rules(), rounds=1).expected.money == pytest.approx(
        1.2 * base.money
    )
    gold = make_plan(Target(gold_rate=0.1), Rules(), rounds=1).expected
    assert gold.comparisons == pytest.approx(base.comparisons / 0.9)
    easy = make_plan(Target(), Rules(consensus="majority"), rounds=1).expected
    assert easy.discard_rate == pytest.approx(0)
    assert easy.wrong_rate > base.wrong_rate
    looks = make_plan(Target(look_seconds=20.0), Rules(), rounds=1).expected
    assert looks.hours - base.hours == pytest.approx(base.revisions * 20 / 3600)
    assert make_plan(Target(), Rules(), rounds=3) == make_plan(Target(), Rules(), rounds=3)


def test_a_campaign_discards_as_planned(sqlite: Database) -> None:
    """The queue itself, worked by people of known accuracy, within 4 standard errors."""
    fill(sqlite, Rules(), {"a": (30, 110)})
    work_all(sqlite, invite_people(sqlite, 6, 1), random.Random(5), accuracy=0.9)
    (row,) = ask(sqlite, domain_rows)
    share = keep_probability(Rules(), 0.9)[0]
    assert row.judged >= 30
    error = 4 * np.sqrt(share * (1 - share) / row.judged)
    assert row.discard.value == pytest.approx(1 - share, abs=error)


@pytest.mark.parametrize(
    ("given", "more"),
    [
        ({"accuracy": 0.4}, {}),
        ({"images": 0}, {}),
        ({"look_seconds": -1}, {}),
        ({"compare_seconds": float("inf")}, {}),
        ({"workers": 3}, {}),
        ({"accuracy": 0.95, "spread": 0.4}, {}),
        ({}, {"rounds": 0}),
        ({"accuracy": 0.5, "workers": 50}, {"rules": Rules(people=21)}),
    ],
)
def test_invalid_targets(given: dict[str, Any], more: dict[str, Any]) -> None:
    options: dict[str, Any] = {"rules": Rules(), "rounds": 1} | more
    with pytest.raises(InputError):
        make_plan(Target(**given), **options)


def test_times_of_a_campaign(sqlite: Database) -> None:
    """The hours that a plan gives for a campaign's own answers are the hours that it took."""
    fill(sqlite, Rules(), {"a": (10, 40)}, lease=60)
    people = invite_people(sqlite, 3, 1)
    work_all(sqlite, people, random.Random(0), limit=20)
    choose(sqlite, people[0], 5000.0, 5040.0)
    undo(sqlite, people[0], 5041.0)
    held = some(next_task(sqlite, people[0], 5042.0))
    submit(
        sqlite, people[0], held.lease, new_submission(), 9999.0, Choice(better(held))
    )  # overnight
    found = ask(sqlite, task_timings)
    hours = sum(row.hours for row in ask(sqlite, person_rows))
    assert found.revise_seconds == 9
    compared = found.compared
    night = 1 + IDLE_SECONDS  # the page was opened again, and then nobody was there
    assert found.compare_seconds == pytest.approx((5 * (compared - 1) + 40 + night) / compared)
    seconds = found.compare_seconds * compared + found.revise_seconds * found.revised
    assert seconds / 3600 == pytest.approx(hours)
    mark_careless(sqlite, people[0], "by hand", 9.0)
    assert ask(sqlite, task_timings).compared < compared
    assert ask(sqlite, task_timings).compare_seconds == pytest.approx(
        (5 * ask(sqlite, task_timings).compared + 40) / ask(sqlite, task_timings).compared
    )


def test_time_counts_while_there_are_signs_of_life(sqlite: Database) -> None:
    """Who answers every 899 s has not worked all the time; who is seen on the page has."""
    fill(sqlite, Rules(people=2), {"a": (8, 8)}, lease=900)
    away, there = invite_people(sqlite, 2, 0)
    for start in range(0, 4000, 1000):
        for person in (away, there):
            task = some(next_task(sqlite, person, start))
            for beat in range(60, 899, 60) if person == there else ():
                heartbeat(sqlite, person, task.lease, start + beat)
            submit(sqlite, person, task.lease, new_submission(), start + 899, Choice(0))
    rows = {row.id: row for row in ask(sqlite, person_rows)}
    assert ask(sqlite, task_timings).compare_seconds == pytest.approx((899 + IDLE_SECONDS) / 2)
    assert rows[away].hours == pytest.approx(4 * IDLE_SECONDS / 3600)
    assert rows[there].hours == pytest.approx(4 * 899 / 3600)
    assert rows[away].median_seconds == IDLE_SECONDS


def test_the_clock_starts_again_with_a_task_that_ran_out(sqlite: Database) -> None:
    fill(sqlite, Rules(people=1), {"a": (1, 1)}, lease=60)
    (one,) = invite_people(sqlite, 1, 0)
    assert next_task(sqlite, one, 0.0) is not None
    choose(sqlite, one, 5000.0, 4990.0, side=0)  # a clock that is set back
    assert ask(sqlite, person_rows)[0].hours == 0


def test_two_to_one_is_a_majority_for_all_three(sqlite: Database) -> None:
    fill(sqlite, Rules(people=3, consensus="majority"), {"a": (1, 1)})
    for person, right in zip(invite_people(sqlite, 3, 0), (True, True, False), strict=True):
        choose(sqlite, person, 0.0, 5.0, right=right)
    rows = ask(sqlite, person_rows)
    assert [(row.with_majority, row.decided) for row in rows] == [(1, 1), (1, 1), (0, 1)]
    # For decisions about a person their own vote makes no majority.
    assert [(row.agreed, row.shared) for row in rows] == [(0, 0), (0, 0), (0, 1)]
