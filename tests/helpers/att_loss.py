"""The loss that DISCODE minimises, written out from the paper."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def att_loss(
    p: Floats, logp: Floats, logq: Floats, alpha: Floats | float, tau: Floats | float,
    trust: float = 0.0,
) -> Floats:  # fmt: skip
    """H(p, L) + (1 - α)·H(p, q) - τ·H(p, p) + λ·KL(p || L) of distributions p (n, K)."""
    logz = np.log(np.maximum(p, 5e-324))
    cross, prior, entropy = (-np.sum(p * log, axis=-1) for log in (logp, logq, logz))
    return np.asarray(cross + (1 - alpha) * prior - tau * entropy + trust * (cross - entropy))
