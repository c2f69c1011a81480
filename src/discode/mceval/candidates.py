"""Captions into a campaign: from files, or from a model that is asked, resumably.

Who wrote a caption is kept for the organisers and shown to nobody else.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from discode.backends.served.client import ChatModel
from discode.errors import BackendError, ImageError, InputError
from discode.images import open_image
from discode.mceval.database import Database, rules_of
from discode.mceval.states import log, prepare
from discode.mceval.tables import Candidate, Domain, Image
from discode.mceval.texts import check_text
from discode.pairs import read_pairs

PROMPT = "Describe this image in one sentence."
_SIDE = 1024  # pixels; models scale pictures down to about this themselves
_BATCH = 20


@dataclass(frozen=True)
class Added:
    """What became of a writer's captions."""

    new: int
    known: int
    """There before, the same."""
    unknown: int = 0
    """Of images that are not in the campaign."""
    failed: Mapping[str, str] | None = None
    """Sources of images that could not be captioned, and why."""


def check_writer(session: Session, writer: str) -> None:
    """Raise if the campaign has its writers already and this is none of them."""
    if not writer.strip() or len(writer) > 200 or "\0" in writer:
        raise InputError(f"writer {writer!r} is no name")
    query = select(Candidate.writer).join(Image, Image.id == Candidate.image_id)
    known = sorted(session.scalars(query.where(Image.state != "gold").distinct()).all())
    limit = rules_of(session).writers
    if writer not in known and len(known) >= limit:
        raise InputError(f"the campaign has its {limit} writers: {', '.join(known)}; not {writer}")


def add_file(db: Database, writer: str, path: Path, now: float) -> Added:
    """Add a writer's captions from a table with an image and a caption a row.

    An image is named by its SHA-256, its source, its path, or its file's name if that is unique.
    Captions that are there stay; one that contradicts them is an error.
    """
    pairs = [(str(pair.image), pair.caption) for pair in read_pairs(path)]

    def work(session: Session) -> Added:
        check_writer(session, writer)
        index = _index(session)
        captions: dict[int, str] = {}
        unknown = 0
        for name, said in pairs:
            image = _find(index, name)
            if image is None:
                unknown += 1
                continue
            caption = check_text(said, f"{path.name}: the caption of {name}")
            if captions.setdefault(image, caption) != caption:
                raise InputError(f"{path.name}: {name} has two captions of {writer}")
        if not captions:
            raise InputError(
                f"{path.name}: none of its {len(pairs)} images is in the campaign, e.g. "
                f"{pairs[0][0]}; name them by source, path or SHA-256"
            )
        return _keep(session, writer, captions, now, unknown)

    return db.run(work)


def _keep(
    session: Session, writer: str, captions: Mapping[int, str], now: float, unknown: int = 0
) -> Added:
    """Add captions by image, and draw for the images that have them all now."""
    rows = session.execute(
        select(Candidate.image_id, Candidate.text).where(Candidate.writer == writer)
    ).all()
    known = {row[0]: row[1] for row in rows}
    new = 0
    for image, caption in captions.items():
        if image not in known:
            session.add(Candidate(image_id=image, writer=writer, text=caption))
            new += 1
        elif known[image] != caption:
            source = session.get_one(Image, image).source
            raise InputError(f"{source} has another caption of {writer} already: {known[image]!r}")
    session.flush()
    if new:
        log(session, "captions", now, detail=f"{new} of {writer}")
    prepare(session, now)
    return Added(new, len(captions) - new, unknown)


def _index(session: Session) -> dict[str, int | None]:
    """Return images by all their names; ``None`` where a name is not unique."""
    index: dict[str, int | None] = {}
    rows = session.scalars(
        select(Image).where(Image.state.in_(("pool", "active", "done", "discarded")))
    ).all()
    for row in rows:
        names = {row.digest, row.source, row.path, Path(row.source).name, Path(row.path).name}
        for name in names:
            index[name] = None if name in index else row.id
    return index


def _find(index: Mapping[str, int | None], image: str) -> int | None:
    if index.get(image) is not None:
        return index[image]
    return index.get(str(Path(image).resolve())) or index.get(Path(image).name)


def ask(
    db: Database,
    writer: str,
    chat: ChatModel,
    *,
    now: Callable[[], float],
    spare: float = 0.5,
    prompt: str = PROMPT,
    max_tokens: int = 200,
    tell: Callable[[int, int], object] = lambda done, total: None,
) -> Added:
    """Let a model caption the images that come first in their domains.

    Args:
        db: The campaign.
        writer: The name to keep the captions under.
        chat: The model.
        now: The clock.
        spare: How many more than the quota, as a share of it: some images will be discarded.
        prompt: What the model is told.
        max_tokens: The longest caption.
        tell: Called with how many are done and how many there are.

    Every few captions are kept, so a run that was stopped goes on where it was. An image that
    failed is asked for again by the next run.
    """
    if not 0 <= spare <= 100:
        raise InputError(f"spare={spare} must be from 0 to 100")
    with db.read() as session:
        check_writer(session, writer)
        todo = _wanted(session, writer, spare)
    failed: dict[str, str] = {}
    waiting: dict[int, str] = {}
    new = 0

    def flush() -> int:
        if not waiting:
            return 0
        added = db.run(lambda session: _keep(session, writer, dict(waiting), now())).new
        waiting.clear()
        return added

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
            tell(done, len(todo))
    finally:
        new += flush()
    return Added(new, 0, failed=failed)


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
    picture = open_image(path)
    picture.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=90)
    url = f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": prompt}]
    return [{"role": "user", "content": parts}]
