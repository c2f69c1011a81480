"""The queue: who gets which task, and what becomes of answers.

Each function is one short transaction. A task is held by a lease, a random name that is all a
browser sees; a lease that has run out goes to whoever asks next, and until then its holder may
still answer. Two unique rules of the database (:class:`~discode.mceval.tables.Slot`) hold even if
this module were wrong: a slot is held once, and nobody has two slots of a picture.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from sqlalchemy import BindParameter, Executable, bindparam, func, select
from sqlalchemy.orm import Session, aliased

from discode.errors import InputError, NotAllowedError
from discode.mceval import people
from discode.mceval.database import LOCK, Database, checks_of, rules_of, settings_of
from discode.mceval.rules import Rules, number, swapped
from discode.mceval.states import log, put_back, settle
from discode.mceval.tables import (
    ROLES,
    Answer,
    Candidate,
    Domain,
    Image,
    Pass,
    Person,
    Slot,
    Void,
)  # fmt: skip
from discode.mceval.texts import check_submission, check_text

UNDO_SECONDS = 600.0


@dataclass(frozen=True)
class Task:
    """What a person is shown. Gold questions and the user study look like any comparison."""

    lease: str
    kind: str
    """"compare" or "revise"."""
    domain: str
    path: str
    """The picture's file; a server shows it under the lease's name, never under its own."""
    captions: tuple[str, ...]
    """Left and right, or the one to revise."""
    begun: float
    expires: float


@dataclass(frozen=True)
class Receipt:
    """An answer that is kept; ``again`` if it was there before."""

    answer: int
    again: bool = False


def next_task(db: Database, person: int, now: float) -> Task | None:
    """Return the task a person holds, or the next one; ``None`` if there is none for them now."""
    return db.run(lambda session: _next(session, person, now))


def task_of(db: Database, person: int, lease: str) -> Task:
    """Return a task that a person holds, by its lease."""
    with db.read() as session:
        slot = _held(session, _person(session, person, lock=False), lease, lock=False)
        return _task(session, slot)


def submit(
    db: Database,
    person: int,
    lease: str,
    submission: str,
    now: float,
    *,
    side: int | None = None,
    text: str | None = None,
) -> Receipt:
    """Keep an answer.

    Args:
        db: The campaign.
        person: Who answers.
        lease: The task's lease.
        submission: The browser's own name for this answer; sent twice, it counts once.
        now: The time.
        side: 0 if the left caption is better, 1 if the right; of a comparison.
        text: The revised caption; of a revision.

    Raises:
        NotAllowedError: The lease ran out and somebody else has the task, or the person may not.
        InputError: The answer is none.
    """
    check_submission(submission)

    def work(session: Session) -> tuple[Receipt, str]:
        receipt = _submit(session, person, lease, submission, now, side, text)
        judged = text is None and not receipt.again
        return receipt, people.fault_of(session, person) if judged else ""

    receipt, why = db.run(work)
    if why:  # a transaction of its own: it locks other pictures than this one
        people.mark_careless(db, person, why, now)
    return receipt


def undo(db: Database, person: int, now: float) -> Task:
    """Take back a person's last answer and give them its task again.

    A task they hold at the moment goes back to the queue.
    """
    return db.run(lambda session: _undo(session, person, now))


def skip(db: Database, person: int, lease: str, reason: str, now: float) -> None:
    """Give a task back for good, with a reason; enough people who skip discard the image."""
    db.run(lambda session: _pass(session, person, lease, "skip", reason, now))


def flag(db: Database, person: int, lease: str, reason: str, now: float) -> None:
    """Say that something is wrong with the picture; enough people who do discard it."""
    db.run(lambda session: _pass(session, person, lease, "flag", reason, now))


def heartbeat(db: Database, person: int, lease: str, now: float) -> float:
    """Extend a lease; the time it now ends."""

    def work(session: Session) -> float:
        slot = _held(session, _person(session, person), lease)
        slot.expires = now + settings_of(session).lease_seconds
        return slot.expires

    return db.run(work)


def _person(session: Session, person: int, *, lock: bool = True) -> Person:
    """Return an active person, locked: each person does one thing at a time."""
    found = session.get(Person, person, with_for_update=LOCK if lock else None)
    if found is None:
        raise NotAllowedError(f"nobody has the number {person}")
    if found.state != "active":
        raise NotAllowedError("your part in this campaign has ended; please ask its organisers")
    return found


def _held(session: Session, person: Person, lease: str, *, lock: bool = True) -> Slot:
    query = select(Slot).where(Slot.lease == lease)
    slot = session.scalar(query.with_for_update(key_share=True) if lock else query)
    if slot is None or slot.person_id != person.id or slot.state != "leased":
        raise NotAllowedError("this task is no longer yours: its time ran out, or it was answered")
    return slot


def _next(session: Session, person_id: int, now: float) -> Task | None:
    person = _person(session, person_id)
    rules = rules_of(session)
    held = session.scalar(
        select(Slot)
        .where(Slot.person_id == person.id, Slot.state == "leased")
        .with_for_update(key_share=True)
    )
    if held is not None:
        image = session.get_one(Image, held.image_id)
        if image.state in ("active", "gold") or (held.kind == "study" and image.state == "done"):
            alive = held.expires is not None and held.expires > now
            return _task(session, held if alive else _lease(session, held, person, now))
        put_back(session, held)  # discarded or finished meanwhile
        if held.kind != "study":
            held.state = "closed"
        session.flush()
    kinds = list(ROLES[person.role])
    if not kinds:
        return None
    count = _asked(session, person)
    if len(kinds) == 2 and number(rules.seed, "kind", person.id, count) % (rules.people + 1) == 0:
        kinds.reverse()  # who does both revises as often as there are revisions
    for wait in (False, True):  # what others are just looking at may come free
        for kind in kinds:
            slot = _pick(session, person, kind, now, wait=wait)
            if slot is not None:
                return _task(session, _gold(session, rules, person, slot, count, now) or
                             _lease(session, slot, person, now))  # fmt: skip
    return None


def _asked(session: Session, person: Person) -> int:
    """Return how many tasks a person has dealt with: the number in their draws."""
    counts = [
        select(func.count()).where(table.person_id == person.id).scalar_subquery()
        for table in (Answer, Pass)
    ]
    return sum(session.execute(select(*counts)).one())


def _pick(session: Session, person: Person, kind: str, now: float, *, wait: bool) -> Slot | None:
    """Return the first free slot that a person may have: what ran out first, then what is open."""
    for state in ("leased", "open"):
        given = {"person": person.id, "now": now}
        found: Slot | None = session.scalar(_free(kind, state, wait), given)
        if found is not None:
            return found
    return None


@cache  # building the question takes longer than answering it
def _free(kind: str, state: str, wait: bool) -> Executable:
    """Return the question for the first slot of a kind that is open, or whose lease ran out.

    A person may not have one of a picture they have another slot of, have passed, or have ever
    answered another kind of task on: who revised a caption does not compare its rivals.
    """
    person: BindParameter[int] = bindparam("person")
    other = aliased(Slot)
    mine = select(other.id).where(other.image_id == Slot.image_id, other.person_id == person)
    passed = select(Pass.id).where(Pass.image_id == Slot.image_id, Pass.person_id == person)
    answered = select(Answer.id).where(
        Answer.image_id == Slot.image_id, Answer.person_id == person, Answer.kind != kind
    )
    free = (
        select(Slot)
        .join(Image, Image.id == Slot.image_id)
        .where(Slot.state == state, Slot.kind == kind)
        .where(Image.state == ("done" if kind == "study" else "active"))
        .where(~mine.exists(), ~passed.exists(), ~answered.exists())
        .order_by(Slot.id)
        .limit(1)
        .with_for_update(key_share=True, of=Slot, skip_locked=not wait)
    )
    return free.where(Slot.expires <= bindparam("now")) if state == "leased" else free


def _gold(
    session: Session, rules: Rules, person: Person, slot: Slot, count: int, now: float
) -> Slot | None:
    """Return a gold question instead, at the campaign's rate, while there are new ones."""
    rate = checks_of(session).gold_rate
    if slot.kind == "revise" or number(rules.seed, "gold", person.id, count) >= rate * 2**64:
        return None
    seen = select(Slot.id).where(Slot.image_id == Image.id, Slot.person_id == person.id)
    passed = select(Pass.id).where(Pass.image_id == Image.id, Pass.person_id == person.id)
    fresh = session.scalars(
        select(Image.id)
        .where(Image.state == "gold", ~seen.exists(), ~passed.exists())
        .order_by(Image.id)
    ).all()
    if not fresh:
        return None
    image = fresh[number(rules.seed, "which", person.id, count) % len(fresh)]
    made = Slot(image_id=image, kind="gold", number=person.id, state="open", round=0)
    session.add(made)
    session.flush()
    return _lease(session, made, person, now)


def _lease(session: Session, slot: Slot, person: Person, now: float) -> Slot:
    if slot.person_id not in (None, person.id):
        log(session, "expired", now, person=slot.person_id, image=slot.image_id)
    slot.state, slot.person_id = "leased", person.id
    slot.lease = secrets.token_urlsafe(18)
    slot.leased_at = now
    slot.expires = now + settings_of(session).lease_seconds
    session.flush()
    log(session, "leased", now, person=person.id, image=slot.image_id, detail=slot.kind)
    return slot


def _task(session: Session, slot: Slot) -> Task:
    image = session.get_one(Image, slot.image_id)
    domain = session.scalar(select(Domain.name).where(Domain.id == image.domain_id))
    assert slot.lease is not None
    assert slot.person_id is not None
    if slot.kind == "revise":
        captions = _texts(session, (image.revised,))
    else:
        pair = (image.first, image.second)
        turned = swapped(rules_of(session), image.digest, slot.person_id)
        captions = _texts(session, pair[::-1] if turned else pair)
    return Task(
        slot.lease,
        "revise" if slot.kind == "revise" else "compare",
        domain or "",
        image.path,
        captions,
        slot.leased_at or 0.0,
        slot.expires or 0.0,
    )


def _texts(session: Session, ids: Sequence[int | None]) -> tuple[str, ...]:
    rows = session.execute(select(Candidate.id, Candidate.text).where(Candidate.id.in_(ids))).all()
    texts = {row[0]: row[1] for row in rows}
    return tuple(texts[one] for one in ids if one is not None)


def _submit(
    session: Session,
    person_id: int,
    lease: str,
    submission: str,
    now: float,
    side: int | None,
    text: str | None,
) -> Receipt:
    known = session.scalar(select(Answer).where(Answer.submission == submission))
    if known is not None:
        if known.person_id != person_id:
            raise NotAllowedError("this submission was somebody else's")
        return Receipt(known.id, again=True)
    person = _person(session, person_id)
    slot = _held(session, person, lease)
    image = session.get_one(Image, slot.image_id)
    turned = swapped(rules_of(session), image.digest, person.id)
    choice = None
    if slot.kind == "revise":
        if side is not None:
            raise InputError("a revision is answered with a text, not with a side")
        text = check_text(text, "a revised caption")
    else:
        if text is not None or side not in (0, 1) or isinstance(side, bool):
            raise InputError(f"a comparison is answered with side 0 or 1, not {side!r}")
        choice = 1 - side if turned else side
    answer = Answer(
        slot_id=slot.id, round=slot.round, image_id=slot.image_id, person_id=person.id,
        kind=slot.kind, submission=submission, choice=choice,
        swapped=turned and choice is not None, text=text,
        seconds=now - (slot.leased_at or now), created=now,
    )  # fmt: skip
    keep(session, slot, answer, now)
    return Receipt(answer.id)


def keep(session: Session, slot: Slot, answer: Answer, now: float) -> None:
    """Add an answer to a slot that its person holds, and work out what follows."""
    session.add(answer)
    slot.state = "answered"
    session.flush()
    log(session, "answered", now, person=answer.person_id, image=slot.image_id, detail=slot.kind)
    if slot.kind in ("compare", "revise"):
        settle(session, slot.image_id, now)


def _undo(session: Session, person_id: int, now: float) -> Task:
    person = _person(session, person_id)
    last = session.scalar(
        select(Answer)
        .where(Answer.person_id == person.id)
        .where(~select(Void.answer_id).where(Void.answer_id == Answer.id).exists())
        .order_by(Answer.id.desc())
        .limit(1)
    )
    if last is None or now - last.created > UNDO_SECONDS:
        raise NotAllowedError(
            f"there is nothing to take back: only answers of the last {UNDO_SECONDS / 60:g} "
            "minutes can be"
        )
    held = session.scalars(
        select(Slot)
        .where(Slot.person_id == person.id, Slot.state == "leased")
        .with_for_update(key_share=True)
    ).all()
    slot = session.get_one(Slot, last.slot_id, with_for_update=LOCK)
    assert slot.state == "answered"
    assert slot.round == last.round
    for one in held:
        put_back(session, one)
    session.add(Void(answer_id=last.id, reason="undo", created=now))
    slot.round += 1
    log(session, "undone", now, person=person.id, image=slot.image_id, detail=slot.kind)
    _lease(session, slot, person, now)
    if slot.kind in ("compare", "revise"):
        settle(session, slot.image_id, now)
    return _task(session, slot)


def _pass(session: Session, person_id: int, lease: str, kind: str, reason: str, now: float) -> None:
    reason = check_text(reason, "a reason")
    person = _person(session, person_id)
    slot = _held(session, person, lease)
    image = slot.image_id
    put_back(session, slot)
    session.add(Pass(image_id=image, person_id=person.id, kind=kind, reason=reason, created=now))
    log(session, kind, now, person=person.id, image=image, detail=reason)
    settle(session, image, now)
