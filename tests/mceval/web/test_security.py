"""What strangers, forgers and the careless may not do in the annotation application."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from mceval._tables import Answer, Image, Login
from mceval._web import requests
from mceval.database import Database
from mceval.people import Invitation, invite
from tests.helpers.annotating import (
    EVIL,
    Worker,
    fields,
    images_in,
    kind,
    make_campaign,
    running,
    texts,
)  # fmt: skip
from tests.helpers.campaigns import at_once, scalar, scalars
from tests.helpers.servers import PATIENCE

NAME = "<img src=x onerror=alert('name')>"
get, post = partial(httpx.get, timeout=PATIENCE), partial(httpx.post, timeout=PATIENCE)


class Place:
    """A campaign that is served, and a clock."""

    def __init__(self, db: Database, where: str, clock: list[float]) -> None:
        self.db = db
        self.where = where
        self.clock = clock

    def person(self, role: str = "comparer", name: str = NAME) -> Worker:
        (one,) = invite(self.db, [name], role, 0.0)
        return Worker(self.where, one)

    def answers(self) -> int:
        return scalar(self.db, select(func.count(Answer.id))) or 0


@pytest.fixture
def place(sqlite: Database, tmp_path: Path) -> Iterator[Place]:
    clock = [1000.0]

    def tick() -> float:
        clock[0] += 1  # between two requests: nobody answers sooner
        return clock[0]

    make_campaign(sqlite, images_in(tmp_path, {"a": 6}), 6, name="<script>alert(1)</script>")
    with running(sqlite, clock=tick) as where:
        yield Place(sqlite, where, clock)


def test_nothing_without_an_invitation(place: Place) -> None:
    for path in ("/task", "/guide", "/pause", "/admin", "/image/x", "/admin/image/1"):
        assert get(place.where + path).status_code == 401
    for path in ("/task", "/undo", "/skip", "/flag", "/beat", "/consent", "/leave"):
        assert post(place.where + path, data={"side": "left"}).status_code == 401
    assert get(f"{place.where}/").status_code == 200
    made_up = {"discode": "x" * 43}
    assert get(f"{place.where}/task", cookies=made_up).status_code == 401
    assert get(f"{place.where}/docs").status_code == 404
    assert get(f"{place.where}/openapi.json").status_code == 404


def test_the_token_is_gone_after_the_door(place: Place) -> None:
    worker = place.person()
    door = worker.http.get(f"/join/{worker.invitation.token}")
    assert "set-cookie" not in door.headers, "programs that look at links join nobody"
    page = worker.http.post("/join", data={"token": worker.invitation.token})
    cookie = page.history[0].headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert worker.invitation.token not in cookie
    for answer in (*page.history, page, worker.join()):
        assert worker.invitation.token not in str(answer.url)
        assert worker.invitation.token not in answer.text
    with place.db.read() as session:  # neither token nor key is kept
        rows = [str(row) for table in ("person", "login") for row in
                session.execute(text(f"SELECT * FROM {table}")).all()]  # fmt: skip
        assert not any(worker.invitation.token in row for row in rows)
        assert not any(worker.http.cookies["discode"] in row for row in rows)


def test_cookies_for_https_only(tmp_path: Path) -> None:
    with Database(str(tmp_path / "campaign.db")) as db:
        make_campaign(db, images_in(tmp_path, {"a": 1}), 1)
        (one,) = invite(db, ["one"], "comparer", 0.0)
        with running(db, secure=True) as where:
            answer = post(f"{where}/join", data={"token": one.token})
    assert answer.headers["set-cookie"].startswith("__Host-discode=")
    assert "; Secure" in answer.headers["set-cookie"]


def test_guessing_invitations_is_slow(place: Place) -> None:
    worker, colleague = place.person(), place.person()
    statuses = [get(f"{place.where}/join/guess-{i}").status_code for i in range(12)]
    assert statuses == [404] * 10 + [429] * 2
    late = post(f"{place.where}/join", data={"token": "guess"})
    assert late.status_code == 429
    assert int(late.headers["retry-after"]) <= 60
    # an office has one address: whoever has an invitation gets in, whatever others tried
    assert kind(worker.join()) == "compare"
    # without --trust-proxy nobody chooses where they come from
    claim = {"x-forwarded-for": "9.9.9.9"}
    assert get(f"{place.where}/join/guess", headers=claim).status_code == 429
    place.clock[0] += 61
    assert get(f"{place.where}/join/guess").status_code == 404
    assert kind(colleague.join()) == "compare"


def test_ipv6_guesses_are_counted_by_network(tmp_path: Path) -> None:
    with Database(str(tmp_path / "campaign.db")) as db:
        make_campaign(db, images_in(tmp_path, {"a": 1}), 1)
        with running(db, trust_proxy=True, clock=lambda: 1.0) as where:

            def guess(address: str) -> int:
                claim = {"x-forwarded-for": address}
                return get(f"{where}/join/guess", headers=claim).status_code

            mine = [guess(f"2001:db8:0:1::{i:x}") for i in range(11)]
            assert mine == [404] * 10 + [429]
            assert guess("2001:db8:0:1:ffff:ffff:ffff:ffff") == 429
            assert guess("2001:0db8:0000:0001::9") == 429, "the same network, written in full"
            assert guess("2001:db8:0:2::1") == 404
            assert guess("2001:db8::1") == 404
            assert [guess("192.0.2.1") for _ in range(10)] == [404] * 10
            assert guess("::ffff:192.0.2.1") == 429, "the same address"


def test_tokens_do_not_travel_as_the_referrer(place: Place) -> None:
    page = get(f"{place.where}/join/{place.person().invitation.token}")
    assert page.headers["referrer-policy"] == "strict-origin"


def test_an_admin_is_out_at_once(place: Place) -> None:
    one, two = place.person("admin", "one"), place.person("admin", "two")
    page = one.join()
    two.join()
    assert two.http.get("/admin").status_code == 200
    path = f"/admin/person/{two.invitation.person}"
    assert one.post(path, page, action="revoke").status_code == 400, "not confirmed"
    own = f"/admin/person/{one.invitation.person}"
    assert one.post(own, page, action="revoke", sure="yes").status_code == 400
    one.post(path, page, action="revoke", sure="yes", reason="has left")
    assert two.http.get("/admin").status_code == 401
    assert two.post(own, page, action="revoke", sure="yes").status_code == 401
    assert two.http.get(f"/join/{two.invitation.token}").status_code == 404
    assert one.http.get("/admin").status_code == 200


def test_a_revoked_admins_open_session_is_refused(place: Place) -> None:
    """Also where only the state says so, as in a database that somebody changed by hand."""
    admin = place.person("admin", "one")
    admin.join()
    place.db.run(lambda session: session.execute(text("UPDATE person SET state = 'left'")))
    assert admin.http.get("/admin").status_code == 403


def test_invitations_end_and_are_renewed(place: Place) -> None:
    (late,) = invite(place.db, ["late"], "comparer", place.clock[0], days=1)
    place.clock[0] += 86400
    expired = get(f"{place.where}/join/{late.token}")
    assert expired.status_code == 404
    assert "has expired" in expired.text
    admin = place.person("admin", "boss")
    page = admin.join()
    path = f"/admin/person/{late.person}/invitation"
    assert admin.post(path, page).status_code == 400, "not confirmed"
    assert admin.post(path, page, sure="yes", days="soon").status_code == 400
    shown = admin.post(path, page, sure="yes", days="2")
    (token,) = set(re.findall(rf"{place.where}/join/([\w-]+)", shown.text))
    worker = Worker(place.where, Invitation(late.person, "late", "comparer", token))
    page = worker.join()
    assert kind(page) == "compare"
    # signing out for good uses the invitation up
    worker.post("/leave", page, invitation="end")
    assert get(f"{place.where}/join/{token}").status_code == 404
    own = f"/admin/person/{admin.invitation.person}/invitation"
    assert admin.post(own, admin.http.get("/admin"), sure="yes").status_code == 400
    someone = place.person()
    refused = someone.post(path, someone.join(), sure="yes")
    assert refused.status_code == 403, "organisers only"


def test_sessions_end(place: Place) -> None:
    worker = place.person()
    page = worker.join()
    stolen = dict(worker.http.cookies)
    worker.post("/leave", page)
    assert get(f"{place.where}/task", cookies=stolen).status_code == 401
    worker.join()
    place.clock[0] += 31 * 86400
    assert worker.http.get("/task").status_code == 401
    place.person().join()
    assert scalar(place.db, select(func.count()).select_from(Login)) == 1, "old ones are forgotten"


def test_forms_of_other_pages_are_refused(place: Place) -> None:
    victim, other = place.person(), place.person()
    page, foreign = victim.join(), fields(other.join())["form_token"]
    for token in ("", "x" * 40, foreign):
        for path in ("/task", "/undo", "/skip", "/flag", "/beat", "/leave", "/consent"):
            answer = victim.post(path, page, form_token=token, side="left", reason="x")
            assert answer.status_code == 403
            assert "not yours" in answer.text
    evil = {"origin": "http://evil.example"}
    data = {**fields(page), "side": "left"}
    assert victim.http.post("/task", data=data, headers=evil).status_code == 403
    assert victim.http.post("/task", data=data, headers={"origin": "null"}).status_code == 403
    assert victim.http.get("/task", headers={"host": "evil.example"}).status_code == 421
    assert place.answers() == 0
    assert victim.http.get("/task").status_code == 200


def test_answers_that_were_not_asked_for(place: Place) -> None:
    one, two = place.person(), place.person()
    page, theirs = one.join(), two.join()
    mine, other = fields(page), fields(theirs)
    assert mine["lease"] != other["lease"]
    forged = [
        {"submission": "made-up-name.0123456789"},
        {"submission": ""},
        {"lease": other["lease"]},
        {"lease": other["lease"], "submission": other["submission"]},
        {"lease": "x", "submission": "é.é"},
    ]
    for more in forged:
        assert one.post("/task", page, side="left", **more).status_code == 403
    for path in ("/skip", "/flag", "/beat"):  # somebody else's task
        refused = one.post(path, page, lease=other["lease"], reason="x")
        assert refused.status_code == 409
    for more in ({"side": "up"}, {"text": "a text"}, {}, {"side": "left", "text": "both"}):
        assert one.post("/task", page, **more).status_code == 400
    assert place.answers() == 0
    assert kind(one.post("/task", page, side="left")) == "compare"
    assert place.answers() == 1


def test_an_answer_counts_once(place: Place) -> None:
    worker = place.person()
    page = worker.join()
    cookies = dict(worker.http.cookies)
    seen: list[int] = []

    def send(_: int) -> None:
        data = {**fields(page), "side": "left"}
        seen.append(post(f"{place.where}/task", data=data, cookies=cookies).status_code)

    at_once(send, range(8))
    assert seen == [303] * 8
    assert place.answers() == 1
    second = worker.http.get("/task")  # an old page with a name of its own is too late
    worker.post("/task", second, side="left")
    worker.post("/undo", worker.http.get("/task"))
    assert worker.post("/task", second, side="right").status_code == 200
    assert place.answers() == 2, "a replay of what was taken back changes nothing"
    assert scalar(place.db, select(func.count()).select_from(text("void"))) == 1
    old = worker.http.get("/task")
    newer = worker.http.get("/task")
    assert fields(old)["submission"] != fields(newer)["submission"]
    assert worker.post("/task", newer, side="left").status_code == 200
    late = worker.post("/task", old, side="right")
    assert late.status_code == 409
    assert "no longer yours" in late.text


def test_roles(place: Place) -> None:
    worker, reviser, admin = place.person(), place.person("reviser"), place.person("admin")
    page = worker.join()
    victim = f"/admin/person/{reviser.invitation.person}"
    for path in ("/admin", victim, "/admin/image/1"):
        assert worker.http.get(path).status_code == 403
    forged = worker.post(victim, page, action="put_back", sure="yes")
    assert forged.status_code == 403
    assert kind(reviser.join()) == "revise"
    assert kind(admin.join()) == "admin"
    assert admin.http.get("/task").url.path == "/admin", "organisers judge nothing"
    lease = fields(page)["lease"]
    assert worker.http.get(f"/image/{lease}").status_code == 200
    assert reviser.http.get(f"/image/{lease}").status_code == 404
    no_token = admin.http.post(victim, data={"action": "put_back", "sure": "yes"})
    assert no_token.status_code == 403


def test_text_is_text(place: Place) -> None:
    """Captions, names, reasons and the campaign's name are shown, never run."""
    worker, reviser, admin = place.person(), place.person("reviser"), place.person("admin")
    door = worker.http.get(f"/join/{worker.invitation.token}")
    pages = [door, worker.join(), worker.http.get("/guide"), worker.http.get("/pause")]
    assert any("DROP TABLE" in caption for caption in texts(pages[1]))
    revision = reviser.join()
    pages += [revision, get(f"{place.where}/")]
    worker.post("/flag", pages[1], reason="Other", more=EVIL)
    pages += [admin.join(), admin.http.get(f"/admin/person/{worker.invitation.person}")]
    assert "DROP TABLE" in pages[-1].text
    pages += [worker.http.get("/<script>alert(1)</script>"), worker.http.get("/join/<script>")]
    for page in pages:
        policy = page.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["x-frame-options"] == "DENY"
        assert page.headers["cache-control"] == "no-store"
        assert "<script>" not in page.text
        tags = re.findall(r"<(?!!)[^>]*>", page.text)
        assert not [tag for tag in tags if re.search(r"\s(on\w+|style)=", tag)]
        assert [tag for tag in tags if tag.startswith("<script")] == [
            tag for tag in tags if tag.startswith('<script type="module" src="/static/')
        ]
        scripts = {tag.split("?")[0] for tag in tags if tag.startswith("<script")}
        assert scripts <= {
            f'<script type="module" src="/static/{name}.js' for name in ("annotate", "task")
        }
        assert "<img src=x" not in page.text


def test_a_caption_that_looks_like_sql(place: Place) -> None:
    reviser = place.person("reviser")
    page = reviser.join()
    written = f"{EVIL} \\x27 ${{jndi}} 漢字"
    assert kind(reviser.post("/task", page, text=written)) == "revise"
    assert scalars(place.db, select(Answer.text)) == [written]
    page = reviser.http.get("/task")
    assert reviser.post("/task", page, text=f"{EVIL} \u202e").status_code == 400
    body = f"form_token={fields(page)['form_token']}&text=%ff%fe"
    kinds = {"content-type": "application/x-www-form-urlencoded"}
    assert reviser.http.post("/task", content=body, headers=kinds).status_code == 400
    assert reviser.http.post("/task", content="é", headers=kinds).status_code == 400
    assert reviser.http.post("/task", content="a=1&" * 30, headers=kinds).status_code == 400
    assert reviser.http.post("/task", content="x" * 70_000, headers=kinds).status_code == 413
    assert reviser.http.post("/task", json={"side": "left"}).status_code == 415


def test_a_form_that_never_ends_gets_408(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "SECONDS", 0.2)
    address = urlsplit(place.where)
    head = f"POST /join HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-length: 1000\r\n"
    kind = "content-type: application/x-www-form-urlencoded\r\n\r\n"
    where = (address.hostname or "", address.port or 0)
    with socket.create_connection(where, timeout=PATIENCE) as raw:
        raw.sendall((head + kind + "x").encode())
        assert b" 408 " in raw.recv(4096).split(b"\r\n")[0]


def test_images_come_from_the_database_alone(place: Place, tmp_path: Path) -> None:
    worker = place.person()
    page = worker.join()
    lease = fields(page)["lease"]
    shown = worker.http.get(f"/image/{lease}")
    assert shown.headers["content-type"] == "image/png"
    assert shown.headers["x-content-type-options"] == "nosniff"
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    for path in (
        "/image/../../../../etc/passwd", "/image/..%2f..%2fsecret.txt", "/image/%2e%2e/secret.txt",
        f"/image/{secret}", "/image/", "/static/../app.py", "/static/..%2fapp.py",
        "/static/%2e%2e%2fauth.py", "/static//etc/passwd", "/static/annotate.css/..",
        "/admin/image/../../etc/passwd", "/image/%00", "/image/' OR 1=1 --",
    ):  # fmt: skip
        answer = worker.http.get(path)
        assert answer.status_code in (403, 404), path
        assert "secret" not in answer.text
        assert "root:" not in answer.text
    with place.db.read() as session:
        held = session.execute(
            text("SELECT image_id FROM slot WHERE lease = :lease"), {"lease": lease}
        ).scalar()
        image = session.get_one(Image, held)
    Path(image.path).write_text("<script>not an image</script>")
    changed = worker.http.get(f"/image/{lease}")
    assert changed.status_code == 404
    assert "has changed" in changed.text


def test_images_that_moved(tmp_path: Path) -> None:
    """With --images they are found by their source, and nowhere outside."""
    with Database(str(tmp_path / "campaign.db")) as db:
        made = images_in(tmp_path / "moved", {"a": 3})
        make_campaign(db, made, 3)
        people = invite(db, ["one", "two", "three"], "reviser", 0.0)

        for change in ("path = '/nowhere/x.png'", "source = '../campaign.db' WHERE id = 1"):
            update = text(f"UPDATE image SET {change}")
            db.run(partial(Session.execute, statement=update))
        with running(db) as where:
            worker = Worker(where, people[0])
            lease = fields(worker.join())["lease"]
            assert worker.http.get(f"/image/{lease}").status_code == 404
        with running(db, images=tmp_path / "moved") as where:
            found = []
            for one in people:
                worker = Worker(where, one)
                found.append(worker.http.get(f"/image/{fields(worker.join())['lease']}"))
    assert sorted(answer.status_code for answer in found) == [200, 200, 404]
