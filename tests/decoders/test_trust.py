"""The proximal weight: its minimiser, both its ends, and where it has no place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import discode
from discode._pairs import Pair
from discode._scales import TEN
from discode.decoders import METHODS, get_decoder
from discode.decoders._discode import log_alpha, log_prior
from discode.images import demo_path
from discode.readings import Readings
from tests.helpers.att_loss import att_loss
from tests.helpers.fake_model import random_logp

LOSSES: dict[str, dict[str, Any]] = {
    "tau 1": {},
    "printed": {"tau": "alpha", "alpha_clip": None},
    "unit": {"tau": "alpha", "alpha_clip": None, "alpha_scale": "unit"},
    "fixed": {"alpha": 0.2, "tau": 0.4},
    "no cross-entropy": {"cross_entropy": False},
    "kl": {"divergence": "kl"},
    "none": {"divergence": "none"},
}
"""Every loss that takes the weight."""


def parts(loss: str, s_raw: int) -> tuple[Any, Any, Any]:
    """Return the weights of H(p, L), H(p, q) and the entropy, as the definitions have them."""
    middle, s2 = mpmath.mpf(9) / 2, mpmath.mpf(0.1)
    at = mpmath.mpf(s_raw)
    if loss == "unit":
        middle, at = middle / 10, at / 10
    alpha = mpmath.exp(-((at - middle) ** 2) / (2 * s2)) / mpmath.sqrt(2 * mpmath.pi * s2)
    return {
        "tau 1": (1, 1 - alpha, 1),
        "printed": (1, 1 - alpha, alpha),
        "unit": (1, 1 - alpha, alpha),
        "fixed": (1, mpmath.mpf(1) - mpmath.mpf(0.2), mpmath.mpf(0.4)),
        "no cross-entropy": (0, 1 - alpha, 1),
        "kl": (1, mpmath.mpf(0.5), mpmath.mpf(0.5)),
        "none": (1, 0, 0),
    }[loss]


@pytest.mark.parametrize("trust", [1e-9, 0.3, 4.0, 9.0, 1e12])
@pytest.mark.parametrize("loss", LOSSES)
def test_minimiser_against_60_digits(loss: str, trust: float) -> None:
    """The slopes of ATT + λ·KL(p || L) are equal for all answers: the condition of a minimum."""
    logp = random_logp(np.random.default_rng(1), 20, 10, 5.0)
    got = discode.decode(logp, "discode", trust=trust, **LOSSES[loss]).distribution
    assert got is not None
    with mpmath.workdps(60):
        for row, p in zip(logp.tolist(), got.tolist(), strict=True):
            s = max(range(10), key=lambda k: row[k])
            a, b, t = parts(loss, s)
            level = mpmath.mpf(trust)
            f = [
                ((a + level) * mpmath.mpf(row[k]) - b * mpmath.mpf((k - s) ** 2) / 2) / (t + level)
                for k in range(10)
            ]
            top = max(f)
            e = [mpmath.exp(x - top) for x in f]
            z = [x / mpmath.fsum(e) for x in e]
            slopes = [
                -a * row[k] + b * mpmath.mpf((k - s) ** 2) / 2 + t * mpmath.log(z[k])
                + level * (mpmath.log(z[k]) - mpmath.mpf(row[k]))
                for k in range(10)
            ]  # fmt: skip
            assert max(slopes) - min(slopes) < mpmath.mpf(10) ** -30 * max(1, level)
            # 1/(τ+λ) multiplies gaps: at λ = 1e-9 rounding of log L counts a billion times.
            slack = 1e-12 if trust > 1e-3 else 1e-6
            assert max(abs(float(w) - g) for w, g in zip(z, p, strict=True)) < slack


@pytest.mark.parametrize("loss", [name for name in LOSSES if name != "none"])
@pytest.mark.parametrize("trust", [0.0, 0.1, 9.0])
@pytest.mark.parametrize("gap", [0.1, 20.0, 700.0])
def test_exact_agrees_with_the_closed_form(loss: str, trust: float, gap: float) -> None:
    logp = random_logp(np.random.default_rng(3), 200, 10, gap)
    options = LOSSES[loss] | {"trust": trust}
    closed = discode.decode(logp, "discode", **options).distribution
    exact = discode.decode(logp, "discode", solver="exact", **options).distribution
    assert closed is not None
    assert exact is not None
    assert np.abs(closed - exact).max() < (1e-12 if trust else 1e-9)


LOGP = st.integers(0, 2**32 - 1).map(
    lambda seed: random_logp(np.random.default_rng(seed), 8, 10, 10.0 ** (seed % 4 - 1))
)


@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=30, deadline=None)
@given(logp=LOGP)
def test_without_weight_it_is_the_minimiser_and_with_all_of_it_smoothing(
    loss: str, logp: np.ndarray
) -> None:
    read = Readings.of(logp, TEN)
    options = LOSSES[loss] | {"trust": 0.0}
    none = get_decoder("discode", **options).decode(read).distribution
    smooth = get_decoder("smoothing").decode(read).distribution
    if loss == "none":
        assert np.array_equal(none, get_decoder("raw").decode(read).distribution)
    apart = []
    for trust in (1e2, 1e4, 1e8, 1e15, 1e300, 1.7e308):
        p = get_decoder("discode", **LOSSES[loss], trust=trust).decode(read).distribution
        assert np.abs(p.sum(axis=1) - 1).max() < 1e-12
        apart.append(float(np.abs(p - smooth).max()))
    assert apart[-1] < 1e-13
    # log p - log L is (log q + ...)/λ, so the distance falls at least as 1/λ.
    assert all(
        gap < 1e3 / trust + 1e-13 for gap, trust in zip(apart, (1e2, 1e4, 1e8), strict=False)
    )


@settings(max_examples=60, deadline=None)
@given(logp=LOGP, trusts=st.lists(st.floats(0, 1e6), min_size=2, max_size=2))
def test_more_weight_is_nearer_to_the_model_and_never_a_better_att(
    logp: np.ndarray, trusts: list[float]
) -> None:
    """What every proximal step has: KL to L falls with λ, and the loss without it rises."""
    raw = logp.argmax(axis=1)
    logq = log_prior(np.arange(10.0))[raw]
    kl, att = [], []
    for trust in sorted(trusts):
        p = (
            get_decoder("discode", alpha=0.3, trust=trust)
            .decode(Readings.of(logp, TEN))
            .distribution
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            kl.append(np.where(p > 0, p * (np.log(p) - logp), 0.0).sum(axis=1))
        att.append(att_loss(p, logp, logq, 0.3, 1.0))
    assert (kl[1] <= kl[0] + 1e-9).all()
    assert (att[1] >= att[0] - 1e-9).all()


@pytest.mark.parametrize(
    "method", [name for name in METHODS if "trust" in get_decoder(name).options()]
)
def test_every_method_takes_it_and_signs_it(method: str) -> None:
    logp = random_logp(np.random.default_rng(4), 5, 10)
    scores = discode.decode(logp, method, trust=2.5)
    assert "trust=2.5" in str(scores.signature)
    assert np.isfinite(scores.value).all()


@pytest.mark.parametrize("method", ["jensen-shannon", "beta", "renyi", "paper:solver=adam"])
def test_losses_that_have_no_such_form_refuse_it(method: str) -> None:
    with pytest.raises(discode.DiscodeError):
        get_decoder(method, trust=1.0)
    assert "trust" not in get_decoder(method).options()


def test_impossible_answers_stay_impossible() -> None:
    logp = np.log(np.full((1, 10), 0.1))
    logp[0, 4:] = -np.inf
    for options in LOSSES.values():
        p = discode.decode(logp, "discode", trust=3.0, **options).distribution
        assert p is not None
        assert p[0, 4:].max() == 0.0
        assert p.sum() == pytest.approx(1)


def test_the_default_has_one_weight_for_every_model(tmp_path: Path) -> None:
    """Live, recorded, and decoded from readings; a method that names its weight keeps it."""
    judge = discode.load("embedded", store=tmp_path / "readings.db", threads=1)
    pairs = [Pair(demo_path() / "cat.jpg", caption) for caption in ("a cat", "a dog")]
    live = judge.score_pairs(pairs)
    assert "tau=1,trust=0)" in str(live.signature)
    again = discode.load(f"recorded:{tmp_path / 'readings.db'}").score_pairs(pairs)
    readings = judge.read(pairs)
    for scores in (again, discode.decode(readings), judge.decode(pairs, readings, "discode")):
        np.testing.assert_array_equal(scores.value, live.value)
        assert scores.signature == live.signature
    assert "trust=9)" in str(judge.decode(pairs, readings, "discode:trust=9").signature)


def test_the_default_is_temperature_one() -> None:
    logp = random_logp(np.random.default_rng(5), 50, 10)
    scores = discode.decode(logp)
    logq = log_prior(np.arange(10.0))[logp.argmax(axis=1)]
    alpha = np.where(np.isin(logp.argmax(axis=1), (4, 5)), np.exp(log_alpha(np.arange(10.0))[4]), 0)
    want = np.exp(logp + (1 - alpha)[:, None] * logq)
    want /= want.sum(axis=1, keepdims=True)
    assert scores.distribution is not None
    assert np.abs(scores.distribution - want).max() < 1e-4  # α at 3 and 6 is 1.6e-5
    np.testing.assert_array_equal(scores.value, discode.decode(logp, trust=0).value)
