"""Agreement with people: against scipy, by hand, and where something is missing."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau

from discode.bench import AgreementProtocol, measure_agreement
from discode.bench._agreement import note_ties
from discode.benchmarks import Preferences, Ratings
from discode.errors import InputError
from tests.helpers.fake_runs import QUICK, coarse_run, preferred, rated


def test_ratings_against_scipy() -> None:
    bench, value = rated(), np.array([len(p.caption) for p in rated().pairs], float)
    value[:7] = np.nan
    judged = bench.judgments
    assert isinstance(judged, Ratings)
    found = measure_agreement(judged, bench.image, value, QUICK)
    rows = ~np.isnan(value[judged.pair])
    x, y = value[judged.pair][rows], judged.value[rows]
    for variant in ("b", "c"):
        expected = kendalltau(x, y, variant=variant).statistic
        one = found[f"tau_{variant}"]
        assert math.isclose(one.value, expected, abs_tol=1e-12)
        assert one.low < one.value < one.high
    assert math.isclose(found["failed"].value, 7 / len(bench.pairs))
    assert 0 < found["acc23"].value <= found["acc_tied"].value <= 1


def test_preferences_by_hand() -> None:
    judged = Preferences.of([(0, 1, 0, "a"), (0, 1, 1, "a"), (2, 3, 0, "b"), (2, 3, 0, "b")])
    value = np.array([2.0, 1.0, 5.0, 5.0])
    image = np.array([0, 0, 1, 1])
    found = measure_agreement(judged, image, value, QUICK)
    assert (found["a"].value, found["b"].value, found["mean"].value) == (0.5, 0.0, 0.25)
    assert found["ties"].value == 0.5
    half = measure_agreement(judged, image, value, replace(QUICK, ties="half"))
    assert half["mean"].value == 0.5
    value[1] = np.nan  # a choice without a score is wrong, and not left out
    found = measure_agreement(judged, image, value, QUICK)
    assert (found["a"].value, found["failed"].value) == (0.0, 0.5)


def test_without_any_score_everything_is_nan() -> None:
    for bench in (rated(), preferred()):
        nothing = np.full(len(bench.pairs), np.nan)
        found = measure_agreement(bench.judgments, bench.image, nothing, QUICK)
        assert found["failed"].value == 1
        assert all(np.isnan(found[name].value) for name in found if name != "failed")


def test_one_image_has_no_interval() -> None:
    bench = rated(images=1, captions=12)
    value = np.arange(len(bench.pairs), dtype=float)
    one = measure_agreement(bench.judgments, bench.image, value, QUICK)["tau_c"]
    assert np.isfinite(one.value)
    assert np.isnan([one.low, one.high]).all()
    bench, none = rated(), AgreementProtocol(resamples=0)
    found = measure_agreement(bench.judgments, bench.image, np.arange(400.0), none)
    assert np.isnan(found["tau_c"].low)


@pytest.mark.parametrize("metric", ["coarse", "fine"])
def test_m_is_peoples_unless_scipys_is_asked_for(metric: str) -> None:
    log = coarse_run()
    value, people = log.results[metric].value, log.judgments.value  # type: ignore[union-attr]
    by_scipy = kendalltau(value, people, variant="c").statistic
    few, many = min(len(np.unique(value)), len(np.unique(people))), len(np.unique(people))
    expected = {"people": by_scipy * (1 - 1 / few) / (1 - 1 / many), "scipy": by_scipy}
    for tau_m, tau in expected.items():
        protocol = replace(QUICK, tau_m=tau_m)
        found = measure_agreement(log.judgments, log.image, value, protocol)["tau_c"]
        assert found.value == pytest.approx(tau, abs=1e-12)
        assert found.low < found.value < found.high
    assert (expected["people"] < expected["scipy"]) == (metric == "coarse")


def test_a_protocol_from_before_m_was_recorded_has_scipys() -> None:
    assert AgreementProtocol().tau_m == "people"
    assert AgreementProtocol.read({"resamples": 100}).tau_m == "scipy"
    assert AgreementProtocol.read(asdict(QUICK)) == QUICK


def test_tie_rates_far_apart_are_named() -> None:
    (line,) = note_ties({"a": 0.4, "b": 30.0, "c": 10.0, "flat": 100.0, "none": math.nan})
    assert line.startswith("tie rates: b 30.0 %, a 0.4 %; τ_b, and τ_c")
    assert note_ties({"a": 20.0, "b": 30.0}) == note_ties({"a": 1.0, "flat": 100.0}) == []
    assert note_ties({}) == []


@pytest.mark.parametrize(
    "given", [{"ties": "x"}, {"tau_m": "x"}, {"resamples": 5}, {"seed": -1}, {"level": 1.0}]
)
def test_a_protocol_that_is_not_allowed(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not allowed"):
        AgreementProtocol(**given)
