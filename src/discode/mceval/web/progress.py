"""How far a person and the campaign are, and whether a person may get a task later.

:func:`person_progress` is for every page, :func:`person_work` and :func:`tasks_left` for a person's
own progress and the page that thanks them, :func:`why_nothing` for the page without a task.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from discode.mceval.database import rules_of, settings_of
from discode.mceval.people import passes_of, taken_back
from discode.mceval.queue import person_may_have
from discode.mceval.tables import ROLES, Answer, Domain, Image, Pass, Person, Slot, Void


@dataclass(frozen=True)
class PersonProgress:
    """A person's work so far: the answers that count."""

    answers: int
    last: float | None
    """When they last did something: for a while it can be taken back."""
    last_kind: str = ""
    """What that was: "answer", "skip" or "flag"."""


# Run for every page, so they are built once.
_COUNTING = select(func.count(), func.max(Answer.created)).where(
    Answer.person_id == bindparam("person"),
    ~select(Void.answer_id).where(Void.answer_id == Answer.id).exists(),
)
_LAST_PASS = (
    select(Pass.created, Pass.kind)
    .where(Pass.person_id == bindparam("person"), ~taken_back())
    .order_by(Pass.id.desc())
    .limit(1)
)


def person_progress(session: Session, person: int) -> PersonProgress:
    """Return how many answers of a person count, and what they did last."""
    count, last = session.execute(_COUNTING, {"person": person}).one()
    passed = session.execute(_LAST_PASS, {"person": person}).one_or_none()
    if passed is not None and (last is None or passed[0] >= last):  # as queue.undo decides
        return PersonProgress(count, passed[0], passed[1])
    return PersonProgress(count, last, "" if last is None else "answer")


@dataclass(frozen=True)
class PersonWork:
    """What a person has done, for the page that thanks them."""

    compared: int
    """Gold questions and the user study included: nobody can tell them apart."""
    revised: int
    skipped: int
    flagged: int
    hours: float
    images_done: int
    """Finished images to which an answer of theirs belongs."""


def person_work(session: Session, person: int) -> PersonWork:
    """Return a person's work that counts."""
    longest = settings_of(session).lease_seconds
    void = select(Void.answer_id).where(Void.answer_id == Answer.id)
    rows = session.execute(
        select(Answer.kind, Answer.seconds, Image.state, Image.id)
        .join(Image, Image.id == Answer.image_id)
        .where(Answer.person_id == person, ~void.exists())
    ).all()
    revised = sum(row[0] == "revise" for row in rows)
    return PersonWork(
        compared=len(rows) - revised,
        revised=revised,
        skipped=passes_of(session, person, "skip"),
        flagged=passes_of(session, person, "flag"),
        hours=sum(min(row[1], longest) for row in rows) / 3600,
        images_done=len({row[3] for row in rows if row[2] == "done"}),
    )


@dataclass(frozen=True)
class TasksLeft:
    """What remains for a person."""

    now: int
    """Tasks that they may have at once."""
    held: int
    """Tasks that others hold and may give back."""
    later: bool
    """Whether more may open: a discarded image is replaced, or a revision waits for votes."""


def tasks_left(session: Session, person: Person, now: float) -> TasksLeft:
    """Return what remains for a person. One image counts once: nobody has two tasks of it."""
    kinds = ROLES[person.role]
    wanted = "done" if "study" in kinds else "active"
    mine = (
        select(Slot.image_id, Slot.state, Slot.expires)
        .join(Image, Image.id == Slot.image_id)
        .where(Image.state == wanted, Slot.kind.in_(kinds), Slot.state.in_(("open", "leased")))
        .where(person_may_have(person.id))
    )
    free: set[int] = set()
    held: set[int] = set()
    for image, state, expires in session.execute(mine).all():
        late = state == "leased" and expires is not None and expires <= now
        (free if state == "open" or late else held).add(image)
    return TasksLeft(len(free), len(held - free), may_get_task_later(session, person))


def why_nothing(session: Session, person: Person, now: float) -> str:
    """Return in plain words why there is no task for a person at the moment."""
    left = tasks_left(session, person, now)
    done, quota = campaign_progress(session)
    if left.held:
        tasks = "a task" if left.held == 1 else f"{left.held} tasks"
        return f"Other people hold {tasks} at the moment; some may come back."
    if left.later:
        return "Other people must answer first; then new tasks may open for you."
    if "study" not in ROLES[person.role] and done < quota:
        return (
            "You have done all that you can do. The images that remain need somebody else: "
            "nobody works on the same image twice."
        )
    return "Everything is done."


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
