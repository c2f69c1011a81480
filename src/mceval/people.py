"""The people of a campaign: invitations, tokens, consent, leaving, and what careless ones lose."""

from __future__ import annotations

import hashlib
import itertools
import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from sqlalchemy import ColumnElement, case, delete, func, select, update
from sqlalchemy.orm import Session

from discode.errors import InputError, NotAllowedError, lookup
from mceval.checks import Evidence, WorkRecord, careless_reason, is_corrected
from mceval.database import (
    LOCK,
    CampaignSettings,
    Database,
    checks_of,
    settings_of,
    transaction,
)  # fmt: skip
from mceval.guide import guide_text
from mceval.states import (
    log_event,
    not_loaded,
    pass_counts,
    return_slot,
    settle_image,
)
from mceval.tables import (
    ROLES,
    Answer,
    Candidate,
    Event,
    Finding,
    GuideCopy,
    Image,
    Login,
    Pass,
    PassVoid,
    Person,
    Slot,
    Void,
)  # fmt: skip
from mceval.texts import check_label

DAY = 86400.0
WITHDRAWN = "withdrawn"
"""Why the answers of somebody who wanted to be erased do not count."""


@dataclass(frozen=True)
class Invitation:
    """A person and their token, which is shown once and not stored."""

    person: int
    name: str
    role: str
    token: str


@transaction
def invite(
    session: Session, names: Sequence[str], role: str, now: float, *, days: float | None = None
) -> list[Invitation]:
    """Add people; their tokens are in the invitations returned and nowhere else.

    With ``days``, an invitation can be used for that long. A browser that has joined stays joined.
    """
    lookup(ROLES, role, "role")
    expires = _expiry(now, days)
    invitations = []
    for name in names:
        token = secrets.token_urlsafe(24)
        row = Person(
            name=check_label(name, "a person's name"), role=role, token_hash=hash_token(token),
            token_expires=expires, created=now,
        )  # fmt: skip
        session.add(row)
        session.flush()
        log_event(session, "invited", now, person=row.id, detail=role)
        invitations.append(Invitation(row.id, name, role, token))
    return invitations


def check_new_names(session: Session, names: Sequence[str]) -> None:
    """Raise if somebody has one of these names already: two people could not be told apart."""
    known = {row[0]: row[1] for row in session.execute(select(Person.name, Person.id)).all()}
    for number, name in enumerate(names):
        if name in known:
            raise InputError(
                f"{name!r} is person {known[name]} already; give another name, or reissue their "
                "invitation"
            )
        if name in names[:number]:
            raise InputError(f"{name!r} is given twice; give everybody a name of their own")


def numbered_names(session: Session, role: str, count: int) -> list[str]:
    """Return so many new names of a role: "comparer 1", ..., after those that are there."""
    taken = set(session.scalars(select(Person.name).where(Person.name.startswith(f"{role} "))))
    free = (f"{role} {number}" for number in itertools.count(1))
    return list(itertools.islice((name for name in free if name not in taken), count))


def hash_token(token: str) -> str:
    """Return the hash that is stored of a token. With 192 random bits, SHA-256 is enough."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _expiry(now: float, days: float | None) -> float | None:
    if days is not None and not 0 < days <= 3650:
        raise InputError(f"days={days!r} must be above 0 and at most 3650")
    return None if days is None else now + days * DAY


def person_by_token(db: Database, token: str, now: float) -> Person | None:
    """Return the person who has this token, unless it has expired."""
    with db.read() as session:
        found = session.scalar(select(Person).where(Person.token_hash == hash_token(token)))
    if found is None or (found.token_expires is not None and found.token_expires <= now):
        return None
    return found


@transaction
def reissue(
    session: Session, person: int, now: float, *, days: float | None = None, by: int | None = None
) -> Invitation:
    """Return a new invitation for somebody; the old link and all their browsers stop working."""
    token = secrets.token_urlsafe(24)
    expires = _expiry(now, days)
    row = _locked(session, person)
    if row.worker is not None:
        raise InputError(f"person {person} came from a crowd platform and has no invitation")
    if row.state != "active":
        raise NotAllowedError(f"person {person} is {row.state}; reinstate them first")
    row.token_hash, row.token_expires = hash_token(token), expires
    session.execute(delete(Login).where(Login.person_id == person))
    log_event(session, "reissued", now, person=person, detail=_by(by))
    return Invitation(row.id, row.name, row.role, token)


@transaction
def use_up_invitation(session: Session, person: int, now: float) -> None:
    """End a person's invitation and all their browsers' sessions, as they chose when signing out.

    They stay part of the campaign; organisers can reissue the invitation.
    """
    row = _locked(session, person)
    _shut_out(session, row)
    log_event(session, "used_up", now, person=person)


@transaction
def revoke(
    session: Session, person: int, reason: str, now: float, *, by: int | None = None
) -> None:
    """End somebody's part at once, an admin's too: their link and their browsers stop working.

    Answers that they gave count on; :func:`mark_careless` takes those away.
    """
    if by == person:
        raise InputError("you cannot revoke yourself; ask another organiser")
    row = _locked(session, person)
    _shut_out(session, row)
    _end_part(session, row, "revoked", reason, now, by)


@transaction
def withdraw(session: Session, person: int, now: float) -> None:
    """Let a person leave of their own wish: no further tasks, and what they did still counts."""
    _end_part(session, _locked(session, person), "left", "withdrew", now, None)


def _end_part(
    session: Session, row: Person, kind: str, reason: str, now: float, by: int | None
) -> None:
    if row.state != "active":
        return
    _record_finding(session, row.id, kind, reason, now, by)
    row.state, row.reason = "left", reason
    log_event(session, kind, now, person=row.id, detail=_by(by, reason))
    held = select(Slot).where(Slot.person_id == row.id, Slot.state == "leased")
    for slot in session.scalars(held.with_for_update(key_share=True)).all():
        return_slot(session, slot)


def _locked(session: Session, person: int) -> Person:
    row = session.get(Person, person, with_for_update=LOCK)
    if row is None:
        raise NotAllowedError(f"nobody has the number {person}")
    return row


def _shut_out(session: Session, row: Person) -> None:
    row.token_hash = row.token_expires = None
    session.execute(delete(Login).where(Login.person_id == row.id))


def _by(organiser: int | None, reason: str = "") -> str:
    return reason if organiser is None else f"{reason} (by person {organiser})".strip()


def _record_finding(
    session: Session, person: int, kind: str, reason: str, now: float, by: int | None
) -> None:
    evidence = json.dumps(asdict(evidence_of(session, person)), sort_keys=True)
    session.add(
        Finding(
            person_id=person, kind=kind, organiser_id=by, reason=reason, evidence=evidence,
            created=now,
        )
    )  # fmt: skip


@transaction
def record_consent(session: Session, person: int, now: float) -> None:
    """Record that a person has read the guide, which is kept, and agreed to take part."""
    row = session.get_one(Person, person, with_for_update=LOCK)
    if row.consented is None:
        row.consented = now
        log_event(session, "consented", now, person=person)
        keep_guide(session, now)


def guide_of(settings: CampaignSettings) -> str:
    """Return a campaign's guide as plain text."""
    rules = settings.rules
    return guide_text(
        instructions=settings.instructions.strip(), look=rules.second_look, skips=rules.skips > 0
    )


def keep_guide(session: Session, now: float) -> None:
    """Keep a copy of the guide, which somebody is shown now; the same words are kept once."""
    text = guide_of(settings_of(session))
    digest = hashlib.sha256(text.encode()).hexdigest()
    if session.get(GuideCopy, digest) is None:
        session.add(GuideCopy(digest=digest, text=text, created=now))


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
    # A reviser's gold questions are texts. There are few.
    revised = session.execute(
        select(Answer.text, Image)
        .join(Image, Image.id == Answer.image_id)
        .where(Answer.person_id == person, Answer.kind == "gold", Answer.text.is_not(None))
        .where(~void.exists())
    ).all()
    for text, image in revised:
        wrong = session.get_one(Candidate, wrong_caption(image)).text
        good = session.get_one(Candidate, image.second if image.gold else image.first).text
        right += is_corrected(text or "", wrong, good)
    return WorkRecord(gold=gold, right=right, compared=compared, quick=quick_ones)


def wrong_caption(image: Image) -> int | None:
    """Return the wrong caption of a gold question."""
    return image.first if image.gold else image.second


def evidence_of(session: Session, person: int) -> Evidence:
    """Return what a decision about a person is made on: their work that counts now."""
    record = work_record(session, person)
    void = select(Void.answer_id).where(Void.answer_id == Answer.id)
    seconds = session.scalars(
        select(Answer.seconds).where(Answer.person_id == person, ~void.exists())
    ).all()
    rows = session.execute(
        select(Pass.kind, func.count())
        .where(Pass.person_id == person, ~taken_back())
        .group_by(Pass.kind)
    ).all()
    passes = {row[0]: row[1] for row in rows}
    return Evidence(
        answers=len(seconds), compared=record.compared, gold=record.gold, right=record.right,
        quick=record.quick, median_seconds=round(median(seconds), 3) if seconds else None,
        flags=passes.get("flag", 0), skips=passes.get("skip", 0),
    )  # fmt: skip


def taken_back() -> ColumnElement[bool]:
    """Return the condition that a person took a skip or flag back."""
    undone = select(PassVoid.id).where(PassVoid.pass_id == Pass.id, PassVoid.reason == "undo")
    return undone.exists()


def dealt_with(session: Session, person: int) -> int:
    """Return how many tasks a person has dealt with: the number in their draws."""
    counts = [
        select(func.count()).where(table.person_id == person).scalar_subquery()
        for table in (Answer, Pass)
    ]
    return sum(session.execute(select(*counts)).one())


def passes_of(session: Session, person: int, kind: str) -> int:
    """Return how many flags, or skips, of images that loaded a person has and did not take back."""
    query = select(func.count()).where(Pass.person_id == person, Pass.kind == kind)
    return session.scalar(query.where(~taken_back(), ~not_loaded())) or 0


def carelessness_of(session: Session, person: int) -> str:
    """Return why a person should be marked as careless now, or ""."""
    checks = checks_of(session)
    return careless_reason(checks, work_record(session, person)) if checks.automatic else ""


@transaction
def mark_careless(
    session: Session, person: int, reason: str, now: float, *, by: int | None = None
) -> int:
    """End a person's part and return their work to the queue; their answers stay, marked void.

    Their skips and flags no longer count either. What the decision was made on is kept as a
    :class:`~mceval.tables.Finding`.

    Returns:
        How many answers no longer count.
    """
    row = _locked(session, person)
    if row.state == "careless":
        return 0
    _record_finding(session, person, "careless", reason, now, by)
    row.state, row.reason = "careless", reason
    log_event(session, "careless", now, person=person, detail=_by(by, reason))
    return _put_back(session, person, "careless", now)


def _put_back(session: Session, person: int, reason: str, now: float) -> int:
    """Return a person's work to the queue for a reason of ``Void``; how many answers that is."""
    slots = session.scalars(
        select(Slot)
        .where(Slot.person_id == person)
        .order_by(Slot.id)
        .with_for_update(key_share=True)
    ).all()
    passes = session.scalars(select(Pass).where(Pass.person_id == person, pass_counts())).all()
    # Images are locked in one order before any domain is, so that two of these calls cannot
    # wait for each other.
    ids = sorted({slot.image_id for slot in slots} | {one.image_id for one in passes})
    session.scalars(
        select(Image).where(Image.id.in_(ids)).order_by(Image.id).with_for_update(key_share=True)
    ).all()
    void = select(Void.answer_id).where(Void.answer_id == Answer.id)
    answers = session.scalars(
        select(Answer).where(Answer.person_id == person, ~void.exists())
    ).all()
    session.add_all(Void(answer_id=a.id, reason=reason, created=now) for a in answers)
    session.add_all(PassVoid(pass_id=p.id, reason=reason, created=now) for p in passes)
    for slot in slots:
        if slot.kind != "gold" or slot.state == "leased":
            return_slot(session, slot)
    session.flush()
    for image in ids:
        settle_image(session, image, now)
    return len(answers)


@transaction
def erase(session: Session, person: int, now: float) -> int:
    """Let a person withdraw what they did: their answers do not count, their name and words go.

    What stays says nothing about who they were: that somebody chose, when, and how long it took.
    Backups and datasets from before keep what they have.

    Returns:
        How many answers no longer count.
    """
    row = _locked(session, person)
    withdrawn = _put_back(session, person, WITHDRAWN, now)
    _shut_out(session, row)
    row.name, row.state, row.reason = f"{WITHDRAWN} {person}", "left", WITHDRAWN
    row.consented = None
    # Known again, if a platform's results are imported once more, but not by name.
    row.worker = row.worker and hash_token(row.worker)
    for answer in session.scalars(select(Answer).where(Answer.person_id == person)).all():
        answer.submission = f"{WITHDRAWN} {answer.id}"  # a platform's names the worker
        answer.text = None if answer.text is None else ""
    passed = select(Pass.image_id).where(Pass.person_id == person)
    # Why an image was discarded repeats what people said of it.
    told = (Event.kind == "discarded") & Event.image_id.in_(passed)
    session.execute(update(Event).where((Event.person_id == person) | told).values(detail=""))
    session.execute(update(Pass).where(Pass.person_id == person).values(reason=WITHDRAWN))
    session.execute(update(Finding).where(Finding.person_id == person).values(reason=""))
    log_event(session, "erased", now, person=person)
    return withdrawn


@transaction
def reinstate(session: Session, person: int, now: float, *, by: int | None = None) -> None:
    """Let a person work again; what was returned to the queue stays there, they start afresh.

    They are judged by new answers alone: gold questions that they have not seen, or, once there are
    none, those whose answers no longer count.
    """
    row = _locked(session, person)
    if row.state == "active":
        return
    _record_finding(session, person, "reinstated", row.reason, now, by)
    row.state, row.reason = "active", ""
    log_event(session, "reinstated", now, person=person, detail=_by(by))
