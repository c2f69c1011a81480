"""Captions and images out of repositories, from one that is made here."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from tests.helpers.training_stand_ins import command
from training import gather


def commit(repo: Path) -> None:
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"],
    ):
        subprocess.run(["git", "-C", str(repo), *words], check=True)


def test_captions_of_lists_are_added_where_they_may_be_trained_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, labels = tmp_path / "repo", tmp_path / "labels"
    (repo / "data").mkdir(parents=True)
    labels.mkdir()
    (repo / "data" / "mscoco.csv").write_text(
        "image_id,text\n"
        "1,A Dog runs.\n1,a cat   sleeps\n1,A cat sleeps .\n"  # two of them say the same
        "2,of a dev image\n3,of an image with boxes\n4,of an image that is not to be used\n"
    )
    commit(repo)
    rows = [
        {"image": "train2017/000000000001.jpg", "split": "train", "captions": ["a dog runs"]},
        {"image": "train2017/000000000002.jpg", "split": "dev", "captions": ["a bus"]},
    ]
    (labels / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    boxed = {"image": "train2017/000000000003.jpg", "split": "train", "count": {}, "largest": {}}
    (labels / "objects.jsonl.gz").write_bytes(gzip.compress(json.dumps(boxed).encode()))
    command(monkeypatch, gather.main, "captions", repo, tmp_path / "more", labels)
    lines = (tmp_path / "more" / "captions.jsonl").read_text().splitlines()
    assert [(int(Path(r["image"]).stem), r["captions"]) for r in map(json.loads, lines)] == [
        (1, ["a dog runs", "a cat sleeps"]),
        (2, ["a bus"]),
        (3, ["of an image with boxes"]),
    ]


def test_drawings_stand_on_white_with_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = tmp_path / "repo"
    for name, group in (("Red Fox", "Animals & Nature"), ("Up arrow", "Symbols")):
        folder = repo / "assets" / name
        (folder / "3D").mkdir(parents=True)
        (folder / "metadata.json").write_text(json.dumps({"group": group}))
        Image.new("RGBA", (20, 10), (255, 0, 0, 255)).save(folder / "3D" / "a_3d.png")
        Image.new("RGBA", (20, 10), (0, 255, 0, 255)).save(folder / "a_flat.png")
    commit(repo)
    command(monkeypatch, gather.main, "emoji", repo, tmp_path / "emoji")
    (line,) = (tmp_path / "emoji" / "captions.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert row["captions"][0] == "red fox"
    assert all("red fox" in caption for caption in row["captions"])
    image = Image.open(tmp_path / "emoji" / row["image"])
    assert image.size == (256, 256)
    assert image.getpixel((128, 128)) == (255, 0, 0)
    assert image.getpixel((128, 5)) == (255, 255, 255)  # what is wide is not stretched
