"""discode compare --ratings: people's ratings of some captions join the scores of all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from discode.stats import ppi_mean
from tests.helpers.command_line import call, refused

IMAGES = 80


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Scores of two captioners, and ratings of the first 30 images of either."""
    rng = np.random.default_rng(0)
    ratings = ["image,caption,rating,rater"]
    for name in "ab":
        score = rng.random(IMAGES).round(3)
        lines = ["id,image,caption,score"]
        lines += [f"{i},photos/{i}.jpg,{name} {i},{each}" for i, each in enumerate(score)]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
        for i in range(30):
            for rater in (1, 2):
                value = round(5 * score[i] + rng.normal() / 3 + rater / 2, 2)
                ratings.append(f"{i}.jpg,{name} {i},{value},{rater}")
    (tmp_path / "ratings.csv").write_text("\n".join(ratings))
    return tmp_path


def columns(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The mean rating of each image of a captioner, NaN without one, and its score."""
    said: dict[int, list[float]] = {}
    for line in (folder / "ratings.csv").read_text().splitlines()[1:]:
        image, caption, value, _ = line.split(",")
        if caption.startswith(name):
            said.setdefault(int(image.removesuffix(".jpg")), []).append(float(value))
    lines = (folder / f"{name}.csv").read_text().splitlines()[1:]
    score = np.array([float(line.split(",")[3]) for line in lines])
    return np.array([np.mean(said.get(i, [np.nan])) for i in range(IMAGES)]), score


def test_means_and_differences(files: Path) -> None:
    done = call(
        "compare", files / "a.csv", files / "b.csv", "--ratings", files / "ratings.csv", "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["ratings"]
    assert [*found] == ["a", "b", "a - b"]
    (y, f), (z, g) = columns(files, "a"), columns(files, "b")
    for name, wanted in (("a", ppi_mean(y, f)), ("a - b", ppi_mean(y - z, f - g))):
        assert found[name]["rated"] == 30
        assert found[name]["images"] == IMAGES
        assert found[name]["mean"]["value"] == pytest.approx(wanted.mean.value)
        assert found[name]["mean"]["low"] == pytest.approx(wanted.mean.low)
        assert found[name]["people"]["high"] == pytest.approx(wanted.people.high)
    assert found["a"]["worth"] > 30
    shown = call("compare", files / "a.csv", "--ratings", files / "ratings.csv")
    assert f"{found['a']['mean']['value']:.3f}" in shown.stdout
    assert "30 rated captions" in shown.stdout  # those of b


def test_ratings_by_id(files: Path) -> None:
    rated = ["id,image,caption,rating", *(f"{i},x{i}.jpg,another,{i % 5}" for i in range(20))]
    (files / "ids.csv").write_text("\n".join(rated))
    done = call(
        "compare", files / "a.csv", "--ratings", files / "ids.csv", "--join-by", "id", "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["ratings"]["a"]
    assert found["rated"] == 20
    assert found["people"]["value"] == 2
    refused(call("compare", files / "a.csv", "--ratings", files / "ids.csv"), "rating")


def test_bad_use_is_refused(files: Path) -> None:
    (files / "choices.csv").write_text(
        "image,caption_a,caption_b,preference\n0.jpg,a 0,b 0,a\n1.jpg,a 1,b 1,b\n"
    )
    refused(call("compare", files / "a.csv", "--ratings", files / "choices.csv"), "ratings")
    refused(call("compare", files / "a.csv", "--ratings", files / "none.csv"), "none.csv")
    for cell in ("nan", "good"):
        (files / "bad.csv").write_text(f"image,caption,rating\n0.jpg,a 0,{cell}\n")
        done = call("compare", files / "a.csv", "--ratings", files / "bad.csv")
        refused(done, "bad.csv line 2", cell)
        assert "inf" not in done.stderr
    (files / "run.json").write_text("{}")
    refused(call("compare", files / "run.json", "--ratings", files / "ratings.csv"), "--ratings")


def test_a_line_about_few_ratings(files: Path) -> None:
    rows = (files / "ratings.csv").read_text().splitlines()
    notes = []
    for kept in (rows[:9], rows[:11]):
        (files / "few.csv").write_text("\n".join(kept))
        done = call("compare", files / "a.csv", "--ratings", files / "few.csv")
        assert done.returncode == 0, done.stderr
        notes.append(len(done.stdout.split("\n\n")[0].splitlines()))
    assert notes[0] > notes[1]
