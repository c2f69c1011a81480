"""A numerical solver: a few Adam steps on W and b, starting from the model's head.

ψ(h) = softmax(W h + b) with W (K, D) and b (K,) for each reading; the loss is
H(ψ(h_T), L) + D(ψ(h_T) || q). Ten steps at a learning rate of 1e-3 do not reach the minimum
(``exact`` does): the result lies between the token distribution and the minimiser, and depends on
the size of h_T. The paper takes ten such steps for divergences other than KL, and does not state
where they start.

The gradient of W is g hᵀ, where g is the loss's gradient at the logits, so each of Adam's averages
of it is the product of an average of g and a power of h. Adam's step on W moves the logit of
answer k by

    lr · m_k · Σ_d h_d² / (|h_d|·√v_k + ε)

where m and v are Adam's corrected averages of g: no (K, D) parameters are stored per reading.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode.errors import require

PARAMETERS_AT_ONCE = 1 << 20
"""Rows are solved in chunks of about this many terms of the sum above (4 MiB, for the cache)."""
DECAY = 0.9, 0.999
EPSILON = 1e-8
"""Adam's constants, as in torch.optim.Adam."""

ROUNDING = 1e-3
"""A head that reproduces the answers' log-probabilities up to this needs no correction."""
MIN_LOGP = -20.0
"""Less likely answers are not compared: in 16 bits they are hardly different from 0."""


def adam(
    hidden: NDArray[np.float32],
    head: NDArray[np.float32],
    bias: NDArray[np.float32],
    loss: Callable[[Any, Any, slice], Any],
    *,
    steps: int = 10,
    learning_rate: float = 1e-3,
) -> NDArray[np.float64]:
    """Compute log p (n, K) after ``steps`` Adam steps per row; ``bias`` is (n, K).

    ``loss(torch, log_z, rows)`` receives log ψ(h) (m, K) for a slice of the rows and returns (m,).
    Adam works element by element, so each row is solved independently.
    """
    torch = require("torch", "adam")
    n, d = hidden.shape
    k = len(head)
    chunk = max(1, PARAMETERS_AT_ONCE // (k * (d + 1)))
    start = hidden.astype(np.float64) @ head.astype(np.float64).T + bias  # (n, K)
    result = np.empty((n, k))
    for first in range(0, n, chunk):
        rows = slice(first, min(first + chunk, n))
        # The bias is the weight of an additional input of 1.
        size = np.abs(np.append(hidden[rows], np.ones((len(start[rows]), 1), np.float32), axis=1))
        h = torch.from_numpy(size)[:, None]  # (m, 1, D + 1)
        logits = torch.from_numpy(start[rows].copy()).requires_grad_()  # (m, K)
        mean, square = torch.zeros_like(logits), torch.zeros_like(logits)
        for step in range(1, steps + 1):
            log_z = torch.log_softmax(logits, dim=-1)
            (g,) = torch.autograd.grad(loss(torch, log_z, rows).sum(), logits)
            mean = DECAY[0] * mean + (1 - DECAY[0]) * g
            square = DECAY[1] * square + (1 - DECAY[1]) * g * g
            root = (square / (1 - DECAY[1] ** step)).sqrt().float()[..., None]  # (m, K, 1)
            reach = (h * h / (h * root + EPSILON)).sum(-1)  # (m, K)
            moved = learning_rate * mean / (1 - DECAY[0] ** step) * reach
            logits = (logits - moved).detach().requires_grad_()
        with torch.no_grad():
            result[rows] = torch.log_softmax(logits, dim=-1).numpy()
    return result


def starting_bias(
    hidden: NDArray[np.float32],
    head: NDArray[np.float32],
    bias: NDArray[np.float32],
    logp: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Compute the bias (n, K) for which softmax(W h + b) is the distribution that was read.

    The head has one row per answer, but an answer may be several tokens ("8" and "85" after "0.",
    or one that includes a space): then ``logp`` (n, K), normalised, differs by more than rounding
    from the result of W, h and ``bias`` (K,). Such rows get b = log p - W h.
    """
    states = np.nan_to_num(hidden.astype(np.float64))  # NaN if a pair failed
    logits = states @ head.astype(np.float64).T + bias
    missing = logp - (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    apart = np.abs(np.where(logp > MIN_LOGP, missing, 0.0)).max(axis=1, keepdims=True)
    return np.where(apart > ROUNDING, bias + missing, bias).astype(np.float32)
