"""What the service says of its judge: facts of the shipped one, none of another."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from discode._judge import load
from discode.backends._embedded import SHA256
from tests.helpers.fake_model import FakeModel
from tests.helpers.serving import running

# Behind the skip for want of fastapi:
from discode._serve.about import EMBEDDED, OTHERS, OWN, RANDOM  # isort: skip

CARD = (Path(__file__).parents[2] / "docs" / "MODEL_CARD.md").read_text(encoding="utf-8")


def card_row(name: str) -> list[float]:
    found = re.search(rf"^\| {name} \| ([\d.]+) \| ([\d.]+) \|$", CARD, re.M)
    assert found, name
    return [float(value) for value in found.groups()]


def test_the_numbers_are_those_of_the_model_card() -> None:
    assert SHA256 in CARD
    typical = re.findall(r"^\| (?:Flickr8k|COCO) \| discode \| (.+) \|$", CARD, re.M)
    own, other, _, above, _ = np.array(
        [[float(cell.strip(" %")) for cell in row.split("|")] for row in typical]
    ).T
    assert own.mean() == pytest.approx(OWN, abs=0.005)
    assert other.mean() == pytest.approx(RANDOM, abs=0.005)
    said = "one wrong colour or number goes unnoticed in every eighth caption"
    assert said in " ".join(CARD.split())
    assert "every eighth wrong colour or number escapes it" in EMBEDDED
    for name in ("colour", "number"):
        assert 100 - sum(card_row(name)) / 2 == pytest.approx(100 / 8, abs=1)
    assert f"({above.min():.0f} to {above.max():.0f} % of them are above 0.8)" in EMBEDDED
    assert f"average {OWN}" in EMBEDDED
    assert f"other photographs {RANDOM:.2f}" in EMBEDDED


def test_of_another_judge_or_method_nothing_is_claimed(shipped: Path) -> None:
    judge = load("embedded", threads=1)
    for own, method, typical, note in (
        (judge, "discode", {"own": OWN, "random": RANDOM}, EMBEDDED),
        (judge, "raw", None, OTHERS),
        (load(FakeModel()), "discode", None, OTHERS),
    ):
        with running(own, method=method) as client:
            (model,) = client.get("/v1/models").json["models"]
            assert (model["typical"], model["note"]) == (typical, note)
            assert model["range"] == [0, 1]
            assert model["references"] == (own is not judge)  # the shipped one takes none
