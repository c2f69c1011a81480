from __future__ import annotations

import csv
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import ExifTags
from PIL import Image as Pillow
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from discode.errors import InputError
from mceval import _crowd_import as crowd_import
from mceval._checks import Checks
from mceval._crowd import CrowdTask, crowd_tasks, write_tasks
from mceval._crowd_import import Decision, import_results, write_decisions
from mceval._guide import ADVICE, COMPARED_EXAMPLES, DEFINITIONS, FLAG_REASONS, REVISING
from mceval._intake import add_gold
from mceval._states import NOT_LOADED
from mceval._tables import Answer, Candidate, Image, Pass, Person, Slot, Void
from mceval._user_study import begin_user_study, user_study_result
from mceval.database import Database
from mceval.queue import next_task
from mceval.queue._leases import RELOAD_SECONDS
from mceval.rules import Rules
from tests.helpers.annotating import draw_image
from tests.helpers.campaigns import (
    ask,
    check_rules,
    fill,
    invite_people,
    scalar,
    scalars,
    show_files,
    work_all,
)

URL = "https://example.org/{digest}{suffix}?a=1&b=2"
CHECKS = Checks(gold_after=2, gold_odds=20.0)
NASTY = ('<script>alert(1)</script> ]]> "q" ${first}', "'; DROP TABLE answer; -- & <b>")


class Reader(HTMLParser):
    """What a browser would see: texts, tags, attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def tasks_of(db: Database, *, gold: bool = True, study: bool = False) -> list[CrowdTask]:
    return ask(db, crowd_tasks, URL, gold=gold, study=study)


def pages(instructions: str = "") -> Any:
    pytest.importorskip("jinja2", reason="pages want discode-eval[annotate]")
    from mceval._web.rendering import CrowdPages

    return CrowdPages(instructions)


def send(db: Database, path: Path, columns: str, *rows: str, now: float = 1.0) -> list[Decision]:
    """Import a plain table."""
    path.write_text("\n".join([columns, *rows]) + "\n", encoding="utf-8")
    return import_results(db, path, now)


def answers(
    tasks: list[CrowdTask], workers: dict[str, float], path: Path, seed: int = 0, rows: int = 0
) -> Path:
    """Write what workers of given accuracies answer, in Mechanical Turk's columns."""
    rng = random.Random(seed)
    columns = ["AssignmentId", "WorkerId", "WorkTimeInSeconds", "Input.task", "Answer.choice",
               "Answer.swapped", "Answer.text", "Approve", "Reject"]  # fmt: skip
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(columns)
        for task in tasks:
            for worker in rng.sample(sorted(workers), min(task.assignments + rows, len(workers))):
                choice, text = "", f"{task.captions[0]}, revised"
                if task.kind == "compare":
                    right = task.captions[0] >= task.captions[1]
                    choice, text = str(int(right ^ (rng.random() >= workers[worker]))), ""
                name = f"{seed}-{task.task}-{worker}"
                out.writerow([name, worker, 20, task.task, choice, rng.randint(0, 1), text, "", ""])
    return path


def test_a_campaign_by_crowd_alone(
    sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowd_import, "AGREE_AFTER", 999)
    fill(sqlite, Rules(), {"a": (6, 30), "b": (5, 30)}, checks=CHECKS)
    workers = {f"W{i}": 0.9 for i in range(9)}
    for number in range(40):
        tasks = tasks_of(sqlite)
        if not tasks:
            break
        path = answers(tasks, workers, tmp_path / f"{number}.csv", seed=number)
        decisions = import_results(sqlite, path, float(number))
        assert {one.decision for one in decisions} == {"approve"}
    check_rules(sqlite)
    done = scalar(sqlite, select(func.count()).where(Image.state == "done"))
    people = scalars(sqlite, select(Person))
    assert done == 11
    assert {person.worker for person in people} == set(workers)
    assert all(person.token_hash is None for person in people)


def test_more_answers_than_needed_are_paid_and_not_used(sqlite: Database, tmp_path: Path) -> None:
    """And a second import changes nothing."""
    fill(sqlite, Rules(), {"a": (2, 2)})
    path = answers(tasks_of(sqlite), dict.fromkeys("ABCDEF", 1.0), tmp_path / "r.csv", rows=2)
    decisions = import_results(sqlite, path, 1.0)
    assert {row.decision for row in decisions if not row.used} == {"approve"}
    again = import_results(sqlite, path, 2.0)
    assert [row.used for row in again] == [row.used for row in decisions]
    assert scalar(sqlite, select(func.count(Answer.id))) == sum(row.used for row in decisions)
    check_rules(sqlite)


@pytest.mark.parametrize("shared", ["https://crowd.example/" + "0" * 150, ""])
def test_assignments_that_begin_alike(sqlite: Database, tmp_path: Path, shared: str) -> None:
    """Long ids, and ids that a later batch uses again for other workers, are other answers."""
    fill(sqlite, Rules(), {"a": (3, 3)})
    columns = "assignment,worker,task,seconds,choice"

    def batch(worker: str) -> list[str]:
        return [f"{shared}{i},{worker},{task.task},20,0" for i, task in enumerate(tasks)]

    tasks = [task for task in tasks_of(sqlite) if task.kind == "compare"]
    for number, worker in enumerate(("anna", "bert"), start=1):
        decisions = send(sqlite, tmp_path / "r.csv", columns, *batch(worker))
        assert all(row.used and not row.reason for row in decisions)
        assert scalar(sqlite, select(func.count(Answer.id))) == number * len(tasks)
        again = send(sqlite, tmp_path / "r.csv", columns, *batch(worker))
        assert all(row.used and row.reason == "imported before" for row in again)
    assert scalar(sqlite, select(func.count(Answer.id))) == 2 * len(tasks)


def test_assignments_imported_by_an_earlier_version(sqlite: Database, tmp_path: Path) -> None:
    """Their answers are named by the first 100 characters of "crowd:ASSIGNMENT"."""
    fill(sqlite, Rules(), {"a": (3, 3)})
    tasks = [task for task in tasks_of(sqlite) if task.kind == "compare"]
    rows = [
        f"{'x' * 120}-{worker}-{task.task},{worker},{task.task},20,0"
        for task in tasks
        for worker in ("anna", "bert")
    ]
    columns = "assignment,worker,task,seconds,choice"
    send(sqlite, tmp_path / "r.csv", columns, rows[0])

    def name_as_before(session: Session) -> None:
        session.scalars(select(Answer)).one().submission = f"crowd:{'x' * 94}"

    sqlite.run(name_as_before)
    decisions = send(sqlite, tmp_path / "r.csv", columns, *rows)
    assert [row.reason for row in decisions] == ["imported before"] + [""] * (len(rows) - 1)
    assert all(row.used for row in decisions)
    assert scalar(sqlite, select(func.count(Answer.id))) == len(rows)


@pytest.mark.parametrize(("gold", "reason"), [(4, "gold questions: 0 of"), (0, "agreement: ")])
def test_gold_and_agreement_reject(
    sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gold: int, reason: str
) -> None:
    monkeypatch.setattr(crowd_import, "AGREE_AFTER", 5)
    fill(sqlite, Rules(), {"a": (20, 20)}, checks=CHECKS, gold=gold)
    workers = {"good1": 1.0, "good2": 1.0, "good3": 1.0, "good4": 1.0, "bad": 0.0}
    path = answers(tasks_of(sqlite), workers, tmp_path / "r.csv", rows=2 if gold else 0)
    decisions = import_results(sqlite, path, 1.0)
    for row in decisions:
        assert (row.decision == "reject") == (row.worker == "bad")
        assert row.worker != "bad" or (row.reason.startswith(reason) and not row.used)
    check_rules(sqlite)
    assert scalars(sqlite, select(Void.reason))
    write_decisions(decisions, path, tmp_path / "decided.csv")
    with (tmp_path / "decided.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(decisions)
    assert all(bool(row["Approve"]) != bool(row["Reject"]) for row in rows)
    assert {row["WorkerId"] for row in rows if row["Reject"]} == {"bad"}


def test_pages_cannot_be_broken_by_captions() -> None:
    made, address = pages("Mind the <gap> ]]> & more"), 'https://x/1?a=1&b="2"'
    for kind, captions in (("compare", NASTY), ("revise", NASTY[:1])):
        seen = Reader(made.page(kind, address, captions))
        scripts = [found for tag, found in seen.tags if tag == "script"]
        assert all((one["src"] or "").startswith("data:text/javascript;base64,") for one in scripts)
        assert len(scripts) == 3
        for caption in captions:
            assert caption in "".join(seen.texts)
        assert ("img", address) in [(tag, found.get("src")) for tag, found in seen.tags]
        forms = [found for tag, found in seen.tags if tag == "form"]
        assert {one["action"] for one in forms} == {"https://www.mturk.com/mturk/externalSubmit"}
        names = {found.get("name") for _, found in seen.tags} - {None, "viewport", "color-scheme"}
        assert names - {"criterion"} == {"assignmentId", "pass", "reason", "more"} | (
            {"choice", "swapped"} if kind == "compare" else {"text", "unchanged"}
        )


def test_the_page_has_the_guide_and_instructions_add_to_it() -> None:
    """A platform's page says what the application's says."""
    for words in ("", "Work in a quiet place."):
        made = pages(words)
        compare = "".join(Reader(made.page("compare", "https://x/1", ("a", "b"))).texts)
        for said in (*DEFINITIONS.values(), ADVICE, *FLAG_REASONS, words):
            assert said in compare
        for one in COMPARED_EXAMPLES:
            assert all(caption in compare for caption in one.captions)
        revise = made.page("revise", "https://x/1", ("a",))
        assert REVISING in "".join(Reader(revise).texts)
        assert words in revise
        # Nothing is loaded but the image: the guide's own images are in the page.
        addresses = [found.get("src") or "" for tag, found in Reader(revise).tags if tag == "img"]
        assert [one for one in addresses if not one.startswith("data:image/jpeg")] == [
            "https://x/1", ""]  # fmt: skip


def test_a_page_that_the_platform_would_refuse(tmp_path: Path) -> None:
    task = CrowdTask("00ff", "compare", "real", "https://x/1", ("é" * 4000, "b" * 4000), 3)
    with pytest.raises(InputError):
        write_tasks([task], tmp_path / "out", "mturk", "word " * 4000)
    with pytest.raises(InputError, match=r"0\.5.*0\.01"):
        write_tasks([task], tmp_path / "out", "mturk", pay_per_hour=0.5)
    assert not (tmp_path / "out").exists()
    write_tasks([task], tmp_path / "out", "mturk", pay_per_hour=1.2)
    assert "0.01 USD" in (tmp_path / "out" / "README.txt").read_text()


def test_what_the_website_gets(sqlite: Database, tmp_path: Path) -> None:
    """hits.csv fills the layout as it is: together they must be as safe as a page."""
    pages()
    task = CrowdTask("00ff", "compare", "real", "https://x/1", NASTY, 3)
    write_tasks([task], tmp_path / "out", "mturk", "Look well.")
    layout = (tmp_path / "out" / "compare.html").read_text(encoding="utf-8")
    with (tmp_path / "out" / "hits-compare.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    columns = set(re.findall(r"\$\{(.*?)\}", layout))
    # nothing of a script looks like a column
    assert columns == {"image_url", "first", "second"}
    safe = Reader(layout).tags
    for name in columns:
        layout = layout.replace(f"${{{name}}}", row[name])
    seen = Reader(layout)
    assert [tag for tag, _ in seen.tags] == [tag for tag, _ in safe]
    assert NASTY[1] in "".join(seen.texts)


def test_the_papers_qualifications(tmp_path: Path) -> None:
    """At least 99 % approved, over 5,000 tasks, Masters, US or UK: in both forms."""
    pages()
    task = CrowdTask("00ff", "revise", "real", "https://x/1", ("a",), 1)
    for form in ("mturk", "csv"):
        write_tasks([task], tmp_path / form, form, pay_per_hour=23.0)
        said = (tmp_path / form / "README.txt").read_text()
        for words in ("99 %", "5,000", "Masters", "United States or the United Kingdom"):
            assert words in said
        assert "0.32 USD" in said  # 50 s at 23 USD per hour
    write_tasks([task], tmp_path / "free", "csv")
    assert "USD" not in (tmp_path / "free" / "README.txt").read_text()  # no pay was promised


def test_a_finished_campaign_has_no_tasks(sqlite: Database, tmp_path: Path) -> None:
    """Its gold questions are not tasks, and among revisions alone they would be known as such."""
    fill(sqlite, Rules(), {"a": (2, 2)}, gold=3)
    comparers, reviser = invite_people(sqlite, 3), invite_people(sqlite, 0)
    assert {task.kind for task in tasks_of(sqlite)} == {"compare", "revise"}
    work_all(sqlite, comparers[:3], random.Random(0))
    assert [task.kind for task in tasks_of(sqlite)] == ["revise", "revise"]
    work_all(sqlite, reviser, random.Random(0))
    assert tasks_of(sqlite) == []


def test_gold_on_an_image_of_the_campaign(sqlite: Database, tmp_path: Path) -> None:
    """Two gold questions on one file, which is also judged: three tasks, and no answer strays."""
    fill(sqlite, Rules(people=1), {"a": (1, 1)}, checks=Checks(gold_after=99))
    draw_image(tmp_path / "own.png", 5)
    show_files(sqlite, [tmp_path / "own.png"])
    table = tmp_path / "gold.csv"
    table.write_text("image,right,wrong\nown.png,a blot,a cat\nown.png,colours,a dog\n")
    add_gold(sqlite, table, 1.0)
    tasks = [task for task in tasks_of(sqlite) if task.kind == "compare"]
    assert len({task.image_url for task in tasks}) == 1
    assert len({task.task for task in tasks}) == len(tasks) == 3
    for number, task in enumerate(tasks):
        row = f"{task.task},worker {number},9,1"
        (one,) = send(sqlite, tmp_path / "r.csv", "task,worker,seconds,choice", row)
        assert one.used
    with sqlite.read() as session:
        votes = session.execute(
            select(Answer.kind, Candidate.text, Image.state)
            .join(Image, Image.id == Answer.image_id)
            .join(Candidate, Candidate.id == Image.second)
            .order_by(Answer.id)
        ).all()
    shown = [
        (task.captions[1], "compare" if "says" in task.captions[1] else "gold") for task in tasks
    ]
    assert [(row[1], row[0]) for row in votes] == shown
    assert [row[2] == "gold" for row in votes] == [kind == "gold" for _, kind in shown]


def test_images_to_host(sqlite: Database, tmp_path: Path) -> None:
    """They are what the application shows: one frame, upright, without where it was taken."""
    exif = Pillow.Exif()
    exif[ExifTags.Base.Artist] = "somebody at home"
    files = [tmp_path / "photo.jpeg", tmp_path / "scan.tiff"]
    Pillow.new("RGB", (8, 6), "red").save(files[0], exif=exif)
    Pillow.new("RGB", (8, 6), "blue").save(files[1])
    fill(sqlite, Rules(), {"a": (2, 2)})
    show_files(sqlite, files)
    there = tmp_path / "public"
    tasks = ask(sqlite, crowd_tasks, "https://x/{digest}{suffix}", copies=there)
    names = {task.image_url.removeprefix("https://x/") for task in tasks}
    assert {path.name for path in there.iterdir()} == names
    assert sorted(Path(name).suffix for name in names) == [".jpg", ".png"]
    assert all(b"somebody" not in path.read_bytes() for path in there.iterdir())
    files[0].write_bytes(b"another")
    with sqlite.read() as session, pytest.raises(InputError):
        crowd_tasks(session, URL, copies=there)
    files[0].unlink()
    with sqlite.read() as session, pytest.raises(InputError):
        crowd_tasks(session, URL, copies=there)
    moved = tmp_path / "moved" / "a"
    moved.mkdir(parents=True)
    Pillow.new("RGB", (8, 6), "red").save(moved / "0.png", "JPEG", exif=exif)
    files[1].rename(moved / "1.png")
    again = ask(sqlite, crowd_tasks, "https://x/{digest}{suffix}", copies=tmp_path / "again",
                        images=tmp_path / "moved")  # fmt: skip
    assert again == tasks


def test_the_user_study_by_crowd(sqlite: Database, tmp_path: Path) -> None:
    """New people only: whoever worked on the campaign is thanked, and not counted."""
    fill(sqlite, Rules(), {"a": (4, 4)}, gold=1)
    names: set[str] = set()
    for seed in range(20):
        tasks = tasks_of(sqlite, gold=False)
        if not tasks:
            break
        names |= {task.task for task in tasks}
        path = answers(tasks, dict.fromkeys("ABCDEF", 1.0), tmp_path / "r.csv", seed=seed)
        import_results(sqlite, path, 1.0)
    assert tasks_of(sqlite, study=True) == []
    begin_user_study(sqlite, 4, 2.0, people=2)
    tasks = tasks_of(sqlite, study=True)
    assert [task.assignments for task in tasks] == [2] * 5  # the gold question is like the others
    assert {task.kind for task in tasks} == {"compare"}
    assert not {task.task for task in tasks} & names
    workers = {"A": 1.0, "new1": 1.0, "new2": 1.0}
    decisions = import_results(sqlite, answers(tasks, workers, tmp_path / "s.csv", rows=1), 3.0)
    assert {one.decision for one in decisions} == {"approve"}
    old = [one for one in decisions if one.worker == "A" and not one.used]
    assert len(old) == 4
    assert all("took part in the campaign" in one.reason for one in old)
    result = ask(sqlite, user_study_result)
    roles = {person.name: person.role for person in scalars(sqlite, select(Person))}
    assert (result.images, result.judged, result.accuracy.value) == (4, 8, 1.0)
    assert roles["new1"] == roles["new2"] == "study"
    assert tasks_of(sqlite, study=True) == []
    check_rules(sqlite)


def test_skips_and_flags_of_a_crowd(sqlite: Database, tmp_path: Path) -> None:
    """They count as in the application, and a second import changes nothing."""
    fill(sqlite, Rules(flags=2), {"a": (2, 4)})
    one, other = (task.task for task in tasks_of(sqlite) if task.kind == "compare")
    columns = "task,worker,seconds,choice,pass,reason,more"
    rows = [
        f"{one},V,9,,flag,A caption is offensive,the second",
        f"{one},W,9,,flag,Other,",
        f"{other},V,9,,skip,I cannot tell which is better,",
        f"{other},W,9,,leave,,",
        f"{other},X,9,,flag,,",
    ]
    decisions = send(sqlite, tmp_path / "r.csv", columns, *rows)
    assert [(row.decision, row.used) for row in decisions] == [
        ("approve", True), ("approve", True), ("approve", True), ("reject", False),
        ("approve", True)]  # fmt: skip
    with sqlite.read() as session:
        made = session.execute(select(Pass.kind, Pass.reason).order_by(Pass.id)).all()
        gone = session.scalars(select(Image.reason).where(Image.state == "discarded")).all()
        assert not session.scalars(select(Slot.id).where(Slot.state == "leased")).all()
    assert [tuple(row) for row in made] == [
        ("flag", "A caption is offensive: the second"),
        ("flag", "Other"),
        ("skip", "I cannot tell which is better"),
        ("flag", "Other"),
    ]
    assert [why.startswith("flagged by 2 people") for why in gone] == [True]
    again = send(sqlite, tmp_path / "r.csv", columns, *rows, now=2.0)
    assert [row.used for row in again] == [row.used for row in decisions]
    assert len(scalars(sqlite, select(Pass.id))) == 4
    (late,) = send(sqlite, tmp_path / "l.csv", columns, f"{other},V,9,1,,,", now=3.0)
    assert (late.decision, late.used) == ("approve", False)
    check_rules(sqlite)


def test_an_image_that_did_not_load_comes_back_to_a_worker(
    sqlite: Database, tmp_path: Path
) -> None:
    """After an hour, as on the site; the flag itself is imported once, however late."""
    fill(sqlite, Rules(), {"a": (1, 1)})
    (task,) = (task.task for task in tasks_of(sqlite) if task.kind == "compare")
    columns = "task,worker,assignment,seconds,choice,pass,reason"
    flagged, chosen = f"{task},W,1,9,,flag,{NOT_LOADED}", f"{task},W,2,9,1,,"
    for now, rows, used in (
        (1.0, [flagged], [True]),
        (RELOAD_SECONDS, [flagged, chosen], [True, False]),
        (RELOAD_SECONDS + 1, [flagged, chosen], [True, True]),
    ):
        decisions = send(sqlite, tmp_path / "r.csv", columns, *rows, now=now)
        assert [(row.decision, row.used) for row in decisions] == [("approve", u) for u in used]
    assert len(scalars(sqlite, select(Pass.id))) == 1
    assert scalars(sqlite, select(Answer.choice)) == [1]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("task,worker,seconds\nnone,w,5\n", "line 2"),
        ("worker,seconds\nw,5\n", "line 2"),
        ("task,worker,seconds\nx,,5\n", "line 2"),
        ("task,worker,seconds\nx,w,soon\n", "line 2"),
        ("task,worker,seconds\nx,w,-1\n", "line 2"),
        ("task,worker,seconds,assignment\nx,w,1,a\nx,v,1,a\n", "line 3"),
        ("task,worker,seconds\n", "r.csv"),
    ],
)
def test_invalid_results(sqlite: Database, tmp_path: Path, text: str, place: str) -> None:
    fill(sqlite, Rules(), {"a": (1, 1)})
    (tmp_path / "r.csv").write_text(text)
    with pytest.raises(InputError, match=place):
        import_results(sqlite, tmp_path / "r.csv", 0.0)


def test_choices_as_spreadsheets_write_them(sqlite: Database, tmp_path: Path) -> None:
    """They are read; a file with others is refused before anything is taken from it."""
    fill(sqlite, Rules(people=1), {"a": (6, 6)})
    names = [task.task for task in tasks_of(sqlite) if task.kind == "compare"]
    columns = "task,worker,seconds,choice,swapped"
    for wrong in ("2", "A", "left"):
        rows = [f"{names[0]},w,9,1,0", f"{names[1]},w,9,{wrong},0"]
        with pytest.raises(InputError, match=r"r\.csv line 3"):
            send(sqlite, tmp_path / "r.csv", columns, *rows)
    written = ("0", "1.0", "first", "second", "True", "FALSE")
    sides = ("0", "1", "0.0", "1.0", "TRUE", "")
    rows = [
        f"{name},w,9,{choice},{side}"
        for name, choice, side in zip(names, written, sides, strict=True)
    ]
    decisions = send(sqlite, tmp_path / "r.csv", columns, *rows)
    assert all(one.used and one.decision == "approve" for one in decisions)
    with sqlite.read() as session:
        made = session.execute(select(Answer.choice, Answer.swapped).order_by(Answer.id)).all()
    assert [row[0] for row in made] == [0, 1, 0, 1, 1, 0]
    assert [row[1] for row in made] == [False, True, False, True, True, False]


def test_task_names_survive_a_spreadsheet(sqlite: Database, tmp_path: Path) -> None:
    """None is a number; those of an earlier version, without their letter, are still known."""
    fill(sqlite, Rules(people=1), {"a": (1, 1)})
    (task,) = (task for task in tasks_of(sqlite) if task.kind == "compare")
    with pytest.raises(ValueError, match="could not convert"):
        float(task.task)
    row = f"{task.task[1:]},w,9,1"
    (one,) = send(sqlite, tmp_path / "r.csv", "task,worker,seconds,choice", row)
    assert one.used


def test_a_bad_row_is_a_decision(sqlite: Database, tmp_path: Path) -> None:
    """A skip where nobody can skip and odd characters cost nobody their pay, and no other row."""
    fill(sqlite, Rules(skips=0), {"a": (2, 2)})
    names = {task.kind: task.task for task in tasks_of(sqlite)}
    columns = "task,worker,seconds,choice,text,pass,reason,more"
    rows = [
        f"{names['compare']},U,9,,,skip,Other,",
        f"{names['compare']},V,9,,,flag,Other,see \u202ethis\x07",
        f"{names['revise']},W,9,,a \u2066good caption\x08,,,",
        f"{names['compare']},X,9,1,,,,",
    ]
    decisions = send(sqlite, tmp_path / "r.csv", columns, *rows)
    assert [(one.decision, one.used) for one in decisions] == [
        ("approve", False), ("approve", True), ("approve", True), ("approve", True)]  # fmt: skip
    assert scalars(sqlite, select(Pass.reason)) == ["Other: see this"]
    texts = scalars(sqlite, select(Answer.text).order_by(Answer.id))
    assert texts == ["a good caption", None]
    check_rules(sqlite)


def test_a_flag_of_a_task_that_a_participant_holds(sqlite: Database, tmp_path: Path) -> None:
    fill(sqlite, Rules(people=1), {"a": (1, 1)})
    (person,) = invite_people(sqlite, 1, 0)
    (task,) = (task for task in tasks_of(sqlite) if task.kind == "compare")
    assert next_task(sqlite, person, 2.0) is not None
    columns = "task,worker,seconds,pass,reason"
    (one,) = send(sqlite, tmp_path / "r.csv", columns, f"{task.task},V,9,flag,Other")
    assert (one.decision, one.used) == ("approve", False)
    assert not scalars(sqlite, select(Pass.id))


def test_what_the_platform_has_decided_stays(sqlite: Database, tmp_path: Path) -> None:
    fill(sqlite, Rules(people=1), {"a": (4, 4)})
    names = [task.task for task in tasks_of(sqlite) if task.kind == "compare"]
    columns = "Input.task,WorkerId,WorkTimeInSeconds,Answer.choice,AssignmentStatus,Reject"
    rows = [
        f"{names[0]},U,9,1,Rejected,",
        f"{names[1]},V,9,1,Submitted,copied from elsewhere",
        f"{names[2]},W,9,,Approved,",
        f"{names[3]},X,9,1,Submitted,",
    ]
    for now in (1.0, 2.0):
        decisions = send(sqlite, tmp_path / "r.csv", columns, *rows, now=now)
        assert [(one.decision, one.used) for one in decisions] == [
            ("reject", False), ("reject", False), ("approve", False), ("approve", True)
        ]  # fmt: skip
        assert decisions[1].reason == "copied from elsewhere"
        assert decisions[2].reason.endswith("no choice")
        write_decisions(decisions, tmp_path / "r.csv", tmp_path / "d.csv")
        told = list(csv.DictReader((tmp_path / "d.csv").read_text().splitlines()))
        assert [row["Approve"] for row in told] == ["", "", "x", "x"]
    assert scalar(sqlite, select(func.count(Answer.id))) == 1


def test_gold_questions_are_like_the_comparisons(sqlite: Database, tmp_path: Path) -> None:
    """In every batch of one number of people, and in every domain, there are others as well."""
    fill(sqlite, Rules(), {"a": (12, 12), "b": (3, 3)}, gold=12)
    rows = [
        f"{task.task},worker {number},9,1"
        for task in tasks_of(sqlite, gold=False)
        if task.kind == "compare"
        for number in range(int(task.task[-1], 16) % 3)
    ]
    send(sqlite, tmp_path / "r.csv", "task,worker,seconds,choice", *rows)
    tasks = tasks_of(sqlite)
    assert tasks == tasks_of(sqlite)
    gold = {task for task in tasks if "says" not in task.captions[0]}
    plain = {task for task in tasks if task.kind == "compare"} - gold
    assert len(gold) == 12
    for name in ("assignments", "domain"):
        values = {getattr(task, name) for task in gold}
        assert values <= {getattr(task, name) for task in plain}
        assert len(values) > 1  # they are spread
    assert tasks_of(sqlite, gold=False) == [task for task in tasks if task not in gold]


def test_answers_of_a_crowd_are_checked(sqlite: Database, tmp_path: Path) -> None:
    """One letter is no reference, three seconds are not enough for one, and no choice is none."""
    fill(sqlite, Rules(), {"a": (5, 5)}, checks=Checks(gold_rate=0, quick_seconds=2))
    tasks = [task for task in tasks_of(sqlite) if task.kind == "revise"]
    compare = next(task for task in tasks_of(sqlite) if task.kind == "compare")
    rows = [
        f"{tasks[0].task},v,30,x",
        f"{tasks[1].task},v,3,a better caption",
        f"{tasks[2].task},v,30,{tasks[2].captions[0]}",
        f"{tasks[3].task},v,30,a better caption",
        f"{tasks[4].task},w,30,",
        f"{compare.task},u,30,x",
    ]
    decisions = send(sqlite, tmp_path / "r.csv", "task,worker,seconds,text", *rows)
    assert [(row.decision, row.used) for row in decisions] == [
        ("reject", False), ("approve", False), ("approve", True), ("approve", True),
        ("reject", False), ("reject", False)]  # fmt: skip


def test_bad_exports(sqlite: Database, tmp_path: Path) -> None:
    fill(sqlite, Rules(), {"a": (1, 1)})
    for url in ("https://x/{name}", "ftp://x/{digest}", ""):
        with pytest.raises(InputError):
            ask(sqlite, crowd_tasks, url)
    tasks = tasks_of(sqlite)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    for folder, form, some_tasks in (
        ("x", "upwork", tasks),
        ("x", "csv", []),
        ("full", "csv", tasks),
    ):
        with pytest.raises(InputError):
            write_tasks(some_tasks, tmp_path / folder, form)
    assert not (tmp_path / "x").exists()
