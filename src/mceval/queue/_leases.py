"""Leases: which person gets which task, and for how long.

A lease is a random name, the only identifier of a task that a browser sees. After it expires, the
holder may still answer until another person gets the task. Two unique constraints of the database
(:class:`~mceval._tables.Slot`) guarantee, independently of this module, that a slot is held once
and that a person has at most one slot of an image.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from sqlalchemy import BindParameter, ColumnElement, Executable, bindparam, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from discode.errors import InputError, NotAllowedError, StoreError
from mceval import people
from mceval._states import held_slots, log_event, not_loaded, pass_is_void, return_slot
from mceval._tables import ROLES, Answer, Candidate, Domain, Image, Pass, Person, Slot, Void
from mceval.database import checks_of, rules_of, settings_of, transaction
from mceval.rules import Rules, is_swapped, random_bits

UNSEEN_SECONDS = 0.8
"""Answers that arrive sooner after a page was sent were clicks on the page before it. The pages'
script has the same number."""
IDLE_SECONDS = 180.0
"""Time counts as work for this long after an activity: a page, a movement on it, an answer."""
RELOAD_SECONDS = 3600.0
"""A person gets an image that did not load again after this time."""
WINDOW = 16
"""Images of a domain, in its order, among which a person's next task is drawn."""


@dataclass(frozen=True)
class Task:
    """A task as a person sees it. Gold questions and the user study look like any comparison."""

    lease: str
    kind: str
    """"compare", "revise" or "look"."""
    captions: tuple[str, ...]
    """Left and right; or the caption to revise; or a caption before and after its revision."""
    begun: float
    expires: float
    draft: str
    """The browser's key for the draft; it stays the same when a lease expires."""


@transaction
def heartbeat(session: Session, person: int, lease: str, now: float) -> None:
    """Extend a lease whose holder is active."""
    slot = leased_slot(session, active_person(session, person), lease)
    count_work(slot, now)
    slot.expires = now + settings_of(session).lease_seconds


def count_work(slot: Slot, now: float) -> float:
    """Add the time since the holder's last activity to their work; the total in seconds."""
    gap = max(0.0, now - (slot.seen if slot.seen is not None else now))  # a clock may be set back
    slot.worked = (slot.worked or 0.0) + min(gap, IDLE_SECONDS)
    slot.seen = now
    return slot.worked


def active_person(session: Session, person: int) -> Person:
    row = people.locked_person(session, person)
    if row.state != "active":
        raise NotAllowedError("your part in this campaign has ended; please ask the organisers")
    return row


def check_seen(person: Person, now: float) -> None:
    """Refuse an answer that comes before the person can have seen the page: a double click."""
    if person.shown is not None and abs(now - person.shown) < UNSEEN_SECONDS:
        raise InputError("your answer came too quickly; please look at this page first")


def leased_slot(session: Session, person: Person, lease: str) -> Slot:
    slot = session.scalar(select(Slot).where(Slot.lease == lease).with_for_update(key_share=True))
    if slot is None or slot.person_id != person.id or slot.state != "leased":
        raise NotAllowedError(
            "this task is no longer yours: its time has run out, or it was answered"
        )
    return slot


@transaction
def next_task(session: Session, person_id: int, now: float) -> Task | None:
    """Give a person the task they hold, or the next one; ``None`` if there is none for them now."""
    person = active_person(session, person_id)
    person.shown = now
    rules = rules_of(session)
    for held in held_slots(session, person.id):
        if is_wanted(session, held):
            if held.expires is None or held.expires <= now:
                lease_slot(session, held, person, now)
            count_work(held, now)
            return task_of(session, held)
        return_slot(session, held)  # its image was discarded or finished meanwhile
        if held.kind != "study":
            held.state = "closed"
        session.flush()
    kinds = [kind for kind in ROLES[person.role] if kind != "look"]
    if not kinds:
        return None
    seen = people.dealt_with(session, person.id)
    count = sum(seen.values())
    if (
        len(kinds) == 2
        and random_bits(rules.seed, "kind", person.id, count) % (rules.people + 1) == 0
    ):
        kinds.reverse()  # revisions in proportion to their number
    if rules.second_look and "look" in ROLES[person.role]:
        kinds.insert(0, "look")  # first: there are few, and they finish an image
    domains = _domain_order(session, rules, person, seen)
    for wait in (False, True):  # rows that others have locked may be released
        for kind in kinds:
            slot = _draw_slot(session, rules, person, kind, domains, now, wait=wait)
            if slot is not None:
                return task_of(session, _gold_instead(session, rules, person, count, now) or
                             lease_slot(session, slot, person, now))  # fmt: skip
    return None


def is_wanted(session: Session, slot: Slot) -> bool:
    """Whether a slot still needs an answer: its image is neither finished nor discarded."""
    state = session.get_one(Image, slot.image_id).state
    return state in ("active", "gold") or (slot.kind == "study" and state == "done")


def _domain_order(
    session: Session, rules: Rules, person: Person, seen: Mapping[int | None, int]
) -> list[int]:
    """Order the domains for the search for a person's next task.

    Domains are ordered by the share of the quota that the person has done, so that people work on
    all domains in proportion; ties are broken by a draw per person.
    """
    count = sum(seen.values())
    order = {
        domain: (
            Fraction(seen.get(domain, 0), quota),
            random_bits(rules.seed, "domain", person.id, count, domain),
        )
        for domain, quota in session.execute(select(Domain.id, Domain.quota))
    }
    return sorted(order, key=order.__getitem__)


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
    """Find a slot that a person may have, in the first domain that has one.

    Among the first images of the domain, the choice depends on the seed, the person and the image's
    digest: people who start together get different images, but images are still finished one after
    another.
    """
    values = {"person": person.id, "now": now}
    for domain in domains:
        images = session.execute(_free_query(kind), {**values, "domain": domain}).all()
        for image, _ in sorted(
            images, key=lambda row: random_bits(rules.seed, "order", person.id, row[1])
        ):
            free: Slot | None = session.scalar(_lock_query(kind, wait), {**values, "image": image})
            if free is not None:
                return free
    return None


def person_may_have(
    person: int | BindParameter[int] | InstrumentedAttribute[int],
    now: float | BindParameter[float] | None = None,
    image: int | InstrumentedAttribute[int] = Slot.image_id,
    kind: str | InstrumentedAttribute[str] = Slot.kind,
) -> ColumnElement[bool]:
    """SQL condition that a person may have a slot at ``now``, or ever if ``now`` is ``None``.

    They may not if they hold another slot of its image, skipped or flagged the image, or ever
    answered another kind of task on it, such as the revision of its caption. An image that did not
    load is only withheld for a while, since the file or the connection may recover, and the image
    would otherwise run out of people.
    """
    other = aliased(Slot)
    held = select(other.id).where(other.image_id == image, other.person_id == person)
    again = not_loaded()
    if now is not None:
        again &= Pass.created + RELOAD_SECONDS <= now
    passed = select(Pass.id).where(
        Pass.image_id == image, Pass.person_id == person, ~pass_is_void("undo"), ~again
    )
    answered = select(Answer.id).where(
        Answer.image_id == image, Answer.person_id == person, Answer.kind != kind
    )
    # Explicit: in a condition on people, the slot is two queries further out.
    return ~or_(*(q.correlate(Slot, Person).exists() for q in (held, passed, answered)))


def is_free() -> ColumnElement[bool]:
    """SQL condition that a slot is open or that its lease has expired."""
    late = (Slot.state == "leased") & (Slot.expires <= bindparam("now"))
    return (Slot.state == "open") | late


@cache  # building the query takes longer than running it
def _free_query(kind: str) -> Executable:
    """Build the query for the first images of a domain with a free slot for a person.

    The slots are a condition and not a join, so that images are read in order and no further than
    needed.
    """
    slots = select(Slot.id).where(
        Slot.image_id == Image.id, Slot.kind == kind, is_free(),
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
    """Build the query that locks a slot of an image that had a free one a moment ago."""
    return (
        select(Slot)
        .where(Slot.image_id == bindparam("image"), Slot.kind == kind, is_free())
        .where(person_may_have(bindparam("person"), bindparam("now")))
        .order_by(Slot.number)
        .limit(1)
        .with_for_update(key_share=True, skip_locked=not wait)
    )


def is_gold_turn(seed: int, person: int, count: int, rate: float) -> bool:
    """Whether a person's task number ``count`` is a gold question.

    Tasks are divided into blocks of 1 / rate: block b starts at number ⌊b / rate⌋. Each has one
    gold question, at a position drawn for the person. So the rate is exact and positions are
    unpredictable.

    >>> [count for count in range(40) if is_gold_turn(0, 1, count, 0.1)]
    [6, 11, 24, 38]
    """
    if not rate:
        return False
    near = math.floor(count * rate)  # rounding may give a neighbouring block
    for block in (near - 1, near, near + 1):
        begin, end = math.floor(block / rate), math.floor((block + 1) / rate)
        if begin <= count < end:
            return count == begin + random_bits(seed, "gold", person, block) % (end - begin)
    return False


def _gold_instead(
    session: Session, rules: Rules, person: Person, count: int, now: float
) -> Slot | None:
    """Lease a gold question instead of a task, at the campaign's rate; ``None`` if none is due.

    A reinstated person who has seen them all is asked those again whose answers were voided as
    careless. Otherwise they could not be judged.
    """
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
    if fresh:
        slot = gold_slot(session, fresh[which % len(fresh)], person)
        return lease_slot(session, slot, person, now)
    slots = session.scalars(
        select(Slot)
        .join(Answer, (Answer.slot_id == Slot.id) & (Answer.round == Slot.round))
        .join(Void, Void.answer_id == Answer.id)
        .where(Slot.person_id == person.id, Slot.kind == "gold", Slot.state == "answered")
        .where(Void.reason == "careless")
        .order_by(Slot.id)
    ).all()
    if not slots:
        return None
    slot = slots[which % len(slots)]
    slot.round += 1
    return lease_slot(session, slot, person, now)


def gold_slot(session: Session, image: int, person: Person) -> Slot:
    """Add the slot of a gold question for a person."""
    slot = Slot(image_id=image, kind="gold", number=person.id, state="open", round=0)
    session.add(slot)
    session.flush()
    return slot


def lease_slot(session: Session, slot: Slot, person: Person, now: float) -> Slot:
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


def task_of(session: Session, slot: Slot) -> Task:
    image = session.get_one(Image, slot.image_id)
    if slot.lease is None or slot.person_id is None:
        raise StoreError(f"slot {slot.id} is shown but not held: the database is damaged")
    rules = rules_of(session)
    kind = kind_shown(slot, session.get_one(Person, slot.person_id))
    if kind == "revise":
        captions = texts_of(session, (to_revise(image),))
    elif kind == "look":
        captions = (*texts_of(session, (to_revise(image),)), _revision(session, slot))
    else:
        pair = (image.first, image.second)
        swapped = is_swapped(rules, image.digest, slot.person_id)
        captions = texts_of(session, pair[::-1] if swapped else pair)
    return Task(
        slot.lease,
        kind,
        captions,
        slot.leased_at or 0.0,
        slot.expires or 0.0,
        f"{random_bits(rules.seed, 'draft', slot.id, slot.person_id):016x}",
    )


def kind_shown(slot: Slot, person: Person) -> str:
    """Kind of page for a slot: compare, revise or look. Revisers also revise gold questions."""
    if slot.kind == "gold" and person.role == "reviser":
        return "revise"
    return slot.kind if slot.kind in ("revise", "look") else "compare"


def _revision(session: Session, look: Slot) -> str:
    text: str | None = session.scalar(
        select(Answer.text)
        .join(Slot, (Slot.id == Answer.slot_id) & (Slot.round == Answer.round))
        .where(Slot.image_id == look.image_id, Slot.kind == "revise", Slot.number == look.number)
    )
    if text is None:
        raise StoreError(f"slot {look.id} is a look without a revision: the database is damaged")
    return text


def to_revise(image: Image) -> int | None:
    """The caption to revise: the one drawn or, for a gold question, the wrong one."""
    return image.revised if image.gold is None else people.wrong_caption(image)


def texts_of(session: Session, ids: Sequence[int | None]) -> tuple[str, ...]:
    rows = session.execute(select(Candidate.id, Candidate.text).where(Candidate.id.in_(ids))).all()
    texts = {row[0]: row[1] for row in rows}
    return tuple(texts[number] for number in ids if number is not None)
