"""Flags: what they do, how far they go, how they are taken back and overruled."""

from __future__ import annotations

import random
from typing import Any

import pytest
from sqlalchemy import func, select

from discode.errors import InputError, NotAllowedError
from mceval._checks import Checks
from mceval._organising import discarded_images, restore, set_flag_aside, take_down
from mceval._report import flag_rows, pass_warnings
from mceval._tables import Answer, Image, Pass, Slot
from mceval.database import Database
from mceval.people import invite, mark_careless
from mceval.queue import Choice, flag, next_task, skip, submit, undo
from mceval.rules import Rules
from tests.helpers.campaigns import (
    ask,
    better,
    check_rules,
    choose,
    fill,
    image_of,
    invite_people,
    new_submission,
    scalar,
    some,
    states,
    work_all,
    work_once,
)


def pass_all(db: Database, person: int, act: object, now: float = 1.0, reason: str = "x") -> int:
    """Let a person pass on all that they are given; on how many tasks."""
    for count in range(1000):
        task = next_task(db, person, now)
        if task is None:
            return count
        act(db, person, task.lease, reason, now)  # type: ignore[operator]
    raise AssertionError("it does not end")


@pytest.mark.parametrize("act", [flag, skip])
def test_a_few_people_cannot_discard_a_campaign(db: Database, act: object) -> None:
    fill(db, Rules(), {"a": (8, 12), "b": (8, 12)})
    bad = invite_people(db, 5, 0)
    for person in bad:
        assert pass_all(db, person, act) >= 16, "everything that they pass on is recorded"
    # three each at most, and a flag needs two people, a skip five
    assert states(db).get("discarded", 0) <= 3 * 5 // (2 if act is flag else 5)
    rows = ask(db, flag_rows, kind="flag" if act is flag else "skip")
    warned = ask(db, pass_warnings)
    assert {row.set_aside for row in rows} == {"", "limit"}
    assert [row.person for row in warned] == bad
    people = invite_people(db, 3)
    work_all(db, people, random.Random(0))
    check_rules(db)
    assert states(db)["done"] == 16


def test_people_who_work_may_flag_more(sqlite: Database) -> None:
    fill(sqlite, Rules(), {"a": (60, 60)})
    (one,) = invite_people(sqlite, 1, 0)
    for number in range(50):
        task = some(next_task(sqlite, one, 1.0))
        if number % 10 == 9:
            flag(sqlite, one, task.lease, "private", 2.0)
        else:
            submit(sqlite, one, task.lease, new_submission(), 2.0, Choice(0))
    rows = ask(sqlite, flag_rows)
    assert not ask(sqlite, pass_warnings)
    assert [row.set_aside for row in rows] == [""] * 5
    assert {(row.domain, row.name, row.reason) for row in rows} == {("a", "c0", "private")}


def test_flags_of_careless_people_do_not_count(db: Database) -> None:
    fill(db, Rules(), {"a": (1, 2)})
    one, two, _ = invite_people(db, 2)
    for person in (one, two):
        task = some(next_task(db, person, 0.0))
        flag(db, person, task.lease, "a face", 1.0)
    assert states(db) == {"discarded": 1, "active": 1}
    mark_careless(db, one, "by hand", 2.0)
    assert states(db) == {"active": 1, "pool": 1}
    assert {row.person: row.set_aside for row in ask(db, flag_rows)} == {
        one: "careless",
        two: "",
    }


def test_undo_after_a_flag_undoes_the_flag(db: Database) -> None:
    fill(db, Rules(flags=1), {"a": (2, 3)})
    (one, _) = invite_people(db, 1)
    work_once(db, one, 0.0, random.Random(0))
    task = some(next_task(db, one, 10.0))
    flag(db, one, task.lease, "by mistake", 20.0)
    assert states(db) == {"discarded": 1, "active": 2}
    some(next_task(db, one, 25.0))
    back = some(undo(db, one, 30.0))
    assert back.captions == task.captions
    assert back.lease != task.lease
    assert states(db) == {"active": 2, "pool": 1}, "its replacement waits again"
    assert scalar(db, select(func.count(Answer.id))) == 1
    assert [row.set_aside for row in ask(db, flag_rows)] == ["undo"]
    assert scalar(db, select(func.count(Pass.id))) == 1, "nothing is deleted"
    submit(db, one, back.lease, new_submission(), 40.0, Choice(better(back)))
    first = some(undo(db, one, 41.0))
    assert first.captions == back.captions
    second = undo(db, one, 42.0)  # now the answer before the flag
    assert second is not None
    assert second.captions != task.captions
    with pytest.raises(NotAllowedError):
        undo(db, one, 43.0)
    check_rules(db, settled=False)


def test_undo_of_a_skip_whose_task_somebody_else_has(sqlite: Database) -> None:
    fill(sqlite, Rules(people=1), {"a": (1, 1)})
    one, two, reviser = invite_people(sqlite, 2)
    task = some(next_task(sqlite, one, 0.0))
    skip(sqlite, one, task.lease, "too small", 1.0)
    taken = some(next_task(sqlite, two, 2.0))
    assert undo(sqlite, one, 3.0) is None
    skip(sqlite, two, taken.lease, "too small", 4.0)
    again = next_task(sqlite, one, 5.0)
    assert again is not None, "a skip that was taken back hides nothing"
    revision = some(next_task(sqlite, reviser, 6.0))
    flag(sqlite, reviser, revision.lease, "odd", 7.0)
    back = some(undo(sqlite, reviser, 8.0))
    assert back.kind == "revise"


def test_undo_of_a_flag_on_a_gold_question(sqlite: Database) -> None:
    fill(sqlite, Rules(), {"a": (5, 5)}, checks=Checks(gold_rate=1.0), gold=2)
    (one, _) = invite_people(sqlite, 1)
    task = some(next_task(sqlite, one, 0.0))
    gold = image_of(sqlite, task)
    assert gold.state == "gold"
    flag(sqlite, one, task.lease, "odd", 1.0)
    back = some(undo(sqlite, one, 2.0))
    assert image_of(sqlite, back).id == gold.id
    submit(sqlite, one, back.lease, new_submission(), 9.0, Choice(better(back)))


def test_organisers_restore_and_take_down(db: Database) -> None:
    fill(db, Rules(), {"a": (2, 4)})
    (boss,) = invite(db, ["boss"], "admin", 0.0)
    people = invite_people(db, 4)
    for person in people[:2]:
        while (task := next_task(db, person, 0.0)) is not None:
            flag(db, person, task.lease, "a face", 1.0)
    gone = [one.id for one in ask(db, discarded_images)]
    assert len(gone) == 2

    def flags_on(image: int) -> list[Any]:
        return [row for row in ask(db, flag_rows) if row.image == image]

    assert {flag.state for flag in flags_on(gone[0])} == {"discarded"}
    restore(db, gone[0], "no face", 2.0, by=boss.person)
    with pytest.raises(InputError):
        restore(db, gone[0], "no face", 3.0)
    assert {row.set_aside for row in flags_on(gone[0])} == {"organiser"}
    (one, other) = flags_on(gone[1])
    set_flag_aside(db, one.id, 4.0, by=boss.person)
    set_flag_aside(db, one.id, 4.0, by=boss.person)
    assert gone[1] not in [image.id for image in ask(db, discarded_images)]
    assert {row.set_aside for row in flags_on(gone[1])} == {"organiser", ""}
    assert other.set_aside == ""
    work_all(db, people[2:] + invite_people(db, 1), random.Random(0))
    check_rules(db, settled=False)
    assert states(db)["done"] == 2
    with db.read() as session:
        done = session.scalars(select(Image.id).where(Image.state == "done")).first()
    assert done is not None
    take_down(db, done, "somebody's private photo", 9.0, by=boss.person)
    take_down(db, done, "again", 9.0)
    with db.read() as session:
        image = session.get_one(Image, done)
        assert (image.state, image.reason) == ("discarded", "taken down: somebody's private photo")
        open_slots = select(Slot.id).where(Slot.image_id == done, Slot.state == "open")
        assert session.scalars(open_slots).all() == []
    restore(db, done, "they agreed", 10.0)
    with db.read() as session:
        assert session.get_one(Image, done).state == "done", "its answers were kept"


def test_rulings_that_are_not_possible(sqlite: Database) -> None:
    fill(sqlite, Rules(), {"a": (1, 2)}, gold=1)
    for i, person in enumerate(invite_people(sqlite, 3, 0)):
        choose(sqlite, person, 0.0, 5.0, right=i > 0)
    with sqlite.read() as session:
        (split,) = discarded_images(session)
        gold = session.scalars(select(Image.id).where(Image.state == "gold")).one()
        waiting = session.scalars(select(Image.id).where(Image.state == "active")).one()
    with pytest.raises(InputError):
        restore(sqlite, split.id, "why not", 1.0)
    with pytest.raises(InputError):
        take_down(sqlite, gold, "odd", 1.0)
    with pytest.raises(NotAllowedError):
        take_down(sqlite, 999, "odd", 1.0)
    with pytest.raises(NotAllowedError):
        set_flag_aside(sqlite, 999, 1.0)
    with pytest.raises(InputError):
        take_down(sqlite, waiting, " ", 1.0)
    take_down(sqlite, waiting, "odd", 1.0)
    assert states(sqlite)["discarded"] == 2
    restore(sqlite, waiting, "not odd", 2.0)
    assert states(sqlite)["active"] == 1
