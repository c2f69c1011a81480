"""The annotation application at work: a campaign over HTTP, from invitation to scored benchmark."""

from __future__ import annotations

import html
import io
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, select

from discode.benchmarks import load_benchmark
from mceval._checks import Checks
from mceval._guide import COMPARED_EXAMPLES
from mceval._report import domain_rows, flag_rows
from mceval._tables import Answer, Image, Person, Slot, Void
from mceval.database import Database, settings_of
from mceval.export import export_dataset
from mceval.people import guide_of, invite
from mceval.rules import Rules
from tests.helpers.annotating import (
    Worker,
    fields,
    images_in,
    kind,
    make_campaign,
    running,
    served,
    texts,
)  # fmt: skip
from tests.helpers.campaigns import ask, at_once, check_rules, scalar, scalars
from tests.helpers.servers import PATIENCE

COUNT, QUOTA = 10, 3
"""Images per domain."""


def until_done(worker: Worker) -> str:
    """Work, and wait where the page says so; the last page's kind."""
    idle_since = time.monotonic()
    while time.monotonic() < idle_since + PATIENCE:
        if worker.work():
            idle_since = time.monotonic()
        last = kind(worker.http.get("/task"))
        if last not in ("wait", "compare", "revise", "pause"):
            return last
        time.sleep(0.2)  # those who wait leave the machine to those who work
    return "still waiting"


@pytest.mark.full
def test_a_campaign_of_eight_people(db: Database, tmp_path: Path) -> None:
    """Quotas filled by the rules; exported, and loaded back."""
    images = images_in(tmp_path, dict.fromkeys(("real", "painting", "sketch", "doodle"), COUNT))
    checks = Checks(gold_rate=0.2, gold_after=3, quick_seconds=0.0)
    make_campaign(db, images, QUOTA, checks=checks, gold=8)
    accuracy = [0.97] * 5 + [0.1] + [1.0] * 2
    people = invite(db, [f"comparer {i}" for i in range(6)], "comparer", 0.0)
    people += invite(db, ["one"], "reviser", 0.0) + invite(db, ["x"], "both", 0.0)
    (boss,) = invite(db, ["boss"], "admin", 0.0)
    with running(db) as where:
        workers = [Worker(where, one, accuracy=a) for one, a in zip(people, accuracy, strict=True)]
        for worker in workers:
            assert kind(worker.join()) in ("compare", "revise", "wait"), worker.invitation.name
        at_once(until_done, workers)
        ends = [until_done(worker) for worker in workers]
        assert set(ends) <= {"done", "ended"}, ends
        admin = Worker(where, boss)
        page = admin.join()
        assert kind(page) == "admin"
        for word in (f"<small>of {4 * QUOTA}", "Fleiss", "comparer 5"):
            assert word in page.text
    # A careless vote that falls brings its image back beside its replacement: then it is one more.
    check_rules(db, settled=False)
    with db.read() as session:
        done = {row.name: row.done for row in domain_rows(session)}
        assert all(done[name] >= QUOTA for name in images), done
        sloppy = session.get_one(Person, people[5].person)
        void = set(session.scalars(select(Void.answer_id)).all())
        theirs = session.scalars(select(Answer.id).where(Answer.person_id == sloppy.id)).all()
        if sloppy.state == "careless":  # how much they got to do is a matter of speed
            assert set(theirs) <= void
        for image in session.scalars(select(Image).where(Image.state == "done")).all():
            votes = [
                answer
                for answer in session.scalars(
                    select(Answer).where(Answer.image_id == image.id, Answer.kind == "compare")
                ).all()
                if answer.id not in void
            ]
            assert len({vote.person_id for vote in votes}) == len(votes) == 3
            revisers = session.scalars(
                select(Answer.person_id).where(Answer.image_id == image.id, Answer.kind == "revise")
            ).all()
            assert not {vote.person_id for vote in votes} & set(revisers)
    folder = tmp_path / "dataset"
    assert export_dataset(db, folder) == dict.fromkeys(images, QUOTA), "no more than the quota"
    benchmark = load_benchmark("mceval", folder)
    assert len(benchmark.judgments) == 4 * QUOTA


def serve(database: Path, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    # These people answer sooner than anybody can look.
    code = "from mceval.queue import _leases; _leases.UNSEEN_SECONDS = 0; "
    code += "from discode._cli import main; main()"
    running = subprocess.Popen(
        [sys.executable, "-c", code, "mceval", "annotate", database, "--port", "0", *arguments],
        stderr=subprocess.PIPE, text=True, env=os.environ | {"NO_COLOR": "1"},
    )  # fmt: skip
    assert running.stderr is not None
    line = running.stderr.readline()
    found = re.search(r"people work at (\S+) ", line)
    assert found, line
    return running, found[1]


@pytest.mark.full
def test_a_killed_server_keeps_every_answer_it_confirmed(tmp_path: Path) -> None:
    path = tmp_path / "campaign.db"
    confirmed: list[tuple[int, str]] = []
    with Database(str(path)) as db:
        make_campaign(db, images_in(tmp_path, {"a": 16}), 12)
        people = invite(db, [f"c{i}" for i in range(5)], "comparer", 0.0)
        people += invite(db, ["r"], "reviser", 0.0)
    server, where = serve(path)
    try:
        workers = [Worker(where, one) for one in people]
        for worker in workers:
            worker.join()

        def work(worker: Worker) -> None:
            page = worker.http.get("/task")
            while kind(page) in ("compare", "revise"):
                sent = fields(page)["submission"]
                try:
                    page = worker.answer(page)
                except Exception:  # killed in the middle
                    return
                confirmed.append((worker.invitation.person, sent))
                if len(confirmed) == 20:
                    os.kill(server.pid, signal.SIGKILL)

        at_once(work, workers)
    finally:
        server.kill()
        server.communicate()
    assert len(confirmed) >= 20
    again, where = serve(path)
    try:
        with Database(str(path)) as db, db.read() as session:
            kept = session.execute(select(Answer.person_id, Answer.submission)).all()
        assert set(confirmed) <= {(person, name) for person, name in kept}
        assert len(kept) - len(confirmed) <= len(people), "what was not confirmed is one each"
        for worker in workers:  # the cookies of before still hold
            cookies = worker.http.cookies
            worker.http.close()
            worker.http = httpx.Client(
                base_url=where, follow_redirects=True, cookies=cookies, timeout=PATIENCE
            )
        at_once(until_done, workers)
        again.send_signal(signal.SIGTERM)
        assert again.wait(PATIENCE) == 0
    finally:
        again.kill()
        again.communicate()
    for worker in workers:
        worker.http.close()
    with Database(str(path)) as db:
        check_rules(db)
        assert scalar(db, select(func.count()).where(Image.state == "done")) == 12


def test_everything_a_person_can_do(sqlite: Database, tmp_path: Path) -> None:
    """Consent, undo, skip, flag, a break, come back later, thank you; all without scripts."""
    roles = ("comparer", "comparer", "comparer")
    with served(
        sqlite, tmp_path, 4, *roles, rules=Rules(people=1), pause_every=2
    ) as (first, second, third):  # fmt: skip
        guide = first.knock()
        assert kind(guide) == "guide"
        assert kind(first.http.get("/task")) == "guide", "no task without consent"
        assert first.post("/consent", guide).status_code == 400
        page = first.post("/consent", guide, agreed="yes")
        assert kind(page) == "compare"
        assert "Relevance" in page.text
        assert "Fluency" in page.text
        image = first.http.get(f"/image/{fields(page)['lease']}")
        assert image.headers["content-type"] == "image/png"
        captions = texts(page)
        page = first.answer(page)
        assert texts(page) != captions
        page = first.post("/undo", page)
        assert texts(page) == captions, "the same image, the same sides"
        page = first.answer(page)
        page = first.post("/skip", page, reason="I cannot tell which is better")
        assert kind(page) == "compare"
        page = first.post("/flag", page, reason="Other", more="a <b>face</b>")
        assert kind(page) == "compare"
        assert first.post("/skip", page).status_code == 400, "a reason is wanted"
        assert first.http.post("/beat", data=fields(page)).status_code == 204
        page = first.answer(page)
        assert kind(page) == "pause"
        page = first.http.get("/task")
        assert kind(page) == "done"
        page = second.join()
        assert kind(page) == "compare"
        assert kind(first.http.get("/task")) == "done", "they have passed on the other two"
        page = second.answer(page)
        assert kind(third.join()) == "wait"
        assert kind(second.answer(page)) == "pause"
        assert kind(third.http.get("/task")) == "done"
        page = third.post("/leave", third.http.get("/task"))
        assert "open the link of your invitation" in page.text
        assert third.http.get("/task").status_code == 401
    assert scalar(sqlite, select(func.count(Void.answer_id))) == 1


def test_an_image_that_is_gone_takes_no_answer(sqlite: Database, tmp_path: Path) -> None:
    """Without scripts, too: the page has no name for an answer, and none is accepted."""
    with served(sqlite, tmp_path, 3, "comparer") as (worker,):
        earlier = worker.join()
        for path in (tmp_path / "a").iterdir():
            path.rename(path.with_suffix(".gone"))
        page = worker.http.get("/task")
        assert "This image cannot be shown" in page.text
        assert "submission" not in fields(page)
        assert 'name="side"' not in page.text
        assert worker.post("/task", page, side="left").status_code == 403
        page = worker.post("/flag", page, reason="The image does not load")
        assert page.status_code == 200
        assert fields(page)["lease"] != fields(earlier)["lease"]
    assert scalar(sqlite, select(func.count(Answer.id))) == 0
    assert "discarded" not in scalars(sqlite, select(Image.state))


def test_what_was_written_comes_back_with_a_refusal(sqlite: Database, tmp_path: Path) -> None:
    """Without scripts, too: in the form, or to be copied where task or session are gone."""
    checks = Checks(gold_rate=0.0, quick_seconds=4.0)
    clock = [1000.0]
    mine = "my <b>own</b> caption"

    def shown(page: httpx.Response, status: int) -> list[str]:
        assert page.status_code == status
        return texts(page)

    with served(
        sqlite, tmp_path, 1, "reviser", "reviser", checks=checks, clock=lambda: clock[0]
    ) as (worker, other):  # fmt: skip
        page = worker.join()
        before = texts(page)[0]
        clock[0] += 5
        again = worker.post("/task", page, text=mine)  # sooner than a revision takes
        assert shown(again, 400) == [mine]
        assert html.unescape(again.text.split('data-before="')[1].split('"')[0]) == before
        assert 'role="alert"' in again.text
        assert shown(worker.post("/task", again, text=before), 400) == [before], "without the tick"
        cookies = dict(worker.http.cookies)
        worker.http.cookies.clear()
        assert shown(worker.post("/task", page, text=mine), 401) == [mine], "the session is gone"
        worker.http.cookies.update(cookies)
        clock[0] += 901
        other.join()
        clock[0] += 9
        assert shown(worker.post("/task", page, text=mine), 409) == [mine], "the task is"
    assert scalar(sqlite, select(func.count(Answer.id))) == 0


def test_a_page_that_nobody_has_seen_takes_no_answer(sqlite: Database, tmp_path: Path) -> None:
    """A double click without scripts: the second one meets the next page, 0.3 s old."""
    clock = [1000.0]
    with served(sqlite, tmp_path, 3, "comparer", clock=lambda: clock[0]) as (worker,):
        page = worker.join()
        for answers in (1, 2):
            clock[0] += 1
            page = worker.answer(page)
            clock[0] += 0.3
            again = worker.answer(page)
            assert (again.status_code, texts(again)) == (400, texts(page))
            assert f"<b>{answers}</b> done by you" in again.text
            page = again
        clock[0] += 1
        page = worker.post("/undo", page)
        assert "<b>1</b> done by you" in page.text
        clock[0] += 0.3
        page = worker.post("/undo", page)
        assert page.status_code == 400
        assert "<b>1</b> done by you" in page.text, "a double click on Undo takes back one"


def test_people_are_told_what_is_so(tmp_path: Path) -> None:
    """Known answers, Skip and pay only where there are any; captions stay as they are written."""
    assert {one.better for one in COMPARED_EXAMPLES} == {0, 1}, "the better one stands on no side"
    images = images_in(tmp_path, {"a": 2})
    for rules, gold, pay in ((Rules(), 1, 15.0), (Rules(skips=0), 0, 0.0)):
        with Database(str(tmp_path / f"{gold}.db")) as db:
            checks = Checks(quick_seconds=0.0)
            make_campaign(db, images, 2, rules=rules, gold=gold, checks=checks, pay_per_hour=pay)
            (one,) = invite(db, ["one"], "both", 0.0)
            with running(db) as where:
                worker = Worker(where, one)
                guide = worker.knock()
                task = worker.post("/consent", guide, agreed="yes")
            told = guide_of(ask(db, settings_of))
            assert ("known answer" in guide.text) == bool(gold)
            assert ("paid at 15.00 USD per hour" in guide.text) == bool(pay)
            assert ("paid" in guide.text) == bool(pay)
            for text in (re.sub("skip to|#main", "", guide.text), task.text, told):
                assert ("skip" in text.casefold()) == bool(rules.skips)
            for shown in re.findall(r'<[^>]*id="(?:caption-\d|text|diff)"[^>]*>', task.text):
                assert 'translate="no"' in shown


def links_of(page: httpx.Response) -> list[str]:
    return re.findall(r'<a [^>]*href="([^"#]*)"', page.text)


def test_no_dead_ends(sqlite: Database, tmp_path: Path) -> None:
    """Whoever has left, or was sent away, meets a page that says so and leads in no circle."""
    roles = ("comparer", "comparer", "admin")
    with served(sqlite, tmp_path, 6, *roles, rules=Rules(people=2)) as (first, second, admin):
        page = first.join()
        assert "6 open to you" in page.text
        page = first.answer(page)
        assert "<b>1</b> done by you" in page.text
        assert "5 open to you" in page.text
        pause = first.http.get("/pause")
        assert "paid" not in pause.text, "no pay was promised"
        assert first.post("/withdraw", pause).status_code == 400, "not confirmed"
        end = first.post("/withdraw", pause, sure="yes")
        assert end.status_code == 403
        assert "Your part in this campaign has ended at your own wish" in end.text
        assert "comparison" in end.text
        for link in {*links_of(end), "/", "/task", "/pause"}:
            again = first.http.get(link)
            assert "Your part in this campaign has ended" in again.text, link
            assert "Continue" not in again.text
        assert "open the link of your invitation" in first.post("/leave", end).text
        second.join()
        second.work(2)
        admin.join()
        path = f"/admin/person/{second.invitation.person}"
        admin.post(path, admin.http.get(path), action="put_back", sure="yes", reason="asleep")
        end = second.http.get("/task")
        assert end.status_code == 403
        assert "Your part in this campaign has ended" in end.text
        assert "asleep" not in end.text
        assert "Continue" not in end.text
        assert second.http.get("/").text == end.text
    with sqlite.read() as session:
        assert session.get_one(Person, first.invitation.person).state == "left"


def test_a_campaign_that_needs_others_says_so(sqlite: Database, tmp_path: Path) -> None:
    with served(
        sqlite, tmp_path, 2, "comparer", "admin", rules=Rules(people=2)
    ) as (worker, admin):  # fmt: skip
        worker.join()
        worker.work()
        page = worker.http.get("/task")
        assert kind(page) == "done"
        assert "0 of 2 images are done. The others need people who have not seen them" in page.text
        page = admin.join()
        assert "Images without available people" in page.text
        assert "1 active people compare" in page.text
        assert re.findall(r'<rect class="(\w+)" width="([\d.]+)"', page.text) == [
            ("none", "100"), ("done", "0.0"),
        ], "nothing is done"  # fmt: skip
        invite(sqlite, ["two", "three"], "both", 0.0)
        page = admin.http.get("/admin")
        assert "Images without available people" not in page.text, "now somebody can"


def test_the_organisers_page_counts_sides_skips_and_flags(sqlite: Database, tmp_path: Path) -> None:
    roles = ("comparer", "admin", "reviser")
    with served(sqlite, tmp_path, 8, *roles, rules=Rules(people=1)) as (worker, admin, reviser):
        page = worker.join()
        for side in ("left", "left", "left", "right"):
            page = worker.post("/task", page, side=side)
        page = worker.post("/skip", page, reason="I cannot tell which is better")
        page = worker.post("/flag", page, reason="Other", more="a <b>face</b>")
        worker.post("/undo", page)
        page = admin.join()
        assert re.search(r"The left caption was chosen</dt><dd>75 % .*? of 4<", page.text)
        assert re.search(r"Skipped and flagged</dt><dd>1 <small>skip, 0 flags<", page.text), (
            "one is undone"
        )
        assert "USD" not in page.text, "no pay was promised"
        assert re.search(r"Discarded by people, for any reason</dt><dd>0 % .*? of 4<", page.text)
        assert admin.http.get("/admin/export").status_code == 400, "nothing is finished"
        reviser.join()
        reviser.work()
        found = admin.http.get("/admin/export")
        assert found.headers["content-type"] == "application/zip"
        with zipfile.ZipFile(io.BytesIO(found.content)) as file:
            assert "A-test-of-captions/mceval.jsonl" in file.namelist()
            rows = file.read("A-test-of-captions/mceval.jsonl").decode().splitlines()
        assert len(rows) == 4
        assert worker.http.get("/admin/export").status_code == 403
        assert worker.http.get("/admin/invitations").status_code == 403
        page = admin.http.get("/admin/invitations")
        for wrong in (
            {"names": ""},
            {"names": "x", "role": "king"},
            {"names": "x", "days": "soon"},
        ):
            sent = {"action": "invite", "role": "comparer", **wrong}
            assert admin.post("/admin/invitations", page, **sent).status_code == 400
        assert admin.post("/admin/invitations", page, action="renew").status_code == 400


def test_the_organisers_page_puts_work_back(sqlite: Database, tmp_path: Path) -> None:
    with served(
        sqlite, tmp_path, 6, "comparer", "admin", quota=4, rules=Rules(people=1)
    ) as (worker, admin):  # fmt: skip
        worker.join()
        worker.work(3)
        admin.join()
        path = f"/admin/person/{worker.invitation.person}"
        page = admin.http.get(path)
        assert "All 3 valid answers" in page.text
        assert admin.post(path, page, action="put_back").status_code == 400, "not confirmed"
        assert admin.post(path, page, action="dance", sure="yes").status_code == 400
        page = admin.post(path, page, action="put_back", sure="yes", reason="asleep")
        assert "asleep (by admin 1)" in page.text
        refused = worker.http.get("/task")
        assert refused.status_code == 403
        assert "has ended" in refused.text
        assert 'state careless">careless' in admin.http.get("/admin").text
        page = admin.post(path, page, action="reinstate", sure="yes")
        assert kind(worker.http.get("/task")) in ("compare", "wait", "done")
        own = f"/admin/person/{admin.invitation.person}"
        assert admin.post(own, page, action="put_back", sure="yes").status_code == 400
        for missing in ("/admin/person/999", "/admin/person/x", "/admin/image/999", "/admin/no"):
            assert admin.http.get(missing).status_code == 404
    assert scalar(sqlite, select(func.count(Answer.id))) == 3, "nothing is deleted"
    assert scalar(sqlite, select(func.count(Void.answer_id))) == 3
    assert scalar(sqlite, select(func.count()).where(Slot.state == "answered")) == 0


def test_organisers_bring_an_image_back(sqlite: Database, tmp_path: Path) -> None:
    with served(
        sqlite, tmp_path, 3, "comparer", "admin", quota=2, rules=Rules(flags=1)
    ) as (worker, admin):  # fmt: skip
        page = worker.post("/flag", worker.join(), reason="A caption is offensive")
        form = admin.join()

        def state(number: int) -> str:
            with sqlite.read() as session:
                return session.get_one(Image, number).state

        (flag,) = ask(sqlite, flag_rows)
        path = f"/admin/image/{flag.image}"
        assert state(flag.image) == "discarded"
        assert worker.post(path, page, action="restore").status_code == 403, "organisers only"
        assert admin.post(path, form, action="dance").status_code == 400
        assert admin.post(path, form, action="set_aside", flag="x").status_code == 400
        assert admin.post(path, form, action="set_aside", flag=str(flag.id)).status_code == 200
        assert state(flag.image) in ("active", "pool")
        admin.post(path, form, action="take_down", reason="private")
        assert state(flag.image) == "discarded"
        assert "taken down: private" in admin.http.get("/admin").text
        admin.post(path, form, action="restore", reason="not private")
        assert state(flag.image) in ("active", "pool")
        assert admin.post("/admin/image/999", form, action="take_down").status_code == 409
        # what a person flags by mistake comes back with Undo, and not the answer before it
        flagged = texts(page)
        worker.post("/flag", page, reason="by mistake")
        assert texts(worker.post("/undo", worker.http.get("/task"))) == flagged


def test_a_second_look_at_a_revision(sqlite: Database, tmp_path: Path) -> None:
    """Shown with what it was before; rejected, accepted, told to people and organisers."""
    roles = ("reviser", "reviser", "reviser", "reviser", "comparer", "admin")
    with served(
        sqlite, tmp_path, 1, *roles, rules=Rules(people=1, second_look=True)
    ) as (one, two, three, four, five, boss):  # fmt: skip
        page = one.join()
        assert "A second look" in one.http.get("/guide").text
        before = texts(page)[0]
        assert kind(one.post("/task", page, text="<i>a revision</i> of it")) == "done"
        page = two.join()
        assert kind(page) == "look"
        assert texts(page) == ["<i>a revision</i> of it"]
        assert html.unescape(page.text.split('data-before="')[1].split('"')[0]) == before
        assert two.post("/task", page).status_code == 400
        assert two.post("/task", page, look="perhaps").status_code == 400
        page = two.post("/task", page, look="reject")
        assert kind(page) == "done"
        assert "<dd>1</dd><dt>second look</dt>" in page.text
        page = three.join()
        assert texts(page) == [before], "revised anew from the beginning"
        three.answer(page)
        page = four.join()
        assert kind(page) == "look"
        page = four.post("/undo", four.post("/task", page, look="accept"))
        four.post("/task", page, look="accept")
        five.join()
        five.work()
        page = boss.join()
        assert "by a second person</dt><dd>1 <small>1 rejected, 0 wait" in page.text
        assert "A second look" not in five.http.get("/guide").text, "nothing that comparers do"
    (image,) = scalars(sqlite, select(Image))
    assert (image.state, image.reference) == ("done", f"{before}, revised")
