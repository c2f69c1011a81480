"""What organisers see and may do: progress, agreement, people, discarded images."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Response
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from discode.errors import HttpError, InputError
from discode.mceval.checks import Record, fault
from discode.mceval.database import Database, settings_of
from discode.mceval.people import mark_careless, reinstate
from discode.mceval.report import domain_rows, person_rows
from discode.mceval.tables import Answer, Domain, Image, Pass, Person, Slot
from discode.mceval.texts import check_text
from discode.mceval.web.auth import Visitor
from discode.mceval.web.rendering import Pages

SHOWN = 60
"""Discarded images on the page; the newest."""
RECENT_SECONDS = 900.0


@dataclass(frozen=True)
class Discarded:
    """An image that was given up, and why."""

    id: int
    domain: str
    source: str
    reason: str


class Admin:
    """The organisers' pages."""

    def __init__(self, db: Database, pages: Pages) -> None:
        self.db = db
        self.pages = pages

    def overview(self, visitor: Visitor, now: float) -> Response:
        """Return the page about everything."""
        with self.db.read() as session:
            settings = settings_of(session)
            domains = domain_rows(session)
            people = [row for row in person_rows(session) if row.role != "admin"]
            gone = discarded(session)
            lately = session.scalar(
                select(func.count()).where(Answer.created > now - RECENT_SECONDS)
            )
            busy = session.scalar(
                select(func.count()).where(Slot.state == "leased", Slot.expires > now)
            )
        total = domains[-1]
        hours, pay = sum(row.hours for row in people), sum(row.pay for row in people)
        return self.pages.show(
            "admin.html", campaign=settings.name, settings=settings, person=visitor.person,
            form_token=visitor.form_token, domains=domains, total=total, people=people,
            discarded=gone, gone=total.states.get("discarded", 0),
            answers=sum(row.answers for row in people), hours=hours, pay=pay, busy=busy or 0,
            per_hour=(lately or 0) * 3600 / RECENT_SECONDS,
            cost=pay / total.done if total.done else float("nan"),
        )  # fmt: skip

    def look_at(self, visitor: Visitor, number: int) -> Response:
        """Return the page about one person."""
        with self.db.read() as session:
            found = [row for row in person_rows(session) if row.id == number]
            if not found:
                raise HttpError(404, "nobody", f"nobody has the number {number}")
            (row,) = found
            settings = settings_of(session)
            passes = session.execute(
                select(Pass.kind, Pass.reason, func.count())
                .where(Pass.person_id == number)
                .group_by(Pass.kind, Pass.reason)
                .order_by(func.count().desc())
                .limit(20)
            ).all()
            compared = session.scalar(
                select(func.count()).where(Answer.person_id == number, Answer.kind != "revise")
            )
        record = Record(gold=row.gold, right=row.right, compared=compared or 0, quick=row.quick)
        return self.pages.show(
            "person.html", campaign=settings.name, settings=settings, person=visitor.person,
            form_token=visitor.form_token, row=row, passes=passes,
            worry=fault(settings.checks, record),
        )  # fmt: skip

    def decide(self, admin: Person, number: int, form: dict[str, str], now: float) -> None:
        """Put a person's work back in the queue, or let them work again."""
        if form.get("sure") != "yes":
            raise InputError("please tick the box that says that you mean it")
        action = form.get("action")
        if action == "reinstate":
            reinstate(self.db, number, now)
            return
        if action != "put_back":
            raise InputError(f"action {action!r} is not known; known: put_back, reinstate")
        if number == admin.id:
            raise InputError("you cannot put back your own work")
        reason = check_text(form.get("reason") or "careless", "a reason")
        mark_careless(self.db, number, f"{reason} (by {admin.name})", now)


def discarded(session: Session) -> list[Discarded]:
    """Return the newest discarded images."""
    rows = session.execute(
        select(Image.id, Domain.name, Image.source, Image.reason)
        .join(Domain, Domain.id == Image.domain_id)
        .where(Image.state == "discarded")
        .order_by(Image.id.desc())
        .limit(SHOWN)
    ).all()
    return [Discarded(*row) for row in rows]
