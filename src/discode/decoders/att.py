"""The ATT loss, its prior and α, and its minimiser in closed form.

The paper's loss over a distribution p, with L the model's distribution and q the prior, is

    H(p, L) + (1 - α)·H(p, q) - τ·H(p, p),        H(p, q) = -Σ_x p(x) log q(x),

where the paper sets τ = α. Over the simplex its minimiser is

    p ∝ exp((log L + (1 - α)·log q) / τ).

q(x) ∝ exp(-(x - s_raw)² / (2·v)) and α = N(s_raw; μ, σ²), so both depend on the raw answer
alone: everything but log L is a table with one row an answer. (The appendix of the paper
writes q(k) in Λ_k where log q(k) is meant.)

α runs down to 1e-44 on digits and underflows for small σ², so log α is what is computed,
1/α is capped at e^690, and every exponent is at most 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode.decoders.base import Floats, Indices, softmax

LOG_CAP = 690.0
"""log of the largest 1/τ; beyond it the distribution is one-hot for every gap a float has."""


def log_alpha(values: Floats, sigma2: float = 0.1) -> Floats:
    """Return log α for each possible raw answer (K,).

    α = N(s; μ, σ²) with μ the mean of ``values``: a density, so it may exceed 1.

    >>> np.exp(log_alpha(np.arange(10.0))).round(4).tolist()
    [0.0, 0.0, 0.0, 0.0, 0.3614, 0.3614, 0.0, 0.0, 0.0, 0.0]
    """
    distance = values - values.mean()
    return np.asarray(
        -0.5 * np.log(2 * np.pi * sigma2) - distance * distance / (2 * sigma2), dtype=np.float64
    )


def log_prior(values: Floats, variance: float = 1.0) -> Floats:
    """Return log q, normalised, as (K, K): row s is the prior around raw answer s.

    >>> np.exp(log_prior(np.arange(3.0))).round(3).tolist()[0]
    [0.574, 0.348, 0.078]
    """
    logq = -((values[None, :] - values[:, None]) ** 2) / (2 * variance)
    return np.asarray(logq - np.log(np.exp(logq).sum(axis=1, keepdims=True)), dtype=np.float64)


def closed_form(
    logp: Floats,
    raw: Indices,
    *,
    weight: float,
    pull: Floats,
    log_tau: Floats,
) -> Floats:
    """Minimise ``weight·H(p, L) + H(p, ·)·pull - τ·H(p, p)`` over the simplex.

    Args:
        logp: (K, n) log L, each row's largest at 0.
        raw: (n,) index of the raw answer.
        weight: 1, or 0 for the ablation without the cross-entropy term.
        pull: (K, K) row s holds (1 - α_s)·log q_s, up to a constant.
        log_tau: (K,) log τ for each raw answer.

    Returns:
        (K, n) the minimising distribution; finite and normalised for every finite input.
    """
    f = pull.T[:, raw]
    if weight:
        f = f + weight * logp
    best = f[0].copy()
    for row in f[1:]:
        np.maximum(best, row, out=best)
    # The raw answer maximises both L and q: only α > 1, where the prior repels, moves the peak.
    f -= best
    with np.errstate(over="ignore"):  # a gap of 1e20 times e^690 is -inf, and exp of it is 0
        f *= np.exp(np.minimum(-log_tau, LOG_CAP))[raw]
    return softmax(f)


def att_loss(
    p: Floats,
    logp: Floats,
    logq: Floats,
    alpha: NDArray[Any] | float,
    tau: NDArray[Any] | float,
) -> Floats:
    """Return the ATT loss of distributions p (n, K); the definition, for tests and plots.

    >>> half = np.array([[0.5, 0.5]])
    >>> att_loss(half, np.log(half), np.log(half), 0.5, 0.5).round(6).tolist()
    [0.693147]
    """
    from discode.decoders.divergences import weighted_kl

    logz = np.log(np.maximum(p, 5e-324))
    cross_entropy = -np.sum(p * logp, axis=-1)
    return np.asarray(cross_entropy + weighted_kl(np, logz, logq, alpha, tau))
