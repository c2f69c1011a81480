"""Exact minimisers: definitions and first-order conditions at high precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.special import rel_entr

import discode
from discode.decoders._discode import log_prior
from discode.decoders._divergences import divergence
from tests.helpers.fake_model import random_logp

Value = Callable[[list[Any], list[Any]], Any]


def _kl(p: list[Any], q: list[Any]) -> Any:
    return mpmath.fsum(a * mpmath.log(a / b) for a, b in zip(p, q, strict=True)) / 2


def _js(p: list[Any], q: list[Any]) -> Any:
    m = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return (2 * _kl(p, m) + 2 * _kl(q, m)) / 2


def _beta(order: float) -> Value:
    def value(p: list[Any], q: list[Any]) -> Any:
        b = mpmath.mpf(order)
        return mpmath.fsum(
            x**b / (b * (b - 1)) + y**b / b - x * y ** (b - 1) / (b - 1)
            for x, y in zip(p, q, strict=True)
        )

    return value


def _renyi(order: float) -> Value:
    def value(p: list[Any], q: list[Any]) -> Any:
        a = mpmath.mpf(order)
        total = mpmath.fsum(x**a * y ** (1 - a) for x, y in zip(p, q, strict=True))
        return mpmath.log(total) / (a - 1)

    return value


CASES: dict[str, tuple[str, float | None, Value]] = {
    "kl": ("kl", None, _kl),
    "js": ("jensen-shannon", None, _js),
    "beta2": ("beta", 2.0, _beta(2.0)),
    "beta1.5": ("beta", 1.5, _beta(1.5)),
    "beta0.5": ("beta", 0.5, _beta(0.5)),
    "renyi0.5": ("renyi", 0.5, _renyi(0.5)),
    "renyi0.9": ("renyi", 0.9, _renyi(0.9)),
    "renyi0.1": ("renyi", 0.1, _renyi(0.1)),
}


@pytest.mark.parametrize("case", CASES)
def test_definition_matches_an_independent_one(case: str) -> None:
    name, order, value = CASES[case]
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(10), size=2)
    got = divergence(name, np, np.log(p), np.log(q), order or 0.0)
    assert float(got) == pytest.approx(float(value(list(p), list(q))), abs=1e-12)
    if name == "jensen-shannon":
        m = (p + q) / 2
        want = 0.5 * rel_entr(p, m).sum() + 0.5 * rel_entr(q, m).sum()
        assert float(got) == pytest.approx(want, abs=1e-14)


def _solve(name: str, order: float | None, logp: np.ndarray) -> np.ndarray:
    scores = discode.decode(logp, "discode", divergence=name, order=order, solver="exact")
    assert scores.distribution is not None
    return scores.distribution


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("gap", [1.0, 8.0, 40.0])
def test_first_order_conditions_hold(case: str, gap: float) -> None:
    """Where p > 0 the gradient is one constant; where p = 0 it is no smaller.

    The gradient is taken numerically from the definition at 90 digits, so the inverse formulas
    of the solver are not used.
    """
    name, order, value = CASES[case]
    for logp in random_logp(np.random.default_rng(3), 3, 10, gap):
        p = _solve(name, order, logp[None])[0]
        assert p.sum() == pytest.approx(1, abs=1e-14)
        with mpmath.workdps(90):
            q = [mpmath.exp(x) for x in log_prior(np.arange(10.0))[int(logp.argmax())].tolist()]
            # At p = 0 the one-sided derivative is taken a step of 1e-30 inside.
            z = [mpmath.mpf(max(x, 1e-30)) for x in p.tolist()]
            gradient = []
            for k in range(10):
                h = z[k] * mpmath.mpf(10) ** -12
                up, down = list(z), list(z)
                up[k] += h
                down[k] -= h
                d = (value(up, q) - value(down, q)) / (2 * h)
                gradient.append(float(d - mpmath.mpf(float(logp[k]))))
        g = np.array(gradient)
        multiplier = g[p.argmax()]
        # With order ½ the slope is p^-½: log p of 53 bits gives it to 1e-8 down to p = 1e-12.
        inside = p > (1e-12 if case == "beta0.5" else 1e-25)
        assert np.abs(g[inside] - multiplier).max() < 1e-8 * max(1, abs(multiplier))
        assert (g[p == 0] >= multiplier - 1e-8).all()


def _gradient(name: str, order: float | None, p: list[Any], q: list[Any]) -> list[Any]:
    """∂D/∂p, each written from the definition."""
    if name == "kl":
        return [(mpmath.log(a / b) + 1) / 2 for a, b in zip(p, q, strict=True)]
    if name == "jensen-shannon":
        return [mpmath.log(2 * a / (a + b)) / 2 for a, b in zip(p, q, strict=True)]
    e = mpmath.mpf(order or 0)
    if name == "beta":
        return [(a ** (e - 1) - b ** (e - 1)) / (e - 1) for a, b in zip(p, q, strict=True)]
    total = mpmath.fsum(a**e * b ** (1 - e) for a, b in zip(p, q, strict=True))
    return [e / (e - 1) * (a / b) ** (e - 1) / total for a, b in zip(p, q, strict=True)]


@pytest.mark.parametrize("case", CASES)
def test_exact_to_ten_digits(case: str) -> None:
    """Newton on the whole system (p, λ) at 40 digits, over the answers that have mass."""
    name, order, _ = CASES[case]
    for logp in random_logp(np.random.default_rng(8), 2, 10, 6.0):
        p = _solve(name, order, logp[None])[0]
        inside = [k for k in range(10) if p[k] > 1e-14]
        with mpmath.workdps(40):
            prior = log_prior(np.arange(10.0))[int(logp.argmax())]
            q = [mpmath.exp(float(prior[k])) for k in inside]

            def system(*x: Any, q: list[Any] = q, logp: np.ndarray = logp) -> list[Any]:
                # unknowns are log p, so that Newton cannot step below 0
                z = [mpmath.exp(value) for value in x[:-1]]
                slopes = _gradient(name, order, z, q)
                flat = [g - float(logp[k]) - x[-1] for g, k in zip(slopes, inside, strict=True)]  # noqa: B023  # used at once
                return [*flat, mpmath.fsum(z) - 1]

            start = [mpmath.log(float(p[k])) for k in inside]
            slope = _gradient(name, order, [mpmath.exp(x) for x in start], q)[0]
            root = mpmath.findroot(system, [*start, slope - float(logp[inside[0]])], tol=1e-25)
            exact = [float(mpmath.exp(value)) for value in list(root)[:-1]]
        assert np.abs(p[inside] - exact).max() < 1e-10


@pytest.mark.parametrize("name", ["jensen-shannon", "beta", "renyi", "kl"])
def test_without_cross_entropy_is_the_prior(name: str) -> None:
    logp = random_logp(np.random.default_rng(6), 50, 10)
    scores = discode.decode(logp, "discode", divergence=name, solver="exact", cross_entropy=False)
    q = np.exp(log_prior(np.arange(10.0))[logp.argmax(axis=1)])
    assert scores.distribution is not None
    assert np.abs(scores.distribution - q).max() < 1e-12


@pytest.mark.parametrize("name", ["weighted-kl", "jensen-shannon", "beta", "renyi", "none"])
def test_impossible_answers_get_no_mass(name: str) -> None:
    logp = np.log(np.full((1, 10), 0.1))
    logp[0, 4:] = -np.inf
    p = _solve(name, None, logp)
    assert p[0, 4:].max() == 0.0
    assert p.sum() == pytest.approx(1)
