"""The progress of a person and of the campaign, and whether a person may get tasks later."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from mceval._states import answer_counts, pass_is_void
from mceval._tables import ROLES, Answer, Domain, Image, Pass, Person, Slot
from mceval.database import rules_of
from mceval.people import last_act
from mceval.queue._leases import is_free, person_may_have

MANY = 100
"""Images that are open to a person are counted up to this number."""


@dataclass(frozen=True)
class PersonProgress:
    """A person's valid work so far, and their last act."""

    compared: int
    revised: int
    looked: int
    skipped: int
    flagged: int
    last: float | None
    """The time of the last act, which can be undone for a while."""
    last_act: str
    """A description of the last act."""

    @property
    def answers(self) -> int:
        return self.compared + self.revised + self.looked


# Run for every page, so they are built once.
_COUNTED = (Answer.person_id == bindparam("person")) & answer_counts()
_NOT_UNDONE = (Pass.person_id == bindparam("person")) & ~pass_is_void("undo")
_ANSWERS = select(Answer.kind, func.count()).where(_COUNTED).group_by(Answer.kind)
_PASSES = select(Pass.kind, func.count()).where(_NOT_UNDONE).group_by(Pass.kind)


def person_progress(session: Session, person: int) -> PersonProgress:
    """Summarise a person's work and their last act."""
    values = {"person": person}
    answers = dict(session.execute(_ANSWERS, values).all())
    passes = dict(session.execute(_PASSES, values).all())
    last = last_act(session, person)
    revised, looked = answers.pop("revise", 0), answers.pop("look", 0)
    return PersonProgress(
        sum(answers.values()), revised, looked, passes.get("skip", 0), passes.get("flag", 0),
        last.created if last else None, _in_words(last),
    )  # fmt: skip


def _in_words(act: Answer | Pass | None) -> str:
    if act is None:
        return ""
    if isinstance(act, Pass):
        return f"{'Flagged' if act.kind == 'flag' else 'Skipped'}: {act.reason}"
    if act.choice is None:
        return "Saved: your caption"
    if act.kind == "look":
        return f"Saved: the caption is {'accepted' if act.choice else 'rejected'}"
    return f"Saved: caption {1 + (act.choice ^ act.swapped)} is better"


def campaign_progress(session: Session) -> tuple[int, int]:
    done = session.scalar(select(func.count()).where(Image.state == "done"))
    quota = session.scalar(select(func.sum(Domain.quota)))
    return done or 0, quota or 0


def open_to(session: Session, person: Person, now: float) -> int:
    """Count the images that are open to a person now, up to :data:`MANY`.

    Others work on the same images, and discarded images are replaced, so the
    person will get a different number.
    """
    if not ROLES[person.role]:
        return 0
    held = (Slot.state == "leased") & (Slot.person_id == person.id)
    images = (
        select(Slot.image_id)
        .join(Image, Image.id == Slot.image_id)
        .where(
            Slot.kind.in_(ROLES[person.role]), (is_free() & person_may_have(person.id, now)) | held
        )
        .where(Image.state == ("done" if person.role == "study" else "active"))
        .distinct()
        .limit(MANY)
    )
    return session.scalar(select(func.count()).select_from(images.subquery()), {"now": now}) or 0


def why_wait(session: Session, person: Person) -> str:
    """Explain why a person without a task may get one later; "" if they will not.

    They may if another person holds a task that they may have, if an image did not load for them,
    or if an image in comparison may be discarded and replaced.
    """
    kinds = ROLES[person.role]
    held = (
        select(func.count(Slot.image_id.distinct()))
        .where(Slot.kind.in_(kinds), Slot.state == "leased", Slot.person_id != person.id)
        .where(person_may_have(person.id))
    )
    count = session.scalar(held)
    if count:
        images = "1 image that is" if count == 1 else f"{count} images that are"
        return (
            f"Other people are working on {images} also open to you. Unfinished tasks become free "
            "again, so please check again in a quarter of an hour."
        )
    unloaded = (
        select(Slot.id)
        .join(Image, Image.id == Slot.image_id)
        .where(Slot.kind.in_(kinds), Slot.state == "open", person_may_have(person.id))
        .where(Image.state == ("done" if "study" in kinds else "active"))
        .limit(1)
    )
    if session.scalar(unloaded) is not None:
        return "You will get images that did not load again. Please check again in an hour."
    if "study" in kinds:
        return ""
    undecided = (
        select(Slot.id)
        .join(Image, Image.id == Slot.image_id)
        .where(Image.state == "active", Slot.kind == "compare", Slot.state.in_(("open", "leased")))
        .limit(1)
    )
    if session.scalar(undecided) is None:
        return ""
    if "revise" in kinds and rules_of(session).revise == "agreed":
        return (
            "Captions are improved once people agree on an image, and the comparisons are not "
            "finished yet. Please check again tomorrow."
        )
    waiting = select(Image.id).where(Image.state == "pool", Image.first.is_not(None)).limit(1)
    if session.scalar(waiting) is None:
        return ""
    return (
        "You have finished all images that are open. If people disagree on an image, a new one "
        "replaces it and needs answers. Please check again tomorrow."
    )
