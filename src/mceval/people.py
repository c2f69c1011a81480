"""The people of a campaign: invitations, tokens, consent, leaving, carelessness, erasure."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from sqlalchemy import bindparam, case, delete, func, select, union_all, update
from sqlalchemy.orm import Session

from discode.errors import InputError, NotAllowedError, lookup
from mceval._checks import Evidence, careless_reason, is_corrected
from mceval._guide import guide_text
from mceval._states import (
    answer_counts,
    held_slots,
    log_event,
    not_loaded,
    pass_counts,
    pass_is_void,
    return_slot,
    settle_image,
)
from mceval._tables import (
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
from mceval._texts import check_label
from mceval.database import (
    LOCK,
    CampaignSettings,
    Database,
    checks_of,
    settings_of,
    transaction,
)  # fmt: skip

DAY = 86400.0
WITHDRAWN = "withdrawn"
"""The reason of :class:`~mceval._tables.Void` for erased people."""


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
    """Add people; their tokens exist only in the returned invitations.

    A name "" becomes "person N", with the person's number. ``days`` limits how long an invitation
    can be used; browsers that have joined stay joined.
    """
    lookup(ROLES, role, "role")
    expires = _expiry(now, days)
    invitations = []
    for name in names:
        token = secrets.token_urlsafe(24)
        row = Person(
            name=name and check_label(name, "a person's name"), role=role,
            token_hash=hash_token(token), token_expires=expires, created=now,
        )  # fmt: skip
        session.add(row)
        session.flush()
        row.name = name or f"person {row.id}"
        log_event(session, "invited", now, person=row.id, detail=role)
        invitations.append(Invitation(row.id, row.name, role, token))
    return invitations


def new_names(session: Session, names: Sequence[str], count: int = 0) -> list[str]:
    """Check that names are new, and add "" for each of ``count`` people without a name.

    People with the same name could not be told apart.
    """
    known = dict(session.execute(select(Person.name, Person.id)).all())
    if count < 0 or not (names or count):
        raise InputError(
            f"{len(names)} names and a count of {count}; give names or a positive count"
        )
    for name in names:
        if name in known:
            raise InputError(
                f"{name!r} is already person {known[name]}; choose another name, or reissue "
                "their invitation"
            )
        if names.count(name) > 1:
            raise InputError(f"the name {name!r} is repeated; give each person a different one")
    return [*names, *[""] * count]


def find_person(db: Database, who: str) -> Person:
    """Find a person by number or name."""
    with db.read() as session:
        everyone = session.scalars(select(Person)).all()
    found = [person for person in everyone if who in (str(person.id), person.name)]
    if len(found) != 1:
        many = "more than one" if found else "no"
        raise InputError(f"{many} person is called {who!r}; see discode mceval people list")
    return found[0]


def hash_token(token: str) -> str:
    """Hash a token for storage. With 192 random bits, SHA-256 is enough."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _expiry(now: float, days: float | None) -> float | None:
    if days is not None and not 0 < days <= 3650:
        raise InputError(f"days must be above 0 and at most 3650, not {days!r}")
    return None if days is None else now + days * DAY


def person_by_token(db: Database, token: str, now: float) -> Person | None:
    """Find the person with this token, unless it has expired."""
    valid = Person.token_expires.is_(None) | (Person.token_expires > now)
    query = select(Person).where(Person.token_hash == hash_token(token), valid)
    with db.read() as session:
        return session.scalar(query)


@transaction
def reissue(
    session: Session, person: int, now: float, *, days: float | None = None, by: int | None = None
) -> Invitation:
    """Make a new invitation for a person; the old link and their browsers stop working."""
    token = secrets.token_urlsafe(24)
    row = locked_person(session, person)
    if row.worker is not None:
        raise InputError(f"person {person} is from a crowd platform and has no invitation")
    if row.state != "active":
        raise NotAllowedError(f"person {person} is {row.state}; reinstate them first")
    row.token_hash, row.token_expires = hash_token(token), _expiry(now, days)
    session.execute(delete(Login).where(Login.person_id == person))
    log_event(session, "reissued", now, person=person, detail=_by(by))
    return Invitation(row.id, row.name, row.role, token)


@transaction
def use_up_invitation(session: Session, person: int, now: float) -> None:
    """End a person's invitation and sessions, as they chose when signing out.

    They remain part of the campaign; organisers can reissue the invitation.
    """
    _shut_out(session, locked_person(session, person))
    log_event(session, "used_up", now, person=person)


@transaction
def revoke(
    session: Session, person: int, reason: str, now: float, *, by: int | None = None
) -> None:
    """End a person's part at once, even an admin's: their link and browsers stop working.

    Their answers still count; :func:`mark_careless` voids them.
    """
    if by == person:
        raise InputError("you cannot revoke yourself; ask another organiser")
    row = locked_person(session, person)
    _shut_out(session, row)
    _end_part(session, row, "revoked", reason, now, by)


@transaction
def withdraw(session: Session, person: int, now: float) -> None:
    """End a person's part at their own wish; their answers still count."""
    _end_part(session, locked_person(session, person), "left", "withdrew", now, None)


def _end_part(
    session: Session, row: Person, kind: str, reason: str, now: float, by: int | None
) -> None:
    if row.state != "active":
        return
    _record_finding(session, row.id, kind, reason, now, by)
    row.state, row.reason = "left", reason
    log_event(session, kind, now, person=row.id, detail=_by(by, reason))
    for slot in held_slots(session, row.id):
        return_slot(session, slot)


def locked_person(session: Session, person: int) -> Person:
    """Lock a person's row, so that each does one thing at a time."""
    row = session.get(Person, person, with_for_update=LOCK)
    if row is None:
        raise NotAllowedError(f"there is no person {person}")
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
    """Record that a person has read the guide and agreed to take part; keep the guide."""
    row = session.get_one(Person, person, with_for_update=LOCK)
    if row.consented is None:
        row.consented = now
        log_event(session, "consented", now, person=person)
        keep_guide(session, now)


def guide_of(settings: CampaignSettings) -> str:
    """The campaign's guide as plain text."""
    rules = settings.rules
    return guide_text(
        instructions=settings.instructions.strip(), look=rules.second_look, skips=rules.skips > 0
    )


def keep_guide(session: Session, now: float) -> None:
    """Store a copy of the guide that is shown now, once per wording."""
    text = guide_of(settings_of(session))
    digest = hashlib.sha256(text.encode()).hexdigest()
    if session.get(GuideCopy, digest) is None:
        session.add(GuideCopy(digest=digest, text=text, created=now))


def work_record(session: Session, person: int) -> Evidence:
    """Count a person's gold questions, correct ones, choices and quick ones."""
    quick = checks_of(session).quick_seconds
    row = session.execute(
        select(
            func.count(),
            func.sum(case((Answer.kind == "gold", 1), else_=0)),
            func.sum(case((Image.gold == Answer.choice, 1), else_=0)),
            func.sum(case((Answer.seconds < quick, 1), else_=0)),
        )
        .join(Image, Image.id == Answer.image_id)
        .where(Answer.person_id == person, Answer.kind != "revise", answer_counts())
    ).one()
    compared, gold, right, quick_ones = (int(value or 0) for value in row)
    # Revisers answer gold questions with texts. There are few.
    revised = session.execute(
        select(Answer.text, Image)
        .join(Image, Image.id == Answer.image_id)
        .where(Answer.person_id == person, Answer.kind == "gold", Answer.text.is_not(None))
        .where(answer_counts())
    ).all()
    for text, image in revised:
        wrong = session.get_one(Candidate, wrong_caption(image)).text
        good = session.get_one(Candidate, image.second if image.gold else image.first).text
        right += is_corrected(text or "", wrong, good)
    return Evidence(gold=gold, right=right, compared=compared, quick=quick_ones)


def wrong_caption(image: Image) -> int | None:
    """The wrong caption of a gold question."""
    return image.first if image.gold else image.second


def evidence_of(session: Session, person: int) -> Evidence:
    """Collect the evidence for a decision about a person: their work that counts now."""
    seconds = session.scalars(
        select(Answer.seconds).where(Answer.person_id == person, answer_counts())
    ).all()
    passed = select(Pass.kind, func.count()).where(Pass.person_id == person, ~pass_is_void("undo"))
    passes = dict(session.execute(passed.group_by(Pass.kind)).all())
    return replace(
        work_record(session, person),
        answers=len(seconds),
        median_seconds=round(median(seconds), 3) if seconds else None,
        flags=passes.get("flag", 0),
        skips=passes.get("skip", 0),
    )


# Run for every page, so they are built once.
_LAST_ANSWER = select(Answer).where(Answer.person_id == bindparam("person"), answer_counts())
_LAST_ANSWER = _LAST_ANSWER.order_by(Answer.id.desc()).limit(1)
_LAST_PASS = select(Pass).where(Pass.person_id == bindparam("person"), ~pass_is_void("undo"))
_LAST_PASS = _LAST_PASS.order_by(Pass.id.desc()).limit(1)


def last_act(session: Session, person: int) -> Answer | Pass | None:
    """The last answer, skip or flag of a person that counts or may be taken back."""
    values = {"person": person}
    acts = [session.scalar(query, values) for query in (_LAST_PASS, _LAST_ANSWER)]
    made: list[Answer | Pass] = [act for act in acts if act is not None]
    return max(made, key=lambda act: act.created, default=None)


_DEALT_WITH = union_all(
    *(select(table.image_id).where(table.person_id == bindparam("person"))
      for table in (Answer, Pass))
).subquery()  # fmt: skip
_BY_DOMAIN = (
    select(Image.domain_id, func.count())
    .join(_DEALT_WITH, _DEALT_WITH.c.image_id == Image.id)
    .group_by(Image.domain_id)
)


def dealt_with(session: Session, person: int) -> dict[int | None, int]:
    """Count a person's answers, skips and flags by domain; gold questions are under ``None``."""
    return dict(session.execute(_BY_DOMAIN, {"person": person}).all())


def passes_of(session: Session, person: int, kind: str) -> int:
    """Count a person's flags, or skips, of images that loaded, without those taken back."""
    query = select(func.count()).where(Pass.person_id == person, Pass.kind == kind)
    return session.scalar(query.where(~pass_is_void("undo"), ~not_loaded())) or 0


def carelessness_of(session: Session, person: int) -> str:
    """Reason to mark a person as careless now, or ""."""
    checks = checks_of(session)
    return careless_reason(checks, work_record(session, person)) if checks.automatic else ""


@transaction
def mark_careless(
    session: Session, person: int, reason: str, now: float, *, by: int | None = None
) -> int:
    """End a person's part, void their answers and return their tasks to the queue.

    Their skips and flags are voided, too. The evidence is stored as a
    :class:`~mceval._tables.Finding`. Returns the number of voided answers.
    """
    row = locked_person(session, person)
    if row.state == "careless":
        return 0
    _record_finding(session, person, "careless", reason, now, by)
    row.state, row.reason = "careless", reason
    log_event(session, "careless", now, person=person, detail=_by(by, reason))
    return _put_back(session, person, "careless", now)


def _put_back(session: Session, person: int, reason: str, now: float) -> int:
    """Void a person's work, return their tasks to the queue, and count the voided answers."""
    slots = session.scalars(
        select(Slot)
        .where(Slot.person_id == person)
        .order_by(Slot.id)
        .with_for_update(key_share=True)
    ).all()
    counting = select(Pass).where(Pass.person_id == person, pass_counts())
    passes = session.scalars(counting).all()
    # Images are locked in one order, and before any domain, to avoid deadlocks.
    ids = sorted({slot.image_id for slot in slots} | {row.image_id for row in passes})
    session.scalars(
        select(Image).where(Image.id.in_(ids)).order_by(Image.id).with_for_update(key_share=True)
    ).all()
    answers = session.scalars(
        select(Answer).where(Answer.person_id == person, answer_counts())
    ).all()
    session.add_all(Void(answer_id=a.id, reason=reason, created=now) for a in answers)
    session.add_all(PassVoid(pass_id=row.id, reason=reason, created=now) for row in passes)
    for slot in slots:
        if slot.kind != "gold" or slot.state == "leased":
            return_slot(session, slot)
    session.flush()
    for image in ids:
        settle_image(session, image, now)
    return len(answers)


@transaction
def erase(session: Session, person: int, now: float) -> int:
    """Void a person's answers and erase their name and texts.

    Choices and times stay, without a link to their identity. Earlier backups and datasets are not
    changed. Returns the number of voided answers.
    """
    row = locked_person(session, person)
    withdrawn = _put_back(session, person, WITHDRAWN, now)
    _shut_out(session, row)
    row.name, row.state, row.reason = f"{WITHDRAWN} {person}", "left", WITHDRAWN
    row.consented = None
    # The hash identifies the worker if results are imported again.
    row.worker = row.worker and hash_token(row.worker)
    for answer in session.scalars(select(Answer).where(Answer.person_id == person)).all():
        answer.submission = (
            f"{WITHDRAWN} {answer.id}"  # an imported one can contain the worker's id
        )
        answer.text = None if answer.text is None else ""
    passed = select(Pass.image_id).where(Pass.person_id == person)
    # The log of a discarded image repeats the reasons of its flags and skips.
    discarded = (Event.kind == "discarded") & Event.image_id.in_(passed)
    session.execute(update(Event).where((Event.person_id == person) | discarded).values(detail=""))
    session.execute(update(Pass).where(Pass.person_id == person).values(reason=WITHDRAWN))
    session.execute(update(Finding).where(Finding.person_id == person).values(reason=""))
    log_event(session, "erased", now, person=person)
    return withdrawn


@transaction
def reinstate(session: Session, person: int, now: float, *, by: int | None = None) -> None:
    """Let a person work again; their earlier tasks stay in the queue.

    They are judged by new answers alone: on unseen gold questions or, if there are none left, on
    those whose answers were voided.
    """
    row = locked_person(session, person)
    if row.state == "active":
        return
    _record_finding(session, person, "reinstated", row.reason, now, by)
    row.state, row.reason = "active", ""
    log_event(session, "reinstated", now, person=person, detail=_by(by))
