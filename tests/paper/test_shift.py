"""Rendered benchmarks: what is drawn, and that nothing is done twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discode._pairs import Pair
from discode._paper import StudySetup
from discode._paper.shift import STUDY, chosen_styles, render_benchmark
from discode._paper.styles import render
from discode._scales import Scale
from discode.bench._agreement import TAU_C_NOTES
from discode.benchmarks._base import Benchmark, Ratings
from discode.errors import InputError
from discode.images import image_digest
from discode.metrics import MetricFactory
from discode.readings import Readings
from tests.helpers.fake_model import FakeModel
from tests.helpers.fake_runs import QUICK


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
    monkeypatch.setattr("discode._paper.shift.render", None)  # would fail if it were called
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


class TwoDigits(FakeModel):
    """Prints 0.3 or 0.7, and is unsure about the other digits."""

    def answer_to(self, caption: str, scale: Scale, *, hidden: bool) -> Readings:
        read = super().answer_to(caption, scale, hidden=hidden)
        logits = read.answer_logp + 12 * (np.arange(10) == (7 if len(caption) % 4 < 2 else 3))
        logp = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        return replace(read, answer_logp=logp)


def test_decoders_are_compared_with_one_m_and_their_ties(rated: Benchmark) -> None:
    """People's ratings have more values than raw; τ_b, which rewards its ties, has their rates."""
    pairs = (replace(pair, caption="x" * n) for n, pair in enumerate(rated.pairs, 1))
    rated = replace(rated, pairs=tuple(pairs))
    model = TwoDigits()
    options = {"styles": "noisy", "methods": "raw+smoothing", "seed": 0, "rendered": None}
    protocol = replace(QUICK, tau_m="scipy")  # as discode paper has it
    setup = StudySetup({"mine": rated}, {"fake": MetricFactory(model=model)}, protocol=protocol,
                       options=options)  # fmt: skip
    table = STUDY.run(setup).tables["shift"]
    assert TAU_C_NOTES["people"] in table.notes
    assert [row[0] for row in table.rows] == ["photo", "noisy"]
    crowd = replace(setup, benchmarks={"crowd": replace(rated, name="flickr8k-cf")})
    result = STUDY.run(crowd)
    table = result.tables["shift"]
    log = result.logs["fake crowd@photo"]
    assert log.protocol.tau_m == "people"
    ties = [100 * log.results[name].measures["ties"].value for name in ("raw", "smoothing")]
    assert table.rows[-1] == ["ties %, photo", *ties]
    assert any(note.startswith("tie rates: raw") for note in table.notes)
    assert TAU_C_NOTES["people"] not in table.notes
