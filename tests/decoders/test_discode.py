"""The closed form against high precision, and at its edges."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

import discode
from discode._scales import FIVE, TEN, UNIT
from discode.decoders import get_decoder
from discode.decoders._discode import log_alpha, log_prior
from discode.readings import Readings
from tests.helpers.fake_model import random_logp

SIGMAS = (1.0, 0.5, 0.1, 0.05, 0.01, 1e-4)


def oracle(logp: list[float], sigma2: float, tau: str | float, clip: bool) -> list[mpmath.mpf]:
    """The minimiser as the formula says it, at 60 digits."""
    with mpmath.workdps(60):
        logs = [mpmath.mpf(x) for x in logp]
        s = max(range(10), key=lambda k: logs[k])
        s2 = mpmath.mpf(sigma2)
        mean = mpmath.mpf(9) / 2
        alpha = mpmath.exp(-((s - mean) ** 2) / (2 * s2)) / mpmath.sqrt(2 * mpmath.pi * s2)
        if clip:
            alpha = min(alpha, mpmath.mpf(1))
        t = alpha if tau == "alpha" else mpmath.mpf(tau)
        f = [(logs[k] - (1 - alpha) * mpmath.mpf((k - s) ** 2) / 2) / t for k in range(10)]
        top = max(f)
        e = [mpmath.exp(x - top) for x in f]
        return [x / mpmath.fsum(e) for x in e]


@pytest.mark.parametrize("sigma2", SIGMAS)
@pytest.mark.parametrize("method", ["paper", "discode"])
def test_closed_form_against_60_digits(sigma2: float, method: str) -> None:
    rng = np.random.default_rng(7)
    rows = []
    for s_raw in range(10):
        for gap in (0.01, 1.0, 10.0, 100.0, 700.0):
            row = rng.uniform(-gap, 0, size=10)
            row[s_raw] = 1e-3  # the raw answer, a hair above the rest
            rows.append(row - 1e-3)
            rows.append(np.where(np.arange(10) == s_raw, 0.0, -gap))
        rows.append(np.where(np.arange(10) == s_raw, -700.0, -700.0 - rng.exponential(1, 10)))
    logp = np.array(rows) - 3.0  # probabilities of a vocabulary that holds more than digits
    got = discode.decode(logp, method, sigma2=sigma2).distribution
    assert got is not None
    tau = "alpha" if method == "paper" else 1.0
    worst = 0.0
    for row, p in zip(logp.tolist(), got, strict=True):
        want = oracle(row, sigma2, tau, clip=method == "discode")
        worst = max(worst, max(abs(float(w - mpmath.mpf(g))) for w, g in zip(want, p, strict=True)))
    assert worst <= 1e-12


def test_half_alpha_is_the_plain_kl() -> None:
    logp = random_logp(np.random.default_rng(2), 200, 10)
    fixed = discode.decode(logp, "no-adaptive-alpha")
    kl = discode.decode(logp, "kl")
    assert np.array_equal(fixed.value, kl.value)
    # ... whose minimiser of H(p, L) + KL(p || q)/2 is L²·q.
    logq = log_prior(np.arange(10.0))[logp.argmax(axis=1)]
    want = np.exp(2 * logp + logq)
    want /= want.sum(axis=1, keepdims=True)
    assert kl.distribution is not None
    assert np.abs(kl.distribution - want).max() < 1e-14


def test_alpha_on_the_digits_is_what_the_formula_prints() -> None:
    # scipy.stats.norm.pdf(range(10), 4.5, 0.1 ** 0.5)
    want = [1.3e-44, 3.2e-27, 3.4e-14, 1.6e-5, 0.36, 0.36, 1.6e-5, 3.4e-14, 3.2e-27, 1.3e-44]
    assert np.allclose(np.exp(log_alpha(np.arange(10.0), 0.1)), want, rtol=0.05)


def test_alpha_clip_keeps_the_prior_attractive() -> None:
    """On five answers α = 1.26 at 3: unclipped, the prior pushes away from the raw answer."""
    logp = np.log([0.1, 0.2, 0.4, 0.2, 0.1])
    clipped = discode.decode(logp, "discode", scale="five").distribution
    printed = discode.decode(logp, "discode", scale="five", alpha_clip=None).distribution
    assert clipped is not None
    assert printed is not None
    assert np.allclose(clipped, np.exp(logp))  # α = 1: no prior at all
    assert printed[0, 2] < 0.4


def test_degenerate_rows_are_counted() -> None:
    logp = random_logp(np.random.default_rng(3), 300, 10)
    for method in ("no-cross-entropy", "no-divergence"):
        assert discode.decode(logp, method).counts()["degenerate"] == 300
    for method in ("raw", "discode", "paper"):
        assert discode.decode(logp, method).counts()["degenerate"] == 0
    alone = np.where(np.arange(10) == 7, 0.0, -np.inf)
    assert discode.decode(alone, "paper").counts()["degenerate"] == 1


@pytest.mark.parametrize("method", ["no-cross-entropy", "discode:cross_entropy=false"])
def test_without_cross_entropy_only_the_raw_answer_counts(method: str) -> None:
    logp = random_logp(np.random.default_rng(4), 100, 10)
    scores = discode.decode(logp, method)
    for s_raw in range(10):
        values = scores.value[logp.argmax(axis=1) == s_raw]
        assert np.ptp(values) == 0 if len(values) else True


def test_without_divergence_is_the_raw_answer() -> None:
    logp = random_logp(np.random.default_rng(5), 100, 10)
    assert np.array_equal(
        discode.decode(logp, "no-divergence").value, discode.decode(logp, "raw").value
    )


def test_ties_go_to_the_raw_answer() -> None:
    for method in ("raw", "no-divergence"):
        assert float(discode.decode(np.log(np.full(10, 0.1)), method)) == 0.0
    assert 0 < float(discode.decode(np.log(np.full(10, 0.1)), "paper")) < 1e-3


@pytest.mark.parametrize("method", ["raw", "smoothing", "discode", "paper", "renyi", "beta"])
def test_extreme_but_finite_rows_stay_finite(method: str) -> None:
    rows = np.full((4, 10), -1e308)
    rows[0, 3] = -1e-300
    rows[1] = -700
    rows[2] = np.linspace(-1e300, -700, 10)
    rows[3, :2] = -np.inf, -0.1
    scores = discode.decode(rows, method)
    assert scores.distribution is not None
    assert np.isfinite(scores.value).all()
    assert np.allclose(scores.distribution.sum(axis=1), 1)


@pytest.mark.parametrize("nothing", [-9999.0, -1e308, -np.inf])
@pytest.mark.parametrize("method", ["raw", "smoothing", "discode", "paper", "fleur"])
def test_no_mass_on_any_answer_is_a_failure(method: str, nothing: float) -> None:
    scores = discode.decode([[nothing] * 10, [-2.5] * 10], method, "unit")
    assert np.isnan(scores.value).tolist() == [True, False]
    assert list(scores.errors) == [0]


@pytest.mark.parametrize(
    "options",
    [
        {"sigma2": 0},
        {"tau": "beta"},
        {"alpha_clip": (1, 0)},
        {"divergence": "renyi", "solver": "exact", "order": 2},
        {"divergence": "beta", "solver": "exact", "order": 1},
        {"divergence": "kl", "order": 2},
        {"divergence": "renyi"},
        {"divergence": "none", "cross_entropy": False},
        {"stem": "joint", "solver": "adam"},
        {"divergence": "kl", "tau": 2.0},
        {"alpha": 0.5, "sigma2": 1.0},
        {"steps": 3},
        {"divergence": "beta", "solver": "exact", "order": np.inf},
    ],
)
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(discode.InputError):
        get_decoder("discode", **options)


def test_joint_makes_one_an_ordinary_value() -> None:
    stems = np.log([[0.6, 0.4]])
    answers = np.log(np.array([[[0.05] * 9 + [0.5], [0.9] + [0.01] * 9]]))
    readings = Readings(UNIT, answers, stems)
    joint = discode.decode(readings, "smoothing", stem="joint")
    greedy = discode.decode(readings, "smoothing")
    assert joint.answers[-2:] == ("0.9", "1.0")
    assert joint.distribution is not None
    # By hand: P(0.d) = 0.6·p(d), P(1.0) = 0.4, renormalised over 0.6·0.95 + 0.4.
    p = np.append(0.6 * np.exp(answers[0, 0]), 0.4)
    p /= p.sum()
    assert np.allclose(joint.distribution[0], p, atol=1e-15)
    assert float(joint) == pytest.approx((p * np.arange(11)).sum() / 10)
    assert float(greedy) == pytest.approx((np.exp(answers[0, 0]) * np.arange(10)).sum() / 9.5)
    assert "stem=joint" in str(joint.signature)
    with pytest.raises(discode.DiscodeError, match="two stems"):
        discode.decode(np.log(np.full(10, 0.1)), "smoothing", stem="joint", scale=TEN)
    without_stems = discode.decode(np.log(np.full(10, 0.1)), scale="unit", stem="joint")
    assert np.isnan(float(without_stems))


@pytest.mark.parametrize("method", ["smoothing", "discode", "paper:stem=graded"])
def test_one_point_nought_is_graded_by_how_sure_the_model_is(method: str) -> None:
    answers = np.log(np.tile([0.1] * 10, (4, 2, 1)))
    stems = np.log([[0.1, 0.9], [0.19, 0.8], [0.01, 0.98], [0.6, 0.4]])
    scores = discode.decode(Readings(UNIT, answers, stems), method)
    # By hand: 1 - 0.1·P("0.") / (P("0.") + P("1.")).
    want = [1 - 0.1 * 0.1, 1 - 0.1 * 0.19 / 0.99, 1 - 0.1 * 0.01 / 0.99]
    assert scores.value[:3] == pytest.approx(want, abs=1e-15)
    assert scores.raw is not None
    assert scores.raw.tolist() == [1.0, 1.0, 1.0, 0.0]
    greedy = discode.decode(Readings(UNIT, answers, stems), method, stem="greedy")
    assert scores.value[3] == greedy.value[3]
    assert greedy.value[:3].tolist() == [1.0] * 3
    assert "stem=graded" in str(scores.signature)


def test_the_printed_rule_replaces_what_is_below_the_point() -> None:
    """After "1." as well: 1.0 + 0.1·ŝ with the digits that follow it."""
    answers = np.log(np.tile([0.1] * 10, (4, 2, 1)))
    answers[:, 1] = np.log(
        [[0.91] + [0.01] * 9, [0.82] + [0.02] * 9, [0.02] * 9 + [0.82], [0.1] * 10]
    )
    readings = Readings(UNIT, answers, np.log([[0.1, 0.9]] * 3 + [[0.6, 0.4]]))
    scores = discode.decode(readings, "smoothing", stem="printed")
    # By hand: 1 + 0.1·0.01·45, 1 + 0.1·0.02·45, 1 + 0.1·(0.02·36 + 0.82·9); after "0." 0.1·4.5.
    assert scores.value == pytest.approx([1.045, 1.09, 1.81, 0.45], abs=1e-12)
    assert scores.raw is not None
    assert scores.raw.tolist() == [1.0, 1.0, 1.0, 0.0]
    paper = discode.decode(readings, "paper")
    assert 1 < paper.value[0] < paper.value[1] < 1.0001
    assert "stem=printed" in str(paper.signature)


def test_grading_uses_the_first_tokens_where_both_were_read() -> None:
    """A served model shows '0' beside the '1' it wrote, and only one whole stem."""
    answers = np.full((3, 2, 10), np.nan)
    stems = np.log([[np.nan, 0.7], [0.2, 0.7], [np.nan, 0.7]])
    lead = np.log([[0.25, 0.75], [np.nan, 0.75], [np.nan, 0.75]])
    scores = discode.decode(Readings(UNIT, answers, stems, lead_logp=lead), "smoothing")
    # Both first tokens; both stems; neither: then nothing is known that could grade it.
    assert scores.value == pytest.approx([1 - 0.1 * 0.25, 1 - 0.1 * 0.2 / 0.9, 1.0], abs=1e-15)


@pytest.mark.parametrize("method", ["raw", "smoothing", "discode", "paper", "fleur"])
def test_one_point_nought_needs_no_digits_after_it(method: str) -> None:
    answers = np.full((1, 2, 10), np.nan)
    answers[0, 0] = np.log(0.1)
    readings = Readings(UNIT, answers, np.log([[0.1, 0.9]]))
    want = {"raw": 1.0, "paper": 1.0}.get(method, 0.9 * 0.1 + 0.9)
    assert float(discode.decode(readings, method)) == pytest.approx(want)


def test_unknown_methods_and_values_get_a_suggestion() -> None:
    with pytest.raises(discode.InputError, match="greedy, joint"):  # it is never graded
        discode.decode(np.log(np.full(10, 0.1)), "raw", stem="graded", scale=UNIT)
    with pytest.raises(discode.DiscodeError, match="did you mean 'discode'"):
        discode.decode(np.log(np.full(5, 0.2)), "discod", scale=FIVE)
