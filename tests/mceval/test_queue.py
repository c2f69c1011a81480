from __future__ import annotations

import random
import threading

import pytest
from sqlalchemy import func, select

from discode.mceval.database import Database
from discode.mceval.queue import next_task, submit
from discode.mceval.rules import Rules
from discode.mceval.tables import Answer, Image
from tests.mceval.campaigns import better, check_rules, crew, fill, name, work_all


def states(db: Database) -> dict[str, int]:
    with db.read() as session:
        rows = session.execute(select(Image.state, func.count()).group_by(Image.state)).all()
    return {row[0]: row[1] for row in rows}


def test_a_campaign_from_pool_to_quota(db: Database) -> None:
    fill(db, Rules(), {"a": (4, 12), "b": (3, 9)})
    assert states(db) == {"active": 7, "pool": 14}
    done = work_all(db, crew(db, 4), random.Random(0), accuracy=0.8)
    check_rules(db)
    counts = states(db)
    assert counts["done"] + counts.get("discarded", 0) + counts.get("pool", 0) == 21
    assert done >= 4 * counts["done"]


@pytest.mark.parametrize("kind", ["always", "agreed"])
def test_majority_discards_nothing(sqlite: Database, kind: str) -> None:
    fill(sqlite, Rules(consensus="majority", revise=kind), {"a": (5, 9)})
    work_all(sqlite, crew(sqlite, 4), random.Random(1), accuracy=0.5)
    check_rules(sqlite)
    assert states(sqlite) == {"done": 5, "pool": 4}


def test_many_people_at_once(db: Database) -> None:
    """Thirty threads, each a person: no slot twice, no fourth judgment, nothing lost."""
    fill(db, Rules(), {"a": (60, 130), "b": (60, 130)})
    people = crew(db, 26, 4)
    kept: list[int] = []
    errors: list[BaseException] = []

    def work(person: int) -> None:
        rng = random.Random(person)
        try:
            idle = 0
            while idle < 3:
                task = next_task(db, person, 10.0)
                if task is None:
                    idle += 1
                    continue
                idle = 0
                if task.kind == "revise":
                    receipt = submit(db, person, task.lease, name(), 20.0, text="revised")
                else:
                    side = better(task) if rng.random() < 0.9 else 1 - better(task)
                    receipt = submit(db, person, task.lease, name(), 20.0, side=side)
                kept.append(receipt.answer)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(person,)) for person in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    work_all(db, people, random.Random(0))
    check_rules(db)
    assert len(set(kept)) == len(kept)
    with db.read() as session:
        assert set(kept) <= set(session.scalars(select(Answer.id)).all())
    assert states(db)["done"] == 120
