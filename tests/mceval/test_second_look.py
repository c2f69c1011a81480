"""With a second look, a revision counts once another person has accepted it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import select

from discode.errors import NotAllowedError
from mceval import _guide as guide
from mceval._checks import Checks
from mceval._report import SecondLooks, person_rows, second_looks, side_rows, task_timings
from mceval._stalls import find_stalls
from mceval._tables import Answer, Image, Slot, Void
from mceval._web.progress import person_progress
from mceval.database import Database
from mceval.export import ExportOptions, export_dataset
from mceval.people import invite, mark_careless
from mceval.queue import Choice, Look, Revision, Task, flag, next_task, skip, submit, undo
from mceval.rules import Rules
from tests.helpers.campaigns import (
    ask,
    better,
    check_rules,
    fill,
    invite_people,
    new_submission,
    scalars,
    some,
)

LOOK = Rules(people=1, second_look=True)


def revisers(db: Database, *names: str) -> list[int]:
    return [one.person for one in invite(db, names, "reviser", 0.0)]


def held(db: Database, person: int, kind: str, now: float = 10.0) -> Task:
    task = some(next_task(db, person, now))
    assert task.kind == kind
    return task


def revise(db: Database, person: int, text: str, now: float = 10.0) -> None:
    task = held(db, person, "revise", now)
    submit(db, person, task.lease, new_submission(), now + 9, Revision(text))


def look(db: Database, person: int, text: str, accepted: bool, now: float = 20.0) -> None:
    task = held(db, person, "look", now)
    assert task.captions[1] == text
    submit(db, person, task.lease, new_submission(), now + 5, Look(accepted))


def compare(db: Database, person: int) -> None:
    task = held(db, person, "compare")
    submit(db, person, task.lease, new_submission(), 15.0, Choice(better(task)))


def image(db: Database) -> Image:
    with db.read() as session:
        return session.scalars(select(Image)).one()


def looks(db: Database) -> SecondLooks:
    return ask(db, second_looks)


def test_a_rejected_revision_is_made_anew_by_another(db: Database, tmp_path: Path) -> None:
    fill(db, LOOK, {"a": (1, 1)})
    one, two, three, four = revisers(db, "one", "two", "three", "four")
    (comparer,) = invite_people(db, 1, 0)
    compare(db, comparer)
    assert next_task(db, two, 5.0) is not None, "two holds the revision ..."
    skip(db, two, held(db, two, "revise").lease, "not now", 6.0)
    undo(db, two, 7.0)
    assert next_task(db, one, 8.0) is None
    revise(db, two, "a first revision")
    assert next_task(db, two, 12.0) is None, "nobody looks at their own"
    look(db, one, "a first revision", accepted=False)
    assert (image(db).state, image(db).reference) == ("active", None)
    for person in (one, two):
        assert next_task(db, person, 30.0) is None, "neither of the two has it again"
    revise(db, three, "a second revision", 40.0)
    look(db, four, "a second revision", accepted=True, now=60.0)
    assert (image(db).state, image(db).reference) == ("done", "a second revision")
    check_rules(db)
    assert looks(db) == SecondLooks(accepted=1, rejected=1)
    (side,) = ask(db, side_rows)[-1:]
    assert side.compared == 1, "looks have no sides"
    assert ask(db, task_timings).compared == 1
    assert ask(db, person_progress, four).looked == 1
    assert ask(db, person_progress, four).last_act == "Saved: the caption is accepted"
    export_dataset(db, tmp_path / "out", ExportOptions(images="hashes"))
    facts = json.loads((tmp_path / "out" / "facts.json").read_text())
    assert facts["second_looks"] == {"accepted": 1, "rejected": 1}
    assert facts["rules"]["second_look"] is True
    card = (tmp_path / "out" / "README.md").read_text()
    assert "1 were accepted and 1 rejected" in card
    assert guide.LOOKING in card


def test_what_is_taken_back_is_looked_at_anew(db: Database) -> None:
    fill(db, LOOK, {"a": (1, 1)})
    one, two, three, four = revisers(db, "one", "two", "three", "four")
    (comparer,) = invite_people(db, 1, 0)
    compare(db, comparer)
    revise(db, one, "a first revision")
    task = held(db, two, "look")
    undo(db, one, 30.0)
    with pytest.raises(NotAllowedError):
        submit(db, two, task.lease, new_submission(), 31.0, Look(True))
    assert next_task(db, two, 32.0) is None, "there is nothing to look at"
    revise(db, one, "a better revision", 33.0)
    look(db, two, "a better revision", accepted=True, now=50.0)
    assert image(db).state == "done"
    undo(db, one, 60.0)  # who looked has looked at something that is gone
    assert image(db).state == "active"
    assert "outdated" in scalars(db, select(Void.reason))
    revise(db, one, "the best revision", 61.0)
    look(db, two, "the best revision", accepted=False, now=80.0)
    task = held(db, three, "revise", 90.0)
    undo(db, two, 91.0)  # they think better of it, while somebody revises anew
    submit(db, two, held(db, two, "look", 92.0).lease, new_submission(), 93.0, Look(True))
    assert (image(db).state, image(db).reference) == ("done", "the best revision")
    assert next_task(db, four, 94.0) is None
    with pytest.raises(NotAllowedError):
        undo(db, three, 95.0)
    assert next_task(db, three, 96.0) is None, "what they held is not needed any more"
    assert scalars(db, select(Slot).where(Slot.state == "leased")) == []


def test_careless_people_are_undone(sqlite: Database) -> None:
    """A careless reviser's text goes with all looks at it, a careless look leaves the text."""
    fill(sqlite, LOOK, {"a": (1, 1)})
    one, two, three, four = revisers(sqlite, "one", "two", "three", "four")
    (comparer,) = invite_people(sqlite, 1, 0)
    compare(sqlite, comparer)
    revise(sqlite, one, "a first revision")
    look(sqlite, two, "a first revision", accepted=True)
    mark_careless(sqlite, two, "did not look", 30.0)
    assert image(sqlite).state == "active"
    look(sqlite, three, "a first revision", accepted=True, now=31.0)
    assert image(sqlite).state == "done"
    mark_careless(sqlite, one, "copied", 40.0)
    assert (image(sqlite).state, image(sqlite).reference) == ("active", None)
    revise(sqlite, four, "a second revision", 41.0)
    look(sqlite, three, "a second revision", accepted=True, now=60.0)
    assert image(sqlite).reference == "a second revision"
    check_rules(sqlite)


def test_looks_can_be_passed_on_and_taken_back(sqlite: Database) -> None:
    fill(sqlite, LOOK, {"a": (1, 1)})
    one, two = revisers(sqlite, "one", "two")
    revise(sqlite, one, "a first revision")
    flag(sqlite, two, held(sqlite, two, "look").lease, "a face", 21.0)
    assert next_task(sqlite, two, 22.0) is None
    undo(sqlite, one, 23.0)
    assert undo(sqlite, two, 24.0) is None, "the revision is gone"
    revise(sqlite, one, "a second revision", 25.0)
    look(sqlite, two, "a second revision", accepted=True, now=40.0)
    assert [row.answers for row in ask(sqlite, person_rows)] == [2, 1]


def test_who_looks_without_looking_is_careless(sqlite: Database) -> None:
    checks = Checks(gold_rate=0.0, quick_seconds=2.0, quick_after=3)
    fill(sqlite, LOOK, {"a": (4, 4)}, checks=checks)
    one, two = revisers(sqlite, "one", "two")
    for now in range(100, 500, 100):
        revise(sqlite, one, "a revision of it", now)
    for now in range(1000, 1300, 100):
        task = held(sqlite, two, "look", now)
        submit(sqlite, two, task.lease, new_submission(), now + 1.0, Look(True))
    with pytest.raises(NotAllowedError):
        next_task(sqlite, two, 1300.0)
    voided = select(Answer.kind).join(Void, Void.answer_id == Answer.id)
    assert scalars(sqlite, voided) == ["look"] * 3


def test_what_stalls_is_named(sqlite: Database) -> None:
    fill(sqlite, LOOK, {"a": (1, 1)})

    def stalls() -> list[str]:
        return [one.what for one in ask(sqlite, find_stalls, 100.0)]

    invite_people(sqlite, 1, 0)
    one, *_ = revisers(sqlite, "one")
    assert "every image needs 2" in stalls()[0]
    (both,) = invite(sqlite, ["both"], "both", 0.0)
    assert stalls() == []
    compare(sqlite, both.person)
    revise(sqlite, one, "a first revision")
    (stuck,) = stalls()
    assert stuck.startswith("1 open looks at revisions")
    (two,) = revisers(sqlite, "two")
    assert stalls() == []
    look(sqlite, two, "a first revision", accepted=False)
    (stuck,) = stalls()
    assert stuck.startswith("1 open revisions")
