"""People: invitations, tokens, who is careless and what happens to their work."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from discode.errors import InputError, NotAllowedError, lookup
from discode.mceval.checks import Record, fault
from discode.mceval.database import LOCK, Database, checks_of
from discode.mceval.states import log, put_back, settle
from discode.mceval.tables import ROLES, Answer, Image, Person, Slot, Void


@dataclass(frozen=True)
class Invitation:
    """A person and their token, which is shown once and kept nowhere."""

    person: int
    name: str
    role: str
    token: str


def invite(db: Database, names: Sequence[str], role: str, now: float) -> list[Invitation]:
    """Add people; their tokens are in what is returned and nowhere else."""
    lookup(ROLES, role, "role")
    for name in names:
        if not name.strip() or len(name) > 200 or "\0" in name:
            raise InputError(f"{name!r} is no name: 1 to 200 characters")
    tokens = [secrets.token_urlsafe(24) for _ in names]

    def work(session: Session) -> list[Invitation]:
        made = []
        for name, token in zip(names, tokens, strict=True):
            row = Person(name=name, role=role, token_hash=hash_token(token), created=now)
            session.add(row)
            session.flush()
            log(session, "invited", now, person=row.id, detail=role)
            made.append(Invitation(row.id, name, role, token))
        return made

    return db.run(work)


def hash_token(token: str) -> str:
    """Return what is kept of a token. It has 192 random bits, so a plain hash is enough."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def find(db: Database, token: str) -> Person | None:
    """Return the person whose token this is."""
    with db.read() as session:
        return session.scalar(select(Person).where(Person.token_hash == hash_token(token)))


def consent(db: Database, person: int, now: float) -> None:
    """Note that a person has read the instructions and agreed to take part."""

    def work(session: Session) -> None:
        row = session.get_one(Person, person, with_for_update=LOCK)
        if row.consented is None:
            row.consented = now
            log(session, "consented", now, person=person)

    db.run(work)


def record_of(session: Session, person: int) -> Record:
    """Return what is known of a person from the answers that count."""
    quick = checks_of(session).quick_seconds
    void = select(Void.answer_id).where(Void.answer_id == Answer.id)
    row = session.execute(
        select(
            func.count(),
            func.sum(case((Answer.kind == "gold", 1), else_=0)),
            func.sum(case((Image.gold == Answer.choice, 1), else_=0)),
            func.sum(case((Answer.seconds < quick, 1), else_=0)),
        )
        .join(Image, Image.id == Answer.image_id)
        .where(Answer.person_id == person, Answer.kind != "revise", ~void.exists())
    ).one()
    compared, gold, right, quick_ones = (int(value or 0) for value in row)
    return Record(gold=gold, right=right, compared=compared, quick=quick_ones)


def fault_of(session: Session, person: int) -> str:
    """Return why a person is to be marked as careless now, or ""."""
    checks = checks_of(session)
    return fault(checks, record_of(session, person)) if checks.automatic else ""


def mark_careless(db: Database, person: int, reason: str, now: float) -> int:
    """End a person's part and put their work back in the queue; their answers stay, void.

    Returns:
        How many answers no longer count.
    """

    def work(session: Session) -> int:
        row = session.get(Person, person, with_for_update=LOCK)
        if row is None:
            raise NotAllowedError(f"nobody has the number {person}")
        if row.state == "careless":
            return 0
        row.state, row.reason = "careless", reason
        log(session, "careless", now, person=person, detail=reason)
        slots = session.scalars(
            select(Slot)
            .where(Slot.person_id == person)
            .order_by(Slot.id)
            .with_for_update(key_share=True)
        ).all()
        # Pictures are locked in one order before any domain is: so two of these cannot wait
        # for each other.
        ids = sorted({slot.image_id for slot in slots})
        session.scalars(
            select(Image)
            .where(Image.id.in_(ids))
            .order_by(Image.id)
            .with_for_update(key_share=True)
        ).all()
        void = select(Void.answer_id).where(Void.answer_id == Answer.id)
        answers = session.scalars(
            select(Answer).where(Answer.person_id == person, ~void.exists())
        ).all()
        session.add_all(Void(answer_id=a.id, reason="careless", created=now) for a in answers)
        for slot in slots:
            if slot.kind != "gold" or slot.state == "leased":
                put_back(session, slot)
        session.flush()
        for image in ids:
            settle(session, image, now)
        return len(answers)

    return db.run(work)


def reinstate(db: Database, person: int, now: float) -> None:
    """Let a person work again; what was put back stays put back, and they start afresh."""

    def work(session: Session) -> None:
        row = session.get(Person, person, with_for_update=LOCK)
        if row is None:
            raise NotAllowedError(f"nobody has the number {person}")
        row.state, row.reason = "active", ""
        log(session, "reinstated", now, person=person)

    db.run(work)
