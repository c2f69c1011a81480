"""Decisions of organisers about images: restore, take down, set a flag aside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from discode.errors import InputError, NotAllowedError
from mceval._states import log_event, pass_counts, settle_image
from mceval._tables import Domain, Image, Pass, PassVoid, Ruling
from mceval._texts import check_text
from mceval.database import LOCK, transaction


def discarded_images(session: Session, most: int | None = None) -> Sequence[Any]:
    """List discarded images, newest first: id, domain, source, reason and discarded_by."""
    return session.execute(
        select(
            Image.id, Domain.name.label("domain"), Image.source, Image.reason, Image.discarded_by
        )
        .join(Domain, Domain.id == Image.domain_id)
        .where(Image.state == "discarded")
        .order_by(Image.id.desc())
        .limit(most)
    ).all()


@transaction
def take_down(
    session: Session, image: int, reason: str, now: float, *, by: int | None = None
) -> None:
    """Discard an image for good, whatever the votes; the next one takes its place.

    The reason is shown with the image and exported; ``by`` is ``None`` at the command line.
    """
    reason = check_text(reason, "a reason")
    row = _image(session, image)
    if row.discarded_by != "taken_down":
        _rule(session, row, "take_down", reason, now, by)


@transaction
def restore(
    session: Session, image: int, reason: str, now: float, *, by: int | None = None
) -> None:
    """Bring back an image that was taken down, flagged or skipped.

    Its flags and skips so far no longer count; later ones do. An image on which people disagree
    cannot be restored, since organisers cannot set votes aside.
    """
    reason = check_text(reason, "a reason")
    row = _image(session, image)
    if row.state != "discarded":
        raise InputError(f"image {image} is not discarded: it is {row.state}")
    if row.discarded_by == "captions":
        raise InputError(f"image {image} cannot be restored: {row.reason}")
    counting = select(Pass.id).where(Pass.image_id == row.id, pass_counts())
    for number in session.scalars(counting).all():
        session.add(PassVoid(pass_id=number, reason="organiser", created=now))
    _rule(session, row, "restore", reason, now, by)
    if row.state == "discarded":
        raise InputError(
            f"image {image} cannot be restored ({row.reason}); only flagged, skipped or "
            "taken-down images can"
        )


@transaction
def set_flag_aside(session: Session, number: int, now: float, *, by: int | None = None) -> None:
    """Void one flag or skip, by its number, and update the image's state."""
    flag = session.get(Pass, number)
    if flag is None:
        raise NotAllowedError(f"there is no flag {number}")
    row = _image(session, flag.image_id)
    known = select(PassVoid.id).where(PassVoid.pass_id == number).limit(1)
    if session.scalar(known) is not None:
        return
    session.add(PassVoid(pass_id=number, reason="organiser", created=now))
    detail = f"{flag.kind} of person {flag.person_id}"
    log_event(session, "set_aside", now, person=by, image=row.id, detail=detail)
    settle_image(session, row.id, now)


def _image(session: Session, image: int) -> Image:
    row = session.get(Image, image, with_for_update=LOCK)
    if row is None:
        raise NotAllowedError(f"there is no image {image}")
    if row.domain_id is None or row.state in ("unreadable", "duplicate"):
        what = "a gold question" if row.state == "gold" else row.state
        raise InputError(f"image {image} is {what} and not in the queue")
    return row


def _rule(
    session: Session, image: Image, kind: str, reason: str, now: float, by: int | None
) -> None:
    session.add(Ruling(image_id=image.id, kind=kind, organiser_id=by, reason=reason, created=now))
    log_event(session, kind, now, person=by, image=image.id, detail=reason)
    settle_image(session, image.id, now)
