from __future__ import annotations

import random
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from discode.errors import InputError, NotAllowedError, StoreError
from mceval._checks import Checks
from mceval._stalls import find_stalls
from mceval._states import NOT_LOADED
from mceval._tables import Answer, Image, Person, Slot, Void
from mceval._web.progress import open_to, why_wait
from mceval.database import Database
from mceval.people import invite, mark_careless, passes_of, reinstate, work_record
from mceval.queue import Choice, Look, Revision, flag, heartbeat, next_task, skip, submit, undo
from mceval.rules import Rules
from tests.helpers.campaigns import (
    at_once,
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


@pytest.mark.parametrize("kind", ["always", "agreed"])
def test_majority_discards_nothing(sqlite: Database, kind: str) -> None:
    fill(sqlite, Rules(consensus="majority", revise=kind), {"a": (5, 9)})
    work_all(sqlite, invite_people(sqlite, 4), random.Random(1), accuracy=0.5)
    check_rules(sqlite)
    assert states(sqlite) == {"done": 5, "pool": 4}


def test_many_people_at_once(db: Database) -> None:
    """Thirty threads, each a person: no slot twice, no fourth judgment, nothing lost."""
    fill(db, Rules(), {"a": (10, 25), "b": (10, 25)})
    people = invite_people(db, 26, 4)
    kept: list[str] = []

    def work(person: int) -> None:
        rng, idle = random.Random(person), 0
        while idle < 3:
            task = next_task(db, person, 10.0)
            if task is None:
                idle += 1
                continue
            reply: Choice | Revision = Revision("a revised caption")
            if task.kind == "compare":
                reply = Choice(better(task) if rng.random() < 0.9 else 1 - better(task))
            name = new_submission()
            submit(db, person, task.lease, name, 20.0, reply)
            kept.append(name)

    at_once(work, people)
    work_all(db, people, random.Random(0))
    check_rules(db)
    assert set(kept) <= set(scalars(db, select(Answer.submission)))
    assert states(db)["done"] == 20


def test_a_lease_runs_out_and_goes_to_the_next(db: Database) -> None:
    fill(db, Rules(people=1), {"a": (1, 1)}, lease=60)
    one, two, _ = invite_people(db, 2)
    task = some(next_task(db, one, 0.0))
    assert next_task(db, one, 30.0) == task, "asking again gives what is held"
    assert next_task(db, two, 30.0) is None
    heartbeat(db, one, task.lease, 50.0)
    assert next_task(db, two, 109.0) is None
    taken = some(next_task(db, two, 111.0))
    for late in (
        partial(submit, db, one, task.lease, new_submission(), 112.0, Choice(0)),
        partial(heartbeat, db, one, task.lease, 112.0),
        partial(skip, db, one, task.lease, "late", 112.0),
        partial(submit, db, one, taken.lease, new_submission(), 112.0, Choice(0)),
    ):
        with pytest.raises(NotAllowedError):
            late()
    submit(db, two, taken.lease, new_submission(), 112.0, Choice(0))
    check_rules(db)


def test_late_but_nobody_else_took_it(sqlite: Database) -> None:
    fill(sqlite, Rules(), {"a": (1, 1)}, lease=60)
    (one, _) = invite_people(sqlite, 1)
    task = some(next_task(sqlite, one, 0.0))
    submit(sqlite, one, task.lease, new_submission(), 500.0, Choice(1))
    assert next_task(sqlite, one, 600.0) is None


def test_an_answer_sent_twice_counts_once(db: Database) -> None:
    fill(db, Rules(), {"a": (2, 2)})
    one, two, _ = invite_people(db, 2)
    task = some(next_task(db, one, 0.0))
    for now in (5.0, 6.0):
        submit(db, one, task.lease, "the-same-name", now, Choice(0))
    with pytest.raises(NotAllowedError):
        submit(db, two, task.lease, "the-same-name", 6.0, Choice(1))
    with pytest.raises(NotAllowedError):
        submit(db, one, task.lease, new_submission(), 6.0, Choice(1))
    assert scalar(db, select(func.count(Answer.id))) == 1


def test_nobody_answers_or_undoes_what_they_cannot_have_seen(db: Database) -> None:
    """Not in the first 0.8 s of a page, also when a task that is held is shown once more."""
    fill(db, Rules(), {"a": (3, 3)}, gold=1, checks=Checks(gold_rate=1.0, quick_seconds=0.0))
    (one, _) = invite_people(db, 1)
    now = 0.0
    for kind in ("gold", "compare", "compare"):
        for _ in range(2):
            now += 10
            task = some(next_task(db, one, now))
            for early in (0.0, 0.5, 0.79):
                with pytest.raises(InputError):
                    submit(db, one, task.lease, new_submission(), now + early, Choice(0))
                with pytest.raises(InputError):
                    undo(db, one, now + early)
        assert task is not None
        name = new_submission()
        for _ in range(2):
            submit(db, one, task.lease, name, now + 0.81, Choice(0))
        assert scalars(db, select(Answer.kind).where(Answer.submission == name)) == [kind]
    now += 10
    assert undo(db, one, now) is not None
    with pytest.raises(InputError):
        undo(db, one, now + 0.3)
    assert undo(db, one, now + 1) is not None
    assert scalar(db, select(func.count(Void.answer_id))) == 2


def test_an_image_that_did_not_load_comes_back(db: Database) -> None:
    """It uses up nobody: whoever could not see it is asked again, and keeps all their flags."""
    fill(db, Rules(people=1), {"a": (1, 1)})
    one, two, _ = invite_people(db, 2)
    for person, now in ((one, 0.0), (one, 4000.0), (one, 8000.0), (two, 8010.0)):
        task = some(next_task(db, person, now))
        flag(db, person, task.lease, NOT_LOADED, now + 2)
        assert next_task(db, person, now + 10) is None, "not at once"
        with db.read() as session:
            assert open_to(session, session.get_one(Person, person), now + 10) == 0
            assert "check again" in why_wait(session, session.get_one(Person, person))
            told = [stall.what for stall in find_stalls(session, now) if "load" in stall.what]
            assert bool(told) == (person == two), "one person's connection is no news"
            assert passes_of(session, person, "flag") == 0
    task = some(next_task(db, one, 12000.0))
    flag(db, one, task.lease, "a face", 12002.0)
    assert next_task(db, one, 99000.0) is None, "any other flag is for good"


def test_left_and_right_are_a_persons_own(sqlite: Database) -> None:
    fill(sqlite, Rules(people=21), {"a": (1, 1)})
    people = invite_people(sqlite, 21, 0)
    seen = set()
    for person in people:
        seen.add(choose(sqlite, person, 0.0, 5.0).captions)
    assert len(seen) == 2
    rows = scalars(sqlite, select(Answer))
    assert len({row.choice for row in rows}) == 1, "the same caption, wherever it stood"
    assert {row.swapped for row in rows} == {True, False}


def test_undo_takes_everything_back(db: Database) -> None:
    fill(db, Rules(), {"a": (1, 2)})
    *comparers, reviser = invite_people(db, 3)
    for i, person in enumerate(comparers):
        task = choose(db, person, 0.0, 5.0, right=i < 2)
    assert states(db) == {"discarded": 1, "active": 1}, "no consensus: replaced"
    assert task is not None
    again = some(undo(db, comparers[2], 10.0))
    assert again.lease != task.lease
    assert again.captions == task.captions
    assert states(db) == {"active": 1, "pool": 1}, "the replacement waits again"
    submit(db, comparers[2], again.lease, new_submission(), 12.0, Choice(better(again)))
    assert work_once(db, reviser, 13.0, random.Random(0))
    assert states(db) == {"done": 1, "pool": 1}
    check_rules(db)
    assert scalars(db, select(Void.reason)) == ["undo"]
    assert scalar(db, select(func.count(Answer.id))) == 5
    with pytest.raises(NotAllowedError):
        undo(db, comparers[0], 5000.0)


def test_nobody_judges_what_they_revised(db: Database) -> None:
    fill(db, Rules(people=1), {"a": (4, 4)})
    people = [one.person for one in invite(db, ["x", "y"], "both", 0.0)]
    work_all(db, people, random.Random(0))
    check_rules(db)
    assert states(db) == {"done": 4}
    # what was taken back counts, too: who has seen the reference does not compare
    with db.read() as session:
        rows = session.execute(select(Answer.image_id, Answer.person_id)).all()
    assert len({tuple(row) for row in rows}) == len(rows) == 8


def test_skips_and_flags(db: Database) -> None:
    fill(db, Rules(flags=2, skips=3), {"a": (1, 3)})
    people = invite_people(db, 3)
    for person in people[:2]:
        task = some(next_task(db, person, 0.0))
        flag(db, person, task.lease, "a  face", 1.0)
        if person == people[0]:
            assert next_task(db, person, 2.0) is None, "not the same image again"
    with db.read() as session:
        gone = session.scalars(select(Image).where(Image.state == "discarded")).one()
    assert gone.reason == "flagged by 2 people: a face"
    assert states(db) == {"discarded": 1, "active": 1, "pool": 1}
    for person in people[:3]:
        task = some(next_task(db, person, 3.0))
        skip(db, person, task.lease, "too small", 4.0)
    assert states(db) == {"discarded": 2, "active": 1}
    check_rules(db)


def test_careless_peoples_work_is_put_back(db: Database) -> None:
    fill(db, Rules(), {"a": (3, 6)})
    people = invite_people(db, 3)
    work_all(db, people, random.Random(0))
    assert states(db) == {"done": 3, "pool": 3}
    assert mark_careless(db, people[0], "by hand", 99.0) == 3
    assert mark_careless(db, people[0], "by hand", 99.0) == 0
    assert states(db) == {"active": 3, "pool": 3}
    with pytest.raises(NotAllowedError):
        next_task(db, people[0], 100.0)
    assert scalar(db, select(func.count(Answer.id))) == 12, "nothing is deleted"
    assert scalars(db, select(Void.reason)) == ["careless"] * 3
    assert scalar(db, select(func.count()).where(Slot.state == "open")) == 3
    work_all(db, people[1:] + invite_people(db, 1), random.Random(0))
    check_rules(db)
    assert states(db) == {"done": 3, "pool": 3}
    reinstate(db, people[0], 100.0)
    assert next_task(db, people[0], 101.0) is None
    with pytest.raises(NotAllowedError):
        mark_careless(db, 999, "who", 1.0)


def test_a_discarded_image_comes_back_when_a_careless_vote_falls(sqlite: Database) -> None:
    fill(sqlite, Rules(), {"a": (1, 3)})
    people = invite_people(sqlite, 4)
    for i, person in enumerate(people[:3]):
        choose(sqlite, person, 0.0, 5.0, right=i > 0)
    assert states(sqlite) == {"discarded": 1, "active": 1, "pool": 1}
    mark_careless(sqlite, people[0], "by hand", 9.0)
    assert states(sqlite) == {"active": 1, "pool": 2}
    work_all(sqlite, people[3:], random.Random(0))
    check_rules(sqlite)
    assert states(sqlite) == {"done": 1, "pool": 2}


def test_gold_and_time_find_careless_people(db: Database) -> None:
    checks = Checks(gold_rate=0.5, gold_after=4, quick_seconds=2.0)
    fill(db, Rules(), {"a": (12, 12)}, checks=checks, gold=8)
    good, bad, quick, *rest = invite_people(db, 5)

    def answer(person: int, *, right: bool, seconds: float) -> None:
        for now in range(0, 100_000, 1000):
            task = next_task(db, person, now)
            if task is None:
                return
            assert task.kind == "compare"
            side = better(task) if right else 1 - better(task)
            submit(db, person, task.lease, new_submission(), now + seconds, Choice(side))

    answer(good, right=True, seconds=9)
    with pytest.raises(NotAllowedError):
        answer(bad, right=False, seconds=9)
    with pytest.raises(NotAllowedError):
        answer(quick, right=True, seconds=1)
    reasons = {row.id: row.reason for row in scalars(db, select(Person))}
    golds = scalar(db, select(func.count(Answer.id)).where(Answer.kind == "gold"))
    assert reasons[good] == ""
    assert reasons[bad].startswith("gold questions: 0 of 4 right")
    assert reasons[quick].startswith("time: 10 of 10 choices")
    assert golds is not None
    assert golds >= 4
    work_all(db, [good, *rest], random.Random(0))
    check_rules(db)


def test_damaged_data_is_refused(sqlite: Database) -> None:
    """Checks that hold with ``python -O`` as well."""
    fill(sqlite, Rules(), {"a": (1, 1)})
    one, two, _ = invite_people(sqlite, 2)
    choose(sqlite, one, 0.0, 5.0, side=0)
    sqlite.run(lambda session: session.execute(update(Slot).values(round=7)))
    with pytest.raises(StoreError):
        undo(sqlite, one, 6.0)
    assert next_task(sqlite, two, 0.0) is not None
    held = update(Slot).where(Slot.person_id == two)
    sqlite.run(lambda session: session.execute(held.values(lease=None)))
    with pytest.raises(StoreError):
        next_task(sqlite, two, 1.0)


def test_invalid_answers(sqlite: Database) -> None:
    fill(sqlite, Rules(), {"a": (1, 1)})
    one, reviser = invite_people(sqlite, 1)
    task, revision = next_task(sqlite, one, 0.0), next_task(sqlite, reviser, 0.0)
    assert task is not None
    assert revision is not None
    for side in (2, None, True):
        with pytest.raises(InputError):
            Choice(side)  # type: ignore[arg-type]
    for text in ("", "  \n", "x" * 4001, "half \ud800", "nul \0", None):
        with pytest.raises(InputError):
            Revision(text)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        Look(1)  # type: ignore[arg-type]
    for person, lease, reply in (
        (one, task.lease, Revision("a dog on a beach")),
        (one, task.lease, Look(True)),
        (reviser, revision.lease, Choice(0)),
    ):
        with pytest.raises(InputError):
            submit(sqlite, person, lease, new_submission(), 1.0, reply)
    with pytest.raises(InputError):
        submit(sqlite, one, task.lease, "short", 1.0, Choice(0))
    with pytest.raises(InputError):
        skip(sqlite, one, task.lease, " ", 1.0)
    with pytest.raises(NotAllowedError):
        next_task(sqlite, 999, 0.0)
    with pytest.raises(NotAllowedError):
        undo(sqlite, one, 1.0)
    nasty = "'); DROP TABLE answer; -- <script>"
    submit(sqlite, reviser, revision.lease, new_submission(), 1.0, Revision(nasty))
    assert scalars(sqlite, select(Answer.text)) == [nasty]


def test_sqlite_writers_take_turns(sqlite: Database) -> None:
    """First come, first served: nobody waits while others write again and again."""
    fill(sqlite, Rules(), {"a": (1, 1)})
    order: list[int] = []

    def write(number: int) -> None:
        sqlite.run(lambda session: order.append(number))

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]

    def hold(session: Session) -> None:
        for number, thread in enumerate(threads, start=1):
            thread.start()
            while len(sqlite._turn._tickets) <= number:  # it queues before the next one does
                time.sleep(0.001)

    sqlite.run(hold)
    for thread in threads:
        thread.join()
    assert order == list(range(8))
    with pytest.raises(RuntimeError, match="boom"):
        sqlite.run(_boom)
    sqlite.run(lambda session: order.append(8))  # a failure gives the turn on


def _boom(session: Session) -> None:
    raise RuntimeError("boom")


def test_the_order_is_a_persons_own_and_domains_are_balanced(db: Database) -> None:
    """Everybody meets all domains from the start, in orders that differ."""
    domains = dict.fromkeys("abcd", (12, 12))
    fill(db, Rules(), domains)
    people = invite_people(db, 4, 0)
    seen: dict[int, list[str]] = {person: [] for person in people}
    together: dict[str, set[int]] = {}
    for _ in range(24):
        for person in people:
            task = choose(db, person, 1.0, 5.0)
            path = image_of(db, task).path
            seen[person].append(path)
            together.setdefault(path, set()).add(person)
    for paths in seen.values():
        for start in range(0, 24, 4):  # each block of four has each domain once
            assert {path[0] for path in paths[start : start + 4]} == set(domains)
    orders = {tuple(path[0] for path in paths[:8]) for paths in seen.values()}
    assert len(orders) == 4, "the domains come in another order for everybody"
    triples = {frozenset(who) for who in together.values() if len(who) == 3}
    assert len(triples) == 4, "all triples of four people meet"
    check_rules(db)


def test_domains_are_met_in_proportion_to_their_quotas(sqlite: Database) -> None:
    fill(sqlite, Rules(), {"large": (30, 30), "small": (10, 10)})
    (one,) = invite_people(sqlite, 1, 0)
    seen = [choose(sqlite, one, 1.0, 5.0).captions[0] for _ in range(20)]
    assert sum("small" in caption for caption in seen) == 5


def test_the_next_task_follows_from_seed_person_and_digest(tmp_path: Path) -> None:
    """The same campaign twice gives everybody the same order, another seed another one."""
    orders = []
    for number, seed in enumerate((0, 0, 1)):
        with Database(str(tmp_path / f"{number}.db")) as made:
            fill(made, Rules(seed=seed), {"a": (9, 9), "b": (9, 9)})
            (one,) = invite_people(made, 1, 0)
            orders.append([choose(made, one, 1.0, 5.0).captions for _ in range(18)])
    assert orders[0] == orders[1] != orders[2]
    assert len(set(orders[0])) == 18


def test_images_are_finished_one_after_another(sqlite: Database) -> None:
    """A campaign that stops half-way has images that are done, not all of them half-judged."""
    fill(sqlite, Rules(), {"a": (100, 100)})
    people = invite_people(sqlite, 3)
    for _ in range(40):
        for person in people:
            work_once(sqlite, person, 1.0, random.Random(0))
    assert states(sqlite)["done"] >= 12
    check_rules(sqlite)


def reviser(db: Database) -> int:
    (one,) = invite(db, ["Rita"], "reviser", 0.0)
    return one.person


@pytest.mark.parametrize("text", ["x", "dog", ". . .", "   ", "a \u202edog", "a \x1b[31mdog"])
def test_what_is_no_caption_is_refused(sqlite: Database, text: str) -> None:
    fill(sqlite, Rules(), {"a": (1, 1)})
    person = reviser(sqlite)
    task = some(next_task(sqlite, person, 10.0))
    with pytest.raises(InputError):
        submit(sqlite, person, task.lease, new_submission(), 60.0, Revision(text))
    submit(sqlite, person, task.lease, new_submission(), 60.0, Revision("海辺の犬"))


def test_an_unchanged_or_hasty_revision_is_asked_back(sqlite: Database) -> None:
    fill(sqlite, Rules(), {"a": (1, 1)}, checks=Checks(gold_rate=0.0, quick_seconds=2.0))
    person = reviser(sqlite)
    task = some(next_task(sqlite, person, 10.0))
    (given,) = task.captions
    for now, text in ((60.0, f" {given.upper()}"), (13.9, "a better caption")):
        with pytest.raises(InputError):
            submit(sqlite, person, task.lease, new_submission(), now, Revision(text))
    submit(sqlite, person, task.lease, new_submission(), 14.1, Revision(given, unchanged=True))
    assert scalars(sqlite, select(Answer.text)) == [given]


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
    task = some(next_task(sqlite, person, 0.0))
    with pytest.raises(NotAllowedError):
        skip(sqlite, person, task.lease, "I cannot tell", 1.0)
    work_all(sqlite, [person, *invite_people(sqlite, 3, 0)], random.Random(0))
    check_rules(sqlite)
