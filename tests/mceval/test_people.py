"""Invitations that end, people who leave, and what decisions about them were made on."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from sqlalchemy import func, select

from discode.errors import InputError, NotAllowedError
from mceval._checks import Checks, Evidence
from mceval._crowd import crowd_tasks
from mceval._crowd_import import import_results
from mceval._report import finding_rows, person_rows
from mceval._tables import Answer, Person, Slot, Void
from mceval._web.auth import begin_session, find_visitor
from mceval.database import Database
from mceval.export import ExportOptions, export_dataset
from mceval.people import (
    DAY,
    erase,
    invite,
    mark_careless,
    person_by_token,
    reinstate,
    reissue,
    revoke,
    use_up_invitation,
    withdraw,
)
from mceval.queue import Choice, Revision, flag, next_task, skip, submit
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
    scalars,
    some,
    states,
    work_all,
    work_once,
)


def test_invitations_expire_and_are_reissued(db: Database) -> None:
    fill(db, Rules(), {"a": (1, 1)})
    (one,) = invite(db, ["one"], "comparer", 0.0, days=2)
    (two,) = invite(db, ["two"], "comparer", 0.0)
    assert person_by_token(db, one.token, 2 * DAY - 1) is not None
    assert person_by_token(db, one.token, 2 * DAY) is None
    assert person_by_token(db, two.token, 1e9) is not None
    key = begin_session(db, one.person, 1.0)
    again = reissue(db, one.person, 3 * DAY, days=1)
    assert (again.person, again.name, again.role) == (one.person, "one", "comparer")
    assert person_by_token(db, one.token, 0.0) is None, "the old link ends"
    assert find_visitor(db, key, 2.0) is None, "and so do their browsers"
    assert person_by_token(db, again.token, 3 * DAY + 1) is not None
    use_up_invitation(db, one.person, 3 * DAY)
    assert person_by_token(db, again.token, 3 * DAY + 1) is None
    with db.read() as session:
        assert session.get_one(Person, one.person).state == "active"
    for days in (0, -1, float("nan"), 5000):
        with pytest.raises(InputError, match="days"):
            invite(db, ["x"], "comparer", 0.0, days=days)
    with pytest.raises(NotAllowedError):
        reissue(db, 99, 0.0)


def test_withdrawing_is_not_careless(db: Database) -> None:
    fill(db, Rules(), {"a": (3, 3)})
    one, two, _ = invite_people(db, 2)
    work_once(db, one, 0.0, random.Random(0))
    held = some(next_task(db, one, 10.0))
    withdraw(db, one, 11.0)
    withdraw(db, one, 11.0)
    with pytest.raises(NotAllowedError):
        submit(db, one, held.lease, new_submission(), 12.0, Choice(0))
    with db.read() as session:
        assert session.get_one(Person, one).state == "left"
        assert session.scalar(select(func.count(Void.answer_id))) == 0, "what they did counts"
        assert session.scalar(select(func.count()).where(Slot.state == "leased")) == 0
        (row,) = finding_rows(session)
    assert (row.kind, row.reason, row.evidence.answers) == ("left", "withdrew", 1)
    reinstate(db, one, 20.0)
    assert next_task(db, one, 21.0) is not None
    assert next_task(db, two, 21.0) is not None


def test_a_decision_keeps_its_evidence(db: Database) -> None:
    checks = Checks(gold_rate=0.9, gold_after=4, quick_seconds=2.0)
    fill(db, Rules(), {"a": (12, 12)}, checks=checks, gold=5)
    (bad,) = invite_people(db, 1, 0)
    task = some(next_task(db, bad, 0.0))
    flag(db, bad, task.lease, "odd", 1.0)
    answers = 0
    for now in range(1000, 100_000, 1000):
        try:
            choose(db, bad, now, now + 9, right=False)
        except NotAllowedError:
            break
        answers += 1
    (found,) = ask(db, finding_rows, bad)
    (row,) = ask(db, person_rows)
    assert found.reason.startswith("gold questions: 0 of 4 right")
    assert found.evidence == Evidence(
        answers=answers, compared=answers, gold=4, right=0, quick=0, median_seconds=9.0, flags=1
    )
    assert (row.gold, row.void) == (0, answers), "nothing of it counts any more"

    reinstate(db, bad, 200_000.0)
    gold = 0
    for now in range(200_000, 300_000, 1000):
        again = next_task(db, bad, now)
        if again is None:
            break
        gold += image_of(db, again).state == "gold"
        submit(db, bad, again.lease, new_submission(), now + 9, Choice(better(again)))
    assert gold == 4, "all gold questions were seen before, and are asked again"
    (row,) = ask(db, person_rows)
    assert (row.gold, row.right, row.state) == (4, 4, "active")
    assert [one.kind for one in ask(db, finding_rows, bad)] == ["careless", "reinstated"]
    kept = select(func.count(Answer.id)).where(Answer.kind == "gold")
    assert scalar(db, kept) == 8, "the first answers stay"


def test_new_gold_comes_before_gold_that_was_seen(sqlite: Database) -> None:
    checks = Checks(gold_rate=1.0, gold_after=1000, quick_seconds=0)
    fill(sqlite, Rules(), {"a": (12, 12)}, checks=checks, gold=6)
    (one,) = invite_people(sqlite, 1, 0)
    seen = [_gold(sqlite, one) for _ in range(3)]
    mark_careless(sqlite, one, "by hand", 9.0)
    reinstate(sqlite, one, 10.0)
    after = [_gold(sqlite, one) for _ in range(6)]
    assert not set(after[:3]) & set(seen)
    assert set(after[3:]) == set(seen)
    assert image_of(sqlite, some(next_task(sqlite, one, 1.0))).state == "active"


def _gold(db: Database, person: int) -> int:
    image = image_of(db, choose(db, person, 1.0, 5.0))
    assert image.state == "gold"
    return image.id


def test_whoever_withdraws_is_erased(sqlite: Database, tmp_path: Path) -> None:
    """No answer of theirs counts, and nothing that they wrote is left, not even in the file."""
    fill(sqlite, Rules(people=1, skips=1), {"a": (4, 6)})
    (ada,) = invite(sqlite, ["Ada Lovelace"], "reviser", 0.0)
    others = invite_people(sqlite, 2)
    for now in (10.0, 20.0, 30.0):
        task = some(next_task(sqlite, ada.person, now))
        text = "Ada wrote these words"
        submit(sqlite, ada.person, task.lease, new_submission(), now + 5, Revision(text))
    task = some(next_task(sqlite, ada.person, 40.0))
    skip(sqlite, ada.person, task.lease, "Other: my street in Marylebone", 45.0)
    revoke(sqlite, ada.person, "Ada is my cousin", 50.0)
    work_all(sqlite, others, random.Random(0))
    key = begin_session(sqlite, ada.person, 50.0)
    before = states(sqlite)["done"]
    assert before
    assert erase(sqlite, ada.person, 60.0) == 3
    assert find_visitor(sqlite, key, 61.0) is None
    assert person_by_token(sqlite, ada.token, 61.0) is None
    assert states(sqlite).get("done", 0) < before, "what rested on their answers is asked again"
    check_rules(sqlite, settled=False)
    with sqlite.read() as session:
        answers = select(Answer).where(Answer.person_id == ada.person)
        assert [one.text or "" for one in session.scalars(answers)] == ["", "", ""]
        assert set(session.scalars(select(Void.reason)).all()) == {"withdrawn"}
        assert session.get_one(Person, ada.person).state == "left"
    work_all(sqlite, others, random.Random(0), start=5000.0)
    assert states(sqlite)["done"] == 4
    assert erase(sqlite, ada.person, 70.0) == 0, "a second time changes nothing"
    export_dataset(sqlite, tmp_path / "dataset", ExportOptions(images="hashes"))
    facts = json.loads((tmp_path / "dataset" / "facts.json").read_text())
    assert (facts["void"], facts["withdrawn"]) == (3, 3)
    assert "3 of them were withdrawn" in (tmp_path / "dataset" / "README.md").read_text()
    sqlite.close()
    written = b"".join(path.read_bytes() for path in tmp_path.glob("campaign.db*"))
    for words in (b"Lovelace", b"Ada wrote", b"Marylebone", b"my cousin"):
        assert words not in written


def test_an_erased_worker_stays_erased(sqlite: Database, tmp_path: Path) -> None:
    """Their results, imported once more, do not bring them back."""
    fill(sqlite, Rules(people=1), {"a": (2, 2)})
    tasks = ask(sqlite, crowd_tasks, "https://example.org/{digest}{suffix}", gold=False)
    one, two = (task.task for task in tasks if task.kind == "compare")
    results = tmp_path / "results.csv"
    results.write_text(
        "task,worker,seconds,choice,pass,reason\n"
        f"{one},WORKER7,9,0,,\n{two},WORKER7,9,,skip,too dark\n"
    )  # fmt: skip
    assert [one.used for one in import_results(sqlite, results, 10.0)] == [True, True]
    (person,) = scalars(sqlite, select(Person.id))
    assert erase(sqlite, person, 20.0) == 1
    assert [one.used for one in import_results(sqlite, results, 30.0)] == [False, False]
    assert scalars(sqlite, select(Person.id)) == [person]
    sqlite.close()
    written = b"".join(path.read_bytes() for path in tmp_path.glob("campaign.db*"))
    assert b"WORKER7" not in written
