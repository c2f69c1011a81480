from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import select

from discode.backends._served.client import ChatAnswer, Message
from discode.errors import BackendError, InputError
from mceval._candidates import add_captions, write_captions
from mceval._crowd import log_exported
from mceval._intake import DomainSource, add_images
from mceval._tables import Candidate, Event, Image
from mceval.database import Database
from mceval.people import invite
from mceval.queue import next_task
from mceval.rules import Rules
from tests.helpers.campaigns import ask, image_of, scalars, some, states
from tests.helpers.images import caption_files, image_folders

DOMAINS = {"a": 6, "b": 5}


@pytest.fixture
def campaign(sqlite: Database, tmp_path: Path) -> Database:
    places = image_folders(tmp_path, DOMAINS)
    sqlite.create(Rules())
    add_images(sqlite, [DomainSource(name, path, 2) for name, path in places.items()], now=0.0)
    return sqlite


def test_four_files_begin_the_work(campaign: Database, tmp_path: Path) -> None:
    for i, path in enumerate(caption_files(tmp_path, DOMAINS, tmp_path)):
        assert states(campaign) == {"pool": 11}
        added = add_captions(campaign, f"w{i + 1}", path, 0.0)
        assert (added.new, added.known) == (11, 0)
        again = add_captions(campaign, f"w{i + 1}", path, 0.0)
        assert (again.new, again.known) == (0, 11)
    assert states(campaign) == {"active": 4, "pool": 7}
    with pytest.raises(InputError):
        add_captions(campaign, "w5", path, 0.0)


def test_images_by_any_name(campaign: Database, tmp_path: Path) -> None:
    """But a caption goes to no image of another folder."""
    digest, source = ask(campaign, lambda session: session.execute(
        select(Image.digest, Image.source).where(Image.source == "b/003.png")
    ).one())  # fmt: skip
    path = tmp_path / "some.csv"
    # b has no 005.png, and a's is the only one of that name
    for rows, new, unknown in (
        (f"{digest},one\nb/004.png,two\nelsewhere.png,three", 2, 1),
        ("b/005.png,one\na/004.png,four", 1, 1),
        ("005.png,five", 1, 0),
    ):
        path.write_text(f"image,caption\n{rows}\n")
        added = add_captions(campaign, "w1", path, 0.0)
        assert (added.new, added.unknown) == (new, unknown)
    query = select(Image.source, Candidate.text).join(Candidate, Candidate.image_id == Image.id)
    captions = ask(campaign, lambda session: {tuple(row) for row in session.execute(query)})
    assert captions == {
        (source, "one"), ("b/004.png", "two"), ("a/004.png", "four"), ("a/005.png", "five")
    }  # fmt: skip


def test_images_by_the_ids_of_annotations(campaign: Database, tmp_path: Path) -> None:
    notes, path = tmp_path / "instances.json", tmp_path / "results.json"
    notes.write_text('{"images": [{"id": 7, "file_name": "a/005.png"}]}')
    path.write_text('[{"image_id": 7, "caption": "x"}, {"image_id": 8, "caption": "y"}]')
    added = add_captions(campaign, "w1", path, 0.0, annotations=notes)
    assert (added.new, added.unknown) == (1, 1)


@pytest.mark.parametrize(
    ("rows", "writer"),
    [
        ("000.png,x", "w1"),  # in both domains
        ("a/000.png,", "w1"),
        ("a/000.png,x\na/000.png,y", "w1"),
        ("no.png,x", "w1"),
        ("b/000.png,y", "w1"),  # has another one
        ("a/000.png,x", " "),
    ],
)
def test_invalid_captions(campaign: Database, tmp_path: Path, rows: str, writer: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("image,caption\nb/000.png,x\n")
    add_captions(campaign, "w1", path, 0.0)
    path.write_text(f"image,caption\n{rows}\n")
    with pytest.raises(InputError):
        add_captions(campaign, writer, path, 0.0)


class Writer:
    """A chat model that fails now and then."""

    name = "writer"

    def __init__(
        self, fails: Sequence[int] = (), stops: int = -1, error: type[BaseException] = InputError
    ) -> None:
        self.fails, self.stops, self.asked, self.error = fails, stops, 0, error

    def __call__(
        self, messages: Sequence[Message], *, max_tokens: int, logprobs: int = 0
    ) -> ChatAnswer:
        content = messages[0]["content"]
        assert content[0]["image_url"]["url"].startswith("data:image/jpeg;base64,")
        assert "Describe" in content[1]["text"]
        self.asked += 1
        if self.asked == self.stops:
            raise self.error
        if self.asked in self.fails:
            raise BackendError("busy")
        return ChatAnswer("" if self.asked == 3 else f"a\n caption {self.asked}")


def test_a_model_is_asked_and_goes_on(campaign: Database) -> None:
    with pytest.raises(InputError):  # a refused key stops the run
        write_captions(campaign, "m", Writer(stops=1), now=lambda: 0.0)
    with pytest.raises(KeyboardInterrupt):
        write_captions(campaign, "m", Writer(stops=3, error=KeyboardInterrupt), now=lambda: 0.0)
    assert scalars(campaign, select(Candidate.text)) == ["a caption 1", "a caption 2"]
    first, seen = Writer(fails=[1]), list[tuple[int, int]]()
    added = write_captions(
        campaign, "m", first, now=lambda: 0.0, spare=0.5,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert seen == [(done, 4) for done in range(1, 5)], "failed images are done, too"
    assert first.asked == 4, "three of each quota of two, less those that are there"
    assert added.new == 2
    assert sorted((added.failed or {}).values()) == [
        "busy", "the model's caption must not be empty",
    ]  # fmt: skip
    second = Writer()
    write_captions(campaign, "m", second, now=lambda: 0.0, spare=0.5)
    assert second.asked == 2
    with pytest.raises(InputError):
        write_captions(campaign, "m", Writer(), now=lambda: 0.0, spare=-1)


def test_captions_are_replaced_before_anybody_saw_them(campaign: Database, tmp_path: Path) -> None:
    files = caption_files(tmp_path, DOMAINS, tmp_path)
    for i, path in enumerate(files):
        add_captions(campaign, f"w{i + 1}", path, 0.0)
    (one,) = invite(campaign, ["one"], "comparer", 0.0)
    task = some(next_task(campaign, one.person, 1.0))
    better = tmp_path / "better.csv"
    better.write_text(files[0].read_text().replace("sees", "clearly sees"))
    with pytest.raises(InputError):
        add_captions(campaign, "w1", better, 2.0)
    added = add_captions(campaign, "w1", better, 2.0, replace=True)
    assert (added.new, added.known, added.replaced, added.seen) == (0, 0, 10, 1)
    again = next_task(campaign, one.person, 3.0)
    assert again == task, "what somebody looks at stays"
    assert states(campaign) == {"active": 4, "pool": 7}
    seen = image_of(campaign, task).id
    with campaign.read() as session:
        rows = session.scalars(select(Candidate).where(Candidate.writer == "w1")).all()
        old = session.scalars(select(Event.detail).where(Event.kind == "caption_replaced")).all()
        drawn = session.scalars(select(Image).where(Image.first.is_not(None))).all()
        assert [row.image_id for row in rows if "clearly" not in row.text] == [seen]
        assert len(old) == 10
        assert all("w1 sees" in detail for detail in old), "the old texts stay in the log"
        assert len(drawn) == 11
        assert all(len({image.first, image.second, image.revised}) == 3 for image in drawn)
    assert add_captions(campaign, "w1", better, 4.0, replace=True).seen == 1
    log_exported(campaign, 5.0)  # on a crowd platform people see what is open
    added = add_captions(campaign, "w1", files[0], 6.0, replace=True)
    assert (added.replaced, added.seen) == (7, 3)


def test_equal_captions_can_be_replaced(campaign: Database, tmp_path: Path) -> None:
    """Images that were discarded because nothing was left to compare come back."""
    files = caption_files(tmp_path, DOMAINS, tmp_path)
    same = tmp_path / "same.csv"
    same.write_text(re.sub(r"w1 sees.*", "a dog", files[0].read_text()))
    for i in range(4):
        add_captions(campaign, f"w{i + 1}", same, 0.0)
    assert states(campaign) == {"discarded": 11}
    assert add_captions(campaign, "w1", files[0], 1.0, replace=True).replaced == 11
    for i in (1, 2):
        add_captions(campaign, f"w{i + 1}", files[i], 2.0, replace=True)
    assert states(campaign) == {"active": 4, "pool": 7}
