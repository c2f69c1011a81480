"""DISCODE: the score distribution that minimises the ATT loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from discode.decoders import divergences
from discode.decoders.att import closed_form, log_alpha, log_prior
from discode.decoders.base import (
    READINGS,
    Decoded,
    Floats,
    Indices,
    View,
    check_choice,
    check_number,
    check_positive,
    decode_view,
    one_hot,
    view,
)
from discode.errors import InputError
from discode.readings import Readings


@dataclass(frozen=True, kw_only=True)
class Discode:
    """Minimise H(p, L) + D(p || q), q a Gaussian around the raw answer; score by E_p.

    Attributes:
        sigma2: Variance σ² in α = N(s_raw; μ, σ²).
        alpha: "adaptive" as above, or a number in [0, 1]; 0.5 is the paper's "w/o adaptive".
        alpha_scale: α on the answers' values ("digit", as printed), or on a 0-1 scale ("unit").
        alpha_clip: Bounds that α is clipped to, or None. On scales with an odd number of
            answers the density exceeds 1 in the middle, where the prior would repel.
        tau: Weight of the entropy: "alpha" as printed, or a number; 1 makes p ∝ L·q^(1-α).
        prior_variance: Variance of q.
        cross_entropy: False drops H(p, L), the paper's first ablation.
        divergence: See :mod:`discode.decoders.divergences`; "none" drops D, the second one.
        order: Order of the beta and Rényi divergences; None for the default.
        solver: "closed", "exact" (any divergence), or "adam" (the paper's, needs h_T).
        steps: Adam steps.
        learning_rate: Adam's learning rate.
        reading: "greedy" (the paper's rule) or "joint" (both stems of the unit scale).

    >>> from discode.scales import TEN
    >>> bump = np.log([0.3, 0.02, 0.01, 0.01, 0.01, 0.01, 0.04, 0.4, 0.15, 0.05])
    >>> Discode().decode(Readings.of(bump, TEN)).score.round(2).tolist()
    [7.15]
    """

    sigma2: float = 0.1
    alpha: float | str = "adaptive"
    alpha_scale: str = "digit"
    alpha_clip: tuple[float, float] | None = (0.0, 1.0)
    tau: float | str = 1.0
    prior_variance: float = 1.0
    cross_entropy: bool = True
    divergence: str = "weighted-kl"
    order: float | None = None
    solver: str = "closed"
    steps: int = 10
    learning_rate: float = 1e-3
    reading: str = "greedy"

    name = "discode"

    def __post_init__(self) -> None:
        for name in ("sigma2", "prior_variance", "learning_rate"):
            check_positive(name, getattr(self, name))
        if self.divergence is None:  # "none" behind a colon reads as None
            object.__setattr__(self, "divergence", "none")
        if not _is(self.alpha, "adaptive"):
            check_number("alpha", self.alpha, "'adaptive' or a number from 0 to 1")
            if not 0 <= float(self.alpha) <= 1:
                raise InputError(f"alpha={self.alpha} is not allowed; allowed: 0 to 1, 'adaptive'")
        if not _is(self.tau, "alpha"):
            check_positive("tau", self.tau, "'alpha' or ")
        if self.alpha_clip is not None:
            bounds = self.alpha_clip
            if not (isinstance(bounds, tuple) and len(bounds) == 2):
                raise InputError(f"alpha_clip={bounds!r} is not allowed; give (low, high) or None")
            for bound in bounds:
                check_number("alpha_clip", bound, "(low, high) or None")
            if not 0 <= bounds[0] <= bounds[1]:
                raise InputError(f"alpha_clip={bounds!r} is not allowed; give 0 <= low <= high")
        if isinstance(self.steps, bool) or not isinstance(self.steps, Integral) or self.steps < 0:
            raise InputError(f"steps={self.steps!r} is not allowed; give a whole number >= 0")
        if not isinstance(self.cross_entropy, bool):
            raise InputError(f"cross_entropy={self.cross_entropy!r}; allowed: True, False")
        for name in ("sigma2", "prior_variance", "learning_rate", "alpha", "tau", "order"):
            if isinstance(value := getattr(self, name), Real):  # numpy's numbers become floats
                object.__setattr__(self, name, float(value))
        check_choice("alpha_scale", self.alpha_scale, ("digit", "unit"))
        check_choice("divergence", self.divergence, tuple(divergences.DEFAULT_ORDER))
        check_choice("solver", self.solver, ("closed", "exact", "adam"))
        check_choice("reading", self.reading, READINGS)
        divergences.check_order(self.divergence, self.order)
        if self.solver == "closed" and self.divergence not in ("weighted-kl", "kl", "none"):
            raise InputError(
                f"divergence {self.divergence!r} has no closed form; use solver 'exact' or 'adam'"
            )
        if not self.cross_entropy and self.divergence == "none":
            raise InputError("without cross-entropy and divergence there is nothing to minimise")
        if self.solver == "adam" and self.reading == "joint":
            raise InputError("solver 'adam' moves one head, behind one stem: use reading='greedy'")

    @property
    def requires(self) -> frozenset[str]:
        """``{"hidden"}`` for the Adam solver."""
        return frozenset({"hidden"} if self.solver == "adam" else ())

    def options(self) -> dict[str, object]:
        """Return the options that matter for this divergence and solver."""
        options: dict[str, object] = {"divergence": self.divergence, "solver": self.solver}
        if self.divergence == "weighted-kl":
            options |= {"alpha": self.alpha, "tau": self.tau}
            if self.alpha == "adaptive":
                options |= {
                    "sigma2": self.sigma2,
                    "alpha_scale": self.alpha_scale,
                    "alpha_clip": self.alpha_clip,
                }
        if self.divergence != "none":
            options["prior_variance"] = self.prior_variance
        if (order := divergences.check_order(self.divergence, self.order)) is not None:
            options["order"] = order
        if self.solver == "adam":
            options |= {"steps": self.steps, "learning_rate": self.learning_rate}
        return options | {"cross_entropy": self.cross_entropy, "reading": self.reading}

    def decode(self, readings: Readings) -> Decoded:
        """Decode N readings."""
        seen = view(readings, self.reading)
        if self.solver == "adam":
            p = self._adam(readings, seen)
            return decode_view(seen, lambda rows, logp, raw: np.ascontiguousarray(p[rows].T))
        return decode_view(seen, self._solver(seen))

    def log_alpha(self, values: Floats, unit: float) -> Floats:
        """Return log α (K,) for each raw answer, as the options want it."""
        if self.alpha != "adaptive":
            return np.full(len(values), _log(float(self.alpha)))
        la = log_alpha(values * unit if self.alpha_scale == "unit" else values, self.sigma2)
        if self.alpha_clip is None:
            return la
        low, high = self.alpha_clip
        return np.clip(la, _log(low), _log(high))

    def _tables(self, seen: View) -> tuple[Floats, Floats, Floats]:
        """Return α (K,), log τ (K,) and log q (K, K), a row for each raw answer."""
        if self.divergence == "kl":
            la = np.full(len(seen.values), math.log(0.5))
            return np.exp(la), la, log_prior(seen.values, self.prior_variance)
        la = self.log_alpha(seen.values, seen.scale.unit)
        log_tau = la if self.tau == "alpha" else np.full_like(la, math.log(float(self.tau)))
        return np.exp(la), log_tau, log_prior(seen.values, self.prior_variance)

    def _solver(self, seen: View) -> Callable[[slice, Floats, Indices], Floats]:
        k = len(seen.values)
        if self.divergence == "none":
            return lambda rows, logp, raw: one_hot(raw, k)
        alpha, log_tau, logq = self._tables(seen)
        weight = 1.0 if self.cross_entropy else 0.0
        if self.solver == "closed":
            pull = (1 - alpha)[:, None] * (logq - np.diag(logq)[:, None])
            return lambda rows, logp, raw: closed_form(
                logp, raw, weight=weight, pull=pull, log_tau=log_tau
            )
        order = divergences.check_order(self.divergence, self.order)
        return lambda rows, logp, raw: divergences.exact(
            self.divergence,
            logp if self.cross_entropy else np.zeros_like(logp),
            logq.T[:, raw],
            alpha=alpha[raw],
            log_tau=log_tau[raw],
            order=order,
        )

    def _adam(self, readings: Readings, seen: View) -> Floats:
        from discode.decoders.numeric import adam

        if readings.hidden is None or readings.head is None or readings.bias is None:
            raise InputError(
                "solver 'adam' needs readings with hidden states h_T and the head; "
                "use solver 'exact' (no hidden states) or a model that returns them"
            )
        alpha, log_tau, logq = self._tables(seen)
        raw = np.nan_to_num(seen.logp, nan=0.0).argmax(axis=1)
        logp = np.nan_to_num(seen.logp, nan=0.0, neginf=-1e4)
        logp = logp - np.logaddexp.reduce(logp, axis=1, keepdims=True)
        order = divergences.check_order(self.divergence, self.order)

        def loss(torch: Any, log_z: Any, rows: slice) -> Any:
            def tensor(array: Floats) -> Any:
                return torch.from_numpy(np.ascontiguousarray(array))

            q, s = tensor(logq[raw[rows]]), raw[rows]
            if self.divergence == "weighted-kl":
                value = divergences.weighted_kl(
                    torch, log_z, q, tensor(alpha[s]), tensor(np.exp(log_tau[s]))
                )
            else:
                value = divergences.divergence(self.divergence, torch, log_z, q, order)
            if self.cross_entropy:
                value = value - (log_z.exp() * tensor(logp[rows])).sum(-1)
            return value

        return adam(
            readings.hidden,
            readings.head,
            readings.bias,
            loss,
            steps=self.steps,
            learning_rate=self.learning_rate,
        )


def _is(value: object, word: str) -> bool:
    return isinstance(value, str) and value == word


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf
