"""The paper's numerical solver: a few Adam steps on W and b, started at the model's own head.

ψ(h) = softmax(W h + b) with W (K, D) and b (K,), one pair of them per reading; the loss is
H(ψ(h_T), L) + D(ψ(h_T) || q). Ten steps at a learning rate of 1e-3 do not reach the minimum
(``exact`` does): what they return lies between the token distribution and the minimiser, and
depends on the size of h_T. It is here because the paper's ablations were made this way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode.errors import require

PARAMETERS_AT_ONCE = 1 << 24
"""Rows are solved in chunks of about this many parameters (64 MiB, times four for Adam)."""

ROUNDING = 1e-3
"""A head that gives the logarithms of the answers up to this is taken as it is."""
MIN_LOGP = -20.0
"""Less likely answers do not count for that: 16-bit numbers hardly tell them from 0."""


def adam(
    hidden: NDArray[np.float32],
    head: NDArray[np.float32],
    bias: NDArray[np.float32],
    loss: Callable[[Any, Any, slice], Any],
    *,
    steps: int = 10,
    learning_rate: float = 1e-3,
) -> NDArray[np.float64]:
    """Return the distributions (n, K) after ``steps`` Adam steps per row; ``bias`` is (n, K).

    ``loss(torch, log_z, rows)`` gets log ψ(h) (m, K) for a slice of the rows and returns (m,).
    Adam works element by element, so solving many rows at once is solving each alone.
    """
    torch = require("torch", "adam")
    n, d = hidden.shape
    k = len(head)
    chunk = max(1, PARAMETERS_AT_ONCE // (k * (d + 1)))
    result = np.empty((n, k))
    for start in range(0, n, chunk):
        rows = slice(start, min(start + chunk, n))
        h = torch.from_numpy(np.array(hidden[rows]))  # (m, D)
        m = len(h)
        w = torch.from_numpy(np.array(head)).repeat(m, 1, 1).requires_grad_()  # (m, K, D)
        b = torch.from_numpy(np.array(bias[rows])).requires_grad_()  # (m, K)
        optimiser = torch.optim.Adam([w, b], lr=learning_rate)

        def log_psi(w: Any = w, b: Any = b, h: Any = h) -> Any:
            logits = torch.einsum("mkd,md->mk", w, h) + b
            return torch.log_softmax(logits.double(), dim=-1)

        for _ in range(steps):
            optimiser.zero_grad()
            loss(torch, log_psi(), rows).sum().backward()
            optimiser.step()
        with torch.no_grad():
            result[rows] = log_psi().exp().numpy()
    return result


def starting_bias(
    hidden: NDArray[np.float32],
    head: NDArray[np.float32],
    bias: NDArray[np.float32],
    logp: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Return the bias (n, K) with which softmax(W h + b) is the distribution that was read.

    The head has one row per answer, but an answer may be several tokens ("8" and "85" after "0.",
    or one with a space before it): then ``logp`` (n, K), normalised, differs from what W, h and
    ``bias`` (K,) give, by more than rounding. Such rows get b = log p - W h.
    """
    states = np.nan_to_num(hidden.astype(np.float64))  # NaN where a pair failed
    logits = states @ head.astype(np.float64).T + bias
    missing = logp - (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    apart = np.abs(np.where(logp > MIN_LOGP, missing, 0.0)).max(axis=1, keepdims=True)
    return np.where(apart > ROUNDING, bias + missing, bias).astype(np.float32)
