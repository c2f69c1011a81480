"""discode mceval, as a user types it, in this process: a campaign has many commands."""

from __future__ import annotations

import csv
import errno
import random
import re
import subprocess
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("sqlalchemy", reason="campaigns want discode-eval[mceval]")

from sqlalchemy import inspect

from mceval._candidates import add_captions
from mceval._intake import DomainSource, add_images
from mceval._tables import Base
from mceval.database import Database, open_database, rules_of, settings_of
from mceval.people import person_by_token
from mceval.rules import Rules
from tests.helpers.campaigns import some, work_all
from tests.helpers.chat_servers import serving
from tests.helpers.command_line import call, refused
from tests.helpers.images import caption_files, image_folders

DOMAINS = {"real": 8, "sketch": 7}


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return call("mceval", *arguments, width=140)


def fine(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign with its captions, which nobody changes."""
    folder = tmp_path_factory.mktemp("started")
    places = image_folders(folder, DOMAINS)
    with Database(str(folder / "c.db")) as db:
        db.create(Rules())
        add_images(db, [DomainSource(name, path, 3) for name, path in places.items()], now=0.0)
        for path in caption_files(folder, DOMAINS, folder):
            add_captions(db, path.stem, path, 0.0)
    return folder / "c.db"


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A campaign with its captions, made by commands."""
    places = image_folders(tmp_path, DOMAINS)
    db = tmp_path / "c.db"
    gold = tmp_path / "gold.csv"
    gold.write_text("image,right,wrong\nreal/000.png,noise,a dog on a beach\n")
    out = fine(run("init", db, "--domain", f"real={places['real']}", "--domain",
                   f"sketch:2={places['sketch']}", "--per-domain", 3, "--seed", 5, "--gold", gold,
                   "--quick-seconds", 0, "--gold-rate", 0))  # fmt: skip
    assert "1 gold questions" in out
    assert out.splitlines()[-1].split() == ["sketch", "2", "7", "0", "0"]
    for path in caption_files(tmp_path, DOMAINS, tmp_path):
        assert "15 captions" in fine(run("candidates", db, "--writer", path.stem, "--file", path))
    return db


def test_from_folders_to_a_dataset(begun: Path, tmp_path: Path) -> None:
    out = fine(run("people", "invite", begun, "Ada", "--role", "comparer", "--count", 3))
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[1] for row in rows] == ["Ada", "person 2", "person 3", "person 4"]
    tokens = tmp_path / "tokens.csv"
    fine(run("people", "invite", begun, "--role", "reviser", "--count", 1, "-o", tokens))
    assert tokens.stat().st_mode & 0o077 == 0, "tokens are nobody else's"
    assert b"\r" not in tokens.read_bytes()  # cut would keep it in the token
    (row,) = csv.DictReader(tokens.read_text().splitlines())
    with open_database(str(begun)) as db:
        people = [int(row[0]) for row in rows]
        found = person_by_token(db, row["token"], 0.0)
        assert found is not None
        assert found.role == "reviser"
        assert row["token"] not in begun.read_bytes().decode("latin-1")
        assert person_by_token(db, "forged", 0.0) is None
        work_all(db, [*people, found.id], random.Random(0), accuracy=0.95)
    out = fine(run("status", begun))
    assert [line.split()[0] for line in out.splitlines()[2:5]] == ["real", "sketch", "all"]
    assert "5 people" in out
    assert "Ada" in fine(run("people", "list", begun))

    assert "4 tasks" in fine(run("study", begun, "--draw", 4))
    refused(run("study", begun))
    saved = tmp_path / "saved.db"
    assert "answers in" in fine(run("backup", begun, saved))
    assert [line.split()[0] for line in fine(run("status", saved)).splitlines()[2:5]]
    refused(run("backup", begun, saved), saved)
    fine(run("people", "invite", begun, "--role", "study", "--count", 1))
    with open_database(str(begun)) as db:
        work_all(db, [6], random.Random(0))
    assert "4 judgments of 4 images" in fine(run("study", begun))

    out = fine(
        run("export", begun, tmp_path / "out", "--parquet", "--publish-writers", "--title", "T")
    )
    assert "5 images (3 real, 2 sketch)" in out
    assert "discode bench run --benchmark mceval" in out
    refused(run("export", begun, tmp_path / "out"), tmp_path / "out")
    assert "returned to the queue" in fine(run("people", "mark-careless", begun, 1))
    fine(run("people", "reinstate", begun, 1))
    assert "are withdrawn" in fine(run("people", "erase", begun, 2))


def test_what_is_missing_or_left_out_is_said(begun: Path, tmp_path: Path) -> None:
    """A lowered quota, an unfinished campaign, images that were moved."""
    fine(run("people", "invite", begun, "--role", "both", "--count", 5))
    with open_database(str(begun)) as db:
        work_all(db, [1, 2, 3, 4, 5], random.Random(0))
    done = run("images", begun, "--domain", f"real:1={tmp_path / 'real'}")
    assert done.returncode == 0
    assert "real has 3 finished images for a quota of 1: 2 left out" in done.stderr
    fine(run("images", begun, "--domain", f"sketch:9={tmp_path / 'sketch'}"))
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in DOMAINS:
        (tmp_path / name).rename(moved / name)
    refused(run("export", begun, tmp_path / "out"), tmp_path)
    done = run("export", begun, tmp_path / "out", "--images", moved)
    assert "3 images (1 real, 2 sketch)" in fine(done)
    assert "2 left out" in done.stderr
    assert "sketch is not finished: 2 of 9 images" in done.stderr

    gold = tmp_path / "more.csv"
    lines = [f"moved/sketch/00{number}.png,noise,a dog\n" for number in range(4)]
    gold.write_text("image,right,wrong\n" + "".join(lines))
    assert "4 gold questions" in fine(run("images", begun, "--gold", gold))


def test_by_a_crowd(begun: Path, tmp_path: Path) -> None:
    url = "https://example.org/{digest}{suffix}"
    fine(run("tasks", begun, tmp_path / "hits", "--image-url", url))
    assert (tmp_path / "hits" / "compare.html").is_file()
    fine(run("tasks", begun, tmp_path / "plain", "--image-url", url, "--form", "csv"))
    with (tmp_path / "plain" / "tasks.csv").open(newline="") as file:
        tasks = list(csv.DictReader(file))
    results = tmp_path / "results.csv"
    lines = ["task,worker,seconds,choice,text"]
    for task in tasks:
        for worker in range(int(task["assignments"])):
            choice = int(task["first"] > task["second"]) if task["kind"] == "compare" else ""
            lines.append(f"{task['task']},{task['kind']}{worker},9,{choice},"
                         + ("" if task["kind"] == "compare" else "a text"))  # fmt: skip
    results.write_text("\n".join(lines) + "\n")
    out = fine(run("import", begun, results))
    assert "to reject" in out
    assert (tmp_path / "results.decided.csv").is_file()
    # A finished campaign has no tasks, its user study may.
    refused(run("tasks", begun, tmp_path / "none", "--image-url", url))
    assert not (tmp_path / "none").exists()
    fine(run("study", begun, "--draw", 2))
    told = fine(
        run("tasks", begun, tmp_path / "study", "--image-url", url, "--study", "--no-gold",
            "--copy-images", tmp_path / "public")
    )  # fmt: skip
    assert told.startswith("2 tasks for 2 answers")
    assert len(list((tmp_path / "public").iterdir())) == 2
    assert "5 images" in fine(run("export", begun, tmp_path / "out", "--publish", "hashes"))
    refused(run("import", begun, results, "-o", results), results)
    refused(run("import", begun, tmp_path / "none.csv"), "none.csv")
    refused(run("import", begun, results, "-o", tmp_path / "no" / "x.csv"), tmp_path / "no")


def test_a_platforms_pages_by_the_papers_protocol(tmp_path: Path) -> None:
    """Nobody can skip, so no page offers it."""
    places = image_folders(tmp_path, DOMAINS)
    db = tmp_path / "c.db"
    domains = [f"--domain={name}={path}" for name, path in places.items()]
    fine(run("init", db, *domains, "--per-domain", 2, "--protocol", "paper"))
    for path in caption_files(tmp_path, DOMAINS, tmp_path):
        fine(run("candidates", db, "--writer", path.stem, "--file", path))
    fine(run("tasks", db, tmp_path / "hits", "--image-url", "https://x/{digest}{suffix}"))
    for kind in ("compare", "revise"):
        page = (tmp_path / "hits" / f"{kind}.html").read_text(encoding="utf-8")
        assert 'id="flag"' in page
        assert 'id="skip"' not in page


def test_a_model_writes(tmp_path: Path) -> None:
    places = image_folders(tmp_path, {"real": 4})
    db = tmp_path / "c.db"
    fine(run("init", db, "--domain", f"real={places['real']}", "--per-domain", 2))
    asked = ("candidates", db, "--writer", "w", "--spare", 0, "--model")
    with serving() as server:
        assert "2 captions" in fine(run(*asked, "endpoint:m", "-M", f"base_url={server.url}"))
        assert "0 captions" in fine(run(*asked, "endpoint:m", "--base-url", server.url))
    assert [body["model"] for body in server.asked] == ["m", "m"]
    refused(run(*asked, "endpoint:m", "--base-url", "nowhere"), "base_url")
    refused(run(*asked, "endpoint:m"), "base_url")
    refused(run(*asked, "embedded"), "embedded")


def test_names_and_links(begun: Path, tmp_path: Path) -> None:
    """Names are unique, links are whole, a name is no formula; without one, it is the number."""
    printed = [
        fine(run("people", "invite", begun, "--role", "comparer", "--count", 2)) for _ in range(2)
    ]
    names = [line.split("\t")[:2] for line in "".join(printed).splitlines()]
    assert names == [[str(i), f"person {i}"] for i in (1, 2, 3, 4)]

    def asked(*names: str) -> tuple[object, ...]:
        return ("people", "invite", begun, *names, "--role", "comparer")

    fine(run(*asked("Ada")))
    refused(run(*asked("Ada")), "Ada", "person 5")
    refused(run(*asked("Bob", "Bob")), "Bob")
    refused(run(*asked("B\u202eob")), "U+202E")
    refused(run(*asked("B\nob")), "B\\nob")
    tokens = tmp_path / "tokens.csv"
    fine(run(*asked("=1+1"), "-o", tokens, "--public-url", "https://captions.example.org/"))
    (row,) = csv.DictReader(tokens.read_text().splitlines())
    assert row["name"] == "'=1+1"
    assert row["link"] == f"https://captions.example.org/join/{row['token']}"
    out = fine(run(*asked("Eve"), "--public-url", "https://captions.example.org"))
    assert out.split("\t")[-1].startswith("https://captions.example.org/join/")
    assert fine(run("people", "revoke", begun, "Eve")).startswith("Eve ")
    refused(run("people", "reissue", begun, 7), "person 7")
    refused(run("people", "revoke", begun, "Mallory"), "Mallory")


def test_no_token_is_lost(begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tokens cannot be written, no one is invited; if it shows too late, they are printed."""
    asked = ("people", "invite", begun, "Ada", "--role", "comparer", "-o")
    for path in (tmp_path / "none" / "x.csv", "-"):
        refused(run(*asked, path), path)
        assert "Ada" not in fine(run("people", "list", begun))

    def full(file: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("discode._files.csv_writer", full)
    done = run(*asked, tmp_path / "x.csv")
    assert done.returncode == 2
    number, name, _, token = done.stdout.strip().split("\t")
    with open_database(str(begun)) as db:
        assert some(person_by_token(db, token, 0.0)).id == int(number)
    assert name == "Ada"


def test_plan_from_a_campaign(begun: Path) -> None:
    refused(run("plan", "--from", begun), "--compare-seconds")
    fine(run("people", "invite", begun, "--role", "comparer", "--count", 3))
    fine(run("people", "invite", begun, "--role", "reviser", "--count", 1))
    with open_database(str(begun)) as db:
        work_all(db, [1, 2, 3, 4], random.Random(0))
    out = fine(run("plan", "--from", begun, "--rounds", 2))
    assert "comparisons of 5.0 s" in out
    assert "revisions of 9.0 s (means)" in out
    (hours,) = re.findall(r"hours +(\S+)", out)
    same = fine(run("plan", "--compare-seconds", 5, "--revise-seconds", 9, "--rounds", 2))
    assert re.findall(r"hours +(\S+)", same) == [hours]
    mixed = fine(run("plan", "--from", begun, "--compare-seconds", 50, "--rounds", 2))
    assert re.findall(r"hours +(\S+)", mixed) != [hours]
    refused(run("plan", "--accuracy", 0.3), "accuracy=0.3")


def test_status_says_what_stalls(begun: Path, tmp_path: Path) -> None:
    out = fine(run("status", begun))
    assert re.search(r"stalled: .*\n  cure: .*--role comparer", out)
    assert "pay" not in out, "none was promised"
    fine(run("people", "invite", begun, "--role", "comparer", "--count", 3))
    fine(run("people", "invite", begun, "--role", "reviser", "--count", 1))
    assert "stalled" not in fine(run("status", begun))
    assert "pay" not in fine(run("people", "list", begun))
    with open_database(str(begun)) as db:
        work_all(db, [1, 2, 3, 4], random.Random(0))
    assert "stalled" not in fine(run("status", begun))
    places = image_folders(tmp_path / "more", {"real": 2}, seed=9)
    out = fine(run("images", begun, "--domain", f"real:5={places['real']}"))
    assert "real: 2 new images, 0 left out" in out
    refused(run("images", begun, "--domain", f"other={places['real']}"), "NAME:COUNT=FOLDER")
    assert "0 new images" in fine(run("images", begun, "--domain", f"real={places['real']}"))
    paid = tmp_path / "paid.db"
    done = run("init", paid, "--domain", f"real={places['real']}", "--pay-per-hour", 20)
    fine(done)
    assert "consensus all" in done.stderr, "what discards an image"
    assert "pay 0.00" in fine(run("status", paid))
    refused(run("init", tmp_path / "x.db", "--domain", f"real={places['real']}",
                "--pay-per-hour", -1), "pay_per_hour")  # fmt: skip


def test_images_and_people_by_hand(begun: Path, tmp_path: Path) -> None:
    (ada,) = fine(run("people", "invite", begun, "Ada", "--role", "admin")).splitlines()
    old = ada.split("\t")[3]
    (ada,) = fine(run("people", "reissue", begun, 1, "--days", 3)).splitlines()
    new = ada.split("\t")[3]
    with open_database(str(begun)) as db:
        assert person_by_token(db, old, 0.0) is None
        assert person_by_token(db, new, 0.0) is not None
    assert "no longer work" in fine(run("people", "revoke", begun, 1, "--reason", "moved"))
    refused(run("people", "reissue", begun, 1), "person 1")
    refused(run("people", "invite", begun, "x", "--role", "admin", "--days", 0), "days")
    fine(run("images", begun, "--take-down", 1, "--reason", "private"))
    assert "taken down: private" in fine(run("images", begun))
    fine(run("images", begun, "--restore", 1))
    assert "taken down" not in fine(run("images", begun))
    refused(run("images", begun, "--restore", 1), "image 1")
    refused(run("images", begun, "--take-down", 99), "99")
    better = tmp_path / "better.csv"
    better.write_text((tmp_path / "w1.csv").read_text().replace("sees", "finds"))
    captions = ("candidates", begun, "--writer", "w1", "--file", better)
    refused(run(*captions), "--replace")
    assert "0 captions of w1, 15 replaced" in fine(run(*captions, "--replace"))
    refused(run("candidates", begun, "--writer", "w1", "--model", "endpoint:x", "--replace"))


def test_the_papers_protocol(tmp_path: Path) -> None:
    """What the paper does not name is off, unless it is asked for."""
    places = image_folders(tmp_path, {"real": 3})
    (tmp_path / "real" / "again.png").write_bytes((tmp_path / "real" / "000.png").read_bytes())
    image = Image.open(tmp_path / "real" / "001.png")
    image.convert("RGB").save(tmp_path / "real" / "like.jpg", quality=80)
    gold = tmp_path / "gold.csv"
    gold.write_text("image,right,wrong\nreal/000.png,noise,a dog on a beach\n")
    domain = ("--domain", f"real={places['real']}", "--per-domain", 1)
    found = {}
    for name, more in (
        ("checked", ()), ("paper", ()), ("paper and gold", ("--gold", gold, "--gold-rate", 0.2)),
    ):  # fmt: skip
        path = tmp_path / f"{name}.db"
        out = fine(run("init", path, *domain, "--protocol", name.split()[0], *more))
        with open_database(str(path)) as db, db.read() as session:
            settings = settings_of(session)
        checks = settings.checks
        found[name] = (settings.rules.skips, checks.gold_rate, checks.quick_seconds,
                       out.splitlines()[-1].split()[2])  # fmt: skip
    assert found == {
        "checked": (5, 0.1, 2.0, "3"),
        "paper": (0, 0.0, 0.0, "4"),  # the copy is left out all the same, it would be one image
        "paper and gold": (0, 0.2, 0.0, "4"),
    }
    other = tmp_path / "other.db"
    refused(run("init", other, *domain, "--protocol", "paper", "--gold", gold), "--gold-rate")
    refused(run("init", other, *domain, "--protocol", "papr"), "papr")
    assert not other.exists()


def test_captions_that_are_equal_are_warned_of(tmp_path: Path) -> None:
    places = image_folders(tmp_path, {"real": 4})
    path = tmp_path / "c.db"
    fine(run("init", path, "--domain", f"real={places['real']}", "--per-domain", 2))
    for writer, texts in (
        ("a", "one two three four"), ("b", "one 2 3 4"), ("c", "one 2 third fourth"),
        ("d", "one two III IV"),
    ):  # fmt: skip
        table = tmp_path / f"{writer}.csv"
        lines = [f"{i:03d}.png,says {text}" for i, text in enumerate(texts.split())]
        table.write_text("image,caption\n" + "\n".join(lines))
        done = run("candidates", path, "--writer", writer, "--file", table)
        assert done.returncode == 0, done.stderr
    assert "2 captions equal another writer's, e.g. for real/000.png" in done.stderr
    assert "2 images were discarded" in done.stderr


def test_a_failed_start_on_a_server_leaves_nothing(postgres_url: str, tmp_path: Path) -> None:
    places = image_folders(tmp_path, {"real": 2})
    gold = tmp_path / "gold.csv"
    gold.write_text("image,right,wrong\nnone.png,noise,a dog\n")
    with Database(postgres_url) as db:
        Base.metadata.drop_all(db.engine)
    domain = ("--domain", f"real={places['real']}")
    refused(run("init", postgres_url, *domain, "--gold", gold), "none.png")
    with Database(postgres_url) as db:
        assert inspect(db.engine).get_table_names() == []
    fine(run("init", postgres_url, *domain))
    refused(run("init", postgres_url, *domain))
    with open_database(postgres_url) as db:  # and that one is left alone
        Base.metadata.drop_all(db.engine)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("status NONE", "none.db"),
        ("annotate NONE", "none.db"),
        ("init NEW --domain real", "real"),
        ("init NEW --domain real:x=a", "'x'"),
        ("init NEW --domain real=NONE", "none.db"),
        ("init NEW --domain a=REAL --consensus most", "most"),
        ("init DB --domain a=REAL", "c.db"),
        ("candidates DB --writer w1", "--file"),
        ("candidates DB --writer w1 --file W1 -M timeout=5", "--model"),
        ("candidates DB --writer w9 --file W1", "w9"),
        ("people invite DB --role boss --count 1", "boss"),
        ("people invite DB --count 1", "role"),
        ("people invite DB --role comparer --count -3", "-3"),
        ("people invite DB --role admin", "name"),
        ("people erase DB 99", "99"),
        ("study DB --draw 5", "5 images"),
        ("export DB X", "status"),
        ("annotate DB --port 70000", "70000"),
        ("annotate DB --images NONE", "none.db"),
        ("annotate DB --pause-every 0", "--pause-every 0"),
        ("annotate DB --public-url captions.example.org", "captions.example.org"),
        ("annotate DB --public-url https://example.org/captions", "https://captions.example.org"),
    ],
)
def test_mistakes(started: Path, tmp_path: Path, arguments: str, named: str) -> None:
    if arguments.startswith("annotate"):
        pytest.importorskip(
            "fastapi", reason="annotating is tested with discode-eval[annotate,dev]"
        )
    new = tmp_path / "new.db"
    files = {"NONE": tmp_path / "none.db", "NEW": new, "DB": started, "X": tmp_path / "x",
             "W1": started.parent / "w1.csv"}  # fmt: skip
    words = [str(files.get(word, word)) for word in arguments.split()]
    real, none = started.parent / "real", tmp_path / "none.db"
    words = [word.replace("=REAL", f"={real}").replace("=NONE", f"={none}") for word in words]
    refused(run(*words), named)
    assert not new.exists(), "a failed start leaves nothing"


def test_one_limit_for_duplicates_and_a_second_look(tmp_path: Path) -> None:
    """Images that are added later are compared as the first ones were; facts and status say how."""
    folder, more = tmp_path / "a", tmp_path / "more"
    image_folders(tmp_path, {"a": 3})
    more.mkdir()
    with Image.open(folder / "000.png") as image:
        image.save(more / "copy.jpg", quality=90)
    for near, left_out in ((6, 1), (-1, 0)):
        db = tmp_path / f"{near}.db"
        fine(run("init", db, "--domain", f"a={folder}", "--per-domain", 2, "--near", near,
                 "--second-look"))  # fmt: skip
        out = fine(run("images", db, "--domain", f"a={more}"))
        assert f"{1 - left_out} new images, {left_out} left out" in out
    assert "revisions: 0 accepted, 0 rejected, 0 wait" in fine(run("status", db))
    with open_database(str(db)) as opened, opened.read() as session:
        assert rules_of(session) == Rules(near=-1, second_look=True)


def test_the_server_says_at_its_start_which_images_are_missing(
    begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi", reason="annotating is tested with discode-eval[annotate,dev]")
    monkeypatch.setattr("discode._http.server.serve_until_signal", lambda *given, **more: None)
    done = run("annotate", begun, "--port", 0)
    assert done.returncode == 0
    assert "people work at http://127.0.0.1:" in done.stderr
    assert "not where they were" not in done.stderr
    (tmp_path / "real" / "003.png").unlink()
    done = run("annotate", begun, "--port", 0)
    assert "1 images are missing: real/003.png" in done.stderr
