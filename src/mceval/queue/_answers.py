"""Answers: choices, revisions, second looks, skips and flags, and how they are taken back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from discode.errors import InputError, NotAllowedError, StoreError
from mceval import people
from mceval._checks import pass_may_count
from mceval._states import WORK_KINDS, held_slots, log_event, return_slot, settle_image
from mceval._tables import Answer, Image, Pass, PassVoid, Person, Slot, Void
from mceval._texts import check_revision, check_submission, check_text
from mceval.database import LOCK, Database, checks_of, rules_of, transaction
from mceval.queue._leases import (
    Task,
    active_person,
    check_seen,
    count_work,
    gold_slot,
    is_free,
    is_wanted,
    kind_shown,
    lease_slot,
    leased_slot,
    person_may_have,
    task_of,
    texts_of,
    to_revise,
)  # fmt: skip
from mceval.rules import is_swapped

REVISION_TIMES = 2.0
"""Minimum time of a revision, as a multiple of that of a quick comparison."""
UNDO_SECONDS = 600.0


@dataclass(frozen=True)
class Choice:
    """The better caption of a comparison: side 0 is the left one, 1 the right one."""

    kind: ClassVar[str] = "compare"
    side: int

    def __post_init__(self) -> None:
        if self.side not in (0, 1) or isinstance(self.side, bool):
            raise InputError(f"the side of a comparison must be 0 or 1, not {self.side!r}")

    def columns(self, session: Session, image: Image, slot: Slot, seconds: float) -> dict[str, Any]:
        """Columns of the answer's row."""
        swapped = is_swapped(rules_of(session), image.digest, slot.person_id or 0)
        return {"choice": self.side ^ swapped, "swapped": swapped}


@dataclass(frozen=True)
class Revision:
    """A revised caption; ``unchanged`` confirms that the caption is right as it is."""

    kind: ClassVar[str] = "revise"
    text: str
    unchanged: bool = False

    def __post_init__(self) -> None:
        check_text(self.text, "a revised caption")

    def columns(self, session: Session, image: Image, slot: Slot, seconds: float) -> dict[str, Any]:
        """Columns of the answer's row; refused if the text is unchanged or came too soon."""
        (caption,) = texts_of(session, (to_revise(image),))
        text = check_revision(self.text, caption, unchanged=self.unchanged)
        if seconds < REVISION_TIMES * checks_of(session).quick_seconds:
            raise InputError(
                "that was quick; please check the image and every word again, then send"
            )
        return {"text": text}


@dataclass(frozen=True)
class Look:
    """The answer to a second look: whether a revision is right."""

    kind: ClassVar[str] = "look"
    accepted: bool

    def __post_init__(self) -> None:
        if not isinstance(self.accepted, bool):
            raise InputError("the answer to a second look must be accept or reject")

    def columns(self, session: Session, image: Image, slot: Slot, seconds: float) -> dict[str, Any]:
        """Columns of the answer's row."""
        return {"choice": int(self.accepted)}


def submit(
    db: Database,
    person: int,
    lease: str,
    submission: str,
    now: float,
    reply: Choice | Revision | Look,
) -> None:
    """Record the answer to the task of a lease; one ``submission`` counts once.

    Raises:
        NotAllowedError: The lease expired and another person has the task, or the person may not.
        InputError: The answer is invalid, or came before the task could be seen.
    """
    check_submission(submission)
    why = _submit(db, person, lease, submission, now, reply)
    if why:  # in a separate transaction, since it locks other images
        people.mark_careless(db, person, why, now)


@transaction
def skip(session: Session, person: int, lease: str, reason: str, now: float) -> None:
    """Give up a task for good, with a reason; an image that enough people skip is discarded."""
    if not rules_of(session).skips:
        raise NotAllowedError(
            "this campaign does not allow skips; please choose, or flag the image"
        )
    _skip_or_flag(session, person, lease, "skip", reason, now)


@transaction
def flag(session: Session, person: int, lease: str, reason: str, now: float) -> None:
    """Report a problem with an image; an image that enough people flag is discarded.

    Organisers see every flag. Flags beyond the person's limit (:class:`~mceval._checks.Checks`) do
    not count towards discarding the image.
    """
    _skip_or_flag(session, person, lease, "flag", reason, now)


@transaction
def _submit(
    session: Session,
    person_id: int,
    lease: str,
    submission: str,
    now: float,
    reply: Choice | Revision | Look,
) -> str:
    """Record an answer; the reason why the person is careless now, or ""."""
    known = session.scalar(select(Answer).where(Answer.submission == submission))
    if known is not None:
        if known.person_id != person_id:
            raise NotAllowedError("this submission belongs to another person")
        return ""
    person = active_person(session, person_id)
    slot = leased_slot(session, person, lease)
    check_seen(person, now)
    kind = kind_shown(slot, person)
    if reply.kind != kind:
        raise InputError(f"this is a task to {kind}, not to {reply.kind}")
    image = session.get_one(Image, slot.image_id)
    seconds = max(0.0, now - (slot.leased_at or now))  # the clock may be set back
    answer = Answer(
        slot_id=slot.id, round=slot.round, image_id=slot.image_id, person_id=person.id,
        kind=slot.kind, submission=submission, seconds=seconds, created=now,
        **reply.columns(session, image, slot, seconds), worked=count_work(slot, now),
    )  # fmt: skip
    record_answer(session, slot, answer, now)
    return people.carelessness_of(session, person_id)


def record_answer(session: Session, slot: Slot, answer: Answer, now: float) -> None:
    """Add an answer to a slot that its person holds, and update the image's state."""
    session.add(answer)
    slot.state = "answered"
    session.flush()
    log_event(
        session, "answered", now, person=answer.person_id, image=slot.image_id, detail=slot.kind
    )
    if slot.kind in WORK_KINDS:
        settle_image(session, slot.image_id, now)


def _skip_or_flag(
    session: Session, person_id: int, lease: str, kind: str, reason: str, now: float
) -> None:
    reason = check_text(reason, "a reason")
    person = active_person(session, person_id)
    record_pass(session, leased_slot(session, person, lease), person, kind, reason, now)


def record_pass(
    session: Session, slot: Slot, person: Person, kind: str, reason: str, now: float
) -> None:
    """Add a skip or flag, return the slot that its person holds, and update the image's state."""
    image, task = slot.image_id, slot.kind
    return_slot(session, slot)
    counts = pass_may_count(
        checks_of(session),
        kind,
        people.passes_of(session, person.id, kind),
        sum(people.dealt_with(session, person.id).values()),
    )
    row = Pass(
        image_id=image, person_id=person.id, kind=kind, reason=reason, created=now, task=task
    )
    session.add(row)
    session.flush()
    log_event(session, kind, now, person=person.id, image=image, detail=reason)
    if not counts:
        session.add(PassVoid(pass_id=row.id, reason="limit", created=now))
    settle_image(session, image, now)


@transaction
def undo(session: Session, person_id: int, now: float) -> Task | None:
    """Take back a person's last answer, skip or flag, and give them its task again.

    A task that they hold goes back to the queue.

    Returns:
        The task; ``None`` if they had skipped or flagged it and another person has it now.

    Raises:
        NotAllowedError: There is no recent act.
        InputError: The request came before the current page could be seen.
    """
    person = active_person(session, person_id)
    check_seen(person, now)
    latest = people.last_act(session, person.id)
    if latest is None or now - latest.created > UNDO_SECONDS:
        raise NotAllowedError(
            f"there is nothing to undo from the last {UNDO_SECONDS / 60:g} minutes"
        )
    person.shown = now
    for held in held_slots(session, person.id):
        return_slot(session, held)
    if isinstance(latest, Pass):
        return _undo_pass(session, person, latest, now)
    slot = session.get_one(Slot, latest.slot_id, with_for_update=LOCK)
    if slot.state != "answered" or slot.round != latest.round:
        raise StoreError(
            f"answer {latest.id} does not match slot {slot.id}: the database is damaged"
        )
    session.add(Void(answer_id=latest.id, reason="undo", created=now))
    slot.round += 1
    log_event(session, "undone", now, person=person.id, image=slot.image_id, detail=slot.kind)
    lease_slot(session, slot, person, now)
    if slot.kind in WORK_KINDS:
        settle_image(session, slot.image_id, now)
    return task_of(session, slot)


def _undo_pass(session: Session, person: Person, passed: Pass, now: float) -> Task | None:
    """Take back a skip or flag and return its task to the person, unless it is taken."""
    image = passed.image_id
    session.add(PassVoid(pass_id=passed.id, reason="undo", created=now))
    log_event(session, "undone", now, person=person.id, image=image, detail=passed.kind)
    session.flush()
    if passed.task == "gold":
        own = select(Slot).where(Slot.image_id == image, Slot.person_id == person.id)
        slot: Slot | None = session.scalar(own) or gold_slot(session, image, person)
    else:
        free = (
            select(Slot)
            .where(Slot.image_id == image, Slot.kind == passed.task)
            .where(is_free() | (Slot.state == "closed"))
            .where(person_may_have(bindparam("person"), bindparam("now")))
            .order_by(Slot.number)
            .limit(1)
            .with_for_update(key_share=True)
        )
        slot = session.scalar(free, {"person": person.id, "now": now})
    if slot is not None:
        # before the state is recomputed: an image with a lease is not parked
        lease_slot(session, slot, person, now)
    settle_image(session, image, now)
    if slot is None or slot.state != "leased":  # a look at a void revision
        return None
    if not is_wanted(session, slot):
        return_slot(session, slot)
        slot.state = "closed"
        return None
    return task_of(session, slot)
