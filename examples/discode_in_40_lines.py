"""DISCODE in 40 lines: the paper's equations in order, numpy alone. Read it, copy it.

A model is asked to rate a caption by a digit; ``logp`` (N, K) holds the log-probability of each of
the K digits. The package adds models, prompts, scales with two stems, stores and statistics.
"""

import numpy as np


def discode(logp, *, printed=False, trust=0.0, sigma2=0.1, alpha=None, cross_entropy=True):
    """Return the scores (N,) and the corrected distributions (N, K) over the digits 0 to K - 1.

    printed: temperature α, as the paper prints it, instead of one.
    trust: λ, the weight of a term that keeps p near the model's own; ``np.inf`` is smoothing.
    alpha=0.5, cross_entropy=False (with printed=True): the paper's ablations; its third, without
    the divergence, gives the raw digit.
    """
    logp = np.asarray(logp, float)
    log_l = logp - np.logaddexp.reduce(logp, axis=1, keepdims=True)  # L, the model's digits
    digits = np.arange(logp.shape[1])
    raw = log_l.argmax(axis=1)[:, None]  # the digit that the model would print
    # α = N(s_raw; μ, σ²), μ the middle of the scale: large in the middle, nearly 0 at the ends.
    a = np.exp(-((raw - digits.mean()) ** 2) / (2 * sigma2)) / np.sqrt(2 * np.pi * sigma2)
    a = np.full(raw.shape, alpha) if alpha is not None else a if printed else np.clip(a, 0, 1)
    # q, the prior: a Gaussian around the raw digit.
    log_q = -((digits - raw) ** 2) / 2
    log_q = log_q - np.logaddexp.reduce(log_q, axis=1, keepdims=True)
    # 1. The energy. The ATT loss is H(p, L) + (1 - α)·H(p, q) - τ·H(p, p): two terms that are
    #    linear in p, and the entropy. Its minimiser is p ∝ exp((log L + (1 - α)·log q) / τ).
    # 2. The temperature τ is α as printed, 1e-44 at the digits 0 and 9. The exact scores then lie
    #    1e-300 beside the raw digit: in order, but a float rounds them to it (as here; the package
    #    keeps the order, method "paper").
    # 3. At temperature one the order is nearly the same, and floats can hold the scores.
    trust, tau = (0.0, np.maximum(a, np.exp(-650))) if printed else (trust, 1.0)
    share = 1.0 if np.isinf(trust) else trust / (1 + trust)  # λ·KL(p || L) is added to the loss
    f = ((1 - share) * cross_entropy + share) * log_l + (1 - share) * (1 - a) * log_q
    f = (f - f.max(axis=1, keepdims=True)) / ((1 - share) * tau + share)
    p = np.exp(f) / np.exp(f).sum(axis=1, keepdims=True)
    return p @ digits, p  # the score is the expected digit


if __name__ == "__main__":
    torn = np.log([[0.3, 0.02, 0.01, 0.01, 0.01, 0.01, 0.04, 0.4, 0.15, 0.05]])
    for title, options in {
        "smoothing, no prior": {"trust": np.inf},
        "discode": {},
        "as printed": {"printed": True},
    }.items():
        print(f"{title:20}{discode(torn, **options)[0][0]:.3f}")
