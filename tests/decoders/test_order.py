"""Scores are ordered as exact expectations are: against mpmath, on every scale, at every σ²."""

from __future__ import annotations

import csv
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import discode
from discode._scales import UNIT, Scale, get_scale
from discode.decoders import get_decoder
from discode.decoders._base import distinct_size, ordered_mean
from discode.readings import Readings

SCALES = ("unit", "ten", "five", "letters", "1-7", "0-100")
SIGMAS = (1e-4, 0.01, 0.1, 1.0, 10.0)
RESOLUTION = 1e-7
"""Log-probabilities in 32 bits differ by this share of themselves: a smaller difference is none."""

Exact = tuple[int, int, mpmath.mpf]
"""An expectation beside value number t, as (t, side, log |E - v_t|): what mpmath can hold."""


def small_exp(x: mpmath.mpf) -> mpmath.mpf:
    """exp(x), and 0 where that is below the 60 digits that are computed with."""
    return mpmath.exp(x) if x > -150 else mpmath.mpf(0)


def log_sum(terms: list[mpmath.mpf]) -> mpmath.mpf:
    if not terms:
        return mpmath.mpf("-inf")
    most = max(terms)
    return most + mpmath.log(mpmath.fsum(small_exp(t - most) for t in terms))


def exact(values: list[float], tau: mpmath.mpf, f: list[mpmath.mpf]) -> Exact:
    """E_p[v] of p ∝ exp(f/τ); terms that are equal on both sides of a value are left out."""
    gaps = [(x - max(f)) / tau for x in f]
    p = [small_exp(g) for g in gaps]
    mean = mpmath.fdot(p, map(mpmath.mpf, values)) / mpmath.fsum(p)
    i = min(range(len(values)), key=lambda k: abs(values[k] - mean))
    sides: dict[int, dict[float, mpmath.mpf]] = {1: {}, -1: {}}
    for value, gap in zip(values, gaps, strict=True):
        if value != values[i]:
            sides[1 if value > values[i] else -1][abs(value - values[i])] = gap
    same = [d for d in sides[1] if sides[1][d] == sides[-1].get(d)]
    up, down = (
        log_sum([g + mpmath.log(d) for d, g in side.items() if d not in same])
        for side in sides.values()
    )
    if up == down:
        return i, 0, mpmath.mpf("-inf")
    high, low = max(up, down), min(up, down)
    size = high + mpmath.log1p(-small_exp(low - high)) - log_sum(gaps)
    return i, 1 if up > down else -1, size


def energy(
    logp: list[float], values: list[float], sigma2: float
) -> tuple[mpmath.mpf, list[mpmath.mpf]]:
    """The printed temperature and log L + (1 - α)·log q of each answer."""
    raw = max(range(len(logp)), key=lambda k: logp[k])
    s2, mean = mpmath.mpf(sigma2), mpmath.fsum(map(mpmath.mpf, values)) / len(values)
    distance = mpmath.mpf(values[raw]) - mean
    alpha = mpmath.exp(-(distance**2) / (2 * s2)) / mpmath.sqrt(2 * mpmath.pi * s2)
    f = [
        mpmath.mpf(x) - (1 - alpha) * (mpmath.mpf(v) - mpmath.mpf(values[raw])) ** 2 / 2
        for x, v in zip(logp, values, strict=True)
    ]
    return alpha, f


def disagree(a: Exact, b: Exact, got: float, values: list[float]) -> bool:
    """Whether ``got``, the difference of two scores, has another sign than a - b."""
    if a[0] == b[0]:
        if a[1] != b[1]:
            return got * (a[1] - b[1]) <= 0
        if a[2] == b[2]:
            return got != 0
        if abs(a[2] - b[2]) <= RESOLUTION * max(1, abs(a[2])):
            return got * a[1] * (1 if a[2] > b[2] else -1) < 0
        return got * a[1] * (1 if a[2] > b[2] else -1) <= 0
    x, y = (mpmath.mpf(values[e[0]]) + e[1] * small_exp(e[2]) for e in (a, b))
    return bool(got * mpmath.sign(x - y) < (0 if abs(x - y) < 1e-14 else 1e-300))


def value_of(e: Exact, values: list[float]) -> float:
    return float(values[e[0]] + e[1] * small_exp(e[2]))


def adversarial(rng: np.random.Generator, scale: Scale, count: int) -> np.ndarray:
    """Flat, sharp, two-humped, tied and barely different rows; raw answers of every kind."""
    k = len(scale.answers)
    rows: list[np.ndarray] = []
    for number in range(count):
        gap = 10.0 ** rng.uniform(-3, 3)
        row = -gap * rng.random(k)
        if number % 3 == 1:
            row = -np.abs(np.arange(k) - rng.integers(k)) * gap
        if number % 3 == 2 and rows:
            row = rows[-1].copy()
            row[rng.integers(k)] -= 10.0 ** rng.uniform(-6, 0)
        row[rng.integers(k)] += 10.0 ** rng.uniform(-4, 1)
        rows.append(row - np.logaddexp.reduce(row))
    return np.array(rows)


def discordant(logp: np.ndarray, scale: Scale, method: str, sigma2: float) -> tuple[int, float]:
    """How many pairs of rows are ordered other than exactly, and the largest error in answers."""
    decoder = get_decoder(f"{method}:sigma2={sigma2}")
    got = decoder.decode(Readings.of(logp, scale)).score / scale.step
    values = list(scale.values)
    with mpmath.workdps(60):
        wanted = []
        for row in logp.tolist():
            alpha, f = energy(row, values, sigma2)
            if method == "discode" and alpha > 1:  # clipped
                alpha, f = mpmath.mpf(1), list(map(mpmath.mpf, row))
            wanted.append(exact(values, alpha if method == "paper" else mpmath.mpf(1), f))
        wrong = sum(
            disagree(wanted[i], wanted[j], got[i] - got[j], values)
            for i in range(len(got))
            for j in range(i)
        )
        worst = max(abs(value_of(e, values) - g) for e, g in zip(wanted, got, strict=True))
    return wrong, worst


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("sigma2", SIGMAS)
@pytest.mark.parametrize(("method", "near"), [("paper", 1e-3), ("discode", 1e-6)])
def test_all_pairs_of_hostile_rows(name: str, sigma2: float, method: str, near: float) -> None:
    scale = get_scale(name)
    rows = 40 if name == "0-100" else 100
    logp = adversarial(np.random.default_rng(len(name)), scale, rows)
    wrong, worst = discordant(logp, scale, method, sigma2)
    assert wrong == 0
    assert worst <= near * 1.01


@pytest.mark.parametrize("name", SCALES)
def test_all_pairs_of_300_hostile_rows(name: str) -> None:
    scale = get_scale(name)
    logp = adversarial(np.random.default_rng(7), scale, 300)
    wrong, worst = discordant(logp, scale, "paper", 0.1)
    assert wrong == 0
    assert worst <= 1.01e-3


@pytest.mark.data
@pytest.mark.parametrize("file", ["divake_v2", "divake_v2_phi4", "divake_v2_polaris"])
def test_all_pairs_of_300_real_rows(data: Path, file: str) -> None:
    path = data / "judges" / f"{file}.csv"
    if not path.is_file():
        pytest.skip(f"there is no {path}")
    with path.open(encoding="utf-8") as lines:
        rows = [
            [float(row[f"s2_lp{k}"] or "nan") for k in range(1, 6)] for row in csv.DictReader(lines)
        ]
    logp = np.array([row for row in rows if np.isfinite(row).all()])
    logp = logp[np.random.default_rng(0).permutation(len(logp))[:300]]
    for sigma2 in SIGMAS:
        assert discordant(logp, get_scale("five"), "paper", sigma2)[0] == 0
    logp = np.unique(logp, axis=0)
    values = discode.decode(logp, "paper", scale="five").value
    # Logits of 16 bits: a few rows share the gap that decides, and differ in the 1e20th digit.
    assert len(np.unique(values)) >= 0.98 * len(logp)


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.floats(-800, 0, allow_subnormal=False), min_size=5, max_size=5),
        min_size=2,
        max_size=6,
    ),
    sigma2=st.sampled_from(SIGMAS),
    method=st.sampled_from(["paper", "discode"]),
)
def test_float_order_is_exact_order(rows: list[list[float]], sigma2: float, method: str) -> None:
    logp = np.array(rows)
    logp = logp - np.logaddexp.reduce(logp, axis=1, keepdims=True)
    assert discordant(logp, get_scale("five"), method, sigma2)[0] == 0


@pytest.mark.parametrize("method", ["smoothing", "discode", "paper", "fleur", "jensen-shannon"])
@pytest.mark.parametrize("top", [0, 4, 8, 9])
def test_sure_models_are_not_tied(method: str, top: int) -> None:
    """Other answers of e^-40 to e^-700 are lost in a float beside 1, and their order is not."""
    doubt = np.linspace(-40, -700, 50)
    neighbour = top - 1 if top else 1
    logp = np.full((50, 10), -750.0)
    logp[:, neighbour] = doubt
    logp[:, top] = np.log1p(-np.exp(doubt))
    logp[:, top] = np.where(logp[:, top] == 0, -np.exp(doubt), logp[:, top])
    scores = discode.decode(logp, method, scale="unit").value
    sign = 1 if top else -1
    assert (sign * np.diff(scores) > 0).all()
    assert np.abs(scores - 0.1 * top).max() < 1e-4


def test_sure_stems_are_not_tied() -> None:
    """After "1." the doubt of the stem grades the scores, and e^-600 is a doubt."""
    doubt = np.linspace(-1, -600, 50)
    answers = np.tile(np.log([0.91] + [0.01] * 9), (50, 2, 1))
    readings = Readings(UNIT, answers, np.stack([doubt, np.log1p(-np.exp(doubt))], axis=1))
    for method in ("smoothing", "discode", "discode:stem=joint"):
        scores = discode.decode(readings, method).value
        above = scores[scores > 0.9]
        assert len(above) > 40
        assert (np.diff(above) > 0).all()


def test_sizes_keep_their_order() -> None:
    logs = -np.geomspace(1e-3, 1e300, 5000)
    for near in (1e-3, 1e-6):
        sizes = distinct_size(logs, near)
        assert (np.diff(sizes) < 0).all()
        assert np.allclose(sizes, np.exp(logs), rtol=1e-12, atol=near)


@pytest.mark.parametrize("values", [(5, 4, 3, 2, 1), (0, 0, 1, 1, 2), (3, 1, 2, 5, 4)])
def test_scales_in_any_order_keep_it(values: tuple[float, ...]) -> None:
    """A scale of one's own may fall or repeat: as the sorted one with its answers merged."""
    rng = np.random.default_rng(0)
    logp = np.log(rng.dirichlet(np.full(5, 0.2), 200) + 1e-12)
    logp -= np.logaddexp.reduce(logp, axis=1, keepdims=True)
    mine = Scale("mine", tuple("abcde"), tuple(map(float, values)), "a", "e", 0.2)
    for method in ("paper", "smoothing"):
        assert len(np.unique(discode.decode(logp, method, scale=mine).value)) == 200
    order = np.argsort(values, kind="stable")
    if len(set(values)) == 5:
        ranked = Scale("up", tuple("abcde"), (1.0, 2.0, 3.0, 4.0, 5.0), "a", "e", 0.2)
        np.testing.assert_allclose(
            discode.decode(logp, "paper", scale=mine).value,
            discode.decode(logp[:, order], "paper", scale=ranked).value,
            atol=1e-9,
        )


def test_a_symmetric_row_is_exactly_its_middle() -> None:
    flat = np.log(np.full((5, 1), 0.2))
    mean, _, alone = ordered_mean(flat, np.arange(1.0, 6.0))
    assert mean.tolist() == [3.0]
    assert not alone.any()
