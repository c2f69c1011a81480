"""Write tasks for crowd platforms: as Mechanical Turk questions, or as a plain table.

A platform does not say beforehand who will answer, so a task is an image, asked as often as it has
open slots; the page itself draws which caption is on the left and sends that along. A task's name
does not tell what it is: gold questions look like all others.
"""

from __future__ import annotations

import csv
import html
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from discode.errors import InputError
from discode.files import replacing
from discode.mceval.database import rules_of
from discode.mceval.rules import CRITERIA, random_bits
from discode.mceval.tables import Candidate, Domain, Image, Slot

FORMATS = ("mturk", "csv")
COLUMNS = ("task", "kind", "domain", "image_url", "first", "second", "caption", "assignments")
_SCHEMA = (
    "http://mechanicalturk.amazonaws.com/AWSMechanicalTurkDataSchemas/2011-11-11/HTMLQuestion.xsd"
)
_SUBMIT = "https://www.mturk.com/mturk/externalSubmit"


@dataclass(frozen=True)
class CrowdTask:
    """A task for a platform; ``kind`` is "compare" or "revise"."""

    task: str
    kind: str
    domain: str
    image_url: str
    captions: tuple[str, ...]
    assignments: int


def task_name(seed: int, digest: str, kind: str) -> str:
    """Return a task's name: it looks random, and follows from the image."""
    return f"{random_bits(seed, 'crowd', kind, digest):016x}"


def crowd_tasks(session: Session, image_url: str, *, gold_assignments: int = 9) -> list[CrowdTask]:
    """Return what is open now, gold questions included, in a random order.

    Args:
        session: A session of the campaign.
        image_url: Where you host the images, with {digest} and {suffix} for a file's name.
        gold_assignments: How many people each gold question is for; 0 leaves them out.
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
        .where(Image.state == "active", Slot.state == "open")
        .where(Slot.kind.in_(("compare", "revise")))
        .group_by(Image.id, Slot.kind)
    ).all()
    wanted = [(row[0], row[1], row[2]) for row in rows]
    if gold_assignments:
        gold = session.scalars(select(Image).where(Image.state == "gold")).all()
        wanted += [(image, "compare", gold_assignments) for image in gold]
    domains = {row.id: row.name for row in session.scalars(select(Domain)).all()}
    texts = {row.id: row.text for row in session.scalars(select(Candidate)).all()}
    tasks = []
    for image, kind, count in wanted:
        ids = (image.revised,) if kind == "revise" else (image.first, image.second)
        url = image_url.replace("{digest}", image.digest)
        url = url.replace("{suffix}", Path(image.path).suffix.lower())
        tasks.append(
            CrowdTask(
                task_name(rules.seed, image.digest, kind),
                kind,
                domains.get(image.domain_id or 0, ""),
                url,
                tuple(texts[one] for one in ids if one is not None),
                count,
            )
        )
    return sorted(tasks, key=lambda task: task.task)


def write_tasks(tasks: list[CrowdTask], folder: Path, form: str, instructions: str = "") -> None:
    """Write tasks for a platform into a new or empty folder.

    "mturk": hits.csv for the requester's website with compare.html and revise.html as its layouts,
    and questions/NAME.xml for its API. "csv": tasks.csv with the texts as they are.
    """
    if form not in FORMATS:
        raise InputError(f"form {form!r} is not known; allowed: {', '.join(FORMATS)}")
    if not tasks:
        raise InputError("nothing is open: there is no task to write")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists already; give a new or an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    if form == "csv":
        _write_csv(folder / "tasks.csv", tasks, escape=False)
        return
    for kind in sorted({task.kind for task in tasks}):
        # The website puts a column's text into the page as it is: the columns are escaped.
        some = [task for task in tasks if task.kind == kind]
        _write_csv(folder / f"hits-{kind}.csv", some, escape=True)
        names = ("first", "second") if kind == "compare" else ("caption",)
        layout = task_page(kind, "${image_url}", tuple(f"${{{n}}}" for n in names), instructions)
        (folder / f"{kind}.html").write_text(layout, encoding="utf-8")
    (folder / "questions").mkdir()
    for task in tasks:
        path = folder / "questions" / f"{task.task}.xml"
        path.write_text(html_question(task, instructions), encoding="utf-8")


def _write_csv(path: Path, tasks: list[CrowdTask], *, escape: bool) -> None:
    with replacing(path) as temp, temp.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for cells in _cells(tasks):
            writer.writerow([html.escape(cell) if escape else cell for cell in cells])


def _cells(tasks: list[CrowdTask]) -> Iterator[list[str]]:
    for task in tasks:
        first, second = task.captions if task.kind == "compare" else ("", "")
        caption = task.captions[0] if task.kind == "revise" else ""
        yield [task.task, task.kind, task.domain, task.image_url, first, second, caption,
               str(task.assignments)]  # fmt: skip


def html_question(task: CrowdTask, instructions: str = "") -> str:
    """Return a task as Mechanical Turk's HTMLQuestion.

    >>> made = html_question(CrowdTask("00", "compare", "real", "https://x/1", ("a ]]> b", "c"), 3))
    >>> "a ]]&gt; b" in made and made.startswith("<HTMLQuestion")
    True
    """
    url = html.escape(task.image_url)
    body = task_page(task.kind, url, tuple(map(html.escape, task.captions)), instructions)
    body = body.replace("]]>", "]]]]><![CDATA[>")
    return (
        f'<HTMLQuestion xmlns="{_SCHEMA}"><HTMLContent><![CDATA[{body}]]></HTMLContent>'
        "<FrameHeight>0</FrameHeight></HTMLQuestion>"
    )


def task_page(kind: str, image_url: str, captions: tuple[str, ...], instructions: str = "") -> str:
    """Return the page of a task; URL and captions must be escaped, instructions are escaped here.

    It loads nothing but the image. The page draws at random which caption comes first and sends
    that along; the choice that it sends is the caption, not its place.
    """
    words = html.escape(instructions)
    if kind == "compare":
        asked = f"Which caption describes the image better? Mind {', '.join(CRITERIA)}."
        parts = "".join(
            f'<p class="c" id="c{i}"><label><input type="radio" name="choice" value="{i}" required>'
            f" {caption}</label></p>"
            for i, caption in enumerate(captions)
        )
        script = (
            "var s=Math.random()<0.5;document.getElementById('swapped').value=s?1:0;"
            "if(s){var b=document.getElementById('c1');b.parentNode.insertBefore(b,"
            "document.getElementById('c0'));}"
        )
        fields = f'<input type="hidden" name="swapped" id="swapped" value="0">{parts}'
    else:
        asked = "Correct the caption so that it describes the image well; leave it if it does."
        script = ""
        fields = (
            '<p><textarea name="text" rows="4" cols="80" maxlength="2000" required '
            f'aria-label="The caption">{captions[0]}</textarea></p>'
        )
    get = json.dumps("assignmentId")
    script += (
        f"document.getElementById('a').value=new URLSearchParams(location.search).get({get})||'';"
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Captions</title></head><body>'
        f'<form method="post" action="{_SUBMIT}"><input type="hidden" name="assignmentId" id="a">'
        f"<p>{words}</p><h1>{asked}</h1>"
        f'<p><img src="{image_url}" alt="The image to judge" style="max-width:100%"></p>'
        f'{fields}<p><button type="submit">Submit</button></p></form>'
        f"<script>{script}</script></body></html>"
    )
