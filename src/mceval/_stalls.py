"""Find what blocks a campaign or makes its answers doubtful, with a remedy for each.

A campaign is blocked if images have too few captions, if a domain has no more images, or if no
active person may have the open tasks. Answers are doubtful if there are too few gold questions, or
if a person chooses by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from discode.stats import wilson
from mceval._report import DomainRow, domain_rows, side_rows
from mceval._states import not_loaded, pass_counts
from mceval._tables import ROLES, Answer, Candidate, Domain, Image, Pass, Person, Slot
from mceval._texts import first_few
from mceval.database import checks_of, rules_of
from mceval.queue._leases import person_may_have
from mceval.rules import Rules

SPLIT_AFTER = 10
"""Judged images of a domain after which its share of disagreement is reported."""
SILENT_SECONDS = 86400.0
SIDE_LEVEL = 0.999
"""Level of the interval of a person's share of left choices, which must contain one half."""


@dataclass(frozen=True)
class Stall:
    """A problem of a campaign, and its remedy."""

    what: str
    cure: str


def find_stalls(session: Session, now: float) -> list[Stall]:
    """List what blocks the campaign, the most basic first; nothing once the quotas are full."""
    stalls: list[Stall] = []
    rules = rules_of(session)
    rows = [row for row in domain_rows(session) if row.name != "all" and row.done < row.quota]
    for row in rows:
        stalls += _images(session, row, rules)
        if row.judged >= SPLIT_AFTER and row.discard.low > 0.5:
            stall = Stall(
                f"{row.name}: people disagree on {row.discard.value:.0%} of {row.judged} images",
                "look at the discarded ones: equally good captions cannot be told apart; other "
                "writers, clearer instructions or --consensus majority help",
            )
            stalls.append(stall)
    if rows:
        stalls += [*_people(session, rules), *_open_tasks(session)]
        stalls += [*_not_loading(session), *_silence(session, now)]
    return stalls


def find_doubts(session: Session) -> list[Stall]:
    """List reasons to doubt answers: too few gold questions, and people who choose by side.

    Sides are drawn, so a person who reads the captions chooses the left one in half of all cases.
    """
    checks, doubts = checks_of(session), []
    gold = session.scalar(select(func.count()).where(Image.state == "gold")) or 0
    if (gold or checks.gold_rate) and gold < checks.gold_after:
        what = (
            f"too few gold questions ({gold}; at least {checks.gold_after} are needed to check "
            "people)"
        )
        cure = (
            "add some with discode mceval images --gold TABLE; until then, only quick answers "
            "reveal careless people"
        )
        doubts.append(Stall(what, cure))
    for row in side_rows(session)[:-1]:
        left = wilson(round(row.left.value * row.compared), row.compared, SIDE_LEVEL)
        if not left.low <= 0.5 <= left.high:
            what = (
                f"{row.name} (person {row.person}) chose the left caption in "
                f"{100 * left.value:.0f} % of {row.compared} comparisons; sides are random"
            )
            cure = (
                "check their answers; to requeue their tasks, run discode mceval people "
                f"mark-careless DATABASE {row.person}"
            )
            doubts.append(Stall(what, cure))
    return doubts


def _images(session: Session, domain: DomainRow, rules: Rules) -> Iterator[Stall]:
    """Report missing captions of waiting images, or missing images."""
    missing = domain.quota - domain.done - domain.states["active"]
    waiting = domain.states["pool"]
    if missing > 0 and waiting:
        captions = session.execute(
            select(Candidate.writer, func.count())
            .join(Image, Image.id == Candidate.image_id)
            .join(Domain, Domain.id == Image.domain_id)
            .where(Domain.name == domain.name, Image.state == "pool")
            .group_by(Candidate.writer)
            .order_by(Candidate.writer)
        ).all()
        listed = ", ".join(f"{writer} {count}" for writer, count in captions) or "none"
        yield Stall(
            f"{domain.name}: {missing} images are missing; {waiting} wait for captions by "
            f"{rules.writers} writers (so far: {listed})",
            "add the missing captions with discode mceval candidates",
        )
    if missing > waiting:
        yield Stall(
            f"{domain.name}: {missing - waiting} more images are needed "
            f"({domain.states['discarded']} were discarded)",
            f"add some with discode mceval images --domain {domain.name}=FOLDER",
        )


def _people(session: Session, rules: Rules) -> Iterator[Stall]:
    """Report too few people for a single image, whatever they have done so far."""
    active = select(Person.role, func.count()).where(Person.state == "active")
    count = dict(session.execute(active.group_by(Person.role)).all())
    both = count.get("both", 0)
    compare, revise = count.get("comparer", 0) + both, count.get("reviser", 0) + both
    everybody, revising = compare + revise - both, 2 if rules.second_look else 1
    look = ", and another checks the revision" if rules.second_look else ""
    role, what = "reviser", ""
    if compare < rules.people:
        role = "comparer"
        what = f"{compare} active people compare; every image needs {rules.people}"
    elif revise < revising:
        what = (
            f"{revise} active people revise; every image needs {revising}: one revises its "
            f"caption{look}"
        )
    elif everybody < rules.people + revising:
        what = (
            f"{everybody} active people are too few: {rules.people} compare an image, another "
            f"revises its caption{look}"
        )
    if what:
        yield Stall(what, f"invite more with discode mceval people invite --role {role}")


def _open_tasks(session: Session) -> Iterator[Stall]:
    """Report open tasks that no active person may have."""
    images = stuck_images(session)
    for kind, verb, role in (
        ("compare", "comparisons", "comparer"),
        ("revise", "revisions", "reviser"),
        ("look", "looks at revisions", "reviser"),
        ("study", "comparisons of the user study", "study"),
    ):
        stuck = sum(image.missing for image in images if image.kind == kind)
        if stuck:
            yield Stall(
                f"{stuck} open {verb} cannot be assigned: all active people have already worked "
                "on these images, or skipped or flagged them",
                f"invite new people with discode mceval people invite --role {role}",
            )


def _not_loading(session: Session) -> Iterator[Stall]:
    """Report images that did not load for two or more people."""
    sources = session.scalars(
        select(Image.source)
        .join(Pass, Pass.image_id == Image.id)
        .where(Image.state == "active", pass_counts(), not_loaded())
        .group_by(Image.id, Image.source)
        .having(func.count(Pass.person_id.distinct()) > 1)
        .order_by(Image.id)
    ).all()
    if sources:
        yield Stall(
            f"{len(sources)} images do not load: {first_few(sources)}",
            "restore the files, or pass their folder to discode mceval annotate --images FOLDER; "
            "people get these images again an hour after their flag",
        )


def stuck_images(session: Session, most: int | None = None) -> list[Any]:
    """List images whose open tasks no active person may have, up to ``most`` of each kind.

    Rows of id, domain, source, kind, and the number of ``missing`` tasks.
    """
    rows: list[Any] = []
    for kind in ("compare", "revise", "look", "study"):
        roles = [name for name, kinds in ROLES.items() if kind in kinds]
        able = select(Person.id).where(
            Person.state == "active", Person.role.in_(roles), person_may_have(Person.id)
        )
        rows += session.execute(
            select(
                Image.id, Domain.name.label("domain"), Image.source, Slot.kind,
                func.count().label("missing"),
            )
            .join(Slot, Slot.image_id == Image.id)
            .join(Domain, Domain.id == Image.domain_id)
            .where(Image.state == ("done" if kind == "study" else "active"))
            .where(Slot.kind == kind, Slot.state == "open", ~able.exists())
            .group_by(Image.id, Domain.name, Image.source, Slot.kind)
            .order_by(Image.id)
            .limit(most)
        ).all()  # fmt: skip
    return rows


def _silence(session: Session, now: float) -> Iterator[Stall]:
    last = session.scalar(select(func.max(Answer.created)))
    ready = select(Slot.id).where(Slot.kind != "study", Slot.state.in_(("open", "leased"))).limit(1)
    if last is not None and now - last >= SILENT_SECONDS and session.scalar(ready) is not None:
        yield Stall(
            f"the last answer came {(now - last) / 86400:.1f} days ago, but tasks are open",
            "remind people; replace lost links with discode mceval people reissue",
        )
