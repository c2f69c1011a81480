"""The choice of a decoder, by simulation where the truth is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from discode.bench.agreement import AgreementProtocol, measure_agreement
from discode.benchmarks import Preferences, Ratings
from discode.decoders import get_decoder
from discode.errors import InputError
from discode.readings import Readings
from discode.scales import FIVE, UNIT
from discode.studies.decoders import DecoderChoice, candidate_decoders, choose_decoder
from tests.helpers.simulated_ratings import SimulatedRatings, simulate

FEW = (
    "smoothing", "raw", "discode:alpha=1,tau=2", "discode:alpha=0", "discode:alpha=0.5",
    "discode:alpha=0.8", "discode:tau=2",
)  # fmt: skip
QUICK = AgreementProtocol(resamples=199)


def chosen(made: SimulatedRatings, specs: Sequence[str] = FEW, **options: bool) -> DecoderChoice:
    """The choice on a simulated set."""
    return choose_decoder(made.ratings, made.image, made.readings, specs, protocol=QUICK, **options)


@pytest.mark.parametrize("truth", [None, "smoothing"])
def test_nothing_is_claimed_where_there_is_nothing(truth: str | None) -> None:
    """100 sets of 40 images; perf/choose.py draws thousands."""
    claims = [chosen(simulate(seed, truth=truth, images=40)).beats_baseline for seed in range(100)]
    assert np.mean(claims) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)


def test_the_better_decoder_is_found_where_there_is_one() -> None:
    found = [chosen(simulate(seed, truth="discode:alpha=0.5", images=80)) for seed in range(20)]
    assert np.mean([one.beats_baseline for one in found]) > 0.7
    assert all(one.winner.startswith("discode") for one in found if one.beats_baseline)
    assert all(one.recommended == one.winner for one in found if one.beats_baseline)
    assert all(one.recommended == "smoothing" for one in found if not one.beats_baseline)


def test_agreement_on_all_images_is_that_of_the_bench() -> None:
    made = simulate(0)
    done = chosen(made)
    for spec, value in zip(done.specs, done.agreement.tolist(), strict=True):
        score = get_decoder(spec).decode(made.readings).score
        bench = measure_agreement(made.ratings, made.image, score, QUICK)
        assert value == pytest.approx(bench["tau_c"].value)
    assert done.nested.baseline == pytest.approx(done.agreement[0], abs=0.03)


def test_preferences_are_chosen_by_accuracy() -> None:
    made = simulate(0, truth="discode:alpha=0.5", images=300, captions=2)
    value = made.ratings.value
    left = np.arange(0, 600, 2)[value[::2] != value[1::2]]
    side = (value[left + 1] > value[left]).astype(np.int64)
    judged = Preferences(left, left + 1, side, ("all",) * len(left))
    done = choose_decoder(judged, made.image, made.readings, FEW, protocol=QUICK)
    score = get_decoder("smoothing").decode(made.readings).score
    bench = measure_agreement(judged, made.image, score, QUICK)
    assert (done.measure, done.images) == ("mean", len(left))
    assert done.agreement[0] == pytest.approx(bench["mean"].value)
    assert done.nested.baseline == pytest.approx(bench["mean"].value)
    with pytest.raises(InputError, match="needs ratings"):
        choose_decoder(judged, made.image, made.readings, FEW, protocol=QUICK, calibrated=True)


def test_calibration_is_of_the_recommended_decoder() -> None:
    made = simulate(3, truth="discode:alpha=0.5", images=120)
    done = chosen(made, calibrated=True)
    assert done.calibration is not None
    assert done.error is not None
    assert done.error.calibrated < done.error.constant
    score = get_decoder(done.recommended).decode(made.readings).score
    mapped = done.calibration.apply(score)
    assert np.mean(mapped) == pytest.approx(np.mean(made.ratings.value), abs=0.05)
    same = Ratings(made.ratings.pair, np.ones(len(made.ratings)), made.ratings.rater)
    with pytest.raises(InputError, match="ratings that differ"):
        choose_decoder(same, made.image, made.readings, FEW, calibrated=True)


def test_failed_pairs_are_counted_and_unusable_methods_named() -> None:
    rng = np.random.default_rng(0)
    answers = np.log(rng.dirichlet(np.ones(10), (120, 2))) + np.log(0.9)
    stems = np.tile(np.log([0.7, 0.2]), (120, 1))
    stems[:5, 1] = np.nan  # "joint" needs both stems
    answers[7] = np.nan
    readings = Readings(UNIT, answers, stems)
    judged = Ratings.of([(row, float(row % 4), 0) for row in range(120)])
    specs = ("smoothing", "smoothing:reading=greedy", "smoothing:reading=joint")
    done = choose_decoder(judged, np.arange(120) // 3, readings, specs, protocol=QUICK)
    assert (done.failed, done.judgments, done.images) == (1, 119, 40)
    assert done.specs == ("smoothing",)  # greedy gives the same scores here
    assert done.unusable == ("smoothing:reading=joint",)
    nothing = Readings.failed(UNIT, ["no"] * 120)
    with pytest.raises(InputError, match="every reading failed"):
        choose_decoder(judged, np.arange(120) // 3, nothing, specs)


def test_candidates_are_methods_that_can_be_typed() -> None:
    unit, five = candidate_decoders(UNIT), candidate_decoders(FIVE)
    assert next(iter(unit)) == next(iter(five)) == "smoothing"
    assert not any("reading" in spec for spec in five)
    assert {str(decoder.options().get("reading")) for decoder in unit.values()} == {
        "graded", "greedy", "joint",
    }  # fmt: skip
    assert {f"smoothing:reading={r}" for r in ("greedy", "joint")} < {*unit}
    assert "discode:tau=2,trust=0" in unit
    assert not any(decoder.requires for decoder in unit.values())
    assert any(decoder.requires for decoder in candidate_decoders(UNIT, hidden=True).values())
