from __future__ import annotations

import csv
import random
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
from sqlalchemy import func, select

from discode.errors import InputError
from discode.mceval.checks import Checks
from discode.mceval.crowd import CrowdTask, crowd_tasks, html_question, task_page, write_tasks
from discode.mceval.crowd_import import AgreementCheck, import_results, write_decisions
from discode.mceval.database import Database
from discode.mceval.rules import Rules
from discode.mceval.tables import Answer, Image, Person, Void
from tests.helpers.campaigns import check_rules, fill

URL = "https://example.org/{digest}{suffix}?a=1&b=2"
CHECKS = Checks(gold_after=2, gold_least=0.6)
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


def tasks_of(db: Database, gold: int = 9) -> list[CrowdTask]:
    with db.read() as session:
        return crowd_tasks(session, URL, gold_assignments=gold)


def answers(
    tasks: list[CrowdTask], workers: dict[str, float], path: Path, seed: int = 0, rows: int = 0
) -> Path:
    """Write what workers of given accuracies answer, in Mechanical Turk's columns."""
    rng = random.Random(seed)
    columns = ["HITId", "AssignmentId", "WorkerId", "WorkTimeInSeconds", "Input.task",
               "Answer.choice", "Answer.swapped", "Answer.text", "Approve", "Reject"]  # fmt: skip
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(columns)
        for task in tasks:
            count = min(task.assignments + rows, len(workers))
            for worker in rng.sample(sorted(workers), count):
                choice = text = ""
                if task.kind == "compare":
                    first, second = task.captions
                    right = 0 if first < second else 1
                    good = rng.random() < workers[worker]
                    choice = str(right if good else 1 - right)
                else:
                    text = f"{task.captions[0]}, revised"
                name = f"{seed}-{task.task}-{worker}"
                out.writerow(["h", name, worker, 20, task.task, choice, rng.randint(0, 1), text,
                              "", ""])  # fmt: skip
    return path


def test_a_campaign_by_crowd_alone(sqlite: Database, tmp_path: Path) -> None:
    fill(sqlite, Rules(), {"a": (6, 30), "b": (5, 30)}, checks=CHECKS)
    workers = {f"W{i}": 0.9 for i in range(9)}
    for number in range(40):
        tasks = tasks_of(sqlite)
        if not tasks:
            break
        path = answers(tasks, workers, tmp_path / f"{number}.csv", seed=number)
        decisions = import_results(sqlite, path, float(number), agreement=AgreementCheck(after=999))
        assert {one.decision for one in decisions} == {"approve"}
    check_rules(sqlite)
    with sqlite.read() as session:
        done = session.scalar(select(func.count()).where(Image.state == "done"))
        people = session.scalars(select(Person)).all()
    assert done == 11
    assert {person.worker for person in people} == set(workers)
    assert all(person.token_hash is None for person in people)


def test_a_second_import_changes_nothing(sqlite: Database, tmp_path: Path) -> None:
    fill(sqlite, Rules(), {"a": (4, 4)})
    path = answers(tasks_of(sqlite), dict.fromkeys("ABCDE", 1.0), tmp_path / "r.csv")
    first = import_results(sqlite, path, 1.0)
    again = import_results(sqlite, path, 2.0)
    assert [one.used for one in again] == [one.used for one in first]
    with sqlite.read() as session:
        assert session.scalar(select(func.count(Answer.id))) == sum(one.used for one in first)
    check_rules(sqlite)


def test_more_answers_than_needed_are_paid_and_not_used(sqlite: Database, tmp_path: Path) -> None:
    fill(sqlite, Rules(), {"a": (2, 2)})
    path = answers(tasks_of(sqlite), dict.fromkeys("ABCDEF", 1.0), tmp_path / "r.csv", rows=2)
    decisions = import_results(sqlite, path, 1.0)
    spare = [one for one in decisions if not one.used]
    assert spare
    assert {one.decision for one in spare} == {"approve"}
    assert {one.reason for one in spare} <= {
        "not used: the image has all its answers",
        "not used: the worker has another task of this image",
    }
    check_rules(sqlite)


def test_gold_time_and_agreement_reject(sqlite: Database, tmp_path: Path) -> None:
    fill(sqlite, Rules(), {"a": (20, 20)}, checks=CHECKS, gold=4)
    tasks = tasks_of(sqlite, gold=9)
    assert sum(task.assignments == 9 for task in tasks) == 4
    workers = {"good1": 1.0, "good2": 1.0, "good3": 1.0, "good4": 1.0, "bad": 0.0}
    path = answers(tasks, workers, tmp_path / "r.csv")
    decisions = import_results(sqlite, path, 1.0)
    for one in decisions:
        assert (one.decision == "reject") == (one.worker == "bad")
        if one.worker == "bad":
            assert one.reason.startswith("gold questions: 0 of")
            assert not one.used
    check_rules(sqlite)
    with sqlite.read() as session:
        assert session.scalars(select(Void.reason)).all()
    told = tmp_path / "decided.csv"
    write_decisions(decisions, path, told)
    with told.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(decisions)
    assert all(bool(row["Approve"]) != bool(row["Reject"]) for row in rows)
    assert {row["WorkerId"] for row in rows if row["Reject"]} == {"bad"}


def test_who_agrees_with_nobody(sqlite: Database, tmp_path: Path) -> None:
    fill(sqlite, Rules(), {"a": (30, 30)})
    workers = dict.fromkeys(("good1", "good2", "good3", "good4"), 1.0) | {"odd": 0.0}
    path = answers(tasks_of(sqlite), workers, tmp_path / "r.csv")
    decisions = import_results(sqlite, path, 1.0, agreement=AgreementCheck(after=5, least=0.5))
    reasons = {one.worker: one.reason for one in decisions if one.decision == "reject"}
    assert set(reasons) == {"odd"}
    assert reasons["odd"].startswith("agreement: with the others on 0 of")
    check_rules(sqlite)


def test_a_plain_table(sqlite: Database, tmp_path: Path) -> None:
    fill(sqlite, Rules(people=1), {"a": (1, 1)})
    tasks = tasks_of(sqlite)
    write_tasks(tasks, tmp_path / "out", "csv")
    with (tmp_path / "out" / "tasks.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["kind"] for row in rows} == {"compare", "revise"}
    path = tmp_path / "results.csv"
    path.write_text(
        "task,worker,seconds,choice,text\n"
        + "".join(
            f"{row['task']},{row['kind']},12,"
            + ("0,\n" if row["kind"] == "compare" else ',"a <b>, & ""c"""\n')
            for row in rows
        )
    )
    assert all(one.used for one in import_results(sqlite, path, 1.0))
    with sqlite.read() as session:
        assert session.scalars(select(Image.reference)).all() == ['a <b>, & "c"']


def test_pages_cannot_be_broken_by_captions(tmp_path: Path) -> None:
    for kind, captions in (("compare", NASTY), ("revise", NASTY[:1])):
        task = CrowdTask("00ff", kind, "real", 'https://x/1?a=1&b="2"', captions, 3)
        root = ElementTree.fromstring(html_question(task, "Mind the <gap> ]]> & more"))
        namespace, name = root.tag[1:].split("}")
        assert name == "HTMLQuestion"
        assert namespace.endswith("HTMLQuestion.xsd")
        content = root.find(f"{{{namespace}}}HTMLContent")
        assert content is not None
        assert content.text is not None
        seen = Reader(content.text)
        assert [tag for tag, _ in seen.tags].count("script") == 1
        assert "b" not in [tag for tag, _ in seen.tags]
        for caption in captions:
            assert caption in "".join(seen.texts)
        assert ("img", task.image_url) in [(tag, found.get("src")) for tag, found in seen.tags]
        (form,) = [found for tag, found in seen.tags if tag == "form"]
        assert form["action"] == "https://www.mturk.com/mturk/externalSubmit"
        names = {found.get("name") for _, found in seen.tags} - {None, "viewport"}
        assert names == {"assignmentId"} | (
            {"choice", "swapped"} if kind == "compare" else {"text"}
        )


def test_what_the_website_gets(sqlite: Database, tmp_path: Path) -> None:
    """hits.csv fills the layout as it is: together they must be as safe as a question."""
    task = CrowdTask("00ff", "compare", "real", "https://x/1", NASTY, 3)
    write_tasks([task], tmp_path / "out", "mturk", "Look well.")
    layout = (tmp_path / "out" / "compare.html").read_text()
    with (tmp_path / "out" / "hits-compare.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    for name in ("first", "second", "image_url"):
        layout = layout.replace(f"${{{name}}}", row[name], 1)
    seen = Reader(layout)
    assert [tag for tag, _ in seen.tags].count("script") == 1
    assert NASTY[1] in "".join(seen.texts)
    assert (tmp_path / "out" / "questions" / "00ff.xml").is_file()
    assert task_page("compare", "u", ("a", "b")).count("required") == 2


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("task,worker,seconds\nnone,w,5\n", "'none' is not of this campaign"),
        ("worker,seconds\nw,5\n", "has no Input.task or task"),
        ("task,worker,seconds\nx,,5\n", "has no WorkerId or worker"),
        ("task,worker,seconds\nx,w,soon\n", "no number of seconds"),
        ("task,worker,seconds\nx,w,-1\n", "seconds are not allowed"),
        ("task,worker,seconds,assignment\nx,w,1,a\nx,v,1,a\n", "'a' is there twice"),
        ("task,worker,seconds\n", "holds no results"),
    ],
)
def test_invalid_results(sqlite: Database, tmp_path: Path, text: str, match: str) -> None:
    fill(sqlite, Rules(), {"a": (1, 1)})
    path = tmp_path / "r.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=match):
        import_results(sqlite, path, 0.0)


def test_invalid_answers_are_rejected(sqlite: Database, tmp_path: Path) -> None:
    fill(sqlite, Rules(), {"a": (1, 1)})
    names = {task.kind: task.task for task in tasks_of(sqlite)}
    path = tmp_path / "r.csv"
    path.write_text(
        "task,worker,seconds,choice,text\n"
        f"{names['compare']},w,5,2,\n{names['revise']},v,5,,\n{names['compare']},u,5,,x\n"
    )
    decisions = import_results(sqlite, path, 0.0)
    assert [one.decision for one in decisions] == ["reject"] * 3
    assert "'2' is neither 0 nor 1" in decisions[0].reason
    assert "no revised caption" in decisions[1].reason


def test_bad_exports(sqlite: Database, tmp_path: Path) -> None:
    fill(sqlite, Rules(), {"a": (1, 1)})
    with sqlite.read() as session:
        for url in ("https://x/{name}", "ftp://x/{digest}", ""):
            with pytest.raises(InputError, match="image address"):
                crowd_tasks(session, url)
    tasks = tasks_of(sqlite)
    with pytest.raises(InputError, match="allowed: mturk, csv"):
        write_tasks(tasks, tmp_path / "x", "upwork")
    with pytest.raises(InputError, match="nothing is open"):
        write_tasks([], tmp_path / "x", "csv")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    with pytest.raises(InputError, match="exists already"):
        write_tasks(tasks, tmp_path / "full", "csv")
