"""The user study: new people judge a subset of the finished images.

The paper: 1,000 images, people agree with the benchmark on 94.2 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from discode.errors import InputError
from discode.stats import Interval, wilson
from mceval._states import answer_counts, log_event
from mceval._tables import Answer, Domain, Image, Slot
from mceval.database import rules_of, transaction
from mceval.rules import random_bits


@dataclass(frozen=True)
class UserStudyResult:
    """How often new people agree with the benchmark, overall and by domain."""

    images: int
    judged: int
    accuracy: Interval
    domains: Mapping[str, Interval]


@transaction
def begin_user_study(session: Session, images: int, now: float, *, people: int = 1) -> int:
    """Open slots of the user study on random finished images, drawn with the campaign's seed.

    They go to people with the role "study", who have no other tasks and are therefore new.

    Returns:
        The number of slots opened; images that already have slots keep them.
    """
    for name, value in (("images", images), ("people", people)):
        if value < 1:
            raise InputError(f"{name}={value} must be 1 or more")
    rules = rules_of(session)
    done = session.scalars(select(Image).where(Image.state == "done")).all()
    if len(done) < images:
        raise InputError(f"{images} images are requested, but only {len(done)} are finished")
    # sorted by a separate hash: the first images of the campaign are not a random sample
    done = sorted(done, key=lambda image: random_bits(rules.seed, "study", image.digest))
    opened = 0
    for image in done[:images]:
        known = session.scalar(
            select(func.count()).where(Slot.image_id == image.id, Slot.kind == "study")
        )
        for i in range(known or 0, people):
            session.add(Slot(image_id=image.id, kind="study", number=i, state="open", round=0))
            opened += 1
    log_event(session, "study", now, detail=f"{opened} slots on {images} images")
    return opened


def user_study_result(session: Session) -> UserStudyResult:
    """Compute people's accuracy against the benchmark's preference, with its interval."""
    rows = session.execute(
        select(Domain.name, Answer.image_id, Answer.choice, Image.preference)
        .join(Image, Image.id == Answer.image_id)
        .join(Domain, Domain.id == Image.domain_id)
        .where(Answer.kind == "study", answer_counts(), Image.state == "done")
        .order_by(Answer.id)
    ).all()
    hits = [(row[0], row[1], row[2] == row[3]) for row in rows]
    names = sorted({name for name, _, _ in hits})
    return UserStudyResult(
        len({image for _, image, _ in hits}),
        len(hits),
        accuracy_interval([(image, hit) for _, image, hit in hits]),
        {
            domain: accuracy_interval([(image, hit) for name, image, hit in hits if name == domain])
            for domain in names
        },
    )


def accuracy_interval(hits: Sequence[tuple[int, bool]]) -> Interval:
    """Compute the share of hits, given with their images, with Wilson's interval.

    Answers to one image are not independent. The sample size is the number of independent answers
    with the same variance, at least the number of images and at most the number of answers.
    """
    if not hits:
        return wilson(0, 0)
    unique, codes = np.unique([image for image, _ in hits], return_inverse=True)
    right, images = np.array([hit for _, hit in hits], float), len(unique)
    share = float(right.mean())
    scatter = np.bincount(codes, right - share)
    variance = float(scatter @ scatter) * images / max(images - 1, 1) / len(hits) ** 2
    # If all answers are right, there is no variance: then each image counts once.
    size = float(np.clip(share * (1 - share) / max(variance, 1e-300), images, len(hits)))
    return wilson(share * size, size)
