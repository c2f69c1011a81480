"""discode probe and discode probe compare, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from discode._probe import Card
from discode.readings._store import ReadingStore
from tests.helpers import mini_benchmarks as mini
from tests.helpers.chat_servers import serving
from tests.helpers.command_line import call, refused, run

pytestmark = pytest.mark.usefixtures("shipped")
EXPERT = ("-b", "flickr8k-expert", "--resamples", 100)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mini.several(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def card(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the embedded judge's card."""
    out = tmp_path_factory.mktemp("cards") / "embedded"
    done = call("probe", *EXPERT, "--data", data, "-o", out, "--model", "embedded")
    assert done.returncode == 0, done
    assert "Card of discode-embedded" in done.stdout
    assert "Card of discode-embedded" in (out / "card.md").read_text(encoding="utf-8")
    return out


def test_a_second_run_reads_nothing_anew(card: Path, data: Path, tmp_path: Path) -> None:
    before = Card.load(card)
    assert (before.images, before.errors) == (3, {})
    assert before.signature.startswith("discode:")
    with ReadingStore(card / "readings.db", create=False) as store:
        ((key, count),) = store.run_keys()
        assert (key.identity.model, count) == ("discode-embedded", before.readings)
    stored = f"recorded:{card / 'readings.db'}"  # which would fail at what is not there
    done = call("probe", *EXPERT, "--data", data, "-o", tmp_path, "--model", stored)
    assert done.returncode == 0, done
    assert Card.load(tmp_path).asked == before.asked
    assert repr(Card.load(tmp_path).figures) == repr(before.figures)


def test_cards_beside_each_other(card: Path, data: Path, tmp_path: Path) -> None:
    same, other = tmp_path / "raw", tmp_path / "few"
    command = ("probe", "--data", data, "--store", card / "readings.db", "--model", "embedded")
    assert call(*command, *EXPERT, "-m", "raw", "-o", same).returncode == 0
    assert call(*command, *EXPERT, "--limit", 2, "-o", other).returncode == 0
    done = call("probe", "compare", card, same, "-f", "csv")
    assert done.returncode == 0, done
    header, *lines = done.stdout.splitlines()
    assert header.count("grey image low") == 2
    assert len(lines) == len(Card.load(card).figures)
    asked = call("probe", "compare", card, same), call("probe", "compare", same, other)
    assert ["not comparable" in done.stdout for done in asked] == [False, True]
    whole = call("probe", "compare", card, same, "--signature").stdout
    assert "model:discode-embedded" in whole
    assert "model:discode-embedded" in (card / "card.md").read_text(encoding="utf-8")
    assert "model:discode-embedded" not in asked[0].stdout


def test_what_fails_is_said_and_counted(tmp_path: Path) -> None:
    data = mini.flickr8k(tmp_path / "flickr8k")  # without two of its images
    done = call("probe", *EXPERT, "--data", data, "-o", tmp_path, "--model", "embedded")
    assert done.returncode == 1
    assert "b.jpg" in done.stderr
    rows = json.loads((tmp_path / "card.json").read_text())["figures"]
    (mean,) = (row for row in rows if row["name"] == "mean of references")
    assert (mean["n"], mean["failed"], mean["grey_n"]) == (1, 2, 3)
    assert "1, 3 grey" in done.stdout
    assert "more;" not in done.stderr  # both reasons are there


def test_a_card_of_another_judge_is_kept(card: Path, data: Path) -> None:
    before = (card / "card.json").read_bytes()
    command = ("probe", "--data", data, "-o", card, "--model", "embedded")
    refused(call(*command, *EXPERT, "-m", "raw"), card.name)
    refused(call(*command, "-b", "flickr8k-cf"), card.name)
    assert (card / "card.json").read_bytes() == before


def test_a_judge_that_is_refused_leaves_nothing(data: Path, tmp_path: Path) -> None:
    refused(run("probe", *EXPERT, "--data", data, "-o", tmp_path / "card", "--scale", "five"))
    assert not (tmp_path / "card").exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "--benchmark"),
        (("-b", "flickr8k-expert"), "--data"),
        (("-b", "nonsense", "--data", "."), "nonsense"),
        (("-b", "flickr8k-expert", "-b", "flickr8k-cf", "--data", "DATA"), "--benchmark"),
        (("-b", "flickr8k-expert", "--data", "nowhere"), "nowhere"),
        (("-b", "flickr8k-expert", "--data", "DATA", "--limit", "0"), "limit"),
        (("-b", "flickr8k-expert", "--data", "DATA", "--limit", "1", "--dry-run"), "--dry-run"),
        (("-b", "flickr8k-expert", "--data", "DATA", "-f", "poem"), "poem"),
        (("compare", "CARD"), "two"),
        (("compare", "CARD", "nowhere"), "nowhere"),
        (("compare", "CARD", "CARD/card.md"), "card.md"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], word: str, card: Path, data: Path
) -> None:
    places = {"DATA": str(data), "CARD": str(card), "CARD/card.md": str(card / "card.md")}
    refused(call("probe", *(places.get(text, text) for text in arguments)), word)


def rated(folder: Path, colour: str) -> Path:
    folder.mkdir()
    for name, shade in (("a.png", colour), ("b.png", "white")):
        Image.new("RGB", (32, 32), shade).save(folder / name)
    table = folder / "ratings.csv"
    table.write_text("image,caption,rating\na.png,a cat,1\na.png,a cow,3\nb.png,a dog,2\n")
    return table


def test_ratings_without_references_and_other_images_under_the_same_names(tmp_path: Path) -> None:
    command = ("probe", "-b", "custom", "--resamples", 100, "--model", "embedded", "-o")
    for name, colour in (("one", "red"), ("two", "blue")):
        table = rated(tmp_path / name, colour)
        done = call(*command, tmp_path / f"card-{name}", "--data", table)
        assert done.returncode == 0, done
        assert "no references" in done.stderr
    one = Card.load(tmp_path / "card-one")
    asked = {figure.name: figure for figure in one.figures}
    assert asked["scores"].n == asked["mean of other images' captions"].n == one.images == 2
    assert not {"one wrong noun", "mean of references"} & asked.keys()
    assert one.asked != Card.load(tmp_path / "card-two").asked
    compared = call("probe", "compare", tmp_path / "card-one", tmp_path / "card-two")
    assert "not comparable" in compared.stdout
    table.write_text("image,caption,rating\na.png,a cat,1\nb.png,a cat,2\n")
    refused(call("probe", "-b", "custom", "--data", table, "--model", "embedded"), "captions")


def test_a_server_is_not_asked_to_name_the_price(data: Path) -> None:
    with serving() as server:
        done = call("probe", *EXPERT, "--data", data, "--model", "endpoint:tiny",
                    "--base-url", server.url, "--dry-run")  # fmt: skip
        assert done.returncode == 0, done
        assert "nothing was sent" in done.stdout
        assert server.asked == []
