"""The queue of tasks: who gets which one, and how answers are recorded.

Each function is one short transaction. A task is held by a lease, a random name that is all a
browser sees; a lease that has run out goes to whoever asks next, and until then its holder may
still answer. Two unique constraints of the database (:class:`~mceval.tables.Slot`) hold
even if this module were wrong: a slot is held once, and nobody has two slots of an image.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Executable,
    bindparam,
    func,
    select,
    union_all,
)
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from discode.errors import InputError, NotAllowedError, StoreError
from mceval import people
from mceval.checks import may_pass
from mceval.database import LOCK, Database, checks_of, rules_of, settings_of
from mceval.rules import Rules, is_swapped, random_bits
from mceval.states import (
    WORK_KINDS,
    log_event,
    not_loaded,
    return_slot,
    settle_image,
)
from mceval.tables import (
    ROLES,
    Answer,
    Candidate,
    Domain,
    Image,
    Pass,
    PassVoid,
    Person,
    Slot,
    Void,
)  # fmt: skip
from mceval.texts import check_revision, check_submission, check_text

UNDO_SECONDS = 600.0
REVISION_TIMES = 2.0
"""A revision takes at least so many times the seconds of a quick comparison."""
UNSEEN_SECONDS = 0.8
"""So soon after a page was given out nobody has seen it: the click was meant for the page before.
The pages' script has the same number."""
IDLE_SECONDS = 180.0
"""Time counts as work for so long after a sign of life: a page, a movement on it, an answer."""
RELOAD_SECONDS = 3600.0
"""An image that did not load for somebody is given to them again after so long."""
WINDOW = 16
"""Images of a domain, in its order, among which a person's next task is drawn."""


@dataclass(frozen=True)
class Task:
    """What a person is shown. Gold questions and the user study look like any comparison."""

    lease: str
    kind: str
    """"compare", "revise" or "look"."""
    domain: str
    path: str
    """The image's file; a server shows it under the lease's name, never under its own."""
    captions: tuple[str, ...]
    """Left and right, or the one to revise, or one before and after its revision."""
    begun: float
    expires: float
    draft: str
    """A name under which a browser keeps what is written: the same after a lease has run out."""


@dataclass(frozen=True)
class Receipt:
    """An answer that was recorded; ``again`` if it was there before."""

    answer: int
    again: bool = False


def next_task(db: Database, person: int, now: float) -> Task | None:
    """Return the task a person holds, or the next one; ``None`` if there is none for them now."""
    return db.run(lambda session: _next(session, person, now))


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


def undo(db: Database, person: int, now: float) -> Task | None:
    """Take back a person's last answer, skip or flag, and give them its task again.

    A task they hold at the moment goes back to the queue.

    Returns:
        The task; ``None`` if they had skipped or flagged it and somebody else has it now.

    Raises:
        NotAllowedError: They did nothing of late.
        InputError: They were given a page so shortly before that they cannot mean it.
    """
    return db.run(lambda session: _undo(session, person, now))


def skip(db: Database, person: int, lease: str, reason: str, now: float) -> None:
    """Return a task for good, with a reason; enough people who skip an image discard it."""
    db.run(lambda session: _skip_or_flag(session, person, lease, "skip", reason, now))


def flag(db: Database, person: int, lease: str, reason: str, now: float) -> None:
    """Report that something is wrong with an image; enough people who do discard it.

    Every flag is recorded and shown to organisers. One beyond the person's limit
    (:class:`~mceval.checks.Checks`) does not count towards discarding the image.
    """
    db.run(lambda session: _skip_or_flag(session, person, lease, "flag", reason, now))


def heartbeat(db: Database, person: int, lease: str, now: float) -> float:
    """Extend a lease, whose holder gave a sign of life; return the time at which it now ends."""

    def work(session: Session) -> float:
        slot = _leased(session, _person(session, person), lease)
        _count_work(slot, now)
        slot.expires = now + settings_of(session).lease_seconds
        return slot.expires

    return db.run(work)


def _count_work(slot: Slot, now: float) -> float:
    """Count the time since the holder's last sign of life, now that there is one; all of it."""
    gap = max(0.0, now - (slot.seen if slot.seen is not None else now))  # a clock may be set back
    slot.worked = (slot.worked or 0.0) + min(gap, IDLE_SECONDS)
    slot.seen = now
    return slot.worked


def _person(session: Session, person: int) -> Person:
    """Return an active person, locked: each person does one thing at a time."""
    found = session.get(Person, person, with_for_update=LOCK)
    if found is None:
        raise NotAllowedError(f"nobody has the number {person}")
    if found.state != "active":
        raise NotAllowedError("your part in this campaign has ended; please ask its organisers")
    return found


def _check_seen(person: Person, now: float) -> None:
    """Raise if a person cannot have seen the page that they were given: a double click did it."""
    if person.shown is not None and abs(now - person.shown) < UNSEEN_SECONDS:
        raise InputError("that came before this page could be seen; please look at it first")


def _leased(session: Session, person: Person, lease: str) -> Slot:
    slot = session.scalar(select(Slot).where(Slot.lease == lease).with_for_update(key_share=True))
    if slot is None or slot.person_id != person.id or slot.state != "leased":
        raise NotAllowedError("this task is no longer yours: its time ran out, or it was answered")
    return slot


def _next(session: Session, person_id: int, now: float) -> Task | None:
    person = _person(session, person_id)
    person.shown = now
    rules = rules_of(session)
    held = session.scalar(
        select(Slot)
        .where(Slot.person_id == person.id, Slot.state == "leased")
        .with_for_update(key_share=True)
    )
    if held is not None:
        image = session.get_one(Image, held.image_id)
        if image.state in ("active", "gold") or (held.kind == "study" and image.state == "done"):
            if held.expires is None or held.expires <= now:
                _lease(session, held, person, now)
            _count_work(held, now)
            return _task(session, held)
        return_slot(session, held)  # discarded or finished meanwhile
        if held.kind != "study":
            held.state = "closed"
        session.flush()
    kinds = [kind for kind in ROLES[person.role] if kind != "look"]
    if not kinds:
        return None
    seen = _dealt_with_by_domain(session, person)
    count = sum(seen.values())
    if (
        len(kinds) == 2
        and random_bits(rules.seed, "kind", person.id, count) % (rules.people + 1) == 0
    ):
        kinds.reverse()  # people who do both revise as often as there are revisions
    if rules.second_look and "look" in ROLES[person.role]:
        kinds.insert(0, "look")  # first: they are few, and finish an image
    domains = _domain_order(session, rules, person, seen)
    for wait in (False, True):  # rows that others have locked may become free
        for kind in kinds:
            slot = _draw_slot(session, rules, person, kind, domains, now, wait=wait)
            if slot is not None:
                return _task(session, _gold_instead(session, rules, person, count, now) or
                             _lease(session, slot, person, now))  # fmt: skip
    return None


def _dealt_with_by_domain(session: Session, person: Person) -> dict[int | None, int]:
    """Return how many tasks a person has dealt with; gold questions are under ``None``."""
    rows = session.execute(_by_domain_query(), {"person": person.id}).all()
    return {row[0]: row[1] for row in rows}


@cache
def _by_domain_query() -> Executable:
    did = union_all(
        *(select(table.image_id).where(table.person_id == bindparam("person"))
          for table in (Answer, Pass))
    ).subquery()  # fmt: skip
    return (
        select(Image.domain_id, func.count())
        .join(did, did.c.image_id == Image.id)
        .group_by(Image.domain_id)
    )


def _domain_order(
    session: Session, rules: Rules, person: Person, seen: Mapping[int | None, int]
) -> list[int]:
    """Return the domains in the order in which a person's next task is looked for in them.

    First comes the one of whose quota they have done the least, so that everybody works on all
    domains in proportion; among equals, a draw of their own decides.
    """
    quotas = session.execute(select(Domain.id, Domain.quota)).all()
    count = sum(seen.values())
    return [
        domain
        for _, _, domain in sorted(
            (
                Fraction(seen.get(domain, 0), quota),
                random_bits(rules.seed, "domain", person.id, count, domain),
                domain,
            )
            for domain, quota in quotas
        )
    ]


def _draw_slot(
    session: Session,
    rules: Rules,
    person: Person,
    kind: str,
    domains: Sequence[int],
    now: float,
    *,
    wait: bool,
) -> Slot | None:
    """Return a slot that a person may have, in the first domain that has one.

    Of the images that come first in the domain, which one it is follows from the seed, the person
    and the image's digest: people who begin together meet different images, and yet images are
    finished one after another.
    """
    given = {"person": person.id, "now": now}
    for domain in domains:
        found = session.execute(_free_query(kind), {**given, "domain": domain}).all()
        for image, _ in sorted(
            found, key=lambda row: random_bits(rules.seed, "order", person.id, row[1])
        ):
            free: Slot | None = session.scalar(_lock_query(kind, wait), {**given, "image": image})
            if free is not None:
                return free
    return None


def person_may_have(
    person: int | BindParameter[int] | InstrumentedAttribute[int],
    now: float | BindParameter[float] | None = None,
) -> ColumnElement[bool]:
    """Return the condition that a person may have a slot at a time, or without one at any.

    They may not if they hold another slot of its image, skipped or flagged the image, or ever
    answered another kind of task on it: nobody compares the captions of an image whose caption
    they revised. An image that did not load is kept from them for a while only: its file comes
    back, or their connection, and otherwise everybody would be used up by it.
    """
    other = aliased(Slot)
    mine = select(other.id).where(other.image_id == Slot.image_id, other.person_id == person)
    again = not_loaded()
    if now is not None:
        again &= Pass.created + RELOAD_SECONDS <= now
    passed = select(Pass.id).where(
        Pass.image_id == Slot.image_id, Pass.person_id == person, ~people.taken_back(), ~again
    )
    answered = select(Answer.id).where(
        Answer.image_id == Slot.image_id, Answer.person_id == person, Answer.kind != Slot.kind
    )
    # Said outright: in a condition on people, the slot is two queries further out.
    one, two, three = (query.correlate(Slot, Person) for query in (mine, passed, answered))
    return ~one.exists() & ~two.exists() & ~three.exists()


def _is_free() -> ColumnElement[bool]:
    """Return the condition that a slot is open, or that its lease has run out."""
    late = (Slot.state == "leased") & (Slot.expires <= bindparam("now"))
    return (Slot.state == "open") | late


@cache  # building the query takes longer than running it
def _free_query(kind: str) -> Executable:
    """Return the query for the first images of a domain with a free slot for a person.

    The slots are a condition and not a join: the images are then read in their order and no further
    than needed.
    """
    slots = select(Slot.id).where(
        Slot.image_id == Image.id, Slot.kind == kind, _is_free(),
        person_may_have(bindparam("person"), bindparam("now")),
    )  # fmt: skip
    return (
        select(Image.id, Image.digest)
        .where(Image.domain_id == bindparam("domain"))
        .where(Image.state == ("done" if kind == "study" else "active"), slots.exists())
        .order_by(Image.rank)
        .limit(WINDOW)
    )


@cache
def _lock_query(kind: str, wait: bool) -> Executable:
    """Return the query that locks a slot of an image which had a free one a moment ago."""
    return (
        select(Slot)
        .where(Slot.image_id == bindparam("image"), Slot.kind == kind, _is_free())
        .where(person_may_have(bindparam("person"), bindparam("now")))
        .order_by(Slot.number)
        .limit(1)
        .with_for_update(key_share=True, skip_locked=not wait)
    )


def is_gold_turn(seed: int, person: int, count: int, rate: float) -> bool:
    """Return whether a person's task number ``count`` is to be a gold question.

    The tasks are cut into blocks of 1 / rate: block b has the numbers from ⌊b / rate⌋ on. Each has
    one, at a place that is drawn for the person. So everybody meets as many as the rate says, and
    nobody knows which.

    >>> [count for count in range(40) if is_gold_turn(0, 1, count, 0.1)]
    [6, 11, 24, 38]
    """
    if not rate:
        return False
    near = math.floor(count * rate)  # rounded, so that it may be the block beside
    for block in (near - 1, near, near + 1):
        begin, end = math.floor(block / rate), math.floor((block + 1) / rate)
        if begin <= count < end:
            return count == begin + random_bits(seed, "gold", person, block) % (end - begin)
    return False


def _gold_instead(
    session: Session, rules: Rules, person: Person, count: int, now: float
) -> Slot | None:
    """Return a gold question instead of a slot, at the campaign's rate, if there are new ones."""
    if not is_gold_turn(rules.seed, person.id, count, checks_of(session).gold_rate):
        return None
    seen = select(Slot.id).where(Slot.image_id == Image.id, Slot.person_id == person.id)
    passed = select(Pass.id).where(Pass.image_id == Image.id, Pass.person_id == person.id)
    fresh = session.scalars(
        select(Image.id)
        .where(Image.state == "gold", ~seen.exists(), ~passed.exists())
        .order_by(Image.id)
    ).all()
    which = random_bits(rules.seed, "which", person.id, count)
    if not fresh:
        return _gold_again(session, person, which, now)
    image = fresh[which % len(fresh)]
    made = Slot(image_id=image, kind="gold", number=person.id, state="open", round=0)
    session.add(made)
    session.flush()
    return _lease(session, made, person, now)


def _gold_again(session: Session, person: Person, which: int, now: float) -> Slot | None:
    """Return a gold question whose answer was returned as careless: a reinstated person's new gold.

    Without it, somebody who has seen all gold questions could not be judged again.
    """
    query = (
        select(Slot)
        .join(Answer, (Answer.slot_id == Slot.id) & (Answer.round == Slot.round))
        .join(Void, Void.answer_id == Answer.id)
        .where(Slot.person_id == person.id, Slot.kind == "gold", Slot.state == "answered")
        .where(Void.reason == "careless")
        .order_by(Slot.id)
    )
    slots = session.scalars(query).all()
    if not slots:
        return None
    slot = slots[which % len(slots)]
    slot.round += 1
    return _lease(session, slot, person, now)


def _lease(session: Session, slot: Slot, person: Person, now: float) -> Slot:
    if slot.person_id not in (None, person.id):
        log_event(session, "expired", now, person=slot.person_id, image=slot.image_id)
    slot.state, slot.person_id = "leased", person.id
    slot.lease = secrets.token_urlsafe(18)
    slot.leased_at = slot.seen = now
    slot.worked = 0.0
    slot.expires = now + settings_of(session).lease_seconds
    session.flush()
    log_event(session, "leased", now, person=person.id, image=slot.image_id, detail=slot.kind)
    return slot


def _task(session: Session, slot: Slot) -> Task:
    image = session.get_one(Image, slot.image_id)
    domain = session.scalar(select(Domain.name).where(Domain.id == image.domain_id))
    if slot.lease is None or slot.person_id is None:
        raise StoreError(f"nobody holds slot {slot.id}, which was to be shown: the data is damaged")
    rules = rules_of(session)
    revision = _is_revision(slot, session.get_one(Person, slot.person_id))
    if revision:
        captions = _texts(session, (_to_revise(image),))
    elif slot.kind == "look":
        captions = (*_texts(session, (_to_revise(image),)), _revision(session, slot))
    else:
        pair = (image.first, image.second)
        swapped = is_swapped(rules, image.digest, slot.person_id)
        captions = _texts(session, pair[::-1] if swapped else pair)
    return Task(
        slot.lease,
        "revise" if revision else "look" if slot.kind == "look" else "compare",
        domain or "",
        image.path,
        captions,
        slot.leased_at or 0.0,
        slot.expires or 0.0,
        f"{random_bits(rules.seed, 'draft', slot.id, slot.person_id):016x}",
    )


def _is_revision(slot: Slot, person: Person) -> bool:
    """Return whether a slot is answered with a text; a reviser's gold questions are, too."""
    return slot.kind == "revise" or (slot.kind == "gold" and person.role == "reviser")


def _revision(session: Session, look: Slot) -> str:
    """Return the revision that a second look is about."""
    text: str | None = session.scalar(
        select(Answer.text)
        .join(Slot, (Slot.id == Answer.slot_id) & (Slot.round == Answer.round))
        .where(Slot.image_id == look.image_id, Slot.kind == "revise", Slot.number == look.number)
    )
    if text is None:
        raise StoreError(f"slot {look.id} is a look at no revision: the data is damaged")
    return text


def _to_revise(image: Image) -> int | None:
    """Return the caption to revise: the one drawn, or of a gold question the wrong one."""
    return image.revised if image.gold is None else people.wrong_caption(image)


def _texts(session: Session, ids: Sequence[int | None]) -> tuple[str, ...]:
    rows = session.execute(select(Candidate.id, Candidate.text).where(Candidate.id.in_(ids))).all()
    texts = {row[0]: row[1] for row in rows}
    return tuple(texts[one] for one in ids if one is not None)


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
    person = _person(session, person_id)
    slot = _leased(session, person, lease)
    _check_seen(person, now)
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
    elif _is_revision(slot, person):
        if side is not None:
            raise InputError("a revision is answered with a text, not with a side")
        (given,) = _texts(session, (_to_revise(image),))
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
        seconds=seconds, worked=_count_work(slot, now), created=now,
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


def _undo(session: Session, person_id: int, now: float) -> Task | None:
    person = _person(session, person_id)
    _check_seen(person, now)
    last = session.scalar(
        select(Answer)
        .where(Answer.person_id == person.id)
        .where(~select(Void.answer_id).where(Void.answer_id == Answer.id).exists())
        .order_by(Answer.id.desc())
        .limit(1)
    )
    passed = session.scalar(
        select(Pass)
        .where(Pass.person_id == person.id, ~people.taken_back())
        .order_by(Pass.id.desc())
        .limit(1)
    )
    if passed is not None and (last is None or passed.created >= last.created):
        latest: Answer | Pass | None = passed
    else:
        latest = last
    if latest is None or now - latest.created > UNDO_SECONDS:
        raise NotAllowedError(
            f"there is nothing to take back: only what you did in the last {UNDO_SECONDS / 60:g} "
            "minutes can be taken back"
        )
    person.shown = now
    held = session.scalars(
        select(Slot)
        .where(Slot.person_id == person.id, Slot.state == "leased")
        .with_for_update(key_share=True)
    ).all()
    if isinstance(latest, Pass):
        return _undo_pass(session, person, latest, held, now)
    slot = session.get_one(Slot, latest.slot_id, with_for_update=LOCK)
    if slot.state != "answered" or slot.round != latest.round:
        raise StoreError(
            f"answer {latest.id} counts, but slot {slot.id} has another: data is damaged"
        )
    for one in held:
        return_slot(session, one)
    session.add(Void(answer_id=latest.id, reason="undo", created=now))
    slot.round += 1
    log_event(session, "undone", now, person=person.id, image=slot.image_id, detail=slot.kind)
    _lease(session, slot, person, now)
    if slot.kind in WORK_KINDS:
        settle_image(session, slot.image_id, now)
    return _task(session, slot)


def _undo_pass(
    session: Session, person: Person, passed: Pass, held: Sequence[Slot], now: float
) -> Task | None:
    """Take back a skip or flag; its task is the person's again unless somebody else has it."""
    for one in held:
        return_slot(session, one)
    session.add(PassVoid(pass_id=passed.id, reason="undo", created=now))
    log_event(session, "undone", now, person=person.id, image=passed.image_id, detail=passed.kind)
    session.flush()
    slot = _slot_again(session, person, passed, now)
    if slot is not None:
        # before the image's state is settled: an image that somebody works on is not parked
        _lease(session, slot, person, now)
    settle_image(session, passed.image_id, now)
    if slot is None or slot.state != "leased":  # a look at a revision that is gone
        return None
    image = session.get_one(Image, passed.image_id)
    if image.state not in ("active", "gold") and not (
        slot.kind == "study" and image.state == "done"
    ):
        return_slot(session, slot)
        slot.state = "closed"
        return None
    return _task(session, slot)


def _slot_again(session: Session, person: Person, passed: Pass, now: float) -> Slot | None:
    """Return the slot of a task that a person passed on, if nobody has it."""
    if passed.task == "gold":
        query = select(Slot).where(Slot.image_id == passed.image_id, Slot.person_id == person.id)
        slot = session.scalar(query)
        if slot is None:
            slot = Slot(image_id=passed.image_id, kind="gold", number=person.id, round=0)
            session.add(slot)
            session.flush()
        return slot
    free = (
        select(Slot)
        .where(Slot.image_id == passed.image_id, Slot.kind == passed.task)
        .where(_is_free() | (Slot.state == "closed"))
        .where(person_may_have(bindparam("person"), bindparam("now")))
        .order_by(Slot.number)
        .limit(1)
        .with_for_update(key_share=True)
    )
    found: Slot | None = session.scalar(free, {"person": person.id, "now": now})
    return found


def _skip_or_flag(
    session: Session, person_id: int, lease: str, kind: str, reason: str, now: float
) -> None:
    reason = check_text(reason, "a reason")
    if kind == "skip" and not rules_of(session).skips:
        raise NotAllowedError("nobody can skip in this campaign; please choose, or flag the image")
    person = _person(session, person_id)
    slot = _leased(session, person, lease)
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
