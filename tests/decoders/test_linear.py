"""The linear decoder: its terms and scores by hand, exact order, preset files, refusals."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import pytest
from numpy.polynomial import legendre

from discode import decode
from discode._scales import FIVE, TEN, UNIT, Scale, get_scale
from discode.decoders import get_decoder, without_prior
from discode.decoders._bounds import truncation_bound
from discode.decoders._linear import FLOOR, SHAPES, Linear, linear_terms
from discode.decoders._preset import Preset
from discode.errors import InputError
from discode.readings import Readings
from tests.helpers.fake_model import random_logp


def made_up(scale: Scale = TEN, answers: int = 10) -> Linear:
    """Weights without a pattern, one for each term."""
    names = list(linear_terms(Readings.of(np.log(np.full(answers, 1 / answers)), scale))[1])
    weights = np.random.default_rng(1).normal(size=len(names) + 1).tolist()
    return Linear(dict(zip(["bias", *names], weights, strict=True)), scale.unique_name)


@pytest.fixture
def readings() -> Readings:
    logp = random_logp(np.random.default_rng(0), 50, 10)
    logp[3, 2:] = -np.inf
    logp[4] = np.nan
    return Readings.of(logp, TEN)


def test_terms_and_scores_are_those_of_the_definition(readings: Readings) -> None:
    terms = linear_terms(readings)[1]
    logp = readings.answer_logp[:, 0]
    odds = np.maximum(logp - logp.max(axis=1, keepdims=True), FLOOR)
    basis = legendre.legvander(np.linspace(-1, 1, 10), 3)
    shapes = dict(zip(SHAPES, (odds @ basis / 10).T, strict=True))
    expected = {"smoothing": get_decoder("smoothing").decode(readings).score, **shapes}
    for a, b in combinations_with_replacement(SHAPES, 2):
        expected[f"{a}*{b}"] = shapes[a] * shapes[b]
    assert [*terms] == [*expected]
    for name, term in terms.items():
        np.testing.assert_allclose(term, expected[name], atol=1e-12)
    decoder = made_up()
    score = decoder.decode(readings).score
    by_hand = decoder.weights["bias"] + sum(
        decoder.weights[name] * term for name, term in expected.items()
    )
    np.testing.assert_allclose(score, by_hand)
    assert np.isnan(score).tolist() == [row == 4 for row in range(50)]


def test_a_batch_equals_its_rows_to_the_last_bit(readings: Readings) -> None:
    decoder = made_up()
    whole = decoder.decode(readings)
    for row in range(len(readings)):
        one = decoder.decode(readings.take(np.array([row])))
        np.testing.assert_array_equal(one.score, whole.score[[row]])
        np.testing.assert_array_equal(one.distribution, whole.distribution[[row]])


def test_what_is_beside_the_score_is_smoothings(readings: Readings) -> None:
    decoded, plain = (d.decode(readings) for d in (made_up(), get_decoder("smoothing")))
    np.testing.assert_array_equal(decoded.distribution, plain.distribution)
    np.testing.assert_array_equal(decoded.raw, plain.raw)
    assert decoded.smoothing is not None
    np.testing.assert_array_equal(decoded.smoothing, plain.score)
    assert decoded.other is None
    errors = {4: "the reading holds NaN, or no mass on any answer"}
    assert decode(readings, made_up()).errors == errors


def test_smoothing_alone_keeps_its_exact_order() -> None:
    """Sure rows, whose other terms are all at the floor, do not tie."""
    names = linear_terms(Readings.of(np.log([0.2] * 5), FIVE))[1]
    weights = {**dict.fromkeys(["bias", *names], 0.5), "smoothing": 0.37}
    logp = np.array([[-gap, -gap, -gap, -gap, -1e-12] for gap in (25.0, 30.0, 40.0, 60.0)])
    score = Linear(weights, "five").decode(Readings.of(logp, FIVE)).score
    assert (np.diff(score) > 0).all()


@pytest.mark.parametrize(("scale", "count"), [("1-2", 6), ("1-3", 10), ("five", 15)])
def test_short_scales_have_fewer_terms(scale: str, count: int) -> None:
    made = get_scale(scale)
    readings = Readings.of(np.log(np.full(len(made.answers), 1 / len(made.answers))), made)
    assert len(linear_terms(readings)[1]) == count


def test_scale_unit_uses_both_stems() -> None:
    rng = np.random.default_rng(0)
    answers = np.log(rng.dirichlet(np.ones(10), (6, 2)))
    readings = Readings(UNIT, answers, np.log(np.tile([0.7, 0.3], (6, 1))))
    decoder = replace(made_up(), scale="unit")
    decoded = decoder.decode(readings)
    assert len(decoded.answers) == 11
    assert without_prior(decoder).options() == {"stem": "joint"}
    stems = np.array(readings.stem_logp)
    stems[2, 1] = np.nan
    scores = decode(Readings(UNIT, answers, stems), decoder)
    assert np.flatnonzero(np.isnan(scores.value)).tolist() == [2]
    assert "stem" in scores.errors[2]


def test_a_preset_keeps_every_digit(tmp_path: Path, readings: Readings) -> None:
    decoder, path = made_up(), tmp_path / "mine.json"
    path.write_text(Preset("linear", "ten", None, {}, decoder.weights).text())
    read = get_decoder(str(path))
    np.testing.assert_array_equal(read.decode(readings).score, decoder.decode(readings).score)
    assert json.loads(path.read_text())["weights"] == decoder.weights
    assert read.name == "linear"
    assert read.options().keys() == {"weights", "preset"}
    signature = decode(readings, str(path)).signature["decoder"]
    assert f"preset={read.options()['preset']}" in signature
    other = Linear({**decoder.weights, "bias": 0.0}, "ten")
    assert other.options() != decoder.options()
    with pytest.raises(InputError, match="fitted on scale 'ten', not on 'five'"):
        read.decode(Readings.of(np.log([0.2] * 5), FIVE))


def test_no_bound_is_claimed_where_answers_were_left_out() -> None:
    truncated = Readings.of({"5": -0.2, "4": -2.0, "the": -4.0}, FIVE, missing="spread")
    assert truncation_bound(made_up(FIVE, 5), truncated) is None
    assert np.isfinite(decode(truncated, made_up(FIVE, 5)).value).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": None},
        {"weights": {}},
        {"weights": []},
        {"weights": [1.0, 2.0]},
        {"weights": {"bias": 1.0}},
        {"weights": {"bias": "much"}},
        {"method": "smoothing"},
        {"weights": {**made_up().weights, "slope": math.inf}},
        {"weights": {**made_up().weights, "slope": None}},
        {"weights": {**made_up().weights, "tilt": 1.0}},
    ],
)
def test_broken_files_are_refused_by_name(changes: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    content = json.loads(Preset("linear", "ten", None, {}, made_up().weights).text())
    path.write_text(json.dumps(content | changes))
    with pytest.raises(InputError) as caught:
        get_decoder(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_linear_cannot_be_typed() -> None:
    with pytest.raises(InputError, match="linear"):
        get_decoder("linear")
