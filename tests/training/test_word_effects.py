"""What right words add to the shipped judge's scores."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from discode._judge import load
from discode.images import demo_path
from training import word_effects

pytestmark = pytest.mark.usefixtures("shipped")


def test_means_of_dev_images_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cat = (demo_path() / "cat.jpg").read_bytes()
    for name in ("1.jpg", "2.jpg", "3.jpg"):
        (tmp_path / name).write_bytes(cat)
    rows = [("1", "dev", "a cat and a dog"), ("2", "dev", "a cat"), ("3", "train", "a pig"),
            ("4", "dev", "a cow")]  # fmt: skip
    captions = tmp_path / "captions.jsonl"
    captions.write_text(
        "\n".join(
            json.dumps({"image": f"train2017/{name}.jpg", "split": split, "captions": [caption]})
            for name, split, caption in rows
        )
    )
    pairs = word_effects.dev_pairs(captions, tmp_path)
    assert [pair.caption for pair in pairs] == ["a cat and a dog", "a cat"]
    explained = load("embedded").explain_pairs(pairs)
    effects = word_effects.mean_effects(explained)
    cats = [each.spans[0].effect for each in explained]
    assert effects["subject"][0] == pytest.approx(sum(cats) / 2)
    assert effects["subject"][1] == 2
    assert effects["noun"] == (explained[0].spans[1].effect, 1)
    assert effects.keys() == {"subject", "noun"}
    monkeypatch.setattr(sys, "argv", ["word_effects", str(captions), str(tmp_path)])
    word_effects.main()
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[:2]] == ["subject", "noun"]
    assert "of 1 captions" in printed
