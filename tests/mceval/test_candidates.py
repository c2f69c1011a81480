from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import func, select

from discode.backends.served.client import ChatAnswer, Message
from discode.errors import BackendError, InputError
from discode.mceval.candidates import add_captions, write_captions
from discode.mceval.database import Database
from discode.mceval.intake import DomainSource, add_images
from discode.mceval.rules import Rules
from discode.mceval.tables import Candidate, Image
from tests.helpers.images import caption_files, image_folders

DOMAINS = {"a": 6, "b": 5}


@pytest.fixture
def campaign(sqlite: Database, tmp_path: Path) -> Database:
    places = image_folders(tmp_path, DOMAINS)
    sqlite.create(Rules())
    add_images(sqlite, [DomainSource(name, path, 2) for name, path in places.items()], now=0.0)
    return sqlite


def states(db: Database) -> dict[str, int]:
    with db.read() as session:
        rows = session.execute(select(Image.state, func.count()).group_by(Image.state)).all()
    return {row[0]: row[1] for row in rows}


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
