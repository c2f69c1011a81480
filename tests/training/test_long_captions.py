"""Sentences of long captions, told apart by whether what they name is there."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discode.images import demo_path
from training import common, long_captions

CAT = "train2017/1.jpg"
CAPTION = "A cat. A bus. Two buses are there, and a bear. A cat with a teddy bear. A couch."
AGAIN = "A cat. It looks up. There is a dog behind it. Its fur is brown."


@pytest.mark.usefixtures("shipped")
def test_what_is_not_there_is_told_by_boxes_and_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(name: str, *rows: dict[str, Any]) -> None:
        with gzip.open(tmp_path / "labels" / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps({"image": CAT, **row}) + "\n" for row in rows)

    (tmp_path / "labels").mkdir()
    monkeypatch.setattr(common, "BUILD", tmp_path)
    (tmp_path / "1.jpg").write_bytes((demo_path() / "cat.jpg").read_bytes())
    names = ("cat", "bus", "bear", "teddy bear", "sofa", "dog")
    every = {"count": dict.fromkeys(names, 1), "largest": dict.fromkeys(names, 0.1)}
    write("objects", {**every, "image": "train2017/2.jpg"},
          {"count": {"cat": 1}, "largest": {"cat": 0.5}})  # fmt: skip
    write("machine_captions", {"caption": CAPTION}, {"caption": AGAIN}, {"caption": "a cat"})
    captions = tmp_path / "captions.jsonl"
    people = {"image": CAT, "split": "train", "captions": ["a cat and a teddy bear on a couch"]}
    captions.write_text(json.dumps(people))
    monkeypatch.setattr(sys, "argv", ["long_captions", str(captions), str(tmp_path)])
    long_captions.main()
    lines = capsys.readouterr().out.splitlines()
    assert "2 against 3" in lines[0]  # the bus with the bear, and the dog
    assert "2 against 2" in lines[1]  # fur is no thing
    assert "1 against 3" in lines[2]
    assert "by:sentence" in lines[-1]


def test_auc_counts_ties_half() -> None:
    """As the definition has it, couple by couple."""
    score, low = np.array([0.1, 0.5, 0.5, 0.9, 0.3]), np.array([True, True, False, False, False])
    couples = [(a > b) + (a == b) / 2 for a in score[~low] for b in score[low]]
    found = long_captions.auc(low, score)
    assert found(np.ones(5, int)) == pytest.approx(np.mean(couples))
    assert found(np.array([1, 0, 1, 1, 2])) == 1.0
