"""The states of images: drawn, active, done, discarded, replaced.

Every state follows from the rules and the answers that count. It is recomputed after each change,
so taking an answer back also undoes its consequences.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from sqlalchemy import ColumnElement, false, func, select, update
from sqlalchemy.orm import Session

from mceval._tables import (
    Answer,
    Candidate,
    Domain,
    Event,
    Image,
    Pass,
    PassVoid,
    Ruling,
    Slot,
    Void,
)  # fmt: skip
from mceval.database import LOCK, rules_of
from mceval.rules import Rules, Verdict, draw_captions, verdict

NOT_LOADED = "The image does not load"
"""A flag with this reason is about a connection or a file, and never discards an image."""
WORK_KINDS = ("compare", "revise", "look")
"""The kinds of task that determine an image's state."""


def log_event(
    session: Session,
    kind: str,
    now: float,
    *,
    person: int | None = None,
    image: int | None = None,
    detail: str = "",
) -> None:
    session.add(Event(kind=kind, created=now, person_id=person, image_id=image, detail=detail))


def prepare_images(session: Session, now: float) -> None:
    """Draw captions for every image that has all of its candidates, then fill the quotas."""
    rules = rules_of(session)
    waiting = (
        select(Image)
        .join(Candidate, Candidate.image_id == Image.id)
        .where(Image.state == "pool", Image.first.is_(None))
        .group_by(Image.id)
        .having(func.count() >= rules.writers)
        .order_by(Image.id)
    )
    for image in session.scalars(waiting).all():
        rows = session.scalars(select(Candidate).where(Candidate.image_id == image.id)).all()
        by_writer = {row.writer: row for row in rows}
        draw = draw_captions(rules, image.digest, {w: row.text for w, row in by_writer.items()})
        if draw is None:
            image.state, image.discarded_by = "discarded", "captions"
            image.reason = "fewer than three of its captions differ"
            log_event(session, "discarded", now, image=image.id, detail=image.reason)
            continue
        image.revised = by_writer[draw.reference].id
        image.first, image.second = (by_writer[writer].id for writer in draw.pair)
    session.flush()
    for domain in session.scalars(select(Domain.id).order_by(Domain.id)).all():
        fill_quota(session, domain, rules, now)


def reset_unseen(session: Session, image_id: int) -> bool:
    """Return an image to the pool and forget its draw, unless a person has seen it.

    Returns:
        Whether it was unseen, by the log, so that its captions may still change.
    """
    slots = select(Slot).where(Slot.image_id == image_id).order_by(Slot.id)
    session.scalars(slots.with_for_update(key_share=True)).all()  # so that none is leased meanwhile
    image = session.get_one(Image, image_id, with_for_update=LOCK, populate_existing=True)
    seen = select(Event.id).where(
        Event.image_id == image_id, Event.kind.in_(("leased", "answered", "exported"))
    )
    if session.scalar(seen.limit(1)) is not None:
        return False
    image.revised = image.first = image.second = None
    if image.state == "active" or (
        image.state == "discarded" and not _taken_down(session, image_id)
    ):
        image.state, image.reason, image.discarded_by = "pool", "", None
        _open_slots(session, image, rules_of(session), Verdict("waiting"), None)
    session.flush()
    return True


def _counting(session: Session, image: int) -> list[tuple[Answer, int]]:
    """List an image's valid answers in order, with the numbers of their slots."""
    rows = session.execute(
        select(Answer, Slot.number)
        .join(Slot, (Answer.slot_id == Slot.id) & (Answer.round == Slot.round))
        .where(Slot.image_id == image, Slot.kind.in_(WORK_KINDS), Slot.state == "answered")
        .order_by(Answer.id)
    )
    return [(answer, number) for answer, number in rows]


def _votes(counting: Sequence[tuple[Answer, int]]) -> list[int]:
    votes = (answer.choice for answer, _ in counting if answer.kind == "compare")
    return [choice for choice in votes if choice is not None]


def _without_outdated(
    session: Session, image: int, counting: Sequence[tuple[Answer, int]], now: float
) -> list[tuple[Answer, int]]:
    """Drop second looks at void revisions, and return their tasks to the queue.

    Their revision was taken back or voided. A person who holds such a look loses it, since they
    have not seen the next revision.
    """
    revised = {number for answer, number in counting if answer.kind == "revise"}
    outdated = {a.id for a, number in counting if a.kind == "look" and number not in revised}
    session.add_all(Void(answer_id=a, reason="outdated", created=now) for a in outdated)
    gone = session.scalars(
        select(Slot)
        .where(Slot.image_id == image, Slot.kind == "look", Slot.number.not_in(revised))
        .where(Slot.state.in_(("leased", "answered")))
        .with_for_update(key_share=True)
    ).all()
    for slot in gone:
        return_slot(session, slot)
    return [(answer, number) for answer, number in counting if answer.id not in outdated]


def _reference(
    rules: Rules, counting: Sequence[tuple[Answer, int]]
) -> tuple[str | None, tuple[str, int] | None]:
    """Find the reference, or the kind and number of the task that it needs next.

    With second looks, the reference is the first accepted revision; after a rejected one, another
    person revises the caption.
    """
    revised = {number: answer.text for answer, number in counting if answer.kind == "revise"}
    if not rules.second_look:
        return (revised[0], None) if revised else (None, ("revise", 0))
    looks = {number: answer.choice for answer, number in counting if answer.kind == "look"}
    accepted = sorted(number for number, choice in looks.items() if choice == 1)
    if accepted:
        return revised[accepted[0]], None
    number = next(number for number in itertools.count() if number not in looks)
    return None, ("look" if number in revised else "revise", number)


def settle_image(session: Session, image_id: int, now: float) -> None:
    """Recompute an image's state after an answer, an undo, a skip or a flag."""
    rules = rules_of(session)
    session.flush()
    image = session.get_one(Image, image_id, with_for_update=LOCK, populate_existing=True)
    if image.domain_id is None or image.state not in ("pool", "active", "done", "discarded"):
        return  # gold questions have no domain, and their state is fixed
    counting = _counting(session, image_id)
    if rules.second_look:
        counting = _without_outdated(session, image_id, counting, now)
    votes, (reference, step) = _votes(counting), _reference(rules, counting)
    result = verdict(rules, votes)
    before = image.state
    image.preference, image.reference = result.choice, reference
    image.discarded_by, image.reason = (
        _taken_down(session, image_id)
        or _dropped(session, image_id, rules)
        or _split(result, votes)
        or (None, "")
    )
    if image.discarded_by:
        image.state = "discarded"
    elif result.state == "agreed" and reference is not None:
        image.state = "done"
    elif before in ("done", "discarded"):
        image.state = "active" if _has_slot(session, image_id) else "pool"
    steps = rules.revise == "agreed" or rules.second_look
    if image.state != before or image.state != "active" or steps:
        _open_slots(session, image, rules, result, step)  # otherwise they are open or taken
    if image.state != before:
        log_event(session, image.state, now, image=image_id, detail=image.reason)
        session.flush()
        # Most images finish and need no replacement. The contended lock of the domain is then only
        # taken if the domain has more than its quota.
        finished = (before, image.state) == ("active", "done")
        if not finished or _room(session, session.get_one(Domain, image.domain_id))[0] < 0:
            fill_quota(session, image.domain_id, rules, now)


def _split(result: Verdict, votes: Sequence[int]) -> tuple[str, str] | None:
    if result.state != "split":
        return None
    counts = sorted(Counter(votes).values(), reverse=True)
    return "no_consensus", "no consensus: " + " to ".join(map(str, counts))


def _dropped(session: Session, image: int, rules: Rules) -> tuple[str, str] | None:
    """Check flags and skips: the value of ``discarded_by`` and the reason, or ``None``."""
    rows = session.execute(
        select(Pass.kind, Pass.person_id, Pass.reason)
        .where(Pass.image_id == image, pass_counts(), ~not_loaded())
        .order_by(Pass.id)
    ).all()
    for kind, limit, word in (("flag", rules.flags, "flagged"), ("skip", rules.skips, "skipped")):
        by_person = {person: reason for k, person, reason in rows if k == kind}
        if limit and len(by_person) >= limit:
            reasons = "; ".join(dict.fromkeys(by_person.values()))
            return word, f"{word} by {len(by_person)} people: {reasons}"
    return None


def answer_counts() -> ColumnElement[bool]:
    return ~select(Void.answer_id).where(Void.answer_id == Answer.id).exists()


def held_slots(session: Session, person: int) -> Sequence[Slot]:
    """Lock the slots that a person holds: at most one, by a constraint of the database."""
    query = select(Slot).where(Slot.person_id == person, Slot.state == "leased")
    return session.scalars(query.with_for_update(key_share=True)).all()


def pass_counts() -> ColumnElement[bool]:
    return ~pass_is_void()


def pass_is_void(reason: str | None = None) -> ColumnElement[bool]:
    """SQL condition that a skip or flag is void, for one reason ("undo": taken back) or any."""
    void = select(PassVoid.id).where(PassVoid.pass_id == Pass.id)
    return (void if reason is None else void.where(PassVoid.reason == reason)).exists()


def not_loaded() -> ColumnElement[bool]:
    return Pass.reason.startswith(NOT_LOADED)


def _taken_down(session: Session, image: int) -> tuple[str, str] | None:
    """Reason why organisers took an image down; ``None`` if they did not or restored it."""
    last = session.scalar(
        select(Ruling).where(Ruling.image_id == image).order_by(Ruling.id.desc()).limit(1)
    )
    if last is None or last.kind != "take_down":
        return None
    return "taken_down", f"taken down: {last.reason}"


def _has_slot(session: Session, image: int, kind: str = "compare", number: int = 0) -> bool:
    slot = select(Slot.id).where(Slot.image_id == image, Slot.kind == kind, Slot.number == number)
    return session.scalar(slot) is not None


def _open_slots(
    session: Session, image: Image, rules: Rules, result: Verdict, step: tuple[str, int] | None
) -> None:
    """Open the slots of an active image and close those of any other; leases are not touched.

    ``step`` is the kind and number of the task that the image's reference needs next.
    """
    wanted: ColumnElement[bool] = false()
    if image.state == "active":
        wanted = Slot.kind == "compare"
        if step is not None and (rules.revise == "always" or result.state == "agreed"):
            kind, number = step
            wanted |= (Slot.kind == kind) & (Slot.number == number)
            if rules.second_look and not _has_slot(session, image.id, kind, number):
                session.add(Slot(image_id=image.id, kind=kind, number=number, state="open"))
                session.flush()
    # Conditional updates instead of reading and writing rows: a slot that is leased at this moment
    # must stay leased.
    slots = (
        update(Slot)
        .where(Slot.image_id == image.id, Slot.kind.in_(WORK_KINDS))
        .execution_options(synchronize_session=False)
    )
    session.execute(slots.where(Slot.state == "closed", wanted).values(state="open"))
    session.execute(slots.where(Slot.state == "open", ~wanted).values(state="closed"))


def fill_quota(session: Session, domain_id: int, rules: Rules, now: float) -> None:
    """Activate the next images of a domain up to its quota, or park surplus ones.

    There is a surplus only after a discarded image came back: then its replacement is parked if no
    work on it has begun. Once the quota is full, all active images are parked.
    """
    # populate_existing: values read before the lock was held may be outdated
    domain = session.get_one(Domain, domain_id, with_for_update=LOCK, populate_existing=True)
    room, done, active = _room(session, domain)
    if room > 0:
        pool = (
            select(Image)
            .where(Image.domain_id == domain_id, Image.state == "pool", Image.first.is_not(None))
            .order_by(Image.rank)
            .limit(room)
            .with_for_update(key_share=True)
        )
        for image in session.scalars(pool).all():
            _activate(session, image, rules, now)
    elif room < 0 and active:
        begun = (
            select(Slot.id)
            .where(Slot.image_id == Image.id, Slot.state.in_(("leased", "answered")))
            .exists()
        )
        spare = (
            select(Image)
            .where(Image.domain_id == domain_id, Image.state == "active")
            .order_by(Image.rank.desc())
            .with_for_update(key_share=True, skip_locked=True)
        )
        if done < domain.quota:
            spare = spare.where(~begun).limit(-room)
        for image in session.scalars(spare).all():
            image.state = "pool"
            log_event(session, "parked", now, image=image.id)
            _open_slots(session, image, rules, Verdict("waiting"), None)
    session.flush()


def _room(session: Session, domain: Domain) -> tuple[int, int, int]:
    """Count the images that a domain lacks, those done and those active."""
    counted = (
        select(Image.state, func.count())
        .where(Image.domain_id == domain.id, Image.state.in_(("done", "active")))
        .group_by(Image.state)
    )
    counts = dict(session.execute(counted).all())
    done, active = counts.get("done", 0), counts.get("active", 0)
    return domain.quota - done - active, done, active


def _activate(session: Session, image: Image, rules: Rules, now: float) -> None:
    image.state = "active"
    log_event(session, "active", now, image=image.id)
    session.flush()
    if not _has_slot(session, image.id):
        for kind, count in (("compare", rules.people), ("revise", 1)):
            session.add_all(
                Slot(image_id=image.id, kind=kind, number=i, state="closed") for i in range(count)
            )
        session.flush()
    counting = _counting(session, image.id)
    result = verdict(rules, _votes(counting))
    _open_slots(session, image, rules, result, _reference(rules, counting)[1])


def return_slot(session: Session, slot: Slot) -> None:
    """Return a slot to the queue; an answer to it no longer counts.

    A gold question's slot belongs to one person: it is deleted, or closed if it has an answer that
    was taken back, since answers are never deleted.
    """
    if slot.kind == "gold":
        if session.scalar(select(Answer.id).where(Answer.slot_id == slot.id).limit(1)) is None:
            session.delete(slot)
        else:
            slot.state = "closed"
            slot.lease = slot.leased_at = slot.expires = None
        session.flush()
        return
    if slot.state == "answered":
        slot.round += 1
    slot.state = "open"
    slot.person_id = slot.lease = slot.leased_at = slot.expires = None
    session.flush()
