"""Write tasks for crowd platforms: for Mechanical Turk's website, or as a plain table.

Workers are not known in advance, so a task is an image with as many assignments as it has open
slots. The page itself draws which caption is on the left and sends the side along. The names of
tasks do not reveal gold questions or the user study.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from discode._files import replacing, write_csv, writing
from discode.errors import InputError, require
from mceval._shown import check_new_folder, checked_copy
from mceval._states import log_event
from mceval._tables import Candidate, Domain, Image, Slot
from mceval.database import rules_of, transaction
from mceval.people import keep_guide
from mceval.plan import Target
from mceval.rules import random_bits

FORMATS = ("mturk", "csv")
COLUMNS = ("task", "kind", "domain", "image_url", "first", "second", "caption", "assignments")
QUALIFICATIONS = (
    "at least 99 % of their work was approved",
    "more than 5,000 approved tasks",
    "the platform's Masters qualification",
    "in the United States or the United Kingdom",
)
"""Worker requirements of the paper."""


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
    """Derive a task's name, which looks random, from its image.

    Several gold questions may use one file, which may also be an image of the campaign, so their
    names depend on ``state_key``, too. Names begin with a letter, since spreadsheets reformat
    numbers.
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
    """List the open tasks in random order, with gold questions among the comparisons.

    Each gold question takes the domain and the number of people of a random comparison, so that it
    is in the same batch and cannot be recognised.

    ``image_url`` is the address of hosted images, with {digest} and {suffix} for a file's name. The
    folder ``copies`` receives the images to host, as the application shows them. ``images`` is
    their current folder if they were moved.
    """
    if "{digest}" not in image_url or not image_url.startswith(("https://", "http://")):
        raise InputError(
            f"image address {image_url!r} must be http(s) and contain {{digest}}, such as "
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
    shown = checked_copy(image, images)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / f"{image.digest}{shown.suffix}") as temp:
        temp.write_bytes(shown.data)
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

    "mturk": hits-KIND.csv with the layout KIND.html, for the requester's website. "csv": tasks.csv
    with unescaped texts. Both have README.txt with instructions and worker requirements.
    """
    if form not in FORMATS:
        raise InputError(f"unknown form {form!r}; allowed: {', '.join(FORMATS)}")
    if not tasks:
        raise InputError("there are no open tasks to write")
    check_new_folder(folder)
    if form == "mturk":
        require("jinja2", "mceval")
        from mceval._web.rendering import CrowdPages

        pages = CrowdPages(instructions, skips=skips)
        pages.check(max(tasks, key=_length))  # before any file is written
    rewards = {kind: reward(kind, pay_per_hour) for kind in sorted({task.kind for task in tasks})}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.txt").write_text(_readme(tasks, form, rewards), encoding="utf-8")
    if form == "csv":
        _write_csv(folder / "tasks.csv", tasks, escape=False)
        return
    for kind in rewards:
        # The website inserts the text of columns unescaped, so they are escaped here.
        some = [task for task in tasks if task.kind == kind]
        _write_csv(folder / f"hits-{kind}.csv", some, escape=True)
        (folder / f"{kind}.html").write_text(pages.layout(kind), encoding="utf-8")


@transaction
def log_exported(session: Session, now: float, *, study: bool = False) -> None:
    """Log that people may see the open tasks, which were exported, and keep the guide."""
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


def reward(kind: str, pay_per_hour: float) -> str:
    """Pay in USD for a task of the seconds of ``discode mceval plan``; "" if no pay was promised.

    >>> reward("compare", 24.0)
    '0.20'
    """
    seconds = Target().compare_seconds if kind == "compare" else Target().revise_seconds
    pay = f"{pay_per_hour * seconds / 3600:.2f}"
    if pay_per_hour and float(pay) == 0:
        raise InputError(
            f"{pay_per_hour:g} USD per hour gives a reward of {pay} for {seconds:g} s; the "
            f"minimum is 0.01, or {36 / seconds:.2f} per hour"
        )
    return pay if pay_per_hour else ""


def _readme(tasks: list[CrowdTask], form: str, rewards: Mapping[str, str]) -> str:
    wanted = sum(task.assignments for task in tasks)
    lines = [
        f"{len(tasks)} tasks for {wanted} answers.",
        "",
        "Worker requirements (the paper's; set them on the platform):",
        *(f"- {words}" for words in QUALIFICATIONS),
        "",
        "Each worker answers a task once. The column `assignments` is the number of workers per",
        "task, so start one batch per number. Host every image at its `image_url`.",
        *(f"Reward of a task to {kind}: {pay} USD." for kind, pay in rewards.items() if pay),
        "",
    ]
    if form == "mturk":
        lines += ["hits-KIND.csv is the batch, KIND.html the layout of its project."]
    else:
        lines += ["tasks.csv: one task per row; 0 is `first`, 1 is `second` in the results."]
    lines += ["", "Results: discode mceval import DATABASE RESULTS"]
    return "\n".join(lines) + "\n"


def _write_csv(path: Path, tasks: list[CrowdTask], *, escape: bool) -> None:
    rows: list[Sequence[str]] = [COLUMNS]
    for task in tasks:
        first, second = task.captions if task.kind == "compare" else ("", "")
        caption = task.captions[0] if task.kind == "revise" else ""
        cells = (task.task, task.kind, task.domain, task.image_url, first, second, caption,
                 str(task.assignments))  # fmt: skip
        rows.append([html.escape(cell) if escape else cell for cell in cells])
    write_csv(path, rows)
