from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from scipy import stats
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from discode.benchmarks import Preferences, load_benchmark
from discode.errors import InputError, StoreError
from discode.images import open_image
from mceval import _guide as guide
from mceval._candidates import add_captions
from mceval._checks import Checks
from mceval._intake import DomainSource, add_images
from mceval._report import domain_rows, person_rows, votes_by_image
from mceval._states import settle_image
from mceval._tables import Candidate, Domain, Image, Pass
from mceval._user_study import accuracy_interval, begin_user_study, user_study_result
from mceval.database import Database
from mceval.export import ExportOptions, export_dataset
from mceval.people import invite, record_consent
from mceval.queue import Choice, flag, next_task, skip, submit
from mceval.rules import Rules
from tests.helpers.campaigns import (
    ask,
    better,
    check_rules,
    choose,
    fill,
    image_of,
    invite_people,
    new_submission,
    scalars,
    show_files,
    some,
    work_all,
)
from tests.helpers.images import caption_files, image_folders

DOMAINS = {"real": 12, "sketch": 10}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two domains with quotas of four, worked to the end."""
    root = tmp_path_factory.mktemp("finished")
    places = image_folders(root / "in", DOMAINS)
    with Database(str(root / "campaign.db")) as db:
        db.create(Rules(seed=7), name="Small", checks=Checks(gold_rate=0, quick_seconds=0))
        add_images(db, [DomainSource(one, path, 4) for one, path in places.items()], now=0.0)
        for i, path in enumerate(caption_files(root / "in", DOMAINS, root)):
            add_captions(db, f"w{i + 1}", path, 0.0)
        work_all(db, invite_people(db, 5), random.Random(2), accuracy=0.9)
        check_rules(db)
    return root / "campaign.db"


@pytest.fixture
def campaign(finished: Path, tmp_path: Path) -> Iterator[Database]:
    """A copy of it; the images are shared."""
    shutil.copy(finished, tmp_path / "campaign.db")
    with Database(str(tmp_path / "campaign.db")) as db:
        yield db


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def rows_in(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "mceval.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_our_loader_reads_it(campaign: Database, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert export_dataset(campaign, out) == {"real": 4, "sketch": 4}
    made = load_benchmark("mceval", out)
    assert isinstance(made.judgments, Preferences)
    assert made.judgments.category == ("real",) * 4 + ("sketch",) * 4
    assert made.notes == ()
    assert all(Path(str(pair.image)).is_file() for pair in made.pairs)
    assert all(pair.references[0].endswith(", revised") for pair in made.pairs)
    better_ones = sum(
        int(made.pairs[left].caption > made.pairs[right].caption) == chosen
        for left, right, chosen in zip(
            made.judgments.left, made.judgments.right, made.judgments.chosen, strict=True
        )
    )
    assert better_ones >= 7, "three people of 0.9 who agree are seldom wrong"


def test_the_same_bytes_again(campaign: Database, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="Parquet wants discode-eval[parquet]")
    options = ExportOptions(parquet=True, writers=True, licence="cc-by-4.0")
    for folder in ("one", "two"):
        export_dataset(campaign, tmp_path / folder, options)
    first, second = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert first == second
    assert {"mceval.jsonl", "mceval.parquet", "README.md", "facts.json", "SHA256SUMS"} <= set(first)
    sums = dict(line.split("  ")[::-1] for line in first["SHA256SUMS"].decode().splitlines())
    assert set(sums) == set(first) - {"SHA256SUMS"}
    for path, digest in sums.items():
        assert hashlib.sha256(first[path]).hexdigest() == digest


def test_rows_and_options(campaign: Database, tmp_path: Path) -> None:
    export_dataset(campaign, tmp_path / "plain", ExportOptions(images="hashes"))
    export_dataset(campaign, tmp_path / "told", ExportOptions(writers=True))
    assert not (tmp_path / "plain" / "images").exists()
    plain, told = rows_in(tmp_path / "plain"), rows_in(tmp_path / "told")
    assert "writers" not in plain[0]
    text = (tmp_path / "plain" / "README.md").read_text(encoding="utf-8")
    assert "fetch each from its `source`" in text
    for row in told:
        assert len({*row["writers"], row["reference_writer"]}) == 3
        assert row["candidates"][0].startswith(row["writers"][0])
        assert sorted(row["votes"]) == [0, 3]
        assert row["votes"][row["preference"]] == 3
        file = tmp_path / "told" / "images" / row["image"]
        assert hashlib.sha256(file.read_bytes()).hexdigest() == row["sha256"]


def test_the_card_says_what_is_true(campaign: Database, tmp_path: Path) -> None:
    export_dataset(
        campaign, tmp_path / "out", ExportOptions(title='A "title"', contact="us@example.org")
    )
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    facts = json.loads((tmp_path / "out" / "facts.json").read_text(encoding="utf-8"))
    rows = rows_in(tmp_path / "out")
    words = [len(caption.split()) for row in rows for caption in row["candidates"]]
    assert facts["domains"]["all"]["candidate_words"] == pytest.approx(sum(words) / len(words))
    assert facts["domains"]["all"]["images"] == 8
    total = ask(campaign, domain_rows)[-1]
    answers = sum(row.answers for row in ask(campaign, person_rows))
    assert facts["domains"]["all"]["discard_rate"] == pytest.approx(total.discard.value, abs=1e-4)
    assert facts["answers"] == answers
    assert facts["rules"] == asdict(Rules(seed=7))
    assert text.startswith('---\npretty_name: "A \\"title\\""\n')
    for word in ("us@example.org", f"> {guide.COMPARING}", f"> {guide.REVISING}"):
        assert word in text


def test_skips_and_flags_are_told(tmp_path: Path) -> None:
    """They count as discarded, and the facts and the card say how many there were and why."""
    cannot_tell = guide.SKIP_REASONS["compare"][0]
    with Database(str(tmp_path / "campaign.db")) as db:
        fill(db, Rules(skips=2), {"real": (4, 12), "sketch": (4, 10)})
        people = invite_people(db, 5)
        for person, pass_on, reason in (
            (people[0], skip, cannot_tell), (people[1], skip, f"{cannot_tell}: my aunt Ada"),
            (people[0], flag, "Other: a photo of my aunt"),
        ):  # fmt: skip
            task = some(next_task(db, person, 10.0))
            pass_on(db, person, task.lease, reason, 11.0)
        skipped = set(scalars(db, select(Pass.image_id).where(Pass.kind == "skip")))

        def skip_again(session: Session) -> None:
            for image in skipped:  # whichever they met, both people skip it
                session.add_all(
                    Pass(image_id=image, person_id=person, kind="skip", reason=cannot_tell,
                         created=12.0)
                    for person in people[:2]
                )  # fmt: skip
                settle_image(session, image, 13.0)

        db.run(skip_again)
        work_all(db, people, random.Random(2), accuracy=0.9)
        export_dataset(db, tmp_path / "out", ExportOptions(images="hashes"))
        total = ask(db, domain_rows)[-1]
        gone = scalars(db, select(Image).where(Image.state == "discarded"))
        passes = scalars(db, select(Pass))
    facts = json.loads((tmp_path / "out" / "facts.json").read_text(encoding="utf-8"))
    everything = facts["domains"]["all"]
    split = sum("consensus" in image.reason for image in gone)
    assert len(skipped) >= 1
    assert everything["discarded"] == {
        "no_consensus": split, "skipped": len(skipped), "flagged": 0, "taken_down": 0,
        "captions": 0,
    }  # fmt: skip
    assert everything["decided"] == total.judged + len(skipped)
    assert everything["discard_rate"] == pytest.approx(len(gone) / total.decided, abs=1e-4)
    assert everything["no_consensus_rate"] == pytest.approx(split / total.judged, abs=1e-4)
    assert everything["skips"] == sum(one.kind == "skip" for one in passes)
    assert facts["skip_reasons"] == {cannot_tell: everything["skips"]}
    assert facts["flag_reasons"] == {"Other": 1}
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"People skipped {everything['skips']} times ({cannot_tell}" in card
    assert "People flagged 1 times (Other: 1)" in card
    assert "aunt" not in card + json.dumps(facts), "people's own words may be about somebody"


def test_the_card_quotes_the_guide_that_people_saw(
    campaign: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the one that a later version has; whoever joins then has seen that one, too."""

    def card(name: str) -> str:
        export_dataset(campaign, tmp_path / name, ExportOptions(images="hashes"))
        return (tmp_path / name / "README.md").read_text(encoding="utf-8")

    assert "No copy of the guide was stored" in card("none")
    record_consent(campaign, 1, 5.0)
    record_consent(campaign, 2, 6.0)
    words = guide.ADVICE
    monkeypatch.setattr(guide, "ADVICE", "Longer is better.")
    text = card("old")
    assert f"> {words}" in text
    assert "Longer is better." not in text
    record_consent(campaign, 3, 7.0)
    text = card("both")
    assert text.index("Version 1 of 2") < text.index(words) < text.index("> Longer is better.")
    facts = json.loads((tmp_path / "both" / "facts.json").read_text(encoding="utf-8"))
    assert len(facts["guides"]) == 2


def test_what_is_published_has_no_metadata(sqlite: Database, tmp_path: Path) -> None:
    """A photograph with a place and a TIFF: pixels as people saw them, nothing else."""
    files = [tmp_path / "photo.jpg", tmp_path / "scan.tif"]
    for i, file in enumerate(files):
        tags = Pillow.Exif()
        tags[0x010E] = "at home"
        noise = np.random.default_rng(i).integers(0, 255, (40, 40, 3), np.uint8)
        Pillow.fromarray(noise).save(file, exif=tags)
        assert b"at home" in file.read_bytes()
    fill(sqlite, Rules(), {"a": (2, 2)})
    show_files(sqlite, files)
    work_all(sqlite, invite_people(sqlite, 3), random.Random(0))
    export_dataset(sqlite, tmp_path / "out")
    originals = {hashlib.sha256(file.read_bytes()).hexdigest(): file for file in files}
    rows = rows_in(tmp_path / "out")
    assert sorted(Path(row["image"]).suffix for row in rows) == [".jpg", ".png"]
    for row in rows:
        made = tmp_path / "out" / "images" / row["image"]
        assert b"at home" not in made.read_bytes()
        original = originals[row["sha256"]]
        np.testing.assert_array_equal(
            np.asarray(open_image(made)), np.asarray(open_image(original))
        )
    assert load_benchmark("mceval", tmp_path / "out").notes == ()


@pytest.mark.full
def test_datasets_loads_it(campaign: Database, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    export_dataset(campaign, tmp_path / "out")
    made = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert len(made["test"]) == 8
    assert set(made["test"][0]["candidates"])


def test_the_user_study(campaign: Database, tmp_path: Path) -> None:
    assert begin_user_study(campaign, 6, 0.0, people=1) == 6
    assert begin_user_study(campaign, 6, 0.0, people=1) == 0
    new = [one.person for one in invite(campaign, ["n1", "n2"], "study", 0.0)]
    right = 0
    texts = {row.id: row.text for row in scalars(campaign, select(Candidate))}
    for i in range(6):
        task = choose(campaign, new[i % 2], 10.0 * i, 10.0 * i + 5, side=None if i else 0)
        image = image_of(campaign, task)
        preferred = texts[image.second if image.preference else image.first]
        right += preferred == task.captions[better(task) if i else 0]
    assert next_task(campaign, new[0], 100.0) is None
    result = ask(campaign, user_study_result)
    people = {row.name for row in ask(campaign, person_rows) if row.answers}
    assert (result.images, result.judged) == (6, 6)
    assert result.accuracy.value == pytest.approx(right / 6)
    assert {"n1", "n2"} <= people
    check_rules(campaign)
    export_dataset(campaign, tmp_path / "out")
    assert "New people judged 6" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    # two people an image: the interval is over images
    assert begin_user_study(campaign, 6, 0.0, people=2) == 6
    work_all(campaign, new, random.Random(0))
    assert ask(campaign, user_study_result).judged == 12
    with pytest.raises(InputError):
        begin_user_study(campaign, 99, 0.0)
    with pytest.raises(InputError, match="people=0"):
        begin_user_study(campaign, 1, 0.0, people=0)


def test_damaged_data_is_not_exported(campaign: Database, tmp_path: Path) -> None:
    done = update(Image).where(Image.state == "done")
    campaign.run(lambda session: session.execute(done.values(revised=None)))
    with pytest.raises(StoreError):
        export_dataset(campaign, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    campaign.run(lambda session: session.execute(done.values(domain_id=None)))
    with (
        campaign.read() as session,
        pytest.raises(StoreError),
    ):
        votes_by_image(session)


def test_what_cannot_be_exported(campaign: Database, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(InputError):
        export_dataset(campaign, tmp_path / "full")
    with pytest.raises(InputError):
        ExportOptions(images="links")
    with campaign.read() as session:
        path = session.scalars(select(Image.path).where(Image.state == "done")).first()
    assert path is not None
    before = Path(path).read_bytes()
    try:
        Path(path).write_bytes(before + b"x")
        with pytest.raises(InputError):
            export_dataset(campaign, tmp_path / "out")
        Path(path).unlink()
        with pytest.raises(InputError):
            export_dataset(campaign, tmp_path / "out")
    finally:
        Path(path).write_bytes(before)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*")), "nothing half-written stays"
    export_dataset(campaign, tmp_path / "out", ExportOptions(images="hashes"))


def test_images_that_were_moved(campaign: Database, tmp_path: Path) -> None:
    """They are found by their source under the folder, and are the same dataset."""
    export_dataset(campaign, tmp_path / "before")
    images = scalars(campaign, select(Image))
    for image in images:
        there = tmp_path / "moved" / image.source
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(image.path, there)
    gone = update(Image).values(path="/gone/" + Image.source)
    campaign.run(lambda session: session.execute(gone))
    with pytest.raises(InputError, match="/gone/"):
        export_dataset(campaign, tmp_path / "out")
    export_dataset(campaign, tmp_path / "out", ExportOptions(folder=tmp_path / "moved"))
    assert contents(tmp_path / "out") == contents(tmp_path / "before")
    outside = update(Image).where(Image.state == "done").values(source="../../x.png")
    campaign.run(lambda session: session.execute(outside))
    with pytest.raises(InputError, match=r"\.\./x\.png is outside"):
        export_dataset(campaign, tmp_path / "x", ExportOptions(folder=tmp_path / "moved"))


def test_what_a_dataset_lacks_is_said(campaign: Database, tmp_path: Path) -> None:
    """A domain that is not finished, and finished images that a lower quota leaves out."""

    def told(name: str) -> tuple[list[str], str]:
        export_dataset(campaign, tmp_path / name, ExportOptions(images="hashes"))
        facts = json.loads((tmp_path / name / "facts.json").read_text(encoding="utf-8"))
        assert (facts["domains"]["real"]["wanted"], facts["domains"]["real"]["finished"]) == (3, 4)
        return facts["notes"], (tmp_path / name / "README.md").read_text(encoding="utf-8")

    export_dataset(campaign, tmp_path / "all", ExportOptions(images="hashes"))
    assert "is incomplete" not in (tmp_path / "all" / "README.md").read_text(encoding="utf-8")

    def change(session: Session) -> None:
        for domain in session.scalars(select(Domain)).all():
            domain.quota = {"real": 3, "sketch": 9}[domain.name]

    campaign.run(change)
    notes, card = told("some")
    assert notes == [
        "real has 4 finished images for a quota of 3: 1 left out, the last in its random order",
        "sketch is not finished: 4 of 9 images",
    ]
    assert all(note in card for note in notes)
    ids = [[row["id"] for row in rows_in(tmp_path / name)] for name in ("all", "some")]
    assert ids[1] == ids[0][:3] + ids[0][4:]


def test_agreement_is_over_images_judged_in_full(tmp_path: Path) -> None:
    """As the card says: images with one or two votes of three are left out of both."""
    oracle = pytest.importorskip("krippendorff", reason="the oracle comes with discode-eval[dev]")
    with Database("sqlite://") as db:
        fill(db, Rules(), {"a": (14, 14)})
        people = invite_people(db, 4)
        work_all(db, people, random.Random(4), accuracy=0.7, limit=36)
        votes = [found for _, _, found in ask(db, votes_by_image)]
        (row,) = ask(db, domain_rows)

    def alpha(items: list[list[int]]) -> float:
        data = np.full((3, len(items)), np.nan)
        for number, item in enumerate(items):
            data[: len(item), number] = item
        return float(oracle.alpha(data, level_of_measurement="nominal", value_domain=[0, 1]))

    full = [item for item in votes if len(item) == 3]
    assert 3 <= len(full) < len(votes)
    assert row.judged == len(full)
    assert row.alpha == pytest.approx(alpha(full))
    assert abs(alpha(votes) - alpha(full)) > 0.01


@pytest.mark.parametrize("people", [1, 3])
def test_the_studys_interval_has_a_width(campaign: Database, people: int) -> None:
    """Also where all are right: then as Wilson's, by scipy, of so many images."""
    begin_user_study(campaign, 6, 0.0, people=people)
    texts = {row.id: row.text for row in scalars(campaign, select(Candidate))}
    for person in (one.person for one in invite(campaign, ["x", "y", "z"], "study", 0.0)):
        while (task := next_task(campaign, person, 10.0)) is not None:
            image = image_of(campaign, task)
            side = task.captions.index(texts[image.first or 0]) ^ (image.preference or 0)
            submit(campaign, person, task.lease, new_submission(), 20.0, Choice(side))
    result = ask(campaign, user_study_result)
    expected = stats.binomtest(6, 6).proportion_ci(method="wilson")
    assert (result.images, result.judged, result.accuracy.value) == (6, 6 * people, 1.0)
    assert (result.accuracy.low, result.accuracy.high) == pytest.approx(tuple(expected))
    assert all(found.low < found.high for found in result.domains.values())


def test_answers_to_one_image_go_together() -> None:
    """Three who always agree are worth one, three independent ones three; scipy's Wilson again."""
    rng = np.random.default_rng(3)
    right = rng.random(400) < 0.9
    together = [(image, bool(hit)) for image, hit in enumerate(right) for _ in range(3)]
    apart = [(image, bool(hit)) for image in range(400) for hit in rng.random(3) < 0.9]
    for hits, size in ((together, 400), (apart, 1200)):
        found = accuracy_interval(hits)
        share = sum(hit for _, hit in hits) / len(hits)
        expected = stats.binomtest(round(share * size), size).proportion_ci(method="wilson")
        assert found.value == pytest.approx(share)
        assert found.high - found.low == pytest.approx(expected.high - expected.low, rel=0.1)
