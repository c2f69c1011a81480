"""What organisers do by hand: restore and take down images, and set single flags aside."""

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
    """Return id, domain, source, reason and discarded_by of discarded images, the newest first."""
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
    """Discard an image for good, whatever people said about it; the next one takes its place.

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
    """Bring back an image that was taken down, or that people flagged or skipped away.

    What they said so far no longer counts; what others say later does. An image on which people
    disagree cannot be restored: their votes are not an organiser's to set aside.
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
            f"image {image} cannot be restored: {row.reason}; only images that were flagged, "
            "skipped or taken down can"
        )


@transaction
def set_flag_aside(session: Session, number: int, now: float, *, by: int | None = None) -> None:
    """Let one flag or skip, by its number, no longer count; the image's state follows."""
    flag = session.get(Pass, number)
    if flag is None:
        raise NotAllowedError(f"there is no flag with the number {number}")
    row = _image(session, flag.image_id)
    known = select(PassVoid.id).where(PassVoid.pass_id == number).limit(1)
    if session.scalar(known) is not None:
        return
    session.add(PassVoid(pass_id=number, reason="organiser", created=now))
    detail = f"{flag.kind} of person {flag.person_id}"
    log_event(session, "set_aside", now, person=by, image=row.id, detail=detail)
    settle_image(session, row.id, now)


def _image(session: Session, image: int) -> Image:
    """Return an image of a domain, locked."""
    row = session.get(Image, image, with_for_update=LOCK)
    if row is None:
        raise NotAllowedError(f"no image has the number {image}")
    if row.domain_id is None or row.state in ("unreadable", "duplicate"):
        what = "a gold question" if row.state == "gold" else row.state
        raise InputError(f"image {image} is {what}; only images of the queue can be ruled on")
    return row


def _rule(
    session: Session, image: Image, kind: str, reason: str, now: float, by: int | None
) -> None:
    session.add(Ruling(image_id=image.id, kind=kind, organiser_id=by, reason=reason, created=now))
    log_event(session, kind, now, person=by, image=image.id, detail=reason)
    settle_image(session, image.id, now)
