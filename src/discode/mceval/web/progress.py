"""How far a person and the campaign are, and whether a person may get a task later."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from discode.mceval.database import rules_of
from discode.mceval.queue import person_may_have
from discode.mceval.tables import ROLES, Answer, Domain, Image, Person, Slot, Void


@dataclass(frozen=True)
class PersonProgress:
    """A person's work so far: the answers that count."""

    answers: int
    last: float | None
    """When the last one was given: for a while it can be taken back."""


# Run for every page, so it is built once.
_COUNTING = select(func.count(), func.max(Answer.created)).where(
    Answer.person_id == bindparam("person"),
    ~select(Void.answer_id).where(Void.answer_id == Answer.id).exists(),
)


def person_progress(session: Session, person: int) -> PersonProgress:
    """Return how many answers of a person count, and when the last was given."""
    count, last = session.execute(_COUNTING, {"person": person}).one()
    return PersonProgress(count, last)


def campaign_progress(session: Session) -> tuple[int, int]:
    """Return how many images are done, and how many there should be."""
    done = session.scalar(select(func.count()).where(Image.state == "done"))
    quota = session.scalar(select(func.sum(Domain.quota)))
    return done or 0, quota or 0


def may_get_task_later(session: Session, person: Person) -> bool:
    """Return whether a person for whom there is no task now may find one later.

    That is so if somebody else holds a task that this person may have, or if an image that is
    being compared may be discarded and replaced by one that waits.
    """
    kinds = ROLES[person.role]
    held = (
        select(Slot.id)
        .where(Slot.kind.in_(kinds), Slot.state == "leased", Slot.person_id != person.id)
        .where(person_may_have(person.id))
        .limit(1)
    )
    if session.scalar(held) is not None:
        return True
    if "study" in kinds:
        return False
    undecided = (
        select(Slot.id)
        .join(Image, Image.id == Slot.image_id)
        .where(Image.state == "active", Slot.kind == "compare", Slot.state.in_(("open", "leased")))
        .limit(1)
    )
    if session.scalar(undecided) is None:
        return False
    if "revise" in kinds and rules_of(session).revise == "agreed":
        return True  # revisions open once people agree
    waiting = select(Image.id).where(Image.state == "pool", Image.first.is_not(None)).limit(1)
    return session.scalar(waiting) is not None
