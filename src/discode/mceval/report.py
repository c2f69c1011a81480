"""Summarise a campaign: progress and agreement by domain, work and pay by person."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from discode.errors import StoreError
from discode.mceval.database import rules_of, settings_of
from discode.mceval.people import work_record
from discode.mceval.quality import fleiss_kappa, krippendorff_alpha, wilson
from discode.mceval.rules import verdict
from discode.mceval.tables import Answer, Domain, Image, Person, Slot, Void
from discode.stats.resampling import Interval


@dataclass(frozen=True)
class DomainRow:
    """A domain: its images by state, and how far people agree on them."""

    name: str
    quota: int
    states: dict[str, int] = field(default_factory=dict)
    judged: int = 0
    """Images with all their votes."""
    discard: Interval = field(default_factory=lambda: wilson(0, 0))
    """The share of judged images without consensus."""
    kappa: float = float("nan")
    alpha: float = float("nan")

    @property
    def done(self) -> int:
        """Images that are finished."""
        return self.states.get("done", 0)


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
    """Comparisons of images that others compared too, with a majority among them."""
    agreed: int
    """Those of them in which this person chose as that majority did."""


def domain_rows(session: Session) -> list[DomainRow]:
    """Return the domains, and a last row "all" where there are several."""
    rules = rules_of(session)
    states: dict[int | None, dict[str, int]] = defaultdict(dict)
    for domain, state, count in session.execute(
        select(Image.domain_id, Image.state, func.count()).group_by(Image.domain_id, Image.state)
    ).all():
        states[domain][state] = count
    tables: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for _, domain, votes in votes_by_image(session):
        tables[domain].append((votes.count(0), votes.count(1)))
    rows = []

    def row(name: str, quota: int, found: dict[str, int], table: list[tuple[int, int]]) -> None:
        full = [pair for pair in table if sum(pair) == rules.people]
        split = sum(verdict(rules, [0] * a + [1] * b).state == "split" for a, b in full)
        kappa = fleiss_kappa(full) if rules.people > 1 and full else float("nan")
        discard = wilson(split, len(full))
        alpha = krippendorff_alpha(table) if table else float("nan")
        rows.append(DomainRow(name, quota, found, len(full), discard, kappa, alpha))

    domains = session.scalars(select(Domain).order_by(Domain.id)).all()
    for one in domains:
        row(one.name, one.quota, states[one.id], tables[one.id])
    if len(domains) > 1:
        total: Counter[str] = Counter()
        for one in domains:
            total.update(states[one.id])
        everything = [pair for one in domains for pair in tables[one.id]]
        row("all", sum(one.quota for one in domains), dict(total), everything)
    return rows


def votes_by_image(session: Session) -> list[tuple[int, int, list[int]]]:
    """Return (image, domain, votes that count) of all images that have votes, in order."""
    rows = session.execute(
        select(Image.id, Image.domain_id, Answer.choice)
        .join(Slot, Slot.image_id == Image.id)
        .join(Answer, (Answer.slot_id == Slot.id) & (Answer.round == Slot.round))
        .where(Slot.kind == "compare", Slot.state == "answered")
        .order_by(Image.id, Answer.id)
    ).all()
    found: dict[int, tuple[int, int, list[int]]] = {}
    for image, domain, choice in rows:
        if domain is None or choice is None:
            raise StoreError(f"image {image} has a vote without a choice or a domain")
        found.setdefault(image, (image, domain, []))[2].append(choice)
    return list(found.values())


def person_rows(session: Session) -> list[PersonRow]:
    """Return everybody who was invited or came from a platform."""
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
        mine = work[person.id]
        # A page left open overnight is not work: at most one lease is paid per answer.
        seconds = [min(answer.seconds, settings.lease_seconds) for answer in mine]
        hours = sum(seconds) / 3600
        shared, agreed = _with_others(person.id, mine, votes)
        record = work_record(session, person.id)
        row = PersonRow(
            person.id, person.name, person.role, person.state, person.reason, len(mine),
            sum(answer.id in void for answer in mine), hours, hours * settings.pay_per_hour,
            median(seconds) if seconds else float("nan"),
            record.gold, record.right, record.quick, shared, agreed,
        )  # fmt: skip
        rows.append(row)
    return rows


def _with_others(
    person: int, mine: Sequence[Answer], votes: dict[int, list[Answer]]
) -> tuple[int, int]:
    shared = agreed = 0
    for answer in mine:
        others = [vote.choice for vote in votes[answer.image_id] if vote.person_id != person]
        if answer.kind == "compare" and 2 * others.count(1) != len(others):
            shared += 1
            agreed += answer.choice == int(2 * others.count(1) > len(others))
    return shared, agreed
