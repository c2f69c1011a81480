"""The organisers' pages: progress, agreement, people, discarded images."""

from __future__ import annotations

from fastapi import Response
from sqlalchemy import func, select

from discode.errors import HttpError, InputError
from discode.mceval.checks import WorkRecord, careless_reason
from discode.mceval.database import Database, settings_of
from discode.mceval.organising import discarded_images, restore, set_flag_aside, take_down
from discode.mceval.people import Invitation, mark_careless, reinstate, reissue, revoke
from discode.mceval.report import domain_rows, finding_rows, person_rows
from discode.mceval.tables import Answer, Pass, Person, Slot
from discode.mceval.texts import check_text
from discode.mceval.web.auth import Visitor
from discode.mceval.web.rendering import Pages

SHOWN = 60
"""How many discarded images the page shows, the newest first."""
RECENT_SECONDS = 900.0


class AdminPages:
    """The organisers' pages."""

    def __init__(self, db: Database, pages: Pages) -> None:
        self.db = db
        self.pages = pages

    def overview(self, visitor: Visitor, now: float) -> Response:
        """Return the overview of the campaign."""
        with self.db.read() as session:
            settings = settings_of(session)
            domains = domain_rows(session)
            people = [row for row in person_rows(session) if row.role != "admin"]
            newest = discarded_images(session, SHOWN)
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
            discarded=newest, discarded_count=total.states.get("discarded", 0),
            answers=sum(row.answers for row in people), hours=hours, pay=pay, busy=busy or 0,
            per_hour=(lately or 0) * 3600 / RECENT_SECONDS,
            cost=pay / total.done if total.done else float("nan"),
        )  # fmt: skip

    def person(self, visitor: Visitor, number: int) -> Response:
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
            findings = finding_rows(session, number)
        record = WorkRecord(gold=row.gold, right=row.right, compared=compared or 0, quick=row.quick)
        return self.pages.show(
            "person.html", campaign=settings.name, settings=settings, person=visitor.person,
            form_token=visitor.form_token, row=row, passes=passes,
            concern=careless_reason(settings.checks, record), findings=findings,
        )  # fmt: skip

    def act_on_person(self, admin: Person, number: int, form: dict[str, str], now: float) -> None:
        """Return a person's work to the queue, let them work again, or end their part.

        Actions: put_back, reinstate, revoke. A new invitation is :meth:`new_invitation`, since its
        link is shown once.
        """
        _confirmed(form)
        action = form.get("action")
        if action == "reinstate":
            reinstate(self.db, number, now, by=admin.id)
            return
        if action not in ("put_back", "revoke"):
            raise InputError(f"action {action!r} is not known; known: put_back, reinstate, revoke")
        if action == "revoke":
            reason = check_text(form.get("reason") or "revoked", "a reason")
            revoke(self.db, number, reason, now, by=admin.id)
            return
        if number == admin.id:
            raise InputError("you cannot return your own work to the queue")
        reason = check_text(form.get("reason") or "careless", "a reason")
        mark_careless(self.db, number, f"{reason} (by {admin.name})", now, by=admin.id)

    def new_invitation(
        self, admin: Person, number: int, form: dict[str, str], now: float
    ) -> Invitation:
        """Reissue a person's invitation; the old link and all their browsers stop working."""
        _confirmed(form)
        if number == admin.id:
            raise InputError("a new link for yourself would end this session; use the command line")
        return reissue(self.db, number, now, days=_days(form), by=admin.id)

    def act_on_image(self, admin: Person, number: int, form: dict[str, str], now: float) -> None:
        """Restore an image, take it down, or set one flag on it aside (field ``flag``).

        Actions: restore, take_down, set_aside.
        """
        action = form.get("action")
        if action == "set_aside":
            flag = form.get("flag", "")
            if not (flag.isascii() and flag.isdigit() and len(flag) < 10):
                raise InputError(f"flag {flag!r} is not the number of a flag")
            set_flag_aside(self.db, int(flag), now, by=admin.id)
            return
        if action not in ("restore", "take_down"):
            raise InputError(
                f"action {action!r} is not known; known: restore, take_down, set_aside"
            )
        act = restore if action == "restore" else take_down
        reason = check_text(form.get("reason") or "an organiser looked at it", "a reason")
        act(self.db, number, reason, now, by=admin.id)


def _confirmed(form: dict[str, str]) -> None:
    if form.get("sure") != "yes":
        raise InputError("please tick the box to confirm")


def _days(form: dict[str, str]) -> float | None:
    """Return for how long a new invitation is to be valid; ``None`` for as long as it takes."""
    given = form.get("days", "").strip()
    if not given:
        return None
    try:
        return float(given)
    except ValueError:
        raise InputError(f"{given!r} is not a number of days") from None
