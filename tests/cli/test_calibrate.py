"""discode calibrate and --calibration: from ratings to an interval for every score."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from discode import Readings, decode, load
from discode._scales import FIVE
from discode.decoders import get_decoder
from discode.decoders._preset import RatingIntervals, read_preset
from tests.helpers.command_line import call, refused
from tests.helpers.fake_model import random_logp

ROWS = 300


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """Log-probabilities of "1" to "5" in one file, ratings and tasks of the same ids in another."""
    rng = np.random.default_rng(0)
    logp = random_logp(rng, ROWS, 5)
    mean = np.exp(logp) @ np.arange(1, 6)
    rating = np.clip(np.round(mean + rng.normal(size=ROWS)), 1, 5)
    readings = [{"id": f"r{i}", "log_probs": row.tolist()} for i, row in enumerate(logp)]
    (tmp_path / "readings.jsonl").write_text("\n".join(map(json.dumps, readings)))
    lines = ["id,image,rating,task"]
    lines += [f"r{i},{i // 2}.jpg,{y:g},{'ab'[i % 2]}" for i, y in enumerate(rating)]
    (tmp_path / "ratings.csv").write_text("\n".join(reversed(lines[1:])) + "\n")
    body = (tmp_path / "ratings.csv").read_text()
    (tmp_path / "ratings.csv").write_text(f"{lines[0]}\n{body}")
    return tmp_path


def calibrate(folder: Path, *more: object, method: object = "smoothing") -> Any:
    return call(
        "calibrate", "--readings", folder / "readings.jsonl", "--ratings", folder / "ratings.csv",
        "-s", "five", "-m", method, "-o", folder / "mine.json", "--resamples", 100, *more,
    )  # fmt: skip


def intervals_of(path: Path) -> RatingIntervals:
    intervals = read_preset(path, get_decoder).preset.intervals
    assert intervals is not None
    return intervals


def test_tables_of_readings_and_ratings(judged: Path) -> None:
    done = calibrate(judged, "--task", "task", "-f", "csv")
    assert done.returncode == 0, done.stderr
    rows = list(csv.reader(io.StringIO(done.stdout)))
    assert [row[0].split(" / ")[-1] for row in rows[1:]] == ["all", "a", "b"]
    assert [int(row[1]) for row in rows[1:]] == [ROWS, ROWS // 2, ROWS // 2]
    assert all(0.8 < float(row[2]) < 0.98 for row in rows[1:])
    content = json.loads((judged / "mine.json").read_text())
    assert content["chosen"]["images"] == ROWS // 2
    fitted = intervals_of(judged / "mine.json")
    # decode adds the columns, and Python gives the same numbers
    out = judged / "scores.jsonl"
    done = call(
        "decode", judged / "readings.jsonl", "-s", "five", "--calibration", judged / "mine.json",
        "-o", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first = json.loads(out.read_text().splitlines()[0])
    log_probs = json.loads((judged / "readings.jsonl").read_text().splitlines()[0])["log_probs"]
    scores = decode(Readings.of(log_probs, FIVE), str(judged / "mine.json"))
    assert scores.people is not None
    assert first["people"] == scores.people[0]
    p = np.exp(log_probs) / np.exp(log_probs).sum()
    width = np.sqrt(p @ np.arange(1, 6) ** 2 - (p @ np.arange(1, 6)) ** 2)
    _, low, high = fitted.apply(scores.value, np.array([width]))
    assert (first["low"], first["high"]) == (low[0], high[0])
    assert first["low"] in fitted.levels
    assert "preset=" in first["signature"]


def test_a_constant_width_and_another_level(judged: Path) -> None:
    wide = calibrate(judged, "--level", "0.95", "--kind", "constant")
    assert wide.returncode == 0, wide.stderr
    fitted = intervals_of(judged / "mine.json")
    assert (fitted.level, fitted.spread.rating) == (0.95, (1.0,))


def test_bad_use_of_calibrate_is_refused(judged: Path) -> None:
    refused(calibrate(judged, "--level", "0.999"), "images")
    ratings = (judged / "ratings.csv").read_text()
    for images, wanted in ((8, 18), (22, 23)):  # of 9 to set the width, and those of a fold
        (judged / "ratings.csv").write_text("\n".join(ratings.splitlines()[: 1 + 2 * images]))
        refused(calibrate(judged), wanted, images)
    (judged / "ratings.csv").write_text(ratings)
    refused(calibrate(judged, "--level", "1.5"), "level")
    refused(calibrate(judged, "--kind", "narrow"), "kind")
    refused(calibrate(judged, "--task", "nothing"), "column")
    refused(calibrate(judged, method="other"), "other")
    few = judged / "few"
    few.mkdir()
    for name in ("readings.jsonl", "ratings.csv"):
        lines = (judged / name).read_text().splitlines()
        (few / name).write_text("\n".join(lines[:13]))
    refused(calibrate(few), "rating")  # no rating of these rows
    assert calibrate(judged).returncode == 0
    refused(calibrate(judged, method=judged / "mine.json"), "preset")
    twice = (judged / "ratings.csv").read_text() + "r0,0.jpg,1,a\n"
    (judged / "ratings.csv").write_text(twice)
    refused(calibrate(judged), "id")


@pytest.mark.usefixtures("shipped")
def test_a_store_and_the_captions_it_was_read_from(tmp_path: Path) -> None:
    """score keeps readings, calibrate fits intervals to them, and score uses the file."""
    rng = np.random.default_rng(0)
    lines = ["image,caption,rating"]
    for i in range(24):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(tmp_path / f"{i}.png")
        lines += [f"{i}.png,{word},{rng.integers(1, 6)}" for word in ("a cat", "blue sky")]
    (tmp_path / "ratings.csv").write_text("\n".join(lines))
    source = ("score", "-i", tmp_path / "ratings.csv", "--images", tmp_path)
    scored = call(*source, "-o", tmp_path / "scores.jsonl")
    assert scored.returncode == 0, scored.stderr
    store, mine = tmp_path / "scores.jsonl.readings.db", tmp_path / "mine.json"
    asked = ("calibrate", "--readings", store, "--ratings", tmp_path / "ratings.csv")
    done = call(*asked, "--level", "0.7", "-o", mine, "--resamples", 100)
    assert done.returncode == 0, done.stderr
    image = tmp_path / "0.png"
    done = call("score", image, "a cat", "--calibration", mine, "--json")
    row = json.loads(done.stdout)
    assert 1 <= row["low"] <= row["high"] <= 5
    assert 1 <= row["people"] <= 5
    folder = tmp_path / "large"
    done = call(*source, "--calibration", mine, "-o", folder)
    assert done.returncode == 0, done.stderr
    first = json.loads(next(folder.glob("*.jsonl")).read_text().splitlines()[0])
    assert first["people"] == row["people"]
    scores = load("embedded", method=str(mine)).score(image, ["a cat", "a dog"])
    assert scores.people is not None
    assert scores[1:].people is not None
    # A caption judged by its sentences has no distribution, and no interval.
    whole = load("embedded", method=str(mine), by="sentence").score(image, "A cat. A dog.")
    assert whole.people is not None
    assert np.isfinite(whole.value[0])
    assert np.isnan(whole.people[0])

    refused(call("score", image, "a cat", "--calibration", mine, "-m", "raw"), "raw")
    assert call("score", image, "a", "--calibration", mine, "-m", "discode").returncode == 0
    content = json.loads(mine.read_text())
    for change in ({"model": "other"}, {"prompt": "other-1"}, {"revision": "other"}):
        other = content | {"intervals": content["intervals"] | {
            "asked": content["intervals"]["asked"] | change}}  # fmt: skip
        (tmp_path / "other.json").write_text(json.dumps(other))
        refused(call("score", image, "a cat", "--calibration", tmp_path / "other.json"), "other")
    (tmp_path / "other.json").write_text(json.dumps(content | {"scale": "ten"}))
    refused(call("score", image, "a cat", "--calibration", tmp_path / "other.json"), "ten")
    del content["intervals"]
    (tmp_path / "other.json").write_text(json.dumps(content))
    refused(call("score", image, "a cat", "--calibration", tmp_path / "other.json"), "intervals")
    refused(call(*asked, "--task", "task"), "--task")
    refused(call(*asked, "--level", "0.95"), "95 %")  # 12 images set the quantile, of 19 needed
