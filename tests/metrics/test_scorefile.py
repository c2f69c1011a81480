from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discode._pairs import Pair
from discode.errors import InputError
from discode.metrics._scorefile import ScoreFile

PAIRS = [Pair("in/a.jpg", "a dog", (), "0"), Pair("b.jpg", "a cat ", (), "1"), Pair("b.jpg", "x")]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_by_image_and_caption(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        {"image": "./b.jpg", "caption": "a cat", "score": 0.25, "other": 7},
        {"image": "a.jpg", "caption": "a dog", "score": None, "other": 8},
        {"image": "c.jpg", "caption": "a dog", "score": 1, "other": 9},
    ]
    path = write(tmp_path / "s.jsonl", "\n".join(map(json.dumps, rows)))
    done: list[int] = []
    scores = ScoreFile(path).score_pairs(PAIRS, progress=done.append)
    assert done == [3]
    np.testing.assert_array_equal(scores.value, [np.nan, 0.25, np.nan])
    assert scores.errors[0] == "s.jsonl line 2 has no score"
    assert scores.errors[2] == "s.jsonl has no row for 'b.jpg' with 'x'"
    assert scores.counts() == {"failed": 2}
    assert "|metric:scorefile|file:s.jsonl|column:score|digest:" in str(scores.signature)
    assert caplog.messages == [
        "s.jsonl has no score for 1 of 3 pairs ('b.jpg' with 'x'); 1 of its rows match no pair"
    ]
    other = ScoreFile(f"{path}#other")
    np.testing.assert_array_equal(other.score_pairs(PAIRS[:2]).value, [8, 7])
    assert other.needs == {"id"}


def test_images_of_one_file_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    pairs = [Pair(f"d/{name}", "a cat") for name in ("sketch/1.jpg", "real/1.jpg", "real/2.jpg")]

    def scores(*names: str) -> Any:
        rows = [f"{name},a cat,{score}" for score, name in enumerate(names, start=1)]
        path = write(tmp_path / "s.csv", "\n".join(["image,caption,score", *rows]))
        return ScoreFile(path).score_pairs(pairs).value.tolist()

    nan = float("nan")
    np.testing.assert_array_equal(scores("sketch/1.jpg"), [1, nan, nan])
    np.testing.assert_array_equal(scores("1.jpg", "2.jpg"), [nan, nan, 2])  # 1.jpg may be either
    whole = str(Path("d/real/1.jpg").absolute())
    np.testing.assert_array_equal(scores(whole, "d/sketch/1.jpg"), [2, 1, nan])
    for names in (("photo/1.jpg",), ("1.jpg",)):
        with pytest.raises(InputError, match="none of the 3 pairs"):
            scores(*names)
    with pytest.raises(InputError, match=r"line 3 .* line 2"):
        scores("2.jpg", "real/2.jpg")  # two scores of one pair


def test_by_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "s.tsv", "id\tscore\n1\t3\n0\t2\n0\t2.0\n")
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(ScoreFile(path).score_pairs(PAIRS[:2]).value, [2, 3])
    assert not caplog.records
    many = [*PAIRS[:1], *(Pair("x", "y", (), f"n{i}") for i in range(5))]
    assert ScoreFile(path).score_pairs(many).counts() == {"failed": 5}
    assert caplog.messages == [
        "s.tsv has no score for 5 of 6 pairs (id 'n0', id 'n1', id 'n2'...); "
        "1 of its rows match no pair"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,score\n0,1\n0,2\n", "line 3 .* line 2"),
        ("id,score\n0,high\n", "line 2: score"),
        ("id,score\n0,inf\n", "line 2: score"),
        ("id,value\n0,1\n", "'score'"),
        ("image,score\na.jpg,1\n", "line 2"),
        ("id,score\n", r"bad\.csv"),
        ("id,score\n7,1\n", "3 pairs"),
        ("id,caption,score\n0,a whale,1\n", "'a whale'"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "bad.csv", text)
    with pytest.raises(InputError, match=message):
        ScoreFile(path).score_pairs(PAIRS)


def test_names_of_files(tmp_path: Path) -> None:
    path = write(tmp_path / "run#2.csv", "id,score\n0,1\n")
    assert float(ScoreFile(path).score_pairs(PAIRS[:1])) == 1
    for bad in (tmp_path / "none.csv", write(tmp_path / "s.txt", "0 1")):
        with pytest.raises(InputError, match=bad.name):
            ScoreFile(bad)
