"""The studies with figures, as a user runs them: on small data, with real images and models."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discode.bench import RunLog
from discode.images import demo_path
from tests.helpers.command_line import refused, run
from tests.helpers.hostile_captions import HOSTILE

pytestmark = pytest.mark.usefixtures("shipped")


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ratings of captions of the demo's photographs, hostile ones among them."""
    folder = tmp_path_factory.mktemp("ratings")
    values = {kind: value for value, kind in enumerate(("wrong", "middling", "good"), 1)}
    rows = [
        {"image": str(demo_path() / row["image"]), "caption": row["caption"],
         "rating": values.get(row["kind"], 2), "id": f"d{i}"}
        for i, row in enumerate(read_csv(demo_path() / "captions.csv"))
    ] + [
        {"image": str(demo_path() / "cat.jpg"), "caption": text, "rating": 1, "id": f"h{i}"}
        for i, text in enumerate(HOSTILE)
        if text.strip()
    ]  # fmt: skip
    (folder / "ratings.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return folder


def study(name: str, *arguments: object, code: int = 0) -> str:
    done = run("paper", name, "--model", "embedded", "--resamples", 100, *arguments)
    assert done.returncode == code, done
    return done.stdout


def written(folder: Path, name: str, size: int = 300) -> None:
    """All formats are there, and the figure is one that can be looked at."""
    for suffix in ("txt", "md", "tex", "csv"):
        assert (folder / f"{name}.{suffix}").stat().st_size > 0
    with Image.open(folder / f"{name}.png") as drawn:
        assert min(drawn.size) > size
        assert np.asarray(drawn.convert("L")).std() > 5


def test_digits(ratings: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures want discode-eval[plot]")
    shown = study("digits", "--data", ratings, "-b", "custom", "-o", tmp_path, code=1)
    assert "lies above one hump" in shown  # half a character has no reading: exit code 1
    written(tmp_path, "digits")
    rows = read_csv(tmp_path / "digits.csv")
    assert sum(float(row["raw %"] or 0) for row in rows) == pytest.approx(100, abs=1e-3)
    assert sum(float(row["probability %"] or 0) for row in rows) == pytest.approx(100, abs=1e-3)
    assert (tmp_path / "readings.db").is_file()


def test_examples(ratings: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures want discode-eval[plot]")
    command = ("examples:count=4,first=raw,second=smoothing", "--data", ratings, "-b", "custom")
    shown = study(*command, "-o", tmp_path, code=1)  # as above
    assert "sides with people" in shown
    assert "\x1b" not in shown
    written(tmp_path, "examples")
    assert "<script>" not in (tmp_path / "examples.md").read_text(encoding="utf-8")
    (log,) = (tmp_path / "runs").glob("*.json")
    assert set(RunLog.load(log).results) == {"raw", "smoothing"}
    assert study(*command, "-o", tmp_path, code=1) == shown


def test_shift(ratings: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures want discode-eval[plot]")
    options = f"styles=noisy+sketch,rendered={tmp_path / 'drawn'}"
    data = ("--data", ratings, "-b", "custom", "--limit", 3)
    shown = study(f"shift:{options}", *data, "-o", tmp_path, code=1)  # as above
    assert "3 images, redrawn" in shown
    written(tmp_path, "shift", 200)
    assert len(list((tmp_path / "drawn" / "sketch-0").glob("*.png"))) == 3
    rows = {row["domain"]: row for row in read_csv(tmp_path / "shift.csv")}
    assert list(rows) == ["photo", "sketch", "noisy"]
    for style, row in rows.items():
        (path,) = (tmp_path / "runs").glob(f"*{style}.json")
        log = RunLog.load(path)
        assert log.benchmark == f"custom@{style}"
        expected = 100 * log.results["discode"].measures["tau_c"].value
        assert float(row["discode"]) == pytest.approx(expected, rel=1e-4)
    apart = {row["domain"]: row for row in read_csv(tmp_path / "shift-differences.csv")}
    assert float(apart["noisy"]["discode"]) == pytest.approx(
        float(rows["noisy"]["discode"]) - float(rows["noisy"]["smoothing"]), abs=1e-3
    )


def test_dataset_of_a_campaign(tmp_path: Path) -> None:
    row = {"image": "a.jpg", "domain": "real", "candidates": ["a dog", "a big cat"],
           "reference": "one dog", "preference": 0}  # fmt: skip
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg")
    (tmp_path / "mceval.jsonl").write_text(json.dumps(row))
    done = run("paper", "dataset", "--data", tmp_path, "-b", "mceval", "-f", "csv")
    assert done.returncode == 0, done
    sizes, people = done.stdout.split("\n\n")
    assert sizes.splitlines()[1] == "mceval,2,,2.5,,2"  # the paper's MCEval is other data
    assert people.splitlines()[1] == "mceval,1,2,1,,1"


def test_refusals(ratings: Path) -> None:
    data = ("--data", ratings, "-b", "custom")
    for command, word in (
        (("digits",), "--data"),
        (("dataset",), "--data"),
        (("examples:count=1", *data), "count=1"),
        (("examples:second=smoothing", *data), "itself"),
        (("examples:second=nobody", *data), "nobody"),
        (("shift", *data, "--limit", 0), "limit=0"),
        (("shift:styles=comic", *data), "comic"),
        (("shift:methods=discod", *data), "discod"),
        (("cost:random_weights=llava-next-9b",), "llava-next-9b"),
    ):
        refused(run("paper", *command, "--model", "embedded"), word)
