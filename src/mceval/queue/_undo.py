"""Undo: take back the last answer, skip or flag."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from discode.errors import NotAllowedError, StoreError
from mceval._states import (
    WORK_KINDS,
    answer_counts,
    held_slots,
    log_event,
    pass_is_void,
    return_slot,
    settle_image,
)
from mceval._tables import Answer, Pass, PassVoid, Person, Slot, Void
from mceval.database import LOCK, transaction
from mceval.queue._leases import (
    Task,
    active_person,
    check_seen,
    is_free,
    is_wanted,
    lease_slot,
    person_may_have,
    task_of,
)

UNDO_SECONDS = 600.0


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
    last = session.scalar(
        select(Answer)
        .where(Answer.person_id == person.id, answer_counts())
        .order_by(Answer.id.desc())
        .limit(1)
    )
    passed = session.scalar(
        select(Pass)
        .where(Pass.person_id == person.id, ~pass_is_void("undo"))
        .order_by(Pass.id.desc())
        .limit(1)
    )
    acts = [act for act in (passed, last) if act is not None]
    latest = max(acts, key=lambda act: act.created, default=None)
    if latest is None or now - latest.created > UNDO_SECONDS:
        raise NotAllowedError(
            f"there is nothing to undo from the last {UNDO_SECONDS / 60:g} minutes"
        )
    person.shown = now
    held = held_slots(session, person.id)
    if isinstance(latest, Pass):
        return _undo_pass(session, person, latest, held, now)
    slot = session.get_one(Slot, latest.slot_id, with_for_update=LOCK)
    if slot.state != "answered" or slot.round != latest.round:
        raise StoreError(
            f"answer {latest.id} does not match slot {slot.id}: the database is damaged"
        )
    for other in held:
        return_slot(session, other)
    session.add(Void(answer_id=latest.id, reason="undo", created=now))
    slot.round += 1
    log_event(session, "undone", now, person=person.id, image=slot.image_id, detail=slot.kind)
    lease_slot(session, slot, person, now)
    if slot.kind in WORK_KINDS:
        settle_image(session, slot.image_id, now)
    return task_of(session, slot)


def _undo_pass(
    session: Session, person: Person, passed: Pass, held: Sequence[Slot], now: float
) -> Task | None:
    """Take back a skip or flag and return its task to the person, unless it is taken."""
    for other in held:
        return_slot(session, other)
    session.add(PassVoid(pass_id=passed.id, reason="undo", created=now))
    log_event(session, "undone", now, person=person.id, image=passed.image_id, detail=passed.kind)
    session.flush()
    slot = _slot_again(session, person, passed, now)
    if slot is not None:
        # before the state is recomputed: an image with a lease is not parked
        lease_slot(session, slot, person, now)
    settle_image(session, passed.image_id, now)
    if slot is None or slot.state != "leased":  # a look at a void revision
        return None
    if not is_wanted(session, slot):
        return_slot(session, slot)
        slot.state = "closed"
        return None
    return task_of(session, slot)


def _slot_again(session: Session, person: Person, passed: Pass, now: float) -> Slot | None:
    """Find the slot of a task that a person skipped or flagged, if it is free."""
    if passed.task == "gold":
        query = select(Slot).where(Slot.image_id == passed.image_id, Slot.person_id == person.id)
        gold = session.scalar(query)
        if gold is None:
            gold = Slot(image_id=passed.image_id, kind="gold", number=person.id, round=0)
            session.add(gold)
            session.flush()
        return gold
    free = (
        select(Slot)
        .where(Slot.image_id == passed.image_id, Slot.kind == passed.task)
        .where(is_free() | (Slot.state == "closed"))
        .where(person_may_have(bindparam("person"), bindparam("now")))
        .order_by(Slot.number)
        .limit(1)
        .with_for_update(key_share=True)
    )
    slot: Slot | None = session.scalar(free, {"person": person.id, "now": now})
    return slot
