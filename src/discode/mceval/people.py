"""The people of a campaign: invitations, tokens, consent, and what careless ones lose."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from discode.errors import InputError, NotAllowedError, lookup
from discode.mceval.checks import WorkRecord, careless_reason
from discode.mceval.database import LOCK, Database, checks_of
from discode.mceval.states import log_event, return_slot, settle_image
from discode.mceval.tables import ROLES, Answer, Image, Person, Slot, Void


@dataclass(frozen=True)
class Invitation:
    """A person and their token, which is shown once and not stored."""

    person: int
    name: str
    role: str
    token: str


def invite(db: Database, names: Sequence[str], role: str, now: float) -> list[Invitation]:
    """Add people; their tokens are in the invitations returned and nowhere else."""
    lookup(ROLES, role, "role")
    for name in names:
        if not name.strip() or len(name) > 200 or "\0" in name:
            raise InputError(f"{name!r} is not a name; give 1 to 200 characters")
    tokens = [secrets.token_urlsafe(24) for _ in names]

    def work(session: Session) -> list[Invitation]:
        made = []
        for name, token in zip(names, tokens, strict=True):
            row = Person(name=name, role=role, token_hash=hash_token(token), created=now)
            session.add(row)
            session.flush()
            log_event(session, "invited", now, person=row.id, detail=role)
            made.append(Invitation(row.id, name, role, token))
        return made

    return db.run(work)


def hash_token(token: str) -> str:
    """Return the hash that is stored of a token. With 192 random bits, SHA-256 is enough."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def person_by_token(db: Database, token: str) -> Person | None:
    """Return the person who has this token."""
    with db.read() as session:
        return session.scalar(select(Person).where(Person.token_hash == hash_token(token)))


def record_consent(db: Database, person: int, now: float) -> None:
    """Record that a person has read the instructions and agreed to take part."""

    def work(session: Session) -> None:
        row = session.get_one(Person, person, with_for_update=LOCK)
        if row.consented is None:
            row.consented = now
            log_event(session, "consented", now, person=person)

    db.run(work)


def work_record(session: Session, person: int) -> WorkRecord:
    """Return a person's record from the answers that count."""
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
    return WorkRecord(gold=gold, right=right, compared=compared, quick=quick_ones)


def carelessness_of(session: Session, person: int) -> str:
    """Return why a person should be marked as careless now, or ""."""
    checks = checks_of(session)
    return careless_reason(checks, work_record(session, person)) if checks.automatic else ""


def mark_careless(db: Database, person: int, reason: str, now: float) -> int:
    """End a person's part and return their work to the queue; their answers stay, marked void.

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
        log_event(session, "careless", now, person=person, detail=reason)
        slots = session.scalars(
            select(Slot)
            .where(Slot.person_id == person)
            .order_by(Slot.id)
            .with_for_update(key_share=True)
        ).all()
        # Images are locked in one order before any domain is, so that two of these calls cannot
        # wait for each other.
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
                return_slot(session, slot)
        session.flush()
        for image in ids:
            settle_image(session, image, now)
        return len(answers)

    return db.run(work)


def reinstate(db: Database, person: int, now: float) -> None:
    """Let a person work again; what was returned to the queue stays there, they start afresh."""

    def work(session: Session) -> None:
        row = session.get(Person, person, with_for_update=LOCK)
        if row is None:
            raise NotAllowedError(f"nobody has the number {person}")
        row.state, row.reason = "active", ""
        log_event(session, "reinstated", now, person=person)

    db.run(work)
