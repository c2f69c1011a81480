"""Answers: choices, revisions, second looks, skips and flags."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from discode.errors import InputError, NotAllowedError
from mceval import people
from mceval.checks import may_pass
from mceval.database import Database, checks_of, rules_of, transaction
from mceval.queue.leases import (
    active_person,
    check_seen,
    count_work,
    is_revision,
    leased_slot,
    texts_of,
    to_revise,
)
from mceval.rules import is_swapped
from mceval.states import WORK_KINDS, log_event, return_slot, settle_image
from mceval.tables import Answer, Image, Pass, PassVoid, Slot
from mceval.texts import check_revision, check_submission, check_text

REVISION_TIMES = 2.0
"""A revision takes at least so many times the seconds of a quick comparison."""


@dataclass(frozen=True)
class Receipt:
    """An answer that was recorded; ``again`` if it was there before."""

    answer: int
    again: bool = False


def submit(
    db: Database,
    person: int,
    lease: str,
    submission: str,
    now: float,
    *,
    side: int | None = None,
    text: str | None = None,
    unchanged: bool = False,
    accepted: bool | None = None,
) -> Receipt:
    """Record an answer.

    Args:
        db: The campaign.
        person: Who answers.
        lease: The task's lease.
        submission: The browser's own name for this answer; sent twice, it counts once.
        now: The time.
        side: 0 if the left caption is better, 1 if the right; of a comparison.
        text: The revised caption; of a revision.
        unchanged: The person says that the caption is right as it is; without it, a text that was
            not changed is asked back.
        accepted: Whether the revision is right; of a second look.

    Raises:
        NotAllowedError: The lease ran out and somebody else has the task, or the person may not.
        InputError: The answer is not valid, or came before anybody could see the task.
    """
    check_submission(submission)

    def work(session: Session) -> tuple[Receipt, str]:
        receipt = _submit(session, person, lease, submission, now, side, text, unchanged, accepted)
        return receipt, "" if receipt.again else people.carelessness_of(session, person)

    receipt, why = db.run(work)
    if why:  # a transaction of its own: it locks other images than this one
        people.mark_careless(db, person, why, now)
    return receipt


@transaction
def skip(session: Session, person: int, lease: str, reason: str, now: float) -> None:
    """Return a task for good, with a reason; enough people who skip an image discard it."""
    if not rules_of(session).skips:
        raise NotAllowedError("this campaign has no skips; please choose, or flag the image")
    _skip_or_flag(session, person, lease, "skip", reason, now)


@transaction
def flag(session: Session, person: int, lease: str, reason: str, now: float) -> None:
    """Report that something is wrong with an image; enough people who do discard it.

    Every flag is recorded and shown to organisers. One beyond the person's limit
    (:class:`~mceval.checks.Checks`) does not count towards discarding the image.
    """
    _skip_or_flag(session, person, lease, "flag", reason, now)


def _submit(
    session: Session,
    person_id: int,
    lease: str,
    submission: str,
    now: float,
    side: int | None,
    text: str | None,
    unchanged: bool,
    accepted: bool | None,
) -> Receipt:
    known = session.scalar(select(Answer).where(Answer.submission == submission))
    if known is not None:
        if known.person_id != person_id:
            raise NotAllowedError("this submission is somebody else's")
        return Receipt(known.id, again=True)
    person = active_person(session, person_id)
    slot = leased_slot(session, person, lease)
    check_seen(person, now)
    image = session.get_one(Image, slot.image_id)
    swapped = is_swapped(rules_of(session), image.digest, person.id)
    choice = None
    seconds = max(0.0, now - (slot.leased_at or now))  # a clock may be set back
    if accepted is not None and slot.kind != "look":
        raise InputError("only a second look accepts or rejects")
    if slot.kind == "look":
        if accepted is None or text is not None or side is not None:
            raise InputError("a second look is answered with accept or reject")
        swapped, choice = False, int(accepted)
    elif is_revision(slot, person):
        if side is not None:
            raise InputError("a revision is answered with a text, not with a side")
        (given,) = texts_of(session, (to_revise(image),))
        text = check_revision(text, given, unchanged=unchanged)
        if seconds < REVISION_TIMES * checks_of(session).quick_seconds:
            raise InputError(
                "that was quick: please look at the image and at every word again, then send"
            )
    else:
        if text is not None or side not in (0, 1) or isinstance(side, bool):
            raise InputError(f"a comparison is answered with side 0 or 1, not {side!r}")
        choice = 1 - side if swapped else side
    answer = Answer(
        slot_id=slot.id, round=slot.round, image_id=slot.image_id, person_id=person.id,
        kind=slot.kind, submission=submission, choice=choice,
        swapped=swapped and choice is not None, text=text,
        seconds=seconds, worked=count_work(slot, now), created=now,
    )  # fmt: skip
    record_answer(session, slot, answer, now)
    return Receipt(answer.id)


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
    slot = leased_slot(session, person, lease)
    image, task = slot.image_id, slot.kind
    return_slot(session, slot)
    counts = may_pass(
        checks_of(session),
        kind,
        people.passes_of(session, person.id, kind),
        people.dealt_with(session, person.id),
    )
    made = Pass(
        image_id=image, person_id=person.id, kind=kind, reason=reason, created=now, task=task
    )
    session.add(made)
    session.flush()
    log_event(session, kind, now, person=person.id, image=image, detail=reason)
    if not counts:
        session.add(PassVoid(pass_id=made.id, reason="limit", created=now))
    settle_image(session, image, now)
