"""Anything may happen in any order; the rules hold after every step."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discode.errors import NotAllowedError
from mceval._checks import Checks
from mceval._report import domain_rows, person_rows
from mceval.database import Database
from mceval.people import invite, mark_careless, reinstate
from mceval.queue import (
    Choice,
    Look,
    Revision,
    Task,
    flag,
    heartbeat,
    next_task,
    skip,
    submit,
    undo,
)
from mceval.rules import Rules
from tests.helpers.campaigns import better, check_rules, fill, new_submission, work_all

ACTIONS = ["next"] * 4 + ["submit"] * 8 + ["late", "undo", "undo", "skip", "flag", "beat",
                                           "careless", "reinstate", "wait"]  # fmt: skip


class World:
    """People who do what a list of actions says."""

    def __init__(self, db: Database, people: list[int], seed: int) -> None:
        self.db, self.people, self.rng = db, people, random.Random(seed)
        self.now = 0.0
        self.held: dict[int, Task] = {}
        self.old: list[tuple[int, Task]] = []

    def act(self, action: str) -> None:
        person = self.rng.choice(self.people)
        self.now += self.rng.choice([1.0, 5.0, 20.0])
        task = self.held.get(person)
        try:
            if action == "next":
                found = next_task(self.db, person, self.now)
                if found is not None:
                    self.held[person] = found
            elif action == "undo":
                back = undo(self.db, person, self.now)
                if back is None:  # a flag was taken back, and somebody else has the task
                    self.held.pop(person, None)
                else:
                    self.held[person] = back
            elif action == "careless" and self.rng.random() < 0.3:
                mark_careless(self.db, person, "chance", self.now)
            elif action == "reinstate":
                reinstate(self.db, person, self.now)
            elif action == "wait":
                self.now += self.rng.choice([30.0, 100.0])
            elif action == "late" and self.old:
                self.answer(*self.rng.choice(self.old))
            elif task is not None:
                self.with_task(action, person, task)
        except NotAllowedError:
            self.held.pop(person, None)

    def with_task(self, action: str, person: int, task: Task) -> None:
        if action == "submit":
            self.answer(person, task)
        elif action == "beat":
            heartbeat(self.db, person, task.lease, self.now)
            return
        elif action in ("skip", "flag"):
            (skip if action == "skip" else flag)(self.db, person, task.lease, "why", self.now)
        self.old.append((person, self.held.pop(person)))

    def answer(self, person: int, task: Task) -> None:
        if task.kind == "revise":
            text = f"it is revised by {person} at {self.now}"
            submit(self.db, person, task.lease, new_submission(), self.now, Revision(text))
        elif task.kind == "look":
            good = self.rng.random() < 0.6
            submit(self.db, person, task.lease, new_submission(), self.now, Look(good))
        else:
            side = better(task) if self.rng.random() < 0.8 else 1 - better(task)
            submit(self.db, person, task.lease, new_submission(), self.now, Choice(side))


@settings(max_examples=8)
@given(
    st.lists(st.sampled_from(ACTIONS), min_size=30, max_size=120),
    st.integers(0, 2**32),
    st.sampled_from(["always", "agreed"]),
    st.sampled_from(["all", "majority"]),
    st.booleans(),
)
def test_the_rules_hold_whatever_happens(
    actions: list[str], seed: int, revise: str, consensus: str, second_look: bool
) -> None:
    with Database("sqlite://") as db:
        rules = Rules(
            seed=seed, revise=revise, consensus=consensus, skips=2, second_look=second_look
        )
        checks = Checks(gold_rate=0.2, gold_after=3, quick_seconds=0.0)
        fill(db, rules, {"a": (2, 6), "b": (1, 3)}, checks=checks, gold=3, lease=60.0)
        people = [
            one.person
            for role in ("both", "comparer", "reviser")
            for one in invite(db, ["x", "y", "z"], role, 0.0)
        ]
        world = World(db, people, seed)
        for number, action in enumerate(actions):
            world.act(action)
            if number % 10 == 0:
                check_rules(db, settled=False)
        check_rules(db, settled=False)
        # whatever was left lying about, new people bring it to its end
        fresh = [one.person for one in invite(db, ["n"] * 5, "both", 0.0)]
        work_all(db, fresh, random.Random(seed), start=world.now + 1000)
        check_rules(db, settled=False)
        with db.read() as session:
            for row in domain_rows(session):
                assert row.states.get("active", 0) == 0
                done, pool = row.states.get("done", 0), row.states.get("pool", 0)
                assert done >= row.quota or pool == 0
            assert len(person_rows(session)) == 14


@pytest.mark.parametrize("seed", range(3))
def test_the_rules_hold_on_postgres(postgres_url: str, seed: int) -> None:
    from mceval._tables import Base

    rng = random.Random(seed)
    with Database(postgres_url) as db:
        Base.metadata.drop_all(db.engine)
        fill(db, Rules(seed=seed, second_look=seed == 0), {"a": (3, 8)}, lease=60.0)
        people = [one.person for one in invite(db, list("abcdef"), "both", 0.0)]
        world = World(db, people, seed)
        for _ in range(120):
            world.act(rng.choice(ACTIONS))
        check_rules(db, settled=False)
