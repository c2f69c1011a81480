"""Summarise a campaign: progress and agreement by domain, work and pay by person, flags."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from discode.errors import StoreError
from discode.stats import Interval, wilson
from mceval._checks import Evidence
from mceval._guide import FLAG_REASONS, SKIP_REASONS
from mceval._states import answer_counts, pass_counts, pass_is_void
from mceval._tables import (
    Answer,
    Domain,
    Finding,
    Image,
    Pass,
    PassVoid,
    Person,
    Slot,
    Void,
)  # fmt: skip
from mceval.database import from_json, rules_of, settings_of
from mceval.people import dealt_with, passes_of, work_record
from mceval.quality import fleiss_kappa, krippendorff_alpha
from mceval.rules import verdict


@dataclass(frozen=True)
class DomainRow:
    """A domain: its images by state, and the agreement of people on them."""

    name: str
    quota: int
    states: Counter[str]
    judged: int
    """Images with all their votes."""
    no_consensus: Interval
    """The share of judged images without consensus."""
    kappa: float
    alpha: float
    decided: int
    """Images with all their votes, or discarded by people before that."""
    discard: Interval
    """The share of decided images that people discarded, for any reason."""
    discarded: Counter[str]
    """Discarded images by reason (:data:`~mceval._tables.DISCARDED_BY`)."""
    skips: int
    flags: int
    """Skips and flags that count."""

    @property
    def done(self) -> int:
        return self.states["done"]


@dataclass(frozen=True)
class PersonRow:
    """A person's work, its time and pay, and its quality."""

    id: int
    name: str
    role: str
    state: str
    reason: str
    answers: int
    void: int
    hours: float
    pay: float
    median_seconds: float
    gold: int
    right: int
    quick: int
    shared: int
    """Comparisons of images on which the other people have a majority; used for decisions."""
    agreed: int
    """Those of them in which this person chose as that majority did."""
    decided: int
    """Comparisons of images on which all people, including this one, have a majority."""
    with_majority: int
    """Those of them in which this person chose as that majority did."""


def domain_rows(session: Session) -> list[DomainRow]:
    """Summarise each domain; if there are several, a last row "all" covers them together."""
    rules = rules_of(session)
    every = session.execute(
        select(Image.id, Image.domain_id, Image.state, Image.discarded_by)
    ).all()
    full = {
        image: (domain, (votes.count(0), votes.count(1)))
        for image, domain, votes in votes_by_image(session)
        if len(votes) == rules.people
    }
    passed = session.execute(
        select(Image.domain_id, Pass.kind)
        .join(Pass, Pass.image_id == Image.id)
        .where(pass_counts())
    ).all()

    def row(name: str, quota: int, ids: Sequence[int]) -> DomainRow:
        images = [image for image in every if image.domain_id in ids]
        reasons = {
            image.id: str(image.discarded_by) for image in images if image.state == "discarded"
        }
        by_people = {image for image, why in reasons.items() if why != "captions"}
        judged = {image: pair for image, (domain, pair) in full.items() if domain in ids}
        pairs, decided = list(judged.values()), len(by_people.union(judged))
        split = sum(verdict(rules, [0] * a + [1] * b).state == "split" for a, b in pairs)
        passes = Counter(kind for domain, kind in passed if domain in ids)
        return DomainRow(
            name, quota, Counter(image.state for image in images), len(pairs),
            wilson(split, len(pairs)),
            fleiss_kappa(pairs) if rules.people > 1 and pairs else float("nan"),
            krippendorff_alpha(pairs) if pairs else float("nan"),
            decided, wilson(len(by_people), decided), Counter(reasons.values()), passes["skip"],
            passes["flag"],
        )  # fmt: skip

    domains = session.scalars(select(Domain).order_by(Domain.id)).all()
    rows = [row(domain.name, domain.quota, [domain.id]) for domain in domains]
    if len(domains) > 1:
        quota = sum(domain.quota for domain in domains)
        rows.append(row("all", quota, [domain.id for domain in domains]))
    return rows


def quota_notes(rows: Sequence[DomainRow]) -> list[str]:
    """Describe where a dataset has fewer images than its quota, or leaves out finished ones."""
    notes = []
    for row in (row for row in rows if row.name != "all"):
        if row.done < row.quota:
            notes.append(f"{row.name} is not finished: {row.done} of {row.quota} images")
        elif row.done > row.quota:
            notes.append(
                f"{row.name} has {row.done} finished images for a quota of {row.quota}: "
                f"{row.done - row.quota} left out, the last in its random order"
            )
    return notes


def pass_reasons(session: Session, kind: str) -> dict[str, int]:
    """Count the reasons of skips or flags that count.

    Free text is left out, since it may be about a person.
    """
    reasons = select(Pass.reason).where(Pass.kind == kind, pass_counts())
    known = {*chain(*SKIP_REASONS.values()), *FLAG_REASONS}
    words = (reason.partition(":")[0] for reason in session.scalars(reasons))
    return dict(sorted(Counter(word if word in known else "Other" for word in words).items()))


def votes_by_image(session: Session) -> list[tuple[int, int, list[int]]]:
    """List (image, domain, valid votes) of all images with votes, in order."""
    rows = session.execute(
        select(Image.id, Image.domain_id, Answer.choice)
        .join(Answer, Answer.image_id == Image.id)
        .where(Answer.kind == "compare", answer_counts())
        .order_by(Image.id, Answer.id)
    ).all()
    images: dict[int, tuple[int, int, list[int]]] = {}
    for image, domain, choice in rows:
        if domain is None or choice is None:
            raise StoreError(f"image {image} has a vote without a choice or a domain")
        images.setdefault(image, (image, domain, []))[2].append(choice)
    return list(images.values())


def person_rows(session: Session) -> list[PersonRow]:
    settings = settings_of(session)
    void = set(session.scalars(select(Void.answer_id)).all())
    work: dict[int, list[Answer]] = defaultdict(list)
    votes: dict[int, list[Answer]] = defaultdict(list)
    for answer in session.scalars(select(Answer).order_by(Answer.id)).all():
        work[answer.person_id].append(answer)
        if answer.kind == "compare" and answer.id not in void:
            votes[answer.image_id].append(answer)
    rows = []
    for person in session.scalars(select(Person).order_by(Person.id)).all():
        answers = work[person.id]
        seconds = [worked_seconds(a.seconds, a.worked, settings.lease_seconds) for a in answers]
        hours = sum(seconds) / 3600
        record = work_record(session, person.id)
        row = PersonRow(
            person.id, person.name, person.role, person.state, person.reason, len(answers),
            sum(answer.id in void for answer in answers), hours, hours * settings.pay_per_hour,
            median(seconds) if seconds else float("nan"), record.gold, record.right, record.quick,
            *_with_majority(person.id, answers, votes, of_all=False),
            *_with_majority(person.id, answers, votes, of_all=True),
        )  # fmt: skip
        rows.append(row)
    return rows


def worked_seconds(seconds: float, worked: float | None, lease: float) -> float:
    """Working time of an answer, in seconds.

    Earlier versions did not measure it; their answers count for at most one lease.
    """
    return min(seconds, lease) if worked is None else worked


def _with_majority(
    person: int, answers: Sequence[Answer], votes: dict[int, list[Answer]], *, of_all: bool
) -> tuple[int, int]:
    """Count a person's images with a majority (of the others, or of all), and how often they agree.

    Two to one is a majority of all for all three people, but of the others only for the third.
    """
    shared = agreed = 0
    for answer in answers:
        others = [vote.choice for vote in votes[answer.image_id] if vote.person_id != person]
        counted = [*others, answer.choice] if others and of_all else others
        if answer.kind == "compare" and 2 * counted.count(1) != len(counted):
            shared += 1
            agreed += answer.choice == int(2 * counted.count(1) > len(counted))
    return shared, agreed


def flag_rows(session: Session, kind: str = "flag") -> Sequence[Any]:
    """List all flags, or skips, newest first.

    Rows of id, image (its number), domain ("" for a gold question), source, state (the image's),
    person, name, reason, created, and set_aside: "" if it counts, otherwise the last reason of its
    :class:`~mceval._tables.PassVoid`.
    """
    void = (
        select(PassVoid.reason)
        .where(PassVoid.pass_id == Pass.id)
        .order_by(PassVoid.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    return session.execute(
        select(
            Pass.id, Pass.image_id.label("image"),
            func.coalesce(Domain.name, "").label("domain"), Image.source, Image.state,
            Pass.person_id.label("person"), Person.name, Pass.reason, Pass.created,
            func.coalesce(void, "").label("set_aside"),
        )
        .join(Image, Image.id == Pass.image_id)
        .join(Domain, Domain.id == Image.domain_id, isouter=True)
        .join(Person, Person.id == Pass.person_id)
        .where(Pass.kind == kind)
        .order_by(Pass.id.desc())
    ).all()  # fmt: skip


@dataclass(frozen=True)
class PassWarning:
    """A person who flagged or skipped more than the campaign's limit, with a description."""

    person: int
    name: str
    words: str


def pass_warnings(session: Session) -> list[PassWarning]:
    """List active people who flagged or skipped beyond the limit."""
    rows = session.execute(
        select(Person.id, Person.name, Pass.kind, func.count())
        .join(Pass, Pass.person_id == Person.id)
        .where(Person.state == "active", pass_is_void("limit"))
        .where(~pass_is_void("undo"))
        .group_by(Person.id, Person.name, Pass.kind)
        .order_by(Person.id, Pass.kind)
    ).all()
    return [
        PassWarning(
            person,
            name,
            f"{'flagged' if kind == 'flag' else 'skipped'} {passes_of(session, person, kind)} of "
            f"{sum(dealt_with(session, person).values())} tasks; {beyond} exceed the limit and do "
            "not count",
        )
        for person, name, kind, beyond in rows
    ]


@dataclass(frozen=True)
class SideRow:
    """The share of left choices; far from one half, the person did not look."""

    person: int | None
    """``None`` for all people together, the last row."""
    name: str
    compared: int
    left: Interval


def side_rows(session: Session) -> list[SideRow]:
    """Compute the share of left choices among valid comparisons, by person and overall."""
    rows = session.execute(
        select(Person.id, Person.name, Answer.choice, Answer.swapped)
        .join(Person, Person.id == Answer.person_id)
        .where(Answer.choice.is_not(None), Answer.kind != "look", answer_counts())
        .order_by(Person.id)
    ).all()
    sides: dict[tuple[int, str], list[bool]] = defaultdict(list)
    for person, name, choice, swapped in rows:
        sides[person, name].append(choice == int(swapped))  # swapped: the second is on the left
    everybody = [left for choices in sides.values() for left in choices]
    return [
        SideRow(person, name, len(left), wilson(sum(left), len(left)))
        for (person, name), left in (*sides.items(), ((None, "all"), everybody))
    ]


@dataclass(frozen=True)
class FindingRow:
    """A decision about a person, its author and its evidence."""

    person: int
    kind: str
    """careless, reinstated, left or revoked."""
    reason: str
    organiser: str
    """The organiser's name; "" for automatic checks, withdrawals, and the command line."""
    evidence: Evidence
    created: float


def finding_rows(session: Session, person: int | None = None) -> list[FindingRow]:
    """List the decisions about one person or about all, in order."""
    query = select(Finding).order_by(Finding.id)
    if person is not None:
        query = query.where(Finding.person_id == person)
    names = dict(session.execute(select(Person.id, Person.name)).all())
    return [
        FindingRow(
            row.person_id, row.kind, row.reason, names.get(row.organiser_id or 0, ""),
            from_json(Evidence, row.evidence), row.created,
        )
        for row in session.scalars(query).all()
    ]  # fmt: skip


@dataclass(frozen=True)
class SecondLooks:
    """The outcome of second looks at revisions."""

    accepted: int = 0
    rejected: int = 0
    waiting: int = 0
    """Revisions without a look so far."""


def second_looks(session: Session) -> SecondLooks:
    """Count the revisions that were accepted, were rejected, or wait for a second look."""
    looks = (
        select(Answer.choice, func.count())
        .where(Answer.kind == "look", answer_counts())
        .group_by(Answer.choice)
    )
    count = dict(session.execute(looks).all())
    waiting = session.scalar(
        select(func.count()).where(Slot.kind == "look", Slot.state.in_(("open", "leased")))
    )
    return SecondLooks(count.get(1, 0), count.get(0, 0), waiting or 0)


@dataclass(frozen=True)
class Timings:
    """The mean seconds per task and the number of tasks; NaN without tasks."""

    compare_seconds: float
    compared: int
    revise_seconds: float
    revised: int


def task_timings(session: Session) -> Timings:
    """Measure the mean time of comparisons and revisions, for the plan of the next campaign.

    The mean, since hours are a sum: the time of work on all answers, including those taken back,
    over the number that count. Careless people's answers and second looks are left out.
    """
    longest = settings_of(session).lease_seconds
    void = dict(session.execute(select(Void.answer_id, Void.reason)).all())
    seconds = {False: 0.0, True: 0.0}
    counts: Counter[bool] = Counter()
    for number, kind, took, worked in session.execute(
        select(Answer.id, Answer.kind, Answer.seconds, Answer.worked)
        .where(Answer.kind != "look")
        .order_by(Answer.id)
    ).all():
        if void.get(number) != "careless":
            seconds[kind == "revise"] += worked_seconds(took, worked, longest)
            counts[kind == "revise"] += number not in void
    compare, revise = (
        seconds[kind] / counts[kind] if counts[kind] else float("nan") for kind in (False, True)
    )
    return Timings(compare, counts[False], revise, counts[True])
