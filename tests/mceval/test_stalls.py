"""What stands still is named, with a cure that helps."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mceval._candidates import add_captions
from mceval._checks import Checks
from mceval._intake import DomainSource, add_images
from mceval._stalls import Stall, find_doubts, find_stalls
from mceval.database import Database
from mceval.people import invite
from mceval.rules import Rules
from tests.helpers.campaigns import CALM, ask, choose, fill, invite_people, work_all
from tests.helpers.images import caption_files, image_folders


def stalls(db: Database, now: float = 2000.0) -> list[Stall]:
    return ask(db, find_stalls, now)


def test_three_people_of_role_both_on_everything(db: Database) -> None:
    fill(db, Rules(), {"a": (3, 3)})
    people = [one.person for one in invite(db, ["x", "y", "z"], "both", 0.0)]
    (few,) = stalls(db)
    assert few.cure.endswith("people invite --role reviser")
    work_all(db, people, random.Random(0))
    again, *stuck = stalls(db)
    assert again == few
    assert {stall.what.split()[2] for stall in stuck} == {"comparisons", "revisions"}
    work_all(db, [one.person for one in invite(db, ["new"], "both", 0.0)], random.Random(0))
    assert stalls(db) == []


def test_roles_that_are_missing(sqlite: Database) -> None:
    fill(sqlite, Rules(), {"a": (2, 2)})
    assert stalls(sqlite)[0].cure.endswith("people invite --role comparer")
    invite_people(sqlite, 3, 0)
    few, stuck = stalls(sqlite)
    assert few.cure.endswith("people invite --role reviser")
    assert stuck.what.startswith("2 open revisions")
    people = invite_people(sqlite, 0, 1)
    assert stalls(sqlite) == []
    work_all(sqlite, people, random.Random(0))
    (quiet,) = stalls(sqlite, now=1e6)
    assert quiet.what.startswith("the last answer came 11.6 days ago")


def test_missing_captions_and_images(sqlite: Database, tmp_path: Path) -> None:
    places = image_folders(tmp_path, {"a": 4})
    sqlite.create(Rules())
    add_images(sqlite, [DomainSource("a", places["a"], 6)], now=0.0)
    files = caption_files(tmp_path, {"a": 4}, tmp_path)
    for i, path in enumerate(files[:3]):
        add_captions(sqlite, f"w{i}", path, 0.0)
    invite_people(sqlite, 4)
    captions, images = stalls(sqlite)
    assert captions.what.startswith("a: 6 images are missing; 4 wait for captions by 4 writers")
    assert "w0 4, w1 4, w2 4" in captions.what
    assert images.what.startswith("a: 2 more images")
    assert images.cure.endswith("--domain a=FOLDER")
    add_captions(sqlite, "w3", files[3], 0.0)
    (images,) = stalls(sqlite)
    assert "2 more images" in images.what


def test_all_split(sqlite: Database) -> None:
    fill(sqlite, Rules(), {"a": (5, 15)})
    people = invite_people(sqlite, 3)
    for person in people[:3] * 4:  # the first two choose alike, the third against them
        work_all(sqlite, [person], random.Random(0), accuracy=float(person != people[2]))
    found = [one for one in stalls(sqlite) if "disagree" in one.what]
    assert len(found) == 1
    assert found[0].what.startswith("a: people disagree on 100% of")
    assert "majority" in found[0].cure


@pytest.mark.parametrize(
    ("gold", "checks", "doubtful"),
    [(0, Checks(), True), (4, Checks(), True), (5, Checks(), False),
     (4, Checks(gold_after=4), False), (0, CALM, False), (1, CALM, True)],
)  # fmt: skip
def test_fewer_gold_questions_than_the_check_needs(
    sqlite: Database, gold: int, checks: Checks, doubtful: bool
) -> None:
    """CALM wants no gold questions; a platform's tasks have those that are there all the same."""
    fill(sqlite, Rules(), {"a": (2, 2)}, checks=checks, gold=gold)
    doubts = ask(sqlite, find_doubts)
    assert [f"questions ({gold};" in doubt.what for doubt in doubts] == [True] * doubtful


def test_somebody_who_always_says_left(sqlite: Database) -> None:
    """They are named; those who look at the captions are not."""
    fill(sqlite, Rules(), {"a": (40, 40)})
    careful, lazy = invite_people(sqlite, 2, 0)
    for number in range(30):
        for person in (careful, lazy):
            side = 0 if person == lazy else None
            choose(sqlite, person, 100.0 * number, 100.0 * number + 9, side=side)
        doubts = ask(sqlite, find_doubts)
        if number < 9:
            assert doubts == []  # ten heads in a row happen to somebody among 500
    (doubt,) = doubts
    assert doubt.what.startswith(f"c1 (person {lazy}) chose the left caption in 100 % of 30")
    assert doubt.cure.endswith(f"mark-careless DATABASE {lazy}")
