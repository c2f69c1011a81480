"""The organisers' pages: progress, agreement, people, flags, invitations, the export."""

from __future__ import annotations

import io
import re
import tempfile
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import Response
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from discode.benchmarks._parsing import Entry
from discode.errors import HttpError, InputError, lookup
from mceval._checks import careless_reason
from mceval._organising import discarded_images, restore, set_flag_aside, take_down
from mceval._report import (
    domain_rows,
    finding_rows,
    flag_rows,
    pass_warnings,
    person_rows,
    second_looks,
    side_rows,
)
from mceval._stalls import find_doubts, find_stalls, stuck_images
from mceval._states import pass_is_void
from mceval._tables import ROLES, Answer, Login, Pass, Person, Slot
from mceval._texts import check_text
from mceval._web.images import CampaignImages
from mceval._web.rendering import Pages
from mceval._web.requests import PageRequest, check_ticked, image_response, redirect
from mceval.database import CampaignSettings, Database
from mceval.export import ExportOptions, export_dataset
from mceval.people import (
    Invitation,
    invite,
    mark_careless,
    new_names,
    reinstate,
    reissue,
    revoke,
    work_record,
)

SHOWN = 60
"""How many discarded images the page shows, the newest first."""
RECENT_SECONDS = 900.0
MOST_INVITED = 200
"""The most people that one form can invite."""


class AdminPages:
    """The organisers' pages."""

    def __init__(
        self,
        db: Database,
        settings: CampaignSettings,
        pages: Pages,
        images: CampaignImages,
        origin: str | None,
    ) -> None:
        self.db, self.settings, self.origin = db, settings, origin
        self.pages, self.images = pages, images

    def show(self, name: str, asked: PageRequest, **values: Any) -> Response:
        return self.pages.show(
            name, settings=self.settings, person=asked.person,
            form_token=asked.visitor.form_token, **values,
        )  # fmt: skip

    def overview(self, asked: PageRequest) -> Response:
        now = asked.now
        with self.db.read() as session:
            domains = domain_rows(session)
            people = [row for row in person_rows(session) if row.role != "admin"]
            newest = discarded_images(session, SHOWN)
            flags, skips = flag_rows(session), flag_rows(session, "skip")
            *sides, side = side_rows(session)
            stalls = [*find_stalls(session, now), *find_doubts(session)]
            warnings = pass_warnings(session)
            stuck, looks = stuck_images(session, SHOWN), second_looks(session)
            lately = session.scalar(
                select(func.count()).where(Answer.created > now - RECENT_SECONDS)
            )
            busy = session.scalar(
                select(func.count()).where(Slot.state == "leased", Slot.expires > now)
            )
        total = domains[-1]
        hours, pay = sum(row.hours for row in people), sum(row.pay for row in people)
        return self.show(
            "admin.html", asked, domains=domains, total=total, people=people,
            discarded=newest, discarded_count=total.states["discarded"],
            flags=[flag for flag in flags if flag.set_aside != "undo"][:SHOWN],
            flag_count=sum(flag.set_aside != "undo" for flag in flags),
            skip_count=sum(skip.set_aside != "undo" for skip in skips),
            flags_of=_by_person(flags), skips_of=_by_person(skips),
            side=side, left={row.person: row.left.value for row in sides},
            stalls=stalls, warnings=warnings, stuck=stuck, looks=looks,
            answers=sum(row.answers for row in people), hours=hours, pay=pay, busy=busy or 0,
            gold=(sum(row.right for row in people), sum(row.gold for row in people)),
            per_hour=(lately or 0) * 3600 / RECENT_SECONDS,
            cost=pay / total.done if total.done else float("nan"),
        )  # fmt: skip

    def invitations(self, asked: PageRequest) -> Response:
        """Show the page of invitations; links that were handed out cannot be shown again."""
        with self.db.read() as session:
            rows = invitation_rows(session, asked.now)
        return self.show("invitations.html", asked, rows=rows, roles=tuple(ROLES), now=asked.now)

    def links(self, asked: PageRequest, invitations: Sequence[Invitation]) -> Response:
        """Show new links, to be printed or copied: they are shown once."""
        url = asked.request.url
        address = self.origin or f"{url.scheme}://{url.netloc}"
        return self.show("links.html", asked, made=invitations, address=address)

    def invite(self, asked: PageRequest) -> Response:
        """Invite people (field ``names``, one per line), or renew the links of those not yet here.

        Actions: invite, renew.
        """
        form, now = asked.form, asked.now
        if _action(form, "invite", "renew") == "renew":
            check_ticked(form)
            with self.db.read() as session:
                waiting = [
                    person.id
                    for person, joined, _ in invitation_rows(session, now)
                    if not joined and person.state == "active" and person.id != asked.person.id
                ]
            if not waiting:
                raise InputError("all invited people have joined; there are no links to renew")
            days, by = _days(form), asked.person.id
            renewed = [reissue(self.db, number, now, days=days, by=by) for number in waiting]
            return self.links(asked, renewed)
        names = [line.strip() for line in form.get("names", "").splitlines() if line.strip()]
        if not 1 <= len(names) <= MOST_INVITED:
            raise InputError(f"give 1 to {MOST_INVITED} names, one per line, not {len(names)}")
        with self.db.read() as session:
            names = new_names(session, names)
        new = invite(self.db, names, form.get("role", ""), now, days=_days(form))
        return self.links(asked, new)

    def export(self, asked: PageRequest) -> Response:
        name = re.sub(r"[^A-Za-z0-9]+", "-", self.settings.name).strip("-") or "mceval"
        with tempfile.TemporaryDirectory() as temp:
            folder = Path(temp) / "dataset"
            export_dataset(self.db, folder, ExportOptions(images="hashes"))
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
                for path in sorted(folder.rglob("*")):
                    if path.is_file():
                        file.write(path, f"{name}/{path.relative_to(folder).as_posix()}")
        headers = {"content-disposition": f'attachment; filename="{name}.zip"'}
        return Response(buffer.getvalue(), media_type="application/zip", headers=headers)

    def person(self, asked: PageRequest) -> Response:
        number = asked.number
        with self.db.read() as session:
            row = next((row for row in person_rows(session) if row.id == number), None)
            if row is None:
                raise HttpError(404, "no_person", f"there is no person {number}")
            passes = session.execute(
                select(Pass.kind, Pass.reason, func.count())
                .where(Pass.person_id == number, ~pass_is_void("undo"))
                .group_by(Pass.kind, Pass.reason)
                .order_by(func.count().desc())
                .limit(20)
            ).all()
            concern = careless_reason(self.settings.checks, work_record(session, number))
            findings = finding_rows(session, number)
            left = {side.person: side.left for side in side_rows(session)}.get(number)
            invited = session.get_one(Person, number).worker is None
        return self.show(
            "person.html", asked, row=row, passes=passes, findings=findings, left=left,
            concern=concern, invited=invited,
        )  # fmt: skip

    def act_on_person(self, asked: PageRequest) -> Response:
        """Return a person's work to the queue, let them work again, or end their part.

        Actions: put_back, reinstate, revoke. :meth:`new_invitation` is separate, since its link is
        shown once.
        """
        check_ticked(asked.form)
        number, admin = asked.number, asked.person
        action = _action(asked.form, "put_back", "reinstate", "revoke")
        if action == "reinstate":
            reinstate(self.db, number, asked.now, by=admin.id)
        elif action == "revoke":
            revoke(self.db, number, _reason(asked, "revoked"), asked.now, by=admin.id)
        elif number == admin.id:
            raise InputError("you cannot return your own work to the queue")
        else:
            reason = f"{_reason(asked, 'careless')} (by {admin.name})"
            mark_careless(self.db, number, reason, asked.now, by=admin.id)
        return redirect(f"/admin/person/{number}")

    def new_invitation(self, asked: PageRequest) -> Response:
        """Reissue a person's invitation; the old link and all their browsers stop working."""
        check_ticked(asked.form)
        if asked.number == asked.person.id:
            raise InputError(
                "a new link would end your own session; use discode mceval people reissue"
            )
        days, by = _days(asked.form), asked.person.id
        return self.links(asked, [reissue(self.db, asked.number, asked.now, days=days, by=by)])

    def image(self, asked: PageRequest) -> Response:
        return image_response(self.images.by_id(asked.number))

    def act_on_image(self, asked: PageRequest) -> Response:
        """Restore an image, take it down, or set one flag on it aside (field ``flag``).

        Actions: restore, take_down, set_aside.
        """
        form, by = asked.form, asked.person.id
        action = _action(form, "restore", "take_down", "set_aside")
        if action == "set_aside":
            flag = form.get("flag", "")
            if not (flag.isascii() and flag.isdigit() and len(flag) < 10):
                raise InputError(f"flag {flag!r} must be the number of a flag")
            set_flag_aside(self.db, int(flag), asked.now, by=by)
        else:
            act = restore if action == "restore" else take_down
            act(
                self.db, asked.number, _reason(asked, "an organiser looked at it"), asked.now, by=by
            )
        return redirect("/admin#flags" if form.get("from") == "flags" else "/admin#discarded")


def invitation_rows(session: Session, now: float) -> list[tuple[Person, bool, str]]:
    """List the invited people, whether they joined, and the state of their link.

    A link is "open", "expired", or "none" if it was used up or revoked.
    """
    browsers = set(session.scalars(select(Login.person_id)).all())
    rows = []
    people = select(Person).where(Person.worker.is_(None)).order_by(Person.id)
    for person in session.scalars(people).all():
        late = person.token_expires is not None and person.token_expires <= now
        link = "none" if person.token_hash is None else "expired" if late else "open"
        rows.append((person, person.consented is not None or person.id in browsers, link))
    return rows


def _by_person(rows: Sequence[Any]) -> Counter[int]:
    return Counter(row.person for row in rows if row.set_aside != "undo")


def _reason(asked: PageRequest, usual: str) -> str:
    return check_text(asked.form.get("reason") or usual, "a reason")


def _action(form: dict[str, str], *actions: str) -> str:
    return lookup({action: action for action in actions}, form.get("action", ""), "action")


def _days(form: dict[str, str]) -> float | None:
    """Read the days for which a new invitation is valid; ``None``: without limit."""
    days = form.get("days", "").strip()
    return Entry({"days": days}, "an invitation").number("days", 0, 3650) if days else None
