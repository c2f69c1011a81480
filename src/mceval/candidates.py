"""Add captions to a campaign: from files, or written by a model that is asked, resumably.

Who wrote a caption is stored for the organisers and shown to nobody else.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from discode.backends import open_backend
from discode.backends.served.backend import Served
from discode.backends.served.client import ChatModel
from discode.errors import BackendError, ImageError, InputError
from discode.images import open_image
from discode.pairs import ImageIndex, read_pairs
from mceval.database import Database, rules_of, transaction
from mceval.rules import normalized
from mceval.states import log_event, prepare_images, reset_unseen
from mceval.tables import Candidate, Domain, Image
from mceval.texts import check_label, check_text

PROMPT = "Describe this image in one sentence."
_SIDE = 1024  # pixels; models scale images down to about this size themselves
_BATCH = 20


@dataclass(frozen=True)
class AddedCaptions:
    """How many of a writer's captions were added, known before, or failed."""

    new: int
    known: int
    """There before, with the same text."""
    unknown: int = 0
    """Of images that are not in the campaign."""
    replaced: int = 0
    """Other captions of this writer, which nobody had seen."""
    seen: int = 0
    """Captions that differ and stay, because somebody has seen their image."""
    equal: tuple[str, ...] = ()
    """Sources of images for which another writer wrote the same."""
    too_few: int = 0
    """Images that were discarded, since fewer than three of their captions differ."""
    failed: Mapping[str, str] | None = None
    """Sources of images that could not be captioned, and why."""


def check_writer(session: Session, writer: str) -> None:
    """Raise if the campaign has all its writers already and this is not one of them."""
    check_label(writer, "a writer's name")
    query = select(Candidate.writer).join(Image, Image.id == Candidate.image_id)
    known = sorted(session.scalars(query.where(Image.state != "gold").distinct()).all())
    limit = rules_of(session).writers
    if writer not in known and len(known) >= limit:
        raise InputError(f"the campaign has its {limit} writers: {', '.join(known)}; not {writer}")


def add_captions(
    db: Database, writer: str, path: Path, now: float, *, replace: bool = False
) -> AddedCaptions:
    """Add a writer's captions from a table with an image and a caption per row.

    An image is named by its SHA-256, its source or its path, or by the end of one of these if it is
    unique (:class:`~discode.pairs.ImageIndex`).
    Captions that are there already stay. A different one for the same image is an error, or, with
    ``replace``, takes the place of the old one if nobody was shown that image yet; then captions
    are drawn anew.
    """
    pairs = [(str(pair.image), pair.caption) for pair in read_pairs(path)]
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
            raise InputError(f"{path.name}: {name} has two captions of {writer}")
    if not captions:
        raise InputError(
            f"{path.name}: none of its {len(pairs)} images is in the campaign, e.g. "
            f"{pairs[0][0]}; name them by source, path or SHA-256"
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
    """Add captions by image, and prepare the images that now have all of theirs."""
    check_writer(session, writer)
    rows = session.scalars(select(Candidate).where(Candidate.writer == writer)).all()
    known = {row.image_id: row for row in rows}
    other = [
        image for image, said in captions.items() if image in known and known[image].text != said
    ]
    if other and not replace:
        source, text = session.get_one(Image, other[0]).source, known[other[0]].text
        raise InputError(
            f"{source} has another caption of {writer} already: {text!r}; --replace takes the new "
            "ones where nobody has seen the old ones"
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
    """Return the sources of images for which another writer wrote the same."""
    rows = session.execute(
        select(Candidate.image_id, Candidate.text, Image.source)
        .join(Image, Image.id == Candidate.image_id)
        .where(Candidate.writer != writer, Image.state != "gold")
    ).all()
    return tuple(
        sorted(
            {
                source
                for image, text, source in rows
                if image in captions and normalized(text) == normalized(captions[image])
            }
        )
    )


def _index(session: Session) -> ImageIndex[int]:
    rows = session.scalars(
        select(Image).where(Image.state.in_(("pool", "active", "done", "discarded")))
    ).all()
    return ImageIndex((name, row.id) for row in rows for name in (row.digest, row.source, row.path))


def open_caption_writer(model: str, options: Mapping[str, Any]) -> ChatModel:
    """Return the chat client of a served model, which is opened as for every other purpose.

    Args:
        model: "openai:NAME", or "endpoint:NAME" with the option ``base_url``.
        options: The options of a served model: ``key_variable``, ``timeout``, ``max_cost``, ...
    """
    backend = open_backend(model, options)
    if not isinstance(backend, Served):
        raise InputError(f"{model} does not write captions; give openai:NAME or endpoint:NAME")
    return backend.client


def write_captions(
    db: Database,
    writer: str,
    chat: ChatModel,
    *,
    now: Callable[[], float],
    spare: float = 0.5,
    prompt: str = PROMPT,
    max_tokens: int = 200,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> AddedCaptions:
    """Let a model caption the images that come first in their domains.

    Args:
        db: The campaign.
        writer: The name to keep the captions under.
        chat: The model.
        now: The clock.
        spare: How many images beyond the quota, as a share of it: some will be discarded.
        prompt: What the model is told.
        max_tokens: The length limit of a caption.
        progress: Called with how many are done and how many there are.

    Captions are stored every few images, so a run that was stopped continues where it was. An
    image that failed is tried again by the next run.
    """
    if not 0 <= spare <= 100:
        raise InputError(f"spare={spare} must be from 0 to 100")
    with db.read() as session:
        check_writer(session, writer)
        todo = _wanted(session, writer, spare)
    failed: dict[str, str] = {}
    waiting: dict[int, str] = {}
    equal: tuple[str, ...] = ()
    new = too_few = 0

    def flush() -> int:
        nonlocal equal, too_few
        if not waiting:
            return 0
        added = _add_new(db, writer, dict(waiting), now())
        waiting.clear()
        equal, too_few = (*equal, *added.equal), too_few + added.too_few
        return added.new

    try:
        for done, (image, path, source) in enumerate(todo, start=1):
            try:
                # A wrong key or address is an InputError of the model: every request would fail.
                answer = chat(_messages(Path(path), prompt), max_tokens=max_tokens)
            except (BackendError, ImageError) as error:
                failed[source] = str(error)
                continue
            try:
                waiting[image] = check_text(answer.text, "the model's caption")
            except InputError as error:
                failed[source] = str(error)
            if len(waiting) >= _BATCH:
                new += flush()
            progress(done, len(todo))
    finally:
        new += flush()
    return AddedCaptions(new, 0, equal=equal, too_few=too_few, failed=failed)


def _wanted(session: Session, writer: str, spare: float) -> list[tuple[int, str, str]]:
    """Return the images to caption: the first of each domain that this writer has not done."""
    have = set(session.scalars(select(Candidate.image_id).where(Candidate.writer == writer)).all())
    found = []
    for domain in session.scalars(select(Domain).order_by(Domain.id)).all():
        rows = session.scalars(
            select(Image)
            .where(Image.domain_id == domain.id)
            .where(Image.state.in_(("pool", "active", "done", "discarded")))
            .order_by(Image.rank)
            .limit(round(domain.quota * (1 + spare)))
        ).all()
        found += [(row.id, row.path, row.source) for row in rows if row.id not in have]
    return found


def _messages(path: Path, prompt: str) -> list[dict[str, object]]:
    image = open_image(path)
    image.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    url = f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": prompt}]
    return [{"role": "user", "content": parts}]
