"""Small campaigns for tests: made without images, worked on by simulated people."""

from __future__ import annotations

import hashlib
import itertools
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from discode.errors import NotAllowedError
from mceval._checks import Checks
from mceval._report import votes_by_image
from mceval._states import prepare_images
from mceval._tables import DISCARDED_BY, Answer, Candidate, Domain, Image, Slot, Void
from mceval.database import Database, rules_of
from mceval.people import invite
from mceval.queue import Choice, Look, Revision, Task, next_task, submit
from mceval.rules import Rules, Verdict, rank_of, verdict

WRITERS = ("w1", "w2", "w3", "w4")
T = TypeVar("T")
P = ParamSpec("P")
CALM = Checks(gold_rate=0.0, quick_seconds=0.0)


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


class Picture(NamedTuple):
    """An image of a campaign, with its captions in the order of writers."""

    path: str
    source: str
    digest: str
    captions: tuple[str, ...]


def fill(
    db: Database,
    rules: Rules,
    domains: dict[str, tuple[int, int]],
    *,
    checks: Checks = CALM,
    gold: int = 0,
    lease: float = 900.0,
) -> None:
    """Make a campaign without files: ``domains`` by name, quota and how many images there are.

    Captions name their image and writer; the better of two is the one whose writer's name is lower.
    """
    pictures = {
        name: (quota, [
            Picture(
                f"{name}/{i}.png", f"{name}/{i}.png", digest(name, i),
                tuple(f"{w} says {name} {i}" for w in WRITERS[: rules.writers]),
            )
            for i in range(count)
        ])
        for name, (quota, count) in domains.items()
    }  # fmt: skip
    questions = [
        Picture(f"gold/{i}.png", "", digest("gold", i), ("right", "wrong")) for i in range(gold)
    ]
    begin(db, rules, pictures, questions, checks=checks, lease_seconds=lease)


def begin(
    db: Database,
    rules: Rules,
    domains: Mapping[str, tuple[int, list[Picture]]],
    gold: list[Picture],
    **settings: Any,
) -> None:
    """Make a campaign of pictures; of a gold question, the first caption is right."""
    db.create(rules, **settings)

    def add(session: Session, picture: Picture, **columns: Any) -> tuple[Image, list[Candidate]]:
        image = Image(
            digest=picture.digest, path=picture.path, source=picture.source,
            rank=rank_of(rules, picture.digest), **columns,
        )  # fmt: skip
        session.add(image)
        session.flush()
        captions = [
            Candidate(image_id=image.id, writer=writer, text=text)
            for writer, text in zip(WRITERS, picture.captions, strict=False)
        ]
        session.add_all(captions)
        session.flush()
        return image, captions

    def work(session: Session) -> None:
        for name, (quota, pictures) in domains.items():
            domain = Domain(name=name, quota=quota)
            session.add(domain)
            session.flush()
            for picture in pictures:
                add(session, picture, domain_id=domain.id, state="pool")
        for i, picture in enumerate(gold):
            key = f"gold {i}"
            image, pair = add(session, picture, state="gold", state_key=key, gold=i % 2)
            first, second = pair[::-1] if i % 2 else pair
            image.first, image.second = first.id, second.id
        session.flush()
        prepare_images(session, 0.0)

    db.run(work)


def show_files(db: Database, files: Sequence[Path]) -> None:
    """Let the images of a campaign be these files, in order."""

    def work(session: Session) -> None:
        for image, path in zip(session.scalars(select(Image)).all(), files, strict=True):
            image.path, image.digest = str(path), hashlib.sha256(path.read_bytes()).hexdigest()

    db.run(work)


def some(value: T | None) -> T:
    """Return what must be there."""
    assert value is not None
    return value


def ask(
    db: Database, question: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Return what a function of a session says."""
    with db.read() as session:
        return question(session, *args, **kwargs)


def at_once(act: Callable[[T], object], items: Iterable[T]) -> None:
    """Call a function for each item in a thread of its own; raise what the first one raised."""
    errors: list[BaseException] = []

    def call(item: T) -> None:
        try:
            act(item)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(item,)) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def scalar(db: Database, query: Select[Any]) -> Any:
    return ask(db, lambda session: session.scalar(query))


def scalars(db: Database, query: Select[Any]) -> list[Any]:
    return ask(db, lambda session: list(session.scalars(query)))


def image_of(db: Database, task: Task) -> Image:
    """The image of a task, by the lease under which somebody holds or answered it."""
    query = select(Image).join(Slot, Slot.image_id == Image.id).where(Slot.lease == task.lease)
    with db.read() as session:
        return session.scalars(query).one()


def invite_people(db: Database, comparers: int, revisers: int = 1) -> list[int]:
    """Add people; their numbers."""
    made = invite(db, [f"c{i}" for i in range(comparers)], "comparer", 0.0)
    made += invite(db, [f"r{i}" for i in range(revisers)], "reviser", 0.0)
    return [one.person for one in made]


def states(db: Database) -> dict[str, int]:
    """How many images are in each state."""
    with db.read() as session:
        rows = session.execute(select(Image.state, func.count()).group_by(Image.state)).all()
    return {row[0]: row[1] for row in rows}


_names = itertools.count()


def new_submission() -> str:
    return f"submission-{next(_names)}"


def better(task: Task) -> int:
    """The side of the better caption."""
    left, right = task.captions
    return 0 if left < right else 1


def choose(
    db: Database,
    person: int,
    now: float,
    then: float,
    *,
    right: bool = True,
    side: int | None = None,
) -> Task:
    """Let a person compare: the better caption, the other one, or a side; return the task."""
    task = some(next_task(db, person, now))
    if side is None:
        side = better(task) if right else 1 - better(task)
    submit(db, person, task.lease, new_submission(), then, Choice(side))
    return task


def work_once(
    db: Database, person: int, now: float, rng: random.Random, accuracy: float = 1.0
) -> bool:
    """Let a person do one task; whether there was one."""
    task = next_task(db, person, now)
    if task is None:
        return False
    if task.kind == "revise":
        given = task.captions[0].replace("wrong", "right")  # of a gold question
        submit(db, person, task.lease, new_submission(), now + 9, Revision(f"{given}, revised"))
    elif task.kind == "look":
        accepted = rng.random() < accuracy
        submit(db, person, task.lease, new_submission(), now + 5, Look(accepted))
    else:
        side = better(task) if rng.random() < accuracy else 1 - better(task)
        submit(db, person, task.lease, new_submission(), now + 5, Choice(side))
    return True


def work_all(
    db: Database,
    people: list[int],
    rng: random.Random,
    accuracy: float = 1.0,
    *,
    limit: int = 10_000,
    start: float = 1000.0,
) -> int:
    """Let people work until nobody finds a task; how many were done."""
    done, now = 0, start
    while done < limit:
        now += 10
        busy = 0
        for person in people:
            try:
                busy += work_once(db, person, now, rng, accuracy)
            except NotAllowedError:
                continue  # careless by now
        if not busy:
            break
        done += busy
    return done


def check_rules(db: Database, *, settled: bool = True) -> None:
    """Assert that the database follows every one of the paper's rules.

    ``settled``: nothing was taken back after its image had been replaced, so no domain has more
    in hand than its quota.
    """
    with db.read() as session:
        rules = rules_of(session)
        void = set(session.scalars(select(Void.answer_id)).all())
        answers = [a for a in session.scalars(select(Answer)).all() if a.id not in void]
        slots = {row[0]: row[1] for row in session.execute(select(Slot.id, Slot.number)).all()}
        by_image: dict[int, list[Answer]] = {}
        for answer in answers:
            by_image.setdefault(answer.image_id, []).append(answer)
        assert len({(a.slot_id, a.round) for a in session.scalars(select(Answer)).all()}) == len(
            session.scalars(select(Answer.id)).all()
        )
        votes = {image: choices for image, _, choices in votes_by_image(session)}
        for image in session.scalars(select(Image)).all():
            kinds = by_image.get(image.id, [])
            people = [a.person_id for a in kinds if a.kind in ("compare", "revise", "look")]
            assert len(set(people)) == len(people), "one person, one task of an image"
            compared = [a for a in kinds if a.kind == "compare"]
            assert len(compared) <= rules.people, "never a fourth judgment"
            assert votes.get(image.id, []) == [a.choice for a in sorted(compared, key=_id)]
            if image.state == "done":
                assert len(compared) == rules.people
                found = verdict(rules, [a.choice or 0 for a in compared])
                assert found == Verdict("agreed", image.preference)
                revised = {slots[a.slot_id]: a for a in kinds if a.kind == "revise"}
                looks = {slots[a.slot_id]: a for a in kinds if a.kind == "look" and a.choice}
                made = [n for n, a in revised.items() if a.text == image.reference]
                assert made == [0] if not rules.second_look else made
                if rules.second_look:
                    assert any(n in looks and revised[n].id < looks[n].id for n in made), (
                        "accepted by somebody else, who saw this text"
                    )
            assert (image.state == "discarded") == (image.discarded_by in DISCARDED_BY)
            if image.discarded_by == "no_consensus":
                assert verdict(rules, [a.choice or 0 for a in compared]).state == "split"
            if image.first is not None and image.state != "gold":
                assert len({image.first, image.second, image.revised}) == 3
        for domain in session.scalars(select(Domain)).all():
            counts: dict[str, int] = {}
            for state in session.scalars(
                select(Image.state).where(Image.domain_id == domain.id)
            ).all():
                counts[state] = counts.get(state, 0) + 1
            in_hand = counts.get("done", 0) + counts.get("active", 0)
            assert in_hand <= domain.quota or not settled
            full = in_hand >= domain.quota
            assert full or not counts.get("pool", 0), "replaced until the pool is empty"
        leased = session.scalars(select(Slot.person_id).where(Slot.state == "leased")).all()
        assert len(set(leased)) == len(leased)
        doubled = session.scalar(
            select(func.count()).select_from(
                select(Slot.image_id)
                .where(Slot.kind == "compare")
                .group_by(Slot.image_id)
                .having(func.count() != rules.people)
                .subquery()
            )
        )
        assert doubled == 0


def _id(answer: Answer) -> int:
    return answer.id
