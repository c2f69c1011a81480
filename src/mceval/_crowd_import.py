"""Import results of crowd platforms: answers, and a decision with a reason per assignment.

An answer is used if its image still has an open slot for this worker. An answer that is no longer
needed is approved but not used, since the work was done. Skips and flags count as in the
application. Invalid answers are rejected, and so are all answers of a worker who failed the gold
questions, was too quick, or disagrees with the others. Earlier decisions of the platform are kept.
An unreadable file is refused as a whole, so that no worker is rejected for its format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from discode._files import read_rows, write_csv
from discode.benchmarks._parsing import Entry
from discode.errors import InputError
from mceval._crowd import task_name
from mceval._report import person_rows
from mceval._states import held_slots, log_event, return_slot
from mceval._tables import Answer, Image, Pass, Person, Slot
from mceval._texts import check_revision, check_text, drop_unsafe
from mceval.database import LOCK, Database, checks_of, rules_of, transaction
from mceval.people import carelessness_of, hash_token, mark_careless
from mceval.queue._answers import REVISION_TIMES, record_answer, record_pass
from mceval.queue._leases import IDLE_SECONDS, gold_slot, person_may_have, texts_of

# Names of columns: those of Mechanical Turk, then those of a plain table.
_COLUMNS: dict[str, tuple[str, ...]] = {
    "task": ("Input.task", "task"),
    "worker": ("WorkerId", "worker"),
    "assignment": ("AssignmentId", "assignment"),
    "seconds": ("WorkTimeInSeconds", "seconds"),
    "choice": ("Answer.choice", "choice"),
    "swapped": ("Answer.swapped", "swapped"),
    "text": ("Answer.text", "text"),
    "pass": ("Answer.pass", "pass"),
    "reason": ("Answer.reason", "reason"),
    "more": ("Answer.more", "more"),
    "status": ("AssignmentStatus", "status"),
    "rejected": ("Reject",),
}
_BITS = {"0": 0, "0.0": 0, "first": 0, "false": 0, "1": 1, "1.0": 1, "second": 1, "true": 1}
"""Forms of 0 and 1 that spreadsheets and data frames write, and the names of the captions."""
AGREE_AFTER, AGREE_LEAST = 10, 0.5
"""Reject a worker who, on at least 10 images, agrees with the others on less than half."""


@dataclass(frozen=True)
class Decision:
    """The decision about an assignment: "approve" or "reject"; ``used`` if its answer counts."""

    assignment: str
    worker: str
    decision: str
    used: bool
    reason: str


@dataclass(frozen=True)
class _Result:
    where: str
    assignment: str
    seconds: float
    choice: int | None
    swapped: bool
    approved: bool
    """Already approved on the platform."""
    rejected: str
    """The reason if the platform or the file rejects it, otherwise ""."""
    cells: Mapping[str, str]

    @property
    def passed(self) -> str:
        """ "skip" or "flag"; "" for an answer."""
        return self.cells["pass"]


@dataclass(frozen=True)
class _Outcome:
    used: bool
    bad: bool = False
    """Whether the result is to be rejected."""
    reason: str = ""


def import_results(db: Database, path: Path, now: float) -> list[Decision]:
    """Import a platform's results; importing them again changes nothing.

    Returns a decision for each row, in the order of the file.
    """
    results = _read(path)
    with db.read() as session:
        seed = rules_of(session).seed
        tasks: dict[str, tuple[int, str]] = {}
        for image in session.scalars(select(Image).where(Image.first.is_not(None))).all():
            for kind in ("gold",) if image.state == "gold" else ("compare", "revise", "study"):
                name = task_name(seed, image, kind)
                # An earlier version wrote names without their letter.
                tasks[name] = tasks[name[1:]] = (image.id, kind)
    for result in results:
        if result.cells["task"] not in tasks:
            name = result.cells["task"]
            raise InputError(f"{result.where}: task {name!r} is not in this campaign")
    study = any(tasks[result.cells["task"]][1] == "study" for result in results)
    outcomes = [_import(db, result, *tasks[result.cells["task"]], study, now) for result in results]
    faults = _faults(db, {result.cells["worker"] for result in results}, now)
    decisions = []
    for result, outcome in zip(results, outcomes, strict=True):
        worker = result.cells["worker"]
        why = faults.get(worker, "")
        decision, reason = "approve", why or outcome.reason
        if (outcome.bad or why) and result.approved:
            reason = f"already approved on the platform; {reason}"
        elif outcome.bad or why:
            decision = "reject"
        used = outcome.used and not why
        decisions.append(Decision(result.assignment, worker, decision, used, reason))
    return decisions


def _read(path: Path) -> list[_Result]:
    results: dict[str, _Result] = {}
    for where, row in read_rows(path):
        cells = {name: _cell(row, columns) for name, columns in _COLUMNS.items()}
        for name in ("task", "worker", "seconds"):
            if not cells[name]:
                raise InputError(f"{where}: {' or '.join(_COLUMNS[name])} is missing")
        assignment = cells["assignment"] or f"{cells['task']}-{cells['worker']}"
        if assignment in results:
            raise InputError(f"{where}: assignment {assignment!r} is repeated")
        status = cells["status"].casefold()
        rejected = "" if status == "approved" else cells["rejected"]
        if status == "rejected":
            rejected = rejected or "already rejected on the platform"
        choice, swapped = (
            None if rejected else _bit(cells[name], name, where) for name in ("choice", "swapped")
        )
        results[assignment] = _Result(
            where, assignment, Entry(cells, where).number("seconds", 0, 1e7), choice,
            swapped == 1, status == "approved", rejected, cells,
        )  # fmt: skip
    if not results:
        raise InputError(f"{path.name} contains no results")
    return list(results.values())


def _cell(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    values = (row.get(column) for column in columns)
    return str(next((value for value in values if value not in (None, "")), "")).strip()


def _bit(text: str, name: str, where: str) -> int | None:
    if text and text.casefold() not in _BITS:
        raise InputError(
            f"{where}: {name} {text!r} must be 0 (first) or 1 (second); an empty cell rejects "
            "the answer"
        )
    return _BITS.get(text.casefold())


@transaction
def _import(
    session: Session, result: _Result, image: int, kind: str, study: bool, now: float
) -> _Outcome:
    worker = result.cells["worker"]
    submission = f"crowd:{hash_token(json.dumps([result.assignment, worker, image, kind]))}"
    earlier = f"crowd:{result.assignment}"[:100]  # the name in earlier versions
    known = session.scalar(
        select(Answer)
        .join(Person, Person.id == Answer.person_id)
        .where(Answer.submission.in_((submission, earlier)), Person.worker == worker)
        .where(Answer.image_id == image, Answer.kind == kind)
    )
    if result.rejected:
        return _Outcome(known is not None, True, result.rejected)
    if known is not None:
        return _Outcome(True, reason="imported before")
    columns = _columns(session, result, image, kind)
    if isinstance(columns, _Outcome):
        return columns
    person = _worker(session, worker, "study" if study else "both", now)
    if person.state != "active":
        return _Outcome(False, reason=f"not used: the worker is marked {person.state}")
    reason = columns.pop("reason", "")
    before = select(Pass.id).where(
        Pass.image_id == image, Pass.person_id == person.id,
        Pass.kind == result.passed, Pass.reason == reason,
    )  # fmt: skip
    if reason and session.scalar(before):
        return _Outcome(True, reason="imported before")
    slot, why = _claim(session, person, image, kind, now)
    if slot is None:
        return _Outcome(False, reason=f"not used: {why}")
    if reason:
        record_pass(session, slot, person, result.passed, reason, now)
        return _Outcome(True, reason=reason)
    answer = Answer(
        slot_id=slot.id, round=slot.round, image_id=image, person_id=person.id, kind=kind,
        submission=submission, seconds=result.seconds, created=now, **columns,
        worked=min(result.seconds, IDLE_SECONDS),  # platforms do not report activity
    )  # fmt: skip
    record_answer(session, slot, answer, now)
    return _Outcome(True)


def _columns(session: Session, result: _Result, image: int, kind: str) -> dict[str, Any] | _Outcome:
    """Columns of an answer, or the reason of a skip or flag."""
    words = {name: drop_unsafe(result.cells[name]) for name in ("reason", "more", "text")}
    if result.passed:
        if result.passed not in ("skip", "flag"):
            return _Outcome(False, True, f"{result.passed!r} is not skip or flag")
        if result.passed == "skip" and not rules_of(session).skips:
            return _Outcome(False, reason="not used: this campaign does not allow skips")
        reason = ": ".join(filter(None, (words["reason"] or "Other", words["more"])))
        return {"reason": check_text(reason[:1000], "a reason")}
    if kind == "revise":
        try:
            # Our page requires a tick for an unchanged caption; other platforms may not.
            (caption,) = texts_of(session, (session.get_one(Image, image).revised,))
            text = check_revision(words["text"], caption, unchanged=True)
        except InputError as error:
            return _Outcome(False, True, f"invalid revision: {error}")
        if result.seconds < REVISION_TIMES * checks_of(session).quick_seconds:
            return _Outcome(False, reason=f"not used: the revision took {result.seconds:g} s")
        return {"text": text}
    if result.choice is None:
        return _Outcome(False, True, "no choice")
    return {"choice": result.choice, "swapped": result.swapped}


def _worker(session: Session, worker: str, role: str, now: float) -> Person:
    names = (worker, hash_token(worker))  # the second after the worker was erased
    person = session.scalar(select(Person).where(Person.worker.in_(names)))
    if person is None:
        person = Person(name=worker, role=role, worker=worker, created=now)
        session.add(person)
        session.flush()
        log_event(session, "invited", now, person=person.id, detail="crowd")
    session.refresh(person, with_for_update=LOCK)
    return person


def _claim(
    session: Session, person: Person, image: int, kind: str, now: float
) -> tuple[Slot | None, str]:
    for slot in held_slots(session, person.id):
        return_slot(session, slot)  # left by an interrupted import of an earlier version
    others = ("compare", "revise") if kind == "study" else ("study",)
    did = select(Answer.id).where(Answer.person_id == person.id, Answer.kind.in_(others))
    if kind != "gold" and session.scalar(did.limit(1)):
        what = "campaign" if kind == "study" else "user study"
        return None, f"the worker took part in the {what}; the study needs new people"
    if not session.scalar(select(person_may_have(person.id, now, image, kind))):
        return None, "the worker has already worked on this image, or skipped or flagged it"
    if kind == "gold":
        free: Slot | None = gold_slot(session, image, person)
    else:
        free = session.scalar(
            select(Slot)
            .join(Image, Image.id == Slot.image_id)
            .where(Slot.image_id == image, Slot.kind == kind, Slot.state == "open")
            .where(Image.state == ("done" if kind == "study" else "active"))
            .order_by(Slot.number)
            .limit(1)
            .with_for_update(key_share=True, of=Slot)
        )
    if free is None:
        return None, "the image has all its answers"
    free.state, free.person_id = "leased", person.id
    session.flush()
    return free, ""


def _faults(db: Database, workers: set[str], now: float) -> dict[str, str]:
    """Find workers to reject, with reasons, and return their work to the queue."""
    with db.read() as session:
        people = session.scalars(select(Person).where(Person.worker.in_(workers))).all()
        rows = {row.id: row for row in person_rows(session)}
        faults: dict[str, str] = {}
        for person in people:
            row = rows[person.id]
            why = (
                person.reason if person.state == "careless" else carelessness_of(session, person.id)
            )
            if not why and row.shared >= AGREE_AFTER and row.agreed < AGREE_LEAST * row.shared:
                why = (
                    f"agreement: with the others on {row.agreed} of {row.shared} images; "
                    f"at least {100 * AGREE_LEAST:g} % is required"
                )
            if why and person.worker:
                faults[person.worker] = why
    for person in people:
        if person.worker in faults and person.state == "active":
            mark_careless(db, person.id, faults[person.worker], now)
    return faults


def write_decisions(decisions: Sequence[Decision], results: Path, path: Path) -> None:
    """Write the rows of the results with Mechanical Turk's columns Approve and Reject."""
    rows = [row for _, row in read_rows(results)]
    extra = ("Approve", "Reject", "discode.used", "discode.reason")
    columns = [*rows[0], *(name for name in extra if name not in rows[0])]
    written = [columns]
    for row, decided in zip(rows, decisions, strict=True):
        good = decided.decision == "approve"
        verdict = {"Approve": "x" if good else "", "Reject": "" if good else decided.reason}
        used = {"discode.used": int(decided.used), "discode.reason": decided.reason}
        cells = {**row, **verdict, **used}
        written.append([cells.get(name, "") for name in columns])
    write_csv(path, written)
