"""The divergences of the paper's ablation, and the exact minimiser of each loss.

The loss is H(p, L) + D(p || q). Each divergence is written once, for numpy and torch alike
(``xp`` is the module), over log p and log q on the last axis:

==================  ==========================================================  ============
``weighted-kl``     (1-α)·H(p, q) - τ·H(p, p)                                   the paper's
``kl``              ½·Σ p log(p/q), which is the above at α = τ = ½             α fixed
``jensen-shannon``  ½·KL(p || m) + ½·KL(q || m), m = (p + q)/2
``beta``            Σ p^β/(β(β-1)) + q^β/β - p·q^(β-1)/(β-1)                    order β = 2
``renyi``           log(Σ p^a q^(1-a)) / (a - 1)                                order a = ½
``none``            0: the minimiser is the raw answer, one-hot
==================  ==========================================================  ============

The paper names no orders; those above are ours, and an option. Its KL row equals its "w/o
adaptive α" row, so its KL is D at α = ½, half the textbook one.

Every loss is convex, and its stationarity condition gives p_k as a monotone function of one
multiplier: what is left is one root in one bracket per row, found by bisection to the last bit (it
is not normalised afterwards, which would hide a wrong root).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from discode.decoders._base import Floats, total

STEPS = 64
"""Bisection steps: a double has 53 bits, the brackets are at most a few binades wide."""

LOG_CAP = 650.0
"""log of the largest 1/τ: beyond it only the order of the gaps matters, which does not change."""

NAMES = ("weighted-kl", "kl", "jensen-shannon", "beta", "renyi", "none")
DEFAULT_ORDER = {"beta": 2.0, "renyi": 0.5}
"""The divergences with an order, and our default."""


def weighted_kl(xp: Any, logz: Any, logq: Any, alpha: Any, tau: Any) -> Any:
    """(1-α)·H(z, q) - τ·H(z, z) over the last axis."""
    z = xp.exp(logz)
    return -(1 - alpha) * (z * logq).sum(-1) + tau * (z * logz).sum(-1)


def divergence(name: str, xp: Any, logz: Any, logq: Any, order: float) -> Any:
    """D(z || q) over the last axis, for every divergence without α; few have an order."""
    z = xp.exp(logz)
    if name == "kl":
        return 0.5 * (z * (logz - logq)).sum(-1)
    if name == "jensen-shannon":
        logm = xp.logaddexp(logz, logq) - np.log(2.0)
        return 0.5 * (z * (logz - logm) + xp.exp(logq) * (logq - logm)).sum(-1)
    if name == "beta":
        b = order
        return (
            xp.exp(b * logz) / (b * (b - 1))
            + xp.exp(b * logq) / b
            - xp.exp((b - 1) * logq) * z / (b - 1)
        ).sum(-1)
    if name == "renyi":
        return xp.log(xp.exp(order * logz + (1 - order) * logq).sum(-1)) / (order - 1)
    return 0.0 * z.sum(-1)


def exact(
    name: str,
    logp: Floats,
    logq: Floats,
    *,
    prior: Floats,
    log_tau: Floats,
    order: float,
) -> Floats:
    """Minimise H(p, L) + D(p || q) over the simplex, to rounding.

    ``logp`` (K, n) has the largest entry of each row at 0; ``logq`` (K, n) is normalised.
    ``weighted-kl`` and ``kl`` read ``prior`` (n,), the weight 1-α of log q, and ``log_tau`` (n,).
    Returns log p (K, n).
    """
    k, n = logp.shape
    gap = -logp  # >= 0, and inf where L is 0: such an answer gets no mass
    q = np.exp(logq)
    ones = np.ones(n)
    with np.errstate(over="ignore", divide="ignore"):
        if name in ("weighted-kl", "kl"):
            # p_k = exp(f_k / τ + μ) with max f = 0, so that -log K <= μ <= 0.
            f = logp + prior * logq
            f = (f - f.max(axis=0)) * np.exp(np.minimum(-log_tau, LOG_CAP))
            mu = _bisect(lambda t: total(np.exp(f + t)), -np.log(k) * ones, 0 * ones)
            log_p = f + mu
        elif name == "jensen-shannon":
            # D' = ½ log(2p/(p+q)) = log L_k + λ, hence p_k = q_k / (exp(2(δ + gap_k)) - 1).
            top = np.take_along_axis(q, gap.argmin(axis=0)[None], axis=0)[0]
            delta = _bisect(
                lambda t: -total(q / np.expm1(2 * (t + gap))),
                0.5 * np.log1p(top),
                0.5 * np.log(2.0) * ones,
                target=-1.0,
            )
            x = 2 * (delta + gap)
            log_p = logq - x - np.log1p(-np.exp(-x))
        elif name == "beta":
            e = order - 1
            # D' = (p^e - q^e)/e, hence p_k = (t^e + e·a_k)^(1/e) where t = max p, a_k <= 0.
            a = q**e / e - gap
            a = a - a.max(axis=0)

            def beta(t: Floats) -> Floats:
                return np.asarray(np.maximum(t**e + e * a, 0.0) ** (1 / e))

            log_p = np.log(beta(_bisect(lambda t: total(beta(t)), ones / k, ones)))
        else:
            c = 1 / (1 - order)
            # p ∝ q·u^-c with u = δ + gap, and E_p[u] = a/(1-a).
            target = order * c

            def mean(t: Floats) -> Floats:
                u = t + gap
                return total(q * u ** (1 - c)) / total(q * u**-c)

            high = target * ones
            delta = _bisect(mean, high * 1e-9, high, target=target)
            log_p = logq - c * np.log(delta + gap)
    return np.asarray(log_p)


def _bisect(
    rise: Callable[[Floats], Floats], low: Floats, high: Floats, target: float = 1.0
) -> Floats:
    """Find t (n,) in [low, high] where the increasing function ``rise`` reaches ``target``."""
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        above = rise(middle) > target
        high = np.where(above, middle, high)
        low = np.where(above, low, middle)
    return 0.5 * (low + high)
