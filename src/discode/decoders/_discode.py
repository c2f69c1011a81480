"""DISCODE: the score distribution that minimises the ATT loss, in closed form.

**The energy.** The paper's loss over a distribution p, with L the model's distribution and q the
prior, is linear in p but for the entropy:

    H(p, L) + (1 - α)·H(p, q) - τ·H(p, p),        H(p, q) = -Σ_x p(x) log q(x).

Over the simplex its minimiser is the Boltzmann distribution of that energy at temperature τ,

    p ∝ exp((log L + (1 - α)·log q) / τ).

**The temperature as printed** is τ = α (method ``paper``). α = N(s_raw; μ, σ²) is 1e-44 at the
digits 0 and 9, so p is one-hot in floats and its expectation is 1e-300 or less away from the raw
digit. But α is the same for all captions with one raw digit, so their exact scores are different
and well ordered. :func:`~discode.decoders._base.ordered_mean` returns scores in that order, within
1e-3 of a digit.

**Temperature one** (method ``discode``) is the same energy with τ = 1, p ∝ L·q^(1-α). It ranks
captions nearly as the printed temperature does, with numbers that floats can represent and that can
be averaged: a mean of printed scores is a mean of raw digits.

A proximal term λ·KL(p || L), option ``trust``, keeps p near the model's distribution. Since
KL(p || L) = H(p, L) - H(p, p), it adds λ to the weights of two terms of the loss:

    p ∝ exp(((1 + λ)·log L + (1 - α)·log q) / (τ + λ)),

the minimiser above at λ = 0, and smoothing (L itself) as λ grows. The code divides all weights by
1 + λ, which does not change p and keeps every number finite for any λ.

q(x) ∝ exp(-(x - s_raw)² / (2·v)), so q and α depend only on the raw answer: everything but log L is
a table with one row per answer. (The appendix of the paper writes q(k) in Λ_k where log q(k) is
meant.) α underflows for small σ², so log α is computed, and 1/α is capped at e^650, which does not
change the order of the scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from discode.decoders import _divergences as divergences
from discode.decoders._base import (
    Alternatives,
    DistributionDecoder,
    Floats,
    Indices,
    Solve,
    certain,
)
from discode.errors import InputError
from discode.options import (
    COUNT,
    FRACTION,
    LOW_HIGH,
    NON_NEGATIVE,
    NUMBER,
    POSITIVE,
    option,
    with_options_documented,
)
from discode.readings import Readings

WEIGHTED_KL = {"divergence": ("weighted-kl",)}
POWERS = ("weighted-kl", "kl", "none")
"""Divergences that make p_k a power of L_k times a constant, over their sum."""
PROXIMAL = {"divergence": POWERS, "solver": ("closed", "exact")}
ADAPTIVE = WEIGHTED_KL | {"alpha": ("adaptive",)}
ADAM = {"solver": ("adam",)}


@with_options_documented
@dataclass(frozen=True, kw_only=True)
class Discode(DistributionDecoder):
    """Minimise H(p, L) + D(p || q), q a Gaussian around the raw answer; score by E_p.

    Temperature τ = α is the printed formula; the default τ = 1 makes p ∝ L·q^(1-α), and with
    ``trust`` λ p ∝ L·q^((1-α)/(1+λ)). On scales with an odd number of answers the density α
    exceeds 1 in the middle, where the prior would repel: hence ``alpha_clip``.
    ``alpha=0.5`` is the paper's "w/o adaptive", ``cross_entropy=False`` its first ablation,
    ``divergence="none"`` its second. See :mod:`discode.decoders._divergences` for the others.

    >>> from discode._scales import TEN
    >>> bump = np.log([0.3, 0.02, 0.01, 0.01, 0.01, 0.01, 0.04, 0.4, 0.15, 0.05])
    >>> Discode().decode(Readings.of(bump, TEN)).score.round(2).tolist()
    [7.15]
    """

    sigma2: float = option(0.1, "variance σ² in α = N(s_raw; μ, σ²)", POSITIVE, when=ADAPTIVE)
    alpha: float | str = option(
        "adaptive", "the prior counts 1 - α; adaptive is the density N(s_raw; μ, σ²)",
        "adaptive", FRACTION, when=WEIGHTED_KL,
    )  # fmt: skip
    alpha_scale: str = option(
        "digit", "α on the answers' values, as printed, or on a 0-1 scale", "digit", "unit",
        when=ADAPTIVE,
    )  # fmt: skip
    alpha_clip: tuple[float, float] | None = option(
        (0.0, 1.0), "bounds that α is clipped to", LOW_HIGH, None, when=ADAPTIVE
    )
    tau: float | str = option(
        1.0, "weight τ of the entropy; alpha is the printed formula", "alpha", POSITIVE,
        when=WEIGHTED_KL,
    )  # fmt: skip
    trust: float = option(
        0.0, "weight λ of KL(p || L), which keeps p near the model's distribution: at 0 p is the "
        "minimiser, for large λ smoothing", NON_NEGATIVE, when=PROXIMAL,
    )  # fmt: skip
    prior_variance: float = option(
        1.0, "variance of the prior q around the raw answer", POSITIVE,
        when={"divergence": divergences.NAMES[:-1]},
    )  # fmt: skip
    cross_entropy: bool = option(True, "whether H(p, L) is part of the loss", True, False)
    divergence: str = option("weighted-kl", "the divergence D from the prior", *divergences.NAMES)
    order: float | None = option(
        None, "order of beta (2 if none) and renyi (0.5 if none)", NUMBER, None,
        when={"divergence": tuple(divergences.DEFAULT_ORDER)},
    )  # fmt: skip
    solver: str = option(
        "closed", "closed form, bisection for any divergence, or Adam steps on hidden states",
        "closed", "exact", "adam",
    )  # fmt: skip
    steps: int = option(10, "Adam steps", COUNT, when=ADAM)
    learning_rate: float = option(1e-3, "Adam's learning rate", POSITIVE, when=ADAM)

    name = "discode"

    def check_together(self) -> None:
        """Raise if options exclude each other."""
        object.__setattr__(self, "order", _checked_order(self.divergence, self.order))
        if self.solver == "closed" and self.divergence not in POWERS:
            raise InputError(
                f"divergence {self.divergence!r} has no closed form; use solver 'exact' or 'adam'"
            )
        if not self.cross_entropy and self.divergence == "none":
            raise InputError("without cross-entropy and divergence there is nothing to minimise")
        if self.solver == "adam":
            if self.stem == "joint":
                raise InputError("solver 'adam' does not support stem=joint; use stem=graded")
            object.__setattr__(self, "requires", frozenset({"hidden"}))
        uses_model = self.cross_entropy or (self.trust > 0 and self.divergence in POWERS)
        object.__setattr__(self, "uses_model", uses_model)
        if self.tau == "alpha" and self.alpha == "adaptive":
            # At the printed temperature nearly every score is this close to a digit.
            object.__setattr__(self, "near", 1e-3)

    def prepare(self, seen: Alternatives, readings: Readings) -> Solve:
        """Compute everything that depends only on the raw answer; returns the solver of a block."""
        if self.solver == "adam":
            return lambda rows, logp, raw: self._adam(readings, seen, rows, logp, raw)
        # 0 if the loss has no such term.
        trust = self.trust if self.divergence in POWERS else 0.0
        if self.divergence == "none" and not trust:
            return lambda rows, logp, raw: certain(raw, len(logp))
        alpha, log_tau, logq = self._tables(seen)
        # (1-t)·ATT + t·KL(p || L) with t = λ/(1+λ): the same minimiser, and no weight overflows.
        rest, share = 1 / (1 + trust), trust / (1 + trust)
        weight = rest * self.cross_entropy + share
        prior = rest * (1 - alpha)
        log_tau = np.logaddexp(log_tau + math.log(rest), _log(share))
        if self.solver == "closed" or self.divergence == "none":
            pull = prior[:, None] * (logq - np.diag(logq)[:, None])
            return lambda rows, logp, raw: closed_form(
                logp, raw, weight=weight, pull=pull, log_tau=log_tau
            )
        return lambda rows, logp, raw: divergences.exact(
            self.divergence,
            weight * logp if weight else np.zeros_like(logp),
            logq.T[:, raw],
            prior=prior[raw],
            log_tau=log_tau[raw],
            order=self.order or 0.0,
        )

    def _tables(self, seen: Alternatives) -> tuple[Floats, Floats, Floats]:
        """Compute α (K,), log τ (K,) and log q (K, K), a row for each raw answer."""
        k = len(seen.values)
        if self.divergence == "none":
            return np.ones(k), np.full(k, -np.inf), np.zeros((k, k))
        logq = log_prior(seen.values, self.prior_variance)
        if self.divergence == "kl":
            half = np.full(k, math.log(0.5))
            return np.exp(half), half, logq
        if self.alpha == "adaptive":
            unit = seen.scale.unit if self.alpha_scale == "unit" else 1.0
            la = log_alpha(seen.values * unit, self.sigma2)
            if self.alpha_clip is not None:
                low, high = self.alpha_clip
                la = np.clip(la, _log(low), _log(high))
        else:
            la = np.full(k, _log(float(self.alpha)))
        log_tau = la if self.tau == "alpha" else np.full_like(la, math.log(float(self.tau)))
        return np.exp(la), log_tau, logq

    def _adam(
        self, readings: Readings, seen: Alternatives, rows: Indices, logp: Floats, raw: Indices
    ) -> Floats:
        from discode.decoders._adam import adam, starting_bias

        if readings.hidden is None or readings.head is None or readings.bias is None:
            raise InputError(
                "solver 'adam' needs readings with hidden states h_T and the head; "
                "use solver 'exact' (no hidden states) or a model that returns them"
            )
        alpha, log_tau, logq = self._tables(seen)
        log_l = np.maximum(logp.T, -1e4)
        log_l = log_l - np.logaddexp.reduce(log_l, axis=1, keepdims=True)

        def loss(torch: Any, log_z: Any, part: slice) -> Any:
            def tensor(array: Floats) -> Any:
                return torch.from_numpy(np.ascontiguousarray(array))

            s = raw[part]
            q = tensor(logq[s])
            if self.divergence == "weighted-kl":
                value = divergences.weighted_kl(
                    torch, log_z, q, tensor(alpha[s]), tensor(np.exp(log_tau[s]))
                )
            else:
                value = divergences.divergence(self.divergence, torch, log_z, q, self.order or 0.0)
            if self.cross_entropy:
                value = value - (log_z.exp() * tensor(log_l[part])).sum(-1)
            return value

        hidden = readings.hidden[rows]
        log_p = adam(
            hidden,
            readings.head,
            starting_bias(hidden, readings.head, readings.bias, log_l),
            loss,
            steps=self.steps,
            learning_rate=self.learning_rate,
        )
        return np.ascontiguousarray(np.nan_to_num(log_p).T)  # NaN if a pair failed


def _checked_order(name: str, order: float | None) -> float | None:
    """Choose the order (None for a divergence without one); raises if it is not allowed."""
    order = divergences.DEFAULT_ORDER.get(name) if order is None else order
    if order is None:
        return None
    low, high = {"beta": (0.05, 10), "renyi": (0.01, 0.99)}.get(name, (1, 0))
    if not low <= order <= high or order == 1:
        raise InputError(
            f"order={order} is not allowed with divergence {name!r}; beta takes 0.05 to 10 except "
            "1 ('kl'), renyi 0.01 to 0.99, the others none"
        )
    return order


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def log_alpha(values: Floats, sigma2: float = 0.1) -> Floats:
    """Compute log α for each possible raw answer (K,).

    α = N(s; μ, σ²) with μ the mean of ``values``: a density, so it may exceed 1.

    >>> np.exp(log_alpha(np.arange(10.0))).round(4).tolist()
    [0.0, 0.0, 0.0, 0.0, 0.3614, 0.3614, 0.0, 0.0, 0.0, 0.0]
    """
    distance = values - values.mean()
    return np.asarray(
        -0.5 * np.log(2 * np.pi * sigma2) - distance * distance / (2 * sigma2), dtype=np.float64
    )


def log_prior(values: Floats, variance: float = 1.0) -> Floats:
    """Compute log q, normalised, as (K, K): row s is the prior around raw answer s.

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
        logp: (K, n) log L, with the largest of each row at 0.
        raw: (n,) index of the raw answer.
        weight: Weight of log L: 1, or less in the ablation without the cross-entropy term.
        pull: (K, K) row s is log q_s times its weight, 1 - α_s, up to a constant.
        log_tau: (K,) log τ for each raw answer.

    Returns:
        (K, n) the logarithm of the minimising distribution, up to a constant: its largest is 0.
    """
    f = pull.T[:, raw]
    if weight:
        f = f + weight * logp
    best = f[0].copy()
    for row in f[1:]:
        np.maximum(best, row, out=best)
    # The raw answer maximises both L and q: the peak moves only if α > 1, where the prior repels.
    f -= best
    with np.errstate(over="ignore"):  # a gap of 1e50 times e^650 is -inf
        f *= np.exp(np.minimum(-log_tau, divergences.LOG_CAP))[raw]
    return f
