"""Rendered benchmarks: what is drawn, and that nothing is done twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discode.benchmarks.base import Benchmark, Ratings
from discode.errors import InputError
from discode.images import image_digest
from discode.pairs import Pair
from discode.paper.shift import chosen_styles, render_benchmark
from discode.paper.styles import render


@pytest.fixture
def rated(tmp_path: Path) -> Benchmark:
    rng = np.random.default_rng(0)
    pairs = []
    for i in range(6):
        path = tmp_path / f"{i}.png"
        Image.fromarray(rng.integers(0, 255, (24, 32, 3), np.uint8)).save(path)
        pairs += [Pair(str(path), f"{word} {i}", (), f"{i}{word}") for word in ("a", "b")]
    judged = Ratings.of([(i, float(i), 0) for i in range(12)])
    return Benchmark("mine", {"k": "v"}, tuple(pairs), judged, np.arange(12) // 2, {"f": "x"})


def test_drawn_once_and_known_by_digest(
    rated: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = render_benchmark(rated, "sketch", tmp_path / "drawn")
    assert drawn.name == "mine@sketch"
    assert drawn.options["style"] == "sketch"
    assert [pair.caption for pair in drawn.pairs] == [pair.caption for pair in rated.pairs]
    for old, new in zip(rated.pairs, drawn.pairs, strict=True):
        assert image_digest(Image.open(str(new.image))) == image_digest(
            render(Image.open(str(old.image)), "sketch")
        )
    monkeypatch.setattr("discode.paper.shift.render", None)  # would fail if it were called
    again = render_benchmark(rated, "sketch", tmp_path / "drawn")
    assert [pair.image for pair in again.pairs] == [pair.image for pair in drawn.pairs]
    assert render_benchmark(rated, "photo", tmp_path).pairs == rated.pairs


def test_an_image_that_cannot_be_opened_stays(rated: Benchmark, tmp_path: Path) -> None:
    Path(str(rated.pairs[0].image)).write_text("not an image")
    drawn = render_benchmark(rated, "noisy", tmp_path / "drawn")
    assert drawn.pairs[0].image == rated.pairs[0].image
    assert drawn.pairs[2].image != rated.pairs[2].image


def test_styles() -> None:
    assert chosen_styles("noisy") == ["photo", "noisy"]
    assert chosen_styles("all")[0] == "photo"
    with pytest.raises(InputError, match="sketsch"):
        chosen_styles("sketsch")
