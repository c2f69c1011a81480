"""Preset files: written, read as a method everywhere, named in signatures, refused where broken."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discode import decode, load
from discode._scales import FIVE, TEN, UNIT
from discode.decoders import get_decoder, named_decoder, without_prior
from discode.decoders._bounds import truncation_bound
from discode.decoders._preset import Calibration, Preset
from discode.errors import InputError
from discode.images import demo_path
from discode.metrics import MetricFactory
from discode.readings import Readings
from tests.helpers.fake_model import random_logp

CURVE = Calibration((1.0, 4.0, 8.0), (1.0, 1.5, 4.0))


def content(**changes: Any) -> str:
    """A preset file's text with some keys changed; None removes one."""
    whole = {
        "discode_preset": 1, "method": "smoothing", "scale": "ten", "calibration": None,
        "chosen": {},
    } | changes  # fmt: skip
    return json.dumps({key: value for key, value in whole.items() if value != "absent"})


def write(path: Path, preset: Preset) -> str:
    """Write a preset file, and return its digest."""
    path.write_text(preset.text(), encoding="utf-8")
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


@pytest.fixture
def readings() -> Readings:
    return Readings.of(random_logp(np.random.default_rng(0), 50, 10), TEN)


@pytest.mark.parametrize(
    "method", ["smoothing", "raw", "discode:tau=2", "paper", "jensen-shannon", "discode:alpha=1"]
)
def test_a_preset_decodes_as_the_method_it_names(
    method: str, tmp_path: Path, readings: Readings
) -> None:
    path = tmp_path / "mine.json"
    digest = write(path, Preset(method, "ten"))
    decoder, plain = get_decoder(str(path)), get_decoder(method)
    assert (decoder.name, decoder.requires) == (plain.name, plain.requires)
    assert decoder.options() == {**plain.options(), "preset": digest}
    np.testing.assert_array_equal(decoder.decode(readings).score, plain.decode(readings).score)
    assert without_prior(decoder) == without_prior(plain)


def test_a_calibrated_preset_scores_on_the_peoples_scale(
    tmp_path: Path, readings: Readings
) -> None:
    path = tmp_path / "mine.json"
    write(path, Preset("smoothing", "ten", CURVE, {"verdict": "yes"}))
    decoder, plain = get_decoder(str(path)), get_decoder("smoothing")
    decoded, before = decoder.decode(readings), plain.decode(readings)
    np.testing.assert_allclose(decoded.score, np.interp(before.score, [1, 4, 8], [1, 1.5, 4]))
    np.testing.assert_array_equal(decoded.raw, before.raw)
    assert decoder.options()["calibrated"] is True
    nothing = Readings.of(np.full(10, np.nan), TEN)
    assert np.isnan(decoder.decode(nothing).score).all()
    with pytest.raises(InputError, match="scale 'ten', not on 'five'"):
        decoder.decode(Readings.of(np.log([0.2] * 5), FIVE))


def test_a_bound_follows_the_calibration(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    write(path, Preset("smoothing", "five", Calibration((1.0, 5.0), (10.0, 50.0))))
    readings = Readings.of({"5": -0.2, "4": -2.0, "the": -4.0}, FIVE, missing="spread")
    plain, ten = (truncation_bound(get_decoder(m), readings) for m in ("smoothing", str(path)))
    assert plain is not None
    assert ten is not None
    np.testing.assert_allclose(ten, 10 * plain)


def test_the_signature_names_the_file_by_digest(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    digest = write(path, Preset("discode:tau=2", "unit", Calibration((0.0, 1.0), (1.0, 4.0))))
    scores = load("embedded", method=str(path)).score(demo_path() / "cat.jpg", "a cat")
    assert f"preset={digest}" in scores.signature["decoder"]
    assert "calibrated=true" in scores.signature["decoder"]
    assert scores.value[0] > 1
    assert f"preset={digest}" in decode(np.log([0.1] * 10), str(path), UNIT).signature["decoder"]


@pytest.mark.parametrize("prefix", ["", "ref-"])
def test_a_factory_makes_a_judge_of_a_preset(prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    digest = write(path, Preset("smoothing", "unit"))
    metric = MetricFactory("embedded").make(f"{prefix}{path}")
    assert digest in metric.signature["decoder"]
    assert ("references" in metric.needs) == bool(prefix)


def test_names_from_strangers_open_no_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    write(path, Preset("smoothing", "ten"))
    with pytest.raises(InputError, match="unknown method"):
        named_decoder(str(path))


def test_options_are_not_changed_beside_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    write(path, Preset("discode", "ten"))
    with pytest.raises(InputError, match="takes no options"):
        get_decoder(str(path), sigma2=1.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        content(discode_preset=2),
        content(calibration="absent"),
        content(method=3),
        content(method="discode:sigma2=-1"),
        content(method="other.json"),
        content(calibration={"score": [1, 2]}),
        content(calibration={"score": [1, 2], "rating": [1]}),
        content(calibration={"score": [2, 1], "rating": [1, 2]}),
        content(calibration={"score": [1, 2], "rating": [2, 1]}),
        b"\xff\xfe",
        None,
    ],
)
def test_broken_files_are_refused_by_name(text: str | bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(InputError) as caught:
        get_decoder(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
