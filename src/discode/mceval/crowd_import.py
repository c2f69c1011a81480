"""Import results of crowd platforms: answers, and a decision with a reason per assignment.

An answer is used if its image still has an open slot for this worker; one that is not needed any
more is approved and not used, since the work was done. Rejected are invalid answers, and all of a
worker who failed the gold questions, was too quick, or disagrees with everybody.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from discode.errors import InputError
from discode.files import read_rows, replacing
from discode.mceval.crowd import task_name
from discode.mceval.database import LOCK, Database, rules_of
from discode.mceval.people import carelessness_of, mark_careless
from discode.mceval.queue import record_answer
from discode.mceval.report import person_rows
from discode.mceval.states import log_event
from discode.mceval.tables import Answer, Image, Person, Slot
from discode.mceval.texts import check_text

# Names of columns: Mechanical Turk's, then those of a plain table.
_COLUMNS: dict[str, tuple[str, ...]] = {
    "task": ("Input.task", "task"),
    "worker": ("WorkerId", "worker"),
    "assignment": ("AssignmentId", "assignment"),
    "seconds": ("WorkTimeInSeconds", "seconds"),
    "choice": ("Answer.choice", "choice"),
    "swapped": ("Answer.swapped", "swapped"),
    "text": ("Answer.text", "text"),
}


@dataclass(frozen=True)
class Decision:
    """What to do with an assignment: "approve" or "reject"; ``used`` if its answer counts."""

    assignment: str
    worker: str
    decision: str
    used: bool
    reason: str


@dataclass(frozen=True)
class AgreementCheck:
    """When a worker is rejected for agreeing too seldom with the majority of the others."""

    after: int = 10
    least: float = 0.5


@dataclass(frozen=True)
class _Result:
    where: str
    task: str
    worker: str
    assignment: str
    seconds: float
    row: Mapping[str, Any]


def import_results(
    db: Database, path: Path, now: float, *, agreement: AgreementCheck | None = None
) -> list[Decision]:
    """Read a platform's results into the campaign; a second time changes nothing.

    Returns:
        A decision for every row, in the order of the file.
    """
    results = _read(path)
    with db.read() as session:
        seed = rules_of(session).seed
        tasks: dict[str, tuple[int, str]] = {}
        for image in session.scalars(select(Image).where(Image.first.is_not(None))).all():
            kind = "gold" if image.state == "gold" else "compare"
            tasks[task_name(seed, image.digest, "compare")] = (image.id, kind)
            tasks[task_name(seed, image.digest, "revise")] = (image.id, "revise")
    unknown = [result for result in results if result.task not in tasks]
    if unknown:
        raise InputError(f"{unknown[0].where}: task {unknown[0].task!r} is not of this campaign")
    outcomes = [db.run(lambda session, r=r: _use(session, r, *tasks[r.task], now)) for r in results]  # type: ignore[misc]
    faults = _faults(db, {result.worker for result in results}, agreement or AgreementCheck(), now)
    decisions = []
    for result, (used, bad, reason) in zip(results, outcomes, strict=True):
        why = faults.get(result.worker, "")
        rejected = bool(bad or why)
        decisions.append(
            Decision(
                result.assignment,
                result.worker,
                "reject" if rejected else "approve",
                used and not why,
                why or reason,
            )
        )
    return decisions


def _read(path: Path) -> list[_Result]:
    results = []
    seen: set[str] = set()
    for where, row in read_rows(path):
        task, worker = (_cell(row, name, where) for name in ("task", "worker"))
        assignment = _cell(row, "assignment", where, needed=False) or f"{task}-{worker}"
        if assignment in seen:
            raise InputError(f"{where}: assignment {assignment!r} is there twice")
        seen.add(assignment)
        try:
            seconds = float(_cell(row, "seconds", where))
        except ValueError:
            raise InputError(f"{where}: {row!r:.80} has no number of seconds") from None
        if not 0 <= seconds < 1e7:
            raise InputError(f"{where}: {seconds} seconds are not allowed")
        results.append(_Result(where, task, worker, assignment, seconds, row))
    if not results:
        raise InputError(f"{path.name} holds no results")
    return results


def _cell(row: Mapping[str, Any], name: str, where: str, *, needed: bool = True) -> str:
    for column in _COLUMNS[name]:
        if row.get(column) not in (None, ""):
            return str(row[column]).strip()
    if needed:
        raise InputError(f"{where} has no {' or '.join(_COLUMNS[name])}")
    return ""


def _use(
    session: Session, result: _Result, image: int, kind: str, now: float
) -> tuple[bool, bool, str]:
    """Record a result if possible; return (used, bad, reason)."""
    submission = f"crowd:{result.assignment}"[:100]
    known = session.scalar(select(Answer).where(Answer.submission == submission))
    if known is not None:
        return True, False, "imported before"
    choice = text = None
    if kind == "revise":
        try:
            text = check_text(_cell(result.row, "text", "", needed=False), "it")
        except InputError as error:
            return False, True, f"no revised caption: {error}"
    else:
        said = _cell(result.row, "choice", "", needed=False)
        if said not in ("0", "1"):
            return False, True, f"no choice: {said!r} is neither 0 nor 1"
        choice = int(said)
    person = _worker(session, result.worker, now)
    if person.state != "active":
        return False, False, f"not used: the worker is {person.state}"
    slot, why = _claim(session, person, image, kind)
    if slot is None:
        return False, False, f"not used: {why}"
    answer = Answer(
        slot_id=slot.id, round=slot.round, image_id=image, person_id=person.id, kind=kind,
        submission=submission, choice=choice, text=text, seconds=result.seconds, created=now,
        swapped=_cell(result.row, "swapped", "", needed=False) == "1",
    )  # fmt: skip
    record_answer(session, slot, answer, now)
    return True, False, ""


def _worker(session: Session, worker: str, now: float) -> Person:
    found = session.scalar(select(Person).where(Person.worker == worker))
    if found is None:
        found = Person(name=worker, role="both", worker=worker, created=now)
        session.add(found)
        session.flush()
        log_event(session, "invited", now, person=found.id, detail="crowd")
    session.refresh(found, with_for_update=LOCK)
    return found


def _claim(session: Session, person: Person, image: int, kind: str) -> tuple[Slot | None, str]:
    """Return a slot for this worker, held by them, or why there is none."""
    if session.scalar(select(Slot.id).where(Slot.image_id == image, Slot.person_id == person.id)):
        return None, "the worker has another task of this image"
    other = select(Answer.id).where(Answer.image_id == image, Answer.person_id == person.id)
    if session.scalar(other.where(Answer.kind != kind)):
        return None, "the worker has done the other task of this image"
    if kind == "gold":
        slot: Slot | None = Slot(image_id=image, kind="gold", number=person.id, round=0)
        session.add(slot)
    else:
        slot = session.scalar(
            select(Slot)
            .where(Slot.image_id == image, Slot.kind == kind, Slot.state == "open")
            .order_by(Slot.number)
            .limit(1)
            .with_for_update(key_share=True)
        )
    if slot is None:
        return None, "the image has all its answers"
    slot.state, slot.person_id = "leased", person.id
    session.flush()
    return slot, ""


def _faults(
    db: Database, workers: set[str], agreement: AgreementCheck, now: float
) -> dict[str, str]:
    """Return why workers' results are rejected; their work is returned to the queue."""
    with db.read() as session:
        people = session.scalars(select(Person).where(Person.worker.in_(workers))).all()
        rows = {row.id: row for row in person_rows(session)}
        faults: dict[str, str] = {}
        for person in people:
            row = rows[person.id]
            why = (
                person.reason if person.state == "careless" else carelessness_of(session, person.id)
            )
            disagrees = row.shared >= agreement.after and row.agreed < agreement.least * row.shared
            if disagrees and not why:
                why = (
                    f"agreement: with the others on {row.agreed} of {row.shared} images, "
                    f"at least {agreement.least:.0%} are wanted".replace("%", " %")
                )
            if why and person.worker:
                faults[person.worker] = why
    for person in people:
        if person.worker in faults and person.state == "active":
            mark_careless(db, person.id, faults[person.worker], now)
    return faults


def write_decisions(decisions: Sequence[Decision], results: Path, path: Path) -> None:
    """Write the results' own rows with Mechanical Turk's columns Approve and Reject filled in."""
    rows = [row for _, row in read_rows(results)]
    extra = ("Approve", "Reject", "discode.used", "discode.reason")
    with replacing(path) as temp, temp.open("w", encoding="utf-8", newline="") as file:
        columns = [*rows[0], *(name for name in extra if name not in rows[0])]
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        for row, one in zip(rows, decisions, strict=True):
            good = one.decision == "approve"
            verdict = {"Approve": "x" if good else "", "Reject": "" if good else one.reason}
            used = {"discode.used": int(one.used), "discode.reason": one.reason}
            writer.writerow({**row, **verdict, **used})
