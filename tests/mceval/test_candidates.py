from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import select

from discode.backends.served.client import ChatAnswer, Message
from discode.errors import BackendError, InputError
from mceval.candidates import add_captions, write_captions
from mceval.database import Database
from mceval.intake import DomainSource, add_images
from mceval.people import invite
from mceval.queue import next_task
from mceval.rules import Rules
from mceval.states import log_exported
from mceval.tables import Candidate, Event, Image
from tests.helpers.campaigns import states
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
    with pytest.raises(InputError, match="has its 4 writers: w1, w2, w3, w4; not w5"):
        add_captions(campaign, "w5", path, 0.0)


def test_images_by_any_name(campaign: Database, tmp_path: Path) -> None:
    with campaign.read() as session:
        digest = session.scalars(select(Image.digest)).first()
    path = tmp_path / "some.csv"
    path.write_text(f"image,caption\n{digest},one\nb/004.png,two\nelsewhere.png,three\n")
    added = add_captions(campaign, "w1", path, 0.0)
    assert (added.new, added.unknown) == (2, 1)


def test_a_caption_goes_to_no_image_of_another_folder(campaign: Database, tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    # b has no 005.png, and a's is the only one of that name
    path.write_text("image,caption\nb/005.png,one\na/004.png,two\n")
    added = add_captions(campaign, "w1", path, 0.0)
    assert (added.new, added.unknown) == (1, 1)
    path.write_text("image,caption\n005.png,three\n")
    assert add_captions(campaign, "w1", path, 0.0).new == 1
    with campaign.read() as session:
        rows = session.execute(
            select(Image.source, Candidate.text).join(Candidate, Candidate.image_id == Image.id)
        ).all()
    assert sorted(map(tuple, rows)) == [("a/004.png", "two"), ("a/005.png", "three")]


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ("000.png,x", "none of its 1 images"),  # in both domains
        ("a/000.png,", "must be a text with something"),
        ("a/000.png,x\na/000.png,y", "two captions of w1"),
        ("no.png,x", "name them by source, path or SHA-256"),
    ],
)
def test_invalid_captions(campaign: Database, tmp_path: Path, rows: str, match: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(f"image,caption\n{rows}\n")
    with pytest.raises(InputError, match=match):
        add_captions(campaign, "w1", path, 0.0)
    path.write_text("image,caption\na/000.png,x\n")
    add_captions(campaign, "w1", path, 0.0)
    path.write_text("image,caption\na/000.png,y\n")
    with pytest.raises(InputError, match="another caption of w1 already: 'x'"):
        add_captions(campaign, "w1", path, 0.0)
    with pytest.raises(InputError, match="is not a name"):
        add_captions(campaign, " ", path, 0.0)


class Writer:
    """A chat model that fails now and then."""

    name = "writer"

    def __init__(self, fails: Sequence[int] = (), stops: int = -1) -> None:
        self.fails, self.stops, self.asked = fails, stops, 0

    def __call__(
        self, messages: Sequence[Message], *, max_tokens: int, logprobs: int = 0
    ) -> ChatAnswer:
        content = messages[0]["content"]
        assert content[0]["image_url"]["url"].startswith("data:image/jpeg;base64,")
        assert "Describe" in content[1]["text"]
        self.asked += 1
        if self.asked == self.stops:
            raise KeyboardInterrupt
        if self.asked in self.fails:
            raise BackendError("busy")
        return ChatAnswer("" if self.asked == 3 else f"a\n caption {self.asked}")


def test_a_model_is_asked_and_goes_on(campaign: Database) -> None:
    with pytest.raises(KeyboardInterrupt):
        write_captions(campaign, "m", Writer(stops=3), now=lambda: 0.0)
    with campaign.read() as session:
        assert session.scalars(select(Candidate.text)).all() == ["a caption 1", "a caption 2"]
    first = Writer(fails=[1])
    added = write_captions(campaign, "m", first, now=lambda: 0.0, spare=0.5)
    assert first.asked == 4, "three of each quota of two, less those that are there"
    assert added.new == 2
    assert sorted((added.failed or {}).values()) == [
        "busy", "the model's caption must be a text with something in it",
    ]  # fmt: skip
    second = Writer()
    write_captions(campaign, "m", second, now=lambda: 0.0, spare=0.5)
    assert second.asked == 2
    with pytest.raises(InputError, match="spare"):
        write_captions(campaign, "m", Writer(), now=lambda: 0.0, spare=-1)


def test_a_refused_key_stops_the_run(campaign: Database) -> None:
    class HttpError(Writer):
        def __call__(
            self, messages: Sequence[Message], *, max_tokens: int, logprobs: int = 0
        ) -> ChatAnswer:
            raise InputError("the key was refused")

    with pytest.raises(InputError, match="key was refused"):
        write_captions(campaign, "m", HttpError(), now=lambda: 0.0)


def test_captions_are_replaced_before_anybody_saw_them(campaign: Database, tmp_path: Path) -> None:
    files = caption_files(tmp_path, DOMAINS, tmp_path)
    for i, path in enumerate(files):
        add_captions(campaign, f"w{i + 1}", path, 0.0)
    (one,) = invite(campaign, ["one"], "comparer", 0.0)
    task = next_task(campaign, one.person, 1.0)
    assert task is not None
    better = tmp_path / "better.csv"
    better.write_text(files[0].read_text().replace("sees", "clearly sees"))
    with pytest.raises(InputError, match=r"has another caption of w1 already.*--replace"):
        add_captions(campaign, "w1", better, 2.0)
    added = add_captions(campaign, "w1", better, 2.0, replace=True)
    assert (added.new, added.known, added.replaced, added.seen) == (0, 0, 10, 1)
    again = next_task(campaign, one.person, 3.0)
    assert again == task, "what somebody looks at stays"
    assert states(campaign) == {"active": 4, "pool": 7}
    with campaign.read() as session:
        seen = session.scalars(select(Image).where(Image.path == task.path)).one()
        rows = session.scalars(select(Candidate).where(Candidate.writer == "w1")).all()
        old = session.scalars(select(Event.detail).where(Event.kind == "caption_replaced")).all()
        drawn = session.scalars(select(Image).where(Image.first.is_not(None))).all()
        assert [row.image_id for row in rows if "clearly" not in row.text] == [seen.id]
        assert len(old) == 10
        assert all("w1 sees" in detail for detail in old), "the old texts stay in the log"
        assert len(drawn) == 11
        assert all(len({image.first, image.second, image.revised}) == 3 for image in drawn)
    assert add_captions(campaign, "w1", better, 4.0, replace=True).seen == 1


def test_captions_on_a_crowd_platform_stay(campaign: Database, tmp_path: Path) -> None:
    files = caption_files(tmp_path, DOMAINS, tmp_path)
    for i, path in enumerate(files):
        add_captions(campaign, f"w{i + 1}", path, 0.0)
    campaign.run(lambda session: log_exported(session, 1.0))
    better = tmp_path / "better.csv"
    better.write_text(files[0].read_text().replace("sees", "clearly sees"))
    added = add_captions(campaign, "w1", better, 2.0, replace=True)
    assert (added.replaced, added.seen) == (7, 4)


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
