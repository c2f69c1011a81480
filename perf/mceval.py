"""The queue under load: people at once, thousands of judgments, none lost and none twice.

    python perf/mceval.py [--people N] [--judgments M] [--database URL]

People are threads that ask, answer and ask again without a pause, so this is the worst case: 100
threads do the work of some thousands of people who think for half a minute. The database is a new
SQLite file, or what a URL names (it must be empty).
"""

from __future__ import annotations

import argparse
import hashlib
import random
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from mceval.checks import Checks
from mceval.database import Database
from mceval.people import invite
from mceval.queue import Choice, Revision, next_task, submit
from mceval.rules import Rules, rank_of
from mceval.states import prepare_images
from mceval.tables import Answer, Candidate, Domain, Image, Slot


def fill(db: Database, images: int) -> None:
    """Make a campaign with so many images, all of them wanted."""
    db.create(Rules(), checks=Checks(quick_seconds=0.0))

    def work(session: Session) -> None:
        session.add(Domain(id=1, name="a", quota=images))
        session.flush()
        for i in range(images):
            digest = hashlib.sha256(str(i).encode()).hexdigest()
            row = Image(
                id=i + 1, domain_id=1, digest=digest, path=f"{i}.png", source=f"{i}.png",
                state="pool", rank=rank_of(Rules(), digest),
            )  # fmt: skip
            session.add(row)
        session.flush()
        for i in range(images):
            session.add_all(
                Candidate(image_id=i + 1, writer=w, text=f"{w} says {i}") for w in "wxyz"
            )
        session.flush()
        prepare_images(session, 0.0)

    db.run(work)


def main() -> None:
    """Print rates and delays."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--people", type=int, default=100)
    parser.add_argument("--judgments", type=int, default=20_000)
    parser.add_argument("--database", default="")
    options = parser.parse_args()
    folder = tempfile.TemporaryDirectory()
    with folder, Database(options.database or str(Path(folder.name) / "load.db")) as db:
        start = time.perf_counter()
        fill(db, -(-options.judgments // 4))
        print(f"{options.judgments // 4} images made in {time.perf_counter() - start:.1f} s")
        people = [one.person for one in invite(db, ["x"] * options.people, "both", 0.0)]
        asks: list[float] = []
        answers: list[float] = []
        kept: list[str] = []
        errors: list[Exception] = []

        def work(person: int) -> None:
            rng, number = random.Random(person), 0
            try:
                while len(kept) < options.judgments:
                    begun = time.perf_counter()
                    task = next_task(db, person, time.time())
                    asked = time.perf_counter()
                    asks.append(asked - begun)
                    if task is None:
                        return
                    number += 1
                    name, now = (
                        f"{person}-submission-{number}",
                        time.time() + 1,
                    )  # as if they looked
                    if task.kind == "revise":
                        submit(db, person, task.lease, name, now, Revision("is revised"))
                    else:
                        left, right = task.captions
                        side = int(left > right) ^ (rng.random() < 0.05)  # they mostly agree
                        submit(db, person, task.lease, name, now, Choice(side))
                    answers.append(time.perf_counter() - asked)
                    kept.append(name)
            except Exception as error:
                errors.append(error)

        start = time.perf_counter()
        threads = [threading.Thread(target=work, args=(person,)) for person in people]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - start
        if errors:
            raise errors[0]
        with db.read() as session:
            stored = set(session.scalars(select(Answer.submission)).all())
            most = session.execute(
                select(func.count())
                .where(Slot.kind == "compare", Slot.state == "answered")
                .group_by(Slot.image_id)
            ).all()
        lost = len(set(kept) - stored)
        print(f"{len(kept)} answers by {options.people} people in {took:.1f} s: "
              f"{len(kept) / took:.0f} per second, {lost} lost, at most "
              f"{max(row[0] for row in most)} judgments per image")  # fmt: skip
        for name, times in (("next task", asks), ("submit", answers)):
            p50, p95 = 1000 * np.quantile(times, (0.5, 0.95))
            print(f"{name}: median {p50:.0f} ms, p95 {p95:.0f} ms with {options.people} at once")


if __name__ == "__main__":
    main()
