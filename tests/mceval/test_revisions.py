"""Revisions are looked at: one-letter ones, untouched ones, hasty ones, and gold questions."""

from __future__ import annotations

import random

import pytest
from sqlalchemy import select

from discode.errors import InputError, NotAllowedError
from mceval.checks import Checks
from mceval.database import Database
from mceval.people import invite, work_record
from mceval.queue import Revision, next_task, skip, submit
from mceval.rules import Rules
from mceval.tables import Answer, Person
from tests.helpers.campaigns import check_rules, fill, invite_people, new_submission, work_all


def reviser(db: Database) -> int:
    (one,) = invite(db, ["Rita"], "reviser", 0.0)
    return one.person


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("x", "a sentence or a phrase"),
        ("dog", "a sentence or a phrase"),
        (". . .", "a sentence or a phrase"),
        ("   ", "something in it"),
        ("a \u202edog", "U\\+202E"),
        ("a \x1b[31mdog", "U\\+001B"),
    ],
)
def test_what_is_no_caption_is_refused(sqlite: Database, text: str, match: str) -> None:
    fill(sqlite, Rules(), {"a": (1, 1)})
    person = reviser(sqlite)
    task = next_task(sqlite, person, 10.0)
    assert task is not None
    with pytest.raises(InputError, match=match):
        submit(sqlite, person, task.lease, new_submission(), 60.0, Revision(text))
    submit(sqlite, person, task.lease, new_submission(), 60.0, Revision("ein Hund am Strand"))


def test_other_scripts_are_captions(sqlite: Database) -> None:
    fill(sqlite, Rules(), {"a": (1, 1)})
    person = reviser(sqlite)
    task = next_task(sqlite, person, 10.0)
    assert task is not None
    submit(sqlite, person, task.lease, new_submission(), 60.0, Revision("海辺の犬"))


def test_an_unchanged_caption_is_asked_back(sqlite: Database) -> None:
    fill(sqlite, Rules(), {"a": (1, 1)})
    person = reviser(sqlite)
    task = next_task(sqlite, person, 10.0)
    assert task is not None
    (given,) = task.captions
    with pytest.raises(InputError, match="as it was"):
        submit(sqlite, person, task.lease, new_submission(), 60.0, Revision(f" {given.upper()}"))
    submit(sqlite, person, task.lease, new_submission(), 60.0, Revision(given, unchanged=True))
    with sqlite.read() as session:
        assert session.scalars(select(Answer.text)).all() == [given]


def test_a_hasty_revision_is_asked_back(sqlite: Database) -> None:
    fill(sqlite, Rules(), {"a": (1, 1)}, checks=Checks(gold_rate=0.0, quick_seconds=2.0))
    person = reviser(sqlite)
    task = next_task(sqlite, person, 10.0)
    assert task is not None
    with pytest.raises(InputError, match="that was quick"):
        submit(sqlite, person, task.lease, new_submission(), 13.9, Revision("a better caption"))
    submit(sqlite, person, task.lease, new_submission(), 14.1, Revision("a better caption"))


def test_a_clock_that_is_set_back(sqlite: Database) -> None:
    fill(sqlite, Rules(), {"a": (1, 1)})
    person = reviser(sqlite)
    task = next_task(sqlite, person, 1000.0)
    assert task is not None
    submit(sqlite, person, task.lease, new_submission(), 400.0, Revision("a better caption"))
    with sqlite.read() as session:
        assert session.scalars(select(Answer.seconds)).all() == [0.0]


def test_gold_for_revisers(db: Database) -> None:
    """Who leaves the wrong captions of gold questions as they are is found; who corrects is not."""
    checks = Checks(gold_rate=0.5, quick_seconds=0.0)
    fill(db, Rules(), {"a": (12, 12)}, checks=checks, gold=6)
    careless, careful = (one.person for one in invite(db, ["A", "B"], "reviser", 0.0))
    met = 0
    for person, now in ((careless, 1e3), (careful, 1e5)):
        for i in range(18):
            try:
                task = next_task(db, person, now + 20 * i)
            except NotAllowedError:
                break
            if task is None:
                break
            assert task.kind == "revise"
            (given,) = task.captions
            gold = given == "wrong"
            met += gold
            assert given != "right", "the wrong caption is the one to revise"
            answer = "noise of many colours" if gold and person == careful else f"{given}, well"
            submit(db, person, task.lease, new_submission(), now + 20 * i + 9, Revision(answer))
    assert met >= 10
    with db.read() as session:
        states = dict(session.execute(select(Person.id, Person.state)).all())
        assert states == {careless: "careless", careful: "active"}
        record = work_record(session, careful)
        assert record.gold == record.right >= 5
    work_all(db, invite_people(db, 4), random.Random(0), start=2e5)
    check_rules(db)


def test_nobody_skips_where_the_paper_did_not(sqlite: Database) -> None:
    fill(sqlite, Rules(skips=0), {"a": (1, 1)})
    person = reviser(sqlite)
    task = next_task(sqlite, person, 0.0)
    assert task is not None
    with pytest.raises(NotAllowedError, match="has no skips"):
        skip(sqlite, person, task.lease, "I cannot tell", 1.0)
    work_all(sqlite, [person, *invite_people(sqlite, 3, 0)], random.Random(0))
    check_rules(sqlite)
