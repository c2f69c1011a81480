"""Write tasks for crowd platforms: as Mechanical Turk questions, or as a plain table.

A platform does not say beforehand who will answer, so a task is an image, asked as often as it has
open slots; the page itself draws which caption is on the left and sends that along. A task's name
does not tell what it is: gold questions and the user study look like all comparisons.
"""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from discode._files import csv_writer, replacing
from discode.errors import InputError, require
from mceval._copies import check_new_folder, checked_copy
from mceval._states import log_event
from mceval._tables import Candidate, Domain, Image, Slot
from mceval.database import rules_of, transaction
from mceval.people import keep_guide
from mceval.plan import Target
from mceval.rules import random_bits

FORMATS = ("mturk", "csv")
COLUMNS = ("task", "kind", "domain", "image_url", "first", "second", "caption", "assignments")
QUALIFICATIONS: dict[str, dict[str, Any]] = {
    "at least 99 % of their work was approved": {
        "QualificationTypeId": "000000000000000000L0",
        "Comparator": "GreaterThanOrEqualTo", "IntegerValues": [99],
    },
    "more than 5,000 approved tasks": {
        "QualificationTypeId": "00000000000000000040",
        "Comparator": "GreaterThan", "IntegerValues": [5000],
    },
    "the platform's Masters qualification": {
        "QualificationTypeId": "2F1QJWKUDD8XADTFD2Q0G6UTO95ALH", "Comparator": "Exists",
    },
    "in the United States or the United Kingdom": {
        "QualificationTypeId": "00000000000000000071",
        "Comparator": "In", "LocaleValues": [{"Country": "US"}, {"Country": "GB"}],
    },
}  # fmt: skip
"""Who may work, as in the paper: in words, and as Mechanical Turk's QualificationRequirements."""


@dataclass(frozen=True)
class CrowdTask:
    """A task for a platform; ``kind`` is "compare" or "revise"."""

    task: str
    kind: str
    domain: str
    image_url: str
    captions: tuple[str, ...]
    assignments: int


def task_name(seed: int, image: Image, kind: str) -> str:
    """Return a task's name: it looks random, and follows from the image.

    Several gold questions may be about one file, which may be an image of the campaign, too: theirs
    follow from what tells these rows apart as well. It begins with a letter: of digits alone, a
    spreadsheet would make another number.
    """
    parts = ("gold", image.digest, image.state_key) if kind == "gold" else (kind, image.digest)
    return f"t{random_bits(seed, 'crowd', *parts):016x}"


def crowd_tasks(
    session: Session,
    image_url: str,
    *,
    gold: bool = True,
    study: bool = False,
    copies: Path | None = None,
    images: Path | None = None,
) -> list[CrowdTask]:
    """Return what is open now, in a random order, with the gold questions among the comparisons.

    In a batch of their own, gold questions would be known as such. So each has the domain and the
    number of people of a comparison that is drawn for it, and is in the same batch.

    ``image_url`` is where you host the images, with {digest} and {suffix} for a file's name; they
    are written into the folder ``copies``, as the application shows them. ``images`` is where they
    are now, if they were moved.
    """
    if "{digest}" not in image_url or not image_url.startswith(("https://", "http://")):
        raise InputError(
            f"image address {image_url!r} must be http(s) and name the image by {{digest}}, e.g. "
            "https://example.org/{digest}{suffix}"
        )
    rules = rules_of(session)
    rows = session.execute(
        select(Image, Slot.kind, func.count())
        .join(Slot, Slot.image_id == Image.id)
        .where(Image.state == ("done" if study else "active"), Slot.state == "open")
        .where(Slot.kind.in_(("study",) if study else ("compare", "revise")))
        .group_by(Image.id, Slot.kind)
        .order_by(Image.id, Slot.kind)
    ).all()
    wanted = [(image, kind, image.domain_id, count) for image, kind, count in rows]
    compared = [(domain, count) for _, kind, domain, count in wanted if kind != "revise"]
    if gold and compared:
        for image in session.scalars(select(Image).where(Image.state == "gold")).all():
            drawn = random_bits(rules.seed, "beside", image.digest, image.state_key)
            wanted.append((image, "gold", *compared[drawn % len(compared)]))
    domains = dict(session.execute(select(Domain.id, Domain.name)).all())
    texts = dict(session.execute(select(Candidate.id, Candidate.text)).all())
    tasks = []
    for image, kind, domain, count in wanted:
        ids = (image.revised,) if kind == "revise" else (image.first, image.second)
        suffix = Path(image.path).suffix.lower() if copies is None else _copy(image, copies, images)
        url = image_url.replace("{digest}", image.digest).replace("{suffix}", suffix)
        captions = tuple(texts[number] for number in ids if number is not None)
        shown, name = (
            "revise" if kind == "revise" else "compare",
            task_name(rules.seed, image, kind),
        )
        tasks.append(CrowdTask(name, shown, domains.get(domain or 0, ""), url, captions, count))
    return sorted(tasks, key=lambda task: task.task)


def _copy(image: Image, folder: Path, images: Path | None) -> str:
    """Write the copy of an image that people may see; its suffix."""
    shown = checked_copy(image, images)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / f"{image.digest}{shown.suffix}") as temp:
            temp.write_bytes(shown.data)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror or error}") from error
    return shown.suffix


def write_tasks(
    tasks: list[CrowdTask],
    folder: Path,
    form: str,
    instructions: str = "",
    pay_per_hour: float = 0.0,
    *,
    skips: bool = True,
) -> None:
    """Write tasks for a platform into a new or empty folder; ``skips``: whether people may skip.

    "mturk": hits-KIND.csv for the requester's website with KIND.html as its layout, and for its API
    questions/NAME.xml and hit-KIND.json, the other parameters of CreateHIT. "csv": tasks.csv with
    the texts as they are. In both, README.txt says what to do with them, and who may work.
    """
    if form not in FORMATS:
        raise InputError(f"form {form!r} is not known; allowed: {', '.join(FORMATS)}")
    if not tasks:
        raise InputError("nothing is open: there is no task to write")
    check_new_folder(folder)
    if form == "mturk":
        require("jinja2", "mceval")
        from mceval._web.crowd_page import CrowdPages

        pages = CrowdPages(instructions, skips=skips)
        # A page that is too large or a reward of nothing shows before any file.
        pages.question(max(tasks, key=_length))
        parameters = {task.kind: hit_parameters(task.kind, pay_per_hour) for task in tasks}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.txt").write_text(_readme(tasks, form), encoding="utf-8")
    if form == "csv":
        _write_csv(folder / "tasks.csv", tasks, escape=False)
        return
    for kind in sorted(parameters):
        # The website puts a column's text into the page as it is: the columns are escaped.
        some = [task for task in tasks if task.kind == kind]
        _write_csv(folder / f"hits-{kind}.csv", some, escape=True)
        (folder / f"{kind}.html").write_text(pages.layout(kind), encoding="utf-8")
        words = json.dumps(parameters[kind], indent=2)
        (folder / f"hit-{kind}.json").write_text(words + "\n", encoding="utf-8")
    (folder / "questions").mkdir()
    for task in tasks:
        path = folder / "questions" / f"{task.task}.xml"
        path.write_text(pages.question(task), encoding="utf-8")


@transaction
def log_exported(session: Session, now: float, *, study: bool = False) -> None:
    """Log that the open tasks were written for a platform: people may see them, and the guide."""
    keep_guide(session, now)
    shown = (
        select(Image.id)
        .join(Slot, Slot.image_id == Image.id)
        .where(Image.state == "active", Slot.state == "open")
        .distinct()
    )
    for image in () if study else session.scalars(shown.order_by(Image.id)).all():
        log_event(session, "exported", now, image=image)


def _length(task: CrowdTask) -> int:
    return len(html.escape("".join((task.image_url, *task.captions))).encode())


def hit_parameters(kind: str, pay_per_hour: float = 0.0) -> dict[str, Any]:
    """Return what CreateHIT wants besides Question and MaxAssignments.

    The reward follows from the pay per hour and the seconds that ``discode mceval plan`` expects of
    such a task; there is none where no pay was promised, since CreateHIT then asks for yours.

    >>> hit_parameters("compare", 24.0)["Reward"], "Reward" in hit_parameters("compare")
    ('0.20', False)
    """
    title, seconds = {
        "compare": ("Which of two captions describes an image better?", Target().compare_seconds),
        "revise": ("Correct the caption of an image", Target().revise_seconds),
    }[kind]
    parameters: dict[str, Any] = {
        "Title": title,
        "Description": "Look at one image and answer. Every task has a guide with examples.",
        "Keywords": "image, caption, English",
        "AssignmentDurationInSeconds": 900,
        "LifetimeInSeconds": 7 * 86400,
        "AutoApprovalDelayInSeconds": 3 * 86400,
        "QualificationRequirements": [
            {**rule, "ActionsGuarded": "DiscoverPreviewAndAccept"}
            for rule in QUALIFICATIONS.values()
        ],
    }
    if pay_per_hour:
        parameters["Reward"] = reward = f"{pay_per_hour * seconds / 3600:.2f}"
        if float(reward) == 0:
            raise InputError(
                f"{pay_per_hour:g} USD per hour is a reward of {reward} for {seconds:g} s; "
                f"Mechanical Turk allows 0.01 or more, {36 / seconds:.2f} per hour"
            )
    return parameters


def _readme(tasks: list[CrowdTask], form: str) -> str:
    wanted = sum(task.assignments for task in tasks)
    lines = [
        f"{len(tasks)} tasks for {wanted} answers.",
        "",
        "Who may work (the paper's annotators; ask the platform for these):",
        *(f"- {words}" for words in QUALIFICATIONS),
        "",
        "Nobody answers a task twice. Each task wants as many people as its column `assignments`",
        "says, so begin one batch per number. Host every image at its `image_url`.",
        "",
    ]
    if form == "mturk":
        lines += [
            "Website: hits-KIND.csv is the batch, KIND.html the layout of its project.",
            "API: CreateHIT with hit-KIND.json, Question=questions/NAME.xml, MaxAssignments from",
            "the table, and your Reward where hit-KIND.json has none. In the sandbox, the Masters",
            "qualification has another number: leave it out there. Its results are what",
            "ListAssignmentsForHIT returns: all Assignments as one JSON list, or one per line.",
        ]
    else:
        lines += ["tasks.csv: one task per row; 0 is `first`, 1 is `second` in the results."]
    lines += ["", "Results: discode mceval import DATABASE RESULTS (CSV, JSON or JSON lines)"]
    return "\n".join(lines) + "\n"


def _write_csv(path: Path, tasks: list[CrowdTask], *, escape: bool) -> None:
    with replacing(path) as temp, temp.open("w", encoding="utf-8", newline="") as file:
        writer = csv_writer(file)
        writer.writerow(COLUMNS)
        for task in tasks:
            first, second = task.captions if task.kind == "compare" else ("", "")
            caption = task.captions[0] if task.kind == "revise" else ""
            cells = (task.task, task.kind, task.domain, task.image_url, first, second, caption,
                     str(task.assignments))  # fmt: skip
            writer.writerow([html.escape(cell) if escape else cell for cell in cells])
