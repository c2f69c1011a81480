"""Add captions to a campaign: from files, or written by a model, resumably.

The writer of a caption is stored for the organisers and never shown to participants.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from discode._image_index import ImageIndex
from discode._pairs import read_pairs
from discode.backends import open_backend
from discode.backends._served.backend import Served
from discode.backends._served.client import ChatModel
from discode.errors import BackendError, ImageError, InputError
from discode.images import open_image
from mceval._states import log_event, prepare_images, reset_unseen
from mceval._tables import Candidate, Domain, Image
from mceval._texts import check_label, check_text
from mceval.database import Database, rules_of, transaction
from mceval.rules import normalized

PROMPT = "Describe this image in one sentence."
MAX_TOKENS = 200
_SIDE = 1024  # pixels; models scale images down to about this size themselves
_BATCH = 20


@dataclass(frozen=True)
class AddedCaptions:
    """The numbers of a writer's captions that were added, were known, or failed."""

    new: int
    known: int
    """Present before, with the same text."""
    unknown: int = 0
    """Captions of images that are not in the campaign."""
    replaced: int = 0
    """Earlier captions of this writer that were replaced, unseen."""
    seen: int = 0
    """Earlier captions that stay although they differ, since their image was seen."""
    equal: tuple[str, ...] = ()
    """Sources of images for which another writer wrote the same caption."""
    too_few: int = 0
    """Images that were discarded because fewer than three of their captions differ."""
    failed: Mapping[str, str] | None = None
    """Sources of images that could not be captioned, with the error."""

    def warnings(self) -> Iterator[str]:
        if self.equal:
            yield (
                f"{len(self.equal)} captions equal another writer's, e.g. for {self.equal[0]}; "
                "equal captions are never compared or paired with an equal reference"
            )
        if self.too_few:
            yield f"{self.too_few} images were discarded: fewer than three captions differ"
        if self.seen:
            yield f"{self.seen} captions were not replaced: people have seen their images"


def check_writer(session: Session, writer: str) -> None:
    """Refuse a writer beyond the number that the rules allow."""
    check_label(writer, "a writer's name")
    query = select(Candidate.writer).join(Image, Image.id == Candidate.image_id)
    known = sorted(session.scalars(query.where(Image.state != "gold").distinct()).all())
    limit = rules_of(session).writers
    if writer not in known and len(known) >= limit:
        raise InputError(
            f"{writer} is not one of the campaign's {limit} writers: {', '.join(known)}"
        )


def add_captions(
    db: Database,
    writer: str,
    path: Path,
    now: float,
    *,
    replace: bool = False,
    annotations: Path | None = None,
) -> AddedCaptions:
    """Add a writer's captions from a table with an image and a caption per row.

    An image is named by its SHA-256, its source or its path, or by the end of one of these if it is
    unique (:class:`~discode._pairs.ImageIndex`).
    Existing captions stay. A different one for the same image is an error. With ``replace``, it
    replaces the old one if no one has seen the image yet, and captions are drawn again.
    ``annotations`` are those of :func:`~discode._pairs.read_pairs`.
    """
    table = read_pairs(path, annotations=annotations)
    pairs = [(str(pair.image), pair.caption) for pair in table]
    with db.read() as session:
        index = _index(session)
    captions: dict[int, str] = {}
    unknown = 0
    for name, text in pairs:
        images = index.find(name) or index.find(str(Path(name).resolve()))
        if len(images) != 1:
            unknown += 1
            continue
        image = images[0]
        caption = check_text(text, f"{path.name}: the caption of {name}")
        if captions.setdefault(image, caption) != caption:
            raise InputError(f"{path.name}: {name} has two captions by {writer}")
    if not captions:
        raise InputError(
            f"{path.name}: none of its {len(pairs)} images is in the campaign, e.g. "
            f"{pairs[0][0]}; use source, path or SHA-256"
        )
    return _add_new(db, writer, captions, now, unknown, replace=replace)


@transaction
def _add_new(
    session: Session,
    writer: str,
    captions: Mapping[int, str],
    now: float,
    unknown: int = 0,
    *,
    replace: bool = False,
) -> AddedCaptions:
    """Add captions by image, and prepare the images that are now complete."""
    check_writer(session, writer)
    rows = session.scalars(select(Candidate).where(Candidate.writer == writer)).all()
    known = {row.image_id: row for row in rows}
    other = [
        image for image, text in captions.items() if image in known and known[image].text != text
    ]
    if other and not replace:
        source, text = session.get_one(Image, other[0]).source, known[other[0]].text
        raise InputError(
            f"{source} already has a different caption by {writer}: {text!r}; use --replace to "
            "replace unseen captions"
        )
    new = [image for image in captions if image not in known]
    session.add_all(Candidate(image_id=i, writer=writer, text=captions[i]) for i in new)
    unseen = [image for image in other if reset_unseen(session, image)]
    for image in unseen:
        detail = f"{writer}: {known[image].text}"
        log_event(session, "caption_replaced", now, image=image, detail=detail)
        known[image].text = captions[image]
    session.flush()
    if new:
        log_event(session, "captions", now, detail=f"{len(new)} of {writer}")
    prepare_images(session, now)
    changed = [*new, *unseen]
    same = _equal_captions(session, writer, {image: captions[image] for image in changed})
    too_few = session.scalars(select(Image.id).where(Image.discarded_by == "captions")).all()
    return AddedCaptions(
        len(new), len(captions) - len(new) - len(other), unknown, len(unseen),
        len(other) - len(unseen), same, len(set(too_few) & set(changed)),
    )  # fmt: skip


def _equal_captions(session: Session, writer: str, captions: Mapping[int, str]) -> tuple[str, ...]:
    """List the sources of images for which another writer wrote the same caption."""
    rows = session.execute(
        select(Candidate.image_id, Candidate.text, Image.source)
        .join(Image, Image.id == Candidate.image_id)
        .where(Candidate.writer != writer, Image.state != "gold")
    ).all()
    sources = {
        source
        for image, text, source in rows
        if image in captions and normalized(text) == normalized(captions[image])
    }
    return tuple(sorted(sources))


def _index(session: Session) -> ImageIndex[int]:
    rows = session.scalars(
        select(Image).where(Image.state.in_(("pool", "active", "done", "discarded")))
    ).all()
    return ImageIndex((name, row.id) for row in rows for name in (row.digest, row.source, row.path))


def open_caption_writer(model: str, options: Mapping[str, Any]) -> ChatModel:
    backend = open_backend(model, options)
    if not isinstance(backend, Served):
        raise InputError(f"{model} cannot write captions; use openai:NAME or endpoint:NAME")
    return backend.client


def write_captions(
    db: Database,
    writer: str,
    chat: ChatModel,
    *,
    now: Callable[[], float],
    spare: float = 0.5,
    prompt: str = PROMPT,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> AddedCaptions:
    """Let a model caption the images that come first in their domains.

    ``spare`` is the number of images beyond the quota, as a share of it: some will be discarded.
    ``progress`` is called with the number done and the total. Captions are stored every few images,
    so an interrupted run can be resumed. The next run retries failed images.
    """
    if not 0 <= spare <= 100:
        raise InputError(f"spare={spare} must be from 0 to 100")
    with db.read() as session:
        check_writer(session, writer)
        todo = _wanted(session, writer, spare)
    failed: dict[str, str] = {}
    waiting: dict[int, str] = {}
    added: list[AddedCaptions] = []

    def flush() -> None:
        if waiting:
            added.append(_add_new(db, writer, dict(waiting), now()))
            waiting.clear()

    try:
        for done, (image, path, source) in enumerate(todo, start=1):
            try:
                # A wrong key or address raises an InputError and ends the run.
                answer = chat(_messages(Path(path), prompt), max_tokens=MAX_TOKENS)
            except (BackendError, ImageError) as error:
                failed[source] = str(error)
            else:
                try:
                    waiting[image] = check_text(answer.text, "the model's caption")
                except InputError as error:
                    failed[source] = str(error)
            if len(waiting) >= _BATCH:
                flush()
            progress(done, len(todo))
    finally:
        flush()
    return AddedCaptions(
        sum(part.new for part in added), 0, failed=failed,
        equal=tuple(source for part in added for source in part.equal),
        too_few=sum(part.too_few for part in added),
    )  # fmt: skip


def _wanted(session: Session, writer: str, spare: float) -> list[tuple[int, str, str]]:
    """List the images to caption: the first of each domain that this writer has not done."""
    have = set(session.scalars(select(Candidate.image_id).where(Candidate.writer == writer)).all())
    wanted = []
    for domain in session.scalars(select(Domain).order_by(Domain.id)).all():
        rows = session.scalars(
            select(Image)
            .where(Image.domain_id == domain.id)
            .where(Image.state.in_(("pool", "active", "done", "discarded")))
            .order_by(Image.rank)
            .limit(round(domain.quota * (1 + spare)))
        ).all()
        wanted += [(row.id, row.path, row.source) for row in rows if row.id not in have]
    return wanted


def _messages(path: Path, prompt: str) -> list[dict[str, object]]:
    image = open_image(path)
    image.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    url = f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": prompt}]
    return [{"role": "user", "content": parts}]
