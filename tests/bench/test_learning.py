"""Fitting a linear decoder: the solution by hand, held-out folds unseen, claims by simulation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discode._scales import TEN
from discode.bench._agreement import AgreementProtocol
from discode.bench._choose import DecoderChoice, choose_decoder
from discode.bench._learning import RIDGE, LearnedDecoder, _helpers, learn_linear, ridge
from discode.benchmarks import Preferences, Ratings
from discode.decoders import get_decoder
from discode.decoders._linear import Linear, linear_terms
from discode.errors import InputError
from discode.readings import Readings
from tests.helpers.command_line import call, refused
from tests.helpers.simulated_ratings import SimulatedRatings, simulate

QUICK = AgreementProtocol(resamples=199)
FEW = {spec: get_decoder(spec) for spec in ("smoothing", "raw", "discode:trust=4")}


def bent(seed: int, images: int, strength: float = 0.8) -> SimulatedRatings:
    """People rate by the slope of the log-probabilities, which no formula uses."""
    made = simulate(seed, truth=None, images=images)
    rng = np.random.default_rng(seed)
    slope = linear_terms(made.readings)[1]["slope"]
    value = strength * slope / slope.std() + (1 - strength) * rng.normal(size=len(slope))
    level = np.digitize(value, np.quantile(value, [0.25, 0.5, 0.75])) + 1.0
    return SimulatedRatings(
        made.readings, made.image, Ratings(made.ratings.pair, level, made.ratings.rater)
    )


def choices(made: SimulatedRatings) -> Preferences:
    """Choices between the first two captions of each image; of equals the left one."""
    left = np.flatnonzero(np.diff(made.image, prepend=-1))
    side = (made.ratings.value[left + 1] > made.ratings.value[left]).astype(np.int64)
    return Preferences(left, left + 1, side, ("all",) * len(left))


def learned(
    made: SimulatedRatings, judged: Ratings | Preferences, count: int = 5
) -> LearnedDecoder:
    """The fits with image i in fold i modulo ``count``."""
    return learn_linear(judged, made.readings, made.image % count, count)


def chosen(made: SimulatedRatings) -> DecoderChoice:
    return choose_decoder(made.ratings, made.image, made.readings, FEW, protocol=QUICK, learn=True)


@given(st.integers(0, 1000), st.integers(1, 30), st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_ridge_is_the_closed_form(seed: int, rows: int, terms: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(rows, terms)), rng.normal(size=rows)
    penalty = rng.uniform(0.1, 10, terms)
    expected = np.linalg.solve(x.T @ x + np.diag(penalty), x.T @ y)
    np.testing.assert_allclose(ridge(x, y, penalty), expected, atol=1e-8)


@pytest.mark.parametrize("kind", ["ratings", "choices"])
def test_weights_minimise_the_loss_over_pairs(kind: str) -> None:
    """The normal equations of (±1 - difference of scores)², summed over pairs of captions."""
    made = simulate(0, images=30)
    judged = made.ratings if kind == "ratings" else choices(made)
    decoder = learned(made, judged).decoder
    terms = np.array([*linear_terms(made.readings)[1].values()]).T
    if isinstance(judged, Ratings):
        a, b = (index.ravel() for index in np.indices((len(judged), len(judged))))
        target, seen = np.sign(judged.value[a] - judged.value[b]), terms
        weight = RIDGE * len(judged) * 2  # each caption is in so many of the pairs
    else:
        a, b = judged.left, judged.right
        target, seen, weight = 1.0 - 2 * judged.chosen, terms[np.r_[a, b]], RIDGE
    z = (terms - seen.mean(axis=0)) / seen.std(axis=0)
    x = z[a] - z[b]
    penalty = np.diag([0.0] + [float(weight)] * 14)
    w = np.linalg.solve(x.T @ x + penalty, x.T @ target)
    score = decoder.decode(made.readings).score
    assert np.corrcoef(z @ w, score)[0, 1] == pytest.approx(1, abs=1e-9)
    at = np.arange(len(terms)) if isinstance(judged, Ratings) else np.r_[a, b]
    assert score[at].mean() == pytest.approx(terms[at, 0].mean())
    assert score[at].std() == pytest.approx(terms[at, 0].std())


@pytest.mark.parametrize("kind", ["ratings", "choices"])
@given(seed=st.integers(0, 100), fold=st.integers(0, 4))
@settings(max_examples=8, deadline=None)
def test_held_out_judgments_change_nothing(kind: str, seed: int, fold: int) -> None:
    made = simulate(seed, images=25)
    judged = made.ratings if kind == "ratings" else choices(made)
    rng = np.random.default_rng(seed)
    changed: Ratings | Preferences
    if isinstance(judged, Ratings):
        inside = made.image % 5 == fold
        value = np.where(inside, rng.normal(size=len(judged)), judged.value)
        changed = Ratings(judged.pair, value, judged.rater)
    else:
        side = np.where(made.image[judged.left] % 5 == fold, 1 - judged.chosen, judged.chosen)
        changed = Preferences(judged.left, judged.right, side, judged.category)
    before, after = learned(made, judged), learned(made, changed)
    rows = made.image % 5 == fold
    np.testing.assert_array_equal(before.score[rows], after.score[rows])
    np.testing.assert_array_equal(before.without[fold, ~rows], after.without[fold, ~rows])
    assert before.by_fold[fold] == after.by_fold[fold]
    assert before.decoder != after.decoder


@pytest.mark.parametrize("count", [5, 6, 7, 10])
def test_of_two_folds_one_at_most_helps_the_other(count: int) -> None:
    helps = [_helpers(fold, count) for fold in range(count)]
    assert all(len(helpers) >= 2 for helpers in helps)  # one is left when another is held out
    for a in range(count):
        assert a not in helps[a]
        assert not any(a in helps[b] and b in helps[a] for b in range(count))


def test_fewer_folds_are_refused() -> None:
    made = simulate(0, images=30)
    with pytest.raises(InputError, match="--learn requires --folds 5 or more; given: 4"):
        learned(made, made.ratings, 4)


def test_nothing_is_claimed_where_there_is_nothing() -> None:
    """100 sets of 40 images; perf/choose.py --learn draws thousands."""
    claims = [chosen(simulate(seed, truth=None, images=40)).beats_baseline for seed in range(100)]
    assert np.mean(claims) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)


def test_it_is_found_where_it_is_better_and_fitted_on_all_images() -> None:
    done = [chosen(bent(seed, images=60)) for seed in range(5)]
    assert sum(choice.recommended == "linear" for choice in done) >= 4
    for choice in done:
        assert choice.specs[-1] == "linear"
        assert choice.learned is not None
    made = bent(0, images=60)
    without = choose_decoder(made.ratings, made.image, made.readings, FEW, protocol=QUICK)
    assert without.learned is None
    assert "linear" not in without.specs


def test_readings_without_a_score_stay_out_of_the_fit() -> None:
    made = bent(0, images=60)
    logp = np.array(made.readings.answer_logp[:, 0])
    logp[:7] = np.nan
    readings = Readings.of(logp, TEN)
    done = choose_decoder(made.ratings, made.image, readings, FEW, protocol=QUICK, learn=True)
    assert (done.failed, done.unusable) == (7, ())
    assert done.learned is not None
    score = done.learned.decode(readings).score
    assert np.isnan(score).tolist() == [row < 7 for row in range(300)]
    judged = choices(made)
    done = choose_decoder(judged, made.image, readings, FEW, protocol=QUICK, learn=True)
    assert done.failed == 2
    assert "linear" in done.specs


def test_calibration_is_of_the_decoder_in_the_preset() -> None:
    made = bent(1, images=100)
    done = choose_decoder(
        made.ratings, made.image, made.readings, FEW, protocol=QUICK, learn=True, calibrated=True
    )
    assert done.recommended == "linear"
    assert done.learned is not None
    assert done.calibration is not None
    assert done.error is not None
    score = done.learned.decode(made.readings).score
    assert score.min() <= done.calibration.score[0]
    assert done.calibration.score[-1] <= score.max()
    assert done.error.calibrated < 0.8 * done.error.constant


def test_the_command_from_readings_to_scores(tmp_path: Path) -> None:
    made = bent(0, images=60)
    rows = [
        json.dumps({"image": image, "people": value, "log_probs": logp})
        for image, value, logp in zip(
            made.image.tolist(), made.ratings.value.tolist(),
            made.readings.answer_logp[:, 0].tolist(), strict=True,
        )
    ]  # fmt: skip
    file, out = tmp_path / "a.jsonl", tmp_path / "out"
    file.write_text("\n".join(rows))
    command = ("choose", "--readings", file, "--rating-column", "people", "--resamples", 199)
    assert "linear" not in call(*command).stdout
    done = call(*command, "--learn", "-o", out)
    assert done.returncode == 0, done.stderr
    assert "linear beats smoothing: +" in done.stdout
    assert "linear is fitted" in done.stdout
    content = json.loads((out / "decoder.json").read_text())
    assert content["method"] == "linear"
    expected = learn_linear_on_all(made).weights
    assert content["weights"] == pytest.approx(expected)
    scored = call("decode", file, "-m", out / "decoder.json", "-o", tmp_path / "scores.csv")
    assert scored.returncode == 0, scored.stderr
    assert "preset=" in (tmp_path / "scores.csv").read_text() + scored.stdout
    refused(call("decode", file, "--scale", "1-10", "-m", out / "decoder.json"), "'ten'")
    refused(call(*command, "--learn", "--folds", 3), "--learn", "--folds 5")


def learn_linear_on_all(made: SimulatedRatings) -> Linear:
    """The decoder of all images, whatever the folds are."""
    return learned(made, made.ratings).decoder
