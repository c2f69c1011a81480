"""Find what keeps a campaign from being finished, and say what would help.

A campaign stands still where images lack captions, where a domain has no more images, or where the
tasks that are open are none that anybody who takes part may have. Answers are doubtful where too
few gold questions check them, and where somebody chooses a side instead of a caption.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from discode.stats import wilson
from mceval.database import checks_of, rules_of
from mceval.queue.leases import person_may_have
from mceval.report import domain_rows, side_rows
from mceval.rules import Rules
from mceval.states import not_loaded, pass_counts
from mceval.tables import ROLES, Answer, Candidate, Domain, Image, Pass, Person, Slot

SPLIT_AFTER = 10
"""So many judged images of a domain show whether people can agree on it."""
SILENT_SECONDS = 86400.0
SIDE_LEVEL = 0.999
"""An interval of this level around a person's share of left choices has one half in it."""


@dataclass(frozen=True)
class Stall:
    """Something that stands still or is doubtful, and the cure."""

    what: str
    cure: str


def find_stalls(session: Session, now: float) -> list[Stall]:
    """Return what stalls, the most basic first; empty if all is well or the quota is full."""
    rules = rules_of(session)
    rows = {row.name: row for row in domain_rows(session)}
    found: list[Stall] = []
    unfinished = False
    for domain in session.scalars(select(Domain).order_by(Domain.id)).all():
        row = rows[domain.name]
        if row.done >= domain.quota:
            continue
        unfinished = True
        found += _images(session, domain, row.states, rules)
        if row.judged >= SPLIT_AFTER and row.discard.low > 0.5:
            found.append(
                Stall(
                    f"{domain.name}: people disagree on {row.discard.value:.0%} of "
                    f"{row.judged} images",
                    "look at the discarded ones: captions that are equally good cannot be told "
                    "apart; other writers, clearer instructions or --consensus majority help",
                )
            )
    if unfinished:
        found += _people(session, rules)
        found += _open_tasks(session)
        found += _not_loading(session)
        found += _silence(session, now)
    return found


def find_doubts(session: Session) -> list[Stall]:
    """Return what makes answers doubtful: gold questions that check nobody, and choices of a side.

    Sides are drawn, so whoever looks at the captions chooses the left one in half of all cases.
    """
    checks, found = checks_of(session), []
    gold = session.scalar(select(func.count()).where(Image.state == "gold")) or 0
    if (gold or checks.gold_rate) and gold < checks.gold_after:
        found.append(
            Stall(
                f"gold questions check nobody: there are {gold}, and a person is judged by "
                f"{checks.gold_after} or more",
                "add some with discode mceval images --gold TABLE; until then, only too quick "
                "answers show who is careless",
            )
        )
    for row in side_rows(session)[:-1]:
        left = wilson(round(row.left.value * row.compared), row.compared, SIDE_LEVEL)
        if not left.low <= 0.5 <= left.high:
            found.append(
                Stall(
                    f"{row.name} (person {row.person}) chose the left caption in "
                    f"{100 * left.value:.0f} % of {row.compared} comparisons, and sides are drawn",
                    "look at their answers; discode mceval people --careless "
                    f"{row.person} returns them to the queue",
                )
            )
    return found


def _images(session: Session, domain: Domain, states: dict[str, int], rules: Rules) -> list[Stall]:
    """Return what a domain lacks: captions of images that wait, or images."""
    missing = domain.quota - states.get("done", 0) - states.get("active", 0)
    if missing <= 0:
        return []
    waiting = states.get("pool", 0)
    found = []
    if waiting:
        counts = select(Candidate.writer, func.count()).join(Image, Image.id == Candidate.image_id)
        have = session.execute(
            counts.where(Image.domain_id == domain.id, Image.state == "pool")
            .group_by(Candidate.writer)
            .order_by(Candidate.writer)
        ).all()
        listed = ", ".join(f"{writer} {count}" for writer, count in have) or "none"
        found.append(
            Stall(
                f"{domain.name}: {missing} images are missing; {waiting} wait for captions of "
                f"{rules.writers} writers (there are: {listed})",
                "add the missing ones with discode mceval candidates",
            )
        )
    if missing > waiting:
        gone = states.get("discarded", 0)
        found.append(
            Stall(
                f"{domain.name}: {missing - waiting} more images are needed than there are "
                f"({gone} were discarded)",
                f"add some with discode mceval images --domain {domain.name}=FOLDER",
            )
        )
    return found


def _people(session: Session, rules: Rules) -> list[Stall]:
    """Return where there are too few people for one image, whatever they have done so far."""
    rows = session.execute(
        select(Person.role, func.count()).where(Person.state == "active").group_by(Person.role)
    ).all()
    count = {row[0]: row[1] for row in rows}
    both = count.get("both", 0)
    compare, revise = count.get("comparer", 0) + both, count.get("reviser", 0) + both
    everybody = compare + revise - both
    looks = int(rules.second_look)
    how = "invite more with discode mceval people --role"
    if compare < rules.people:
        what = f"{compare} active people compare, and every image needs {rules.people} of them"
        return [Stall(what, f"{how} comparer")]
    if revise < 1:
        return [Stall("nobody who is active revises captions", f"{how} reviser")]
    if revise < 1 + looks:
        what = "1 active person revises captions, and another one must look at every revision"
        return [Stall(what, f"{how} reviser")]
    if everybody < rules.people + 1 + looks:
        what = (
            f"{everybody} active people are too few: {rules.people} compare an image, "
            + ("" if looks else "and ")
            + "somebody else revises its caption"
            + (", and one more looks at the revision" if looks else "")
        )
        return [Stall(what, f"{how} reviser")]
    return []


def _open_tasks(session: Session) -> list[Stall]:
    """Return the open tasks that nobody who is active may have."""
    found = []
    for kind, verb, role in (
        ("compare", "comparisons", "comparer"),
        ("revise", "revisions", "reviser"),
        ("look", "looks at revisions", "reviser"),
        ("study", "comparisons of the user study", "study"),
    ):
        stuck = session.scalar(
            select(func.count(Slot.id.distinct()))
            .join(Image, Image.id == Slot.image_id)
            .where(_for_nobody(kind))
        )
        if stuck:
            found.append(
                Stall(
                    f"{stuck} open {verb} are for nobody: all who are active have worked on these "
                    "images already, or passed on them",
                    f"invite somebody new with discode mceval people --role {role}",
                )
            )
    return found


def _not_loading(session: Session) -> list[Stall]:
    """Return the images that did not load for two people or more; for one, it may be their own."""
    sources = session.scalars(
        select(Image.source)
        .join(Pass, Pass.image_id == Image.id)
        .where(Image.state == "active", pass_counts(), not_loaded())
        .group_by(Image.id, Image.source)
        .having(func.count(Pass.person_id.distinct()) > 1)
        .order_by(Image.id)
    ).all()
    if not sources:
        return []
    return [
        Stall(
            f"{len(sources)} images do not load: {', '.join(sources[:3])}"
            + (", ..." if len(sources) > 3 else ""),
            "put the files back, or say with discode mceval annotate --images FOLDER where they "
            "are; people are given them again an hour after they said so",
        )
    ]


def _for_nobody(kind: str) -> ColumnElement[bool]:
    """Return the condition that a slot is open, and nobody who is active may have it."""
    roles = [name for name, kinds in ROLES.items() if kind in kinds]
    able = select(Person.id).where(
        Person.state == "active", Person.role.in_(roles), person_may_have(Person.id)
    )
    state = "done" if kind == "study" else "active"
    return (Slot.kind == kind) & (Slot.state == "open") & (Image.state == state) & ~able.exists()


@dataclass(frozen=True)
class StuckImage:
    """An image with open tasks that nobody who is active may have."""

    id: int
    domain: str
    source: str
    kind: str
    missing: int
    """How many tasks of this kind are open and for nobody."""


def stuck_images(session: Session, most: int) -> list[StuckImage]:
    """Return the images that wait for people who are not there, up to so many of each kind."""
    found = []
    for kind in ("compare", "revise", "look", "study"):
        rows = session.execute(
            select(Image.id, Domain.name, Image.source, func.count(Slot.id))
            .join(Slot, Slot.image_id == Image.id)
            .join(Domain, Domain.id == Image.domain_id)
            .where(_for_nobody(kind))
            .group_by(Image.id, Domain.name, Image.source)
            .order_by(Image.id)
            .limit(most)
        ).all()
        found += [StuckImage(row[0], row[1], row[2], kind, row[3]) for row in rows]
    return found


def _silence(session: Session, now: float) -> list[Stall]:
    last = session.scalar(select(func.max(Answer.created)))
    ready = select(Slot.id).where(Slot.kind != "study", Slot.state.in_(("open", "leased"))).limit(1)
    if last is None or now - last < SILENT_SECONDS or session.scalar(ready) is None:
        return []
    days = (now - last) / 86400
    return [
        Stall(
            f"the last answer came {days:.1f} days ago, and there are tasks",
            "remind people; a lost link is replaced by discode mceval people --reissue NUMBER",
        )
    ]
