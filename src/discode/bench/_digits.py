"""Which digits a model prefers, whatever the image and the caption: the mass above one hump.

A model that rates on digits answers with symbols, and some symbols are likelier than the ratings
around them: the paper calls it symbolic bias, and reports that 0 is often overestimated; its
figure has four raw digits (0, 5, 8, 9). People's ratings have one hump, so the mass above the best
single hump is the measure. With p the token probabilities (K,) of a pair, renormalised over the
answers, and r the raw answer,

    h(d) = min p(x) over the answers x from r to d,   bias(d) = mean over pairs of p(d) - h(d).

h is the largest distribution below p that only falls on the way from r, so bias(d) is the
probability of d that no hump around r explains; a unimodal distribution has bias 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discode.bench._agreement import AgreementProtocol
from discode.decoders import get_decoder
from discode.decoders._base import Floats
from discode.errors import InputError
from discode.readings import Readings
from discode.stats import Interval, bootstrap_all

SEEN = 0.01
"""A distribution has a second hump where more than this much of it lies above the first."""


@dataclass(frozen=True, eq=False)
class DigitCounts:
    """Statistics of a model's digits over N pairs, for K answers.

    ``top`` pairs have the highest rating by its stem (1.0): there is no digit to choose after it,
    and they are left out of all that follows, as are ``failed`` pairs without a reading. ``counts``
    (K,) is how many pairs have each raw answer, ``frequency`` their share, ``probability`` the mean
    token probabilities, ``bias`` as above, ``total`` its sum, ``humps`` the share of pairs with
    more than ``SEEN`` above one hump. ``profile`` (K, K) are the mean token probabilities by raw
    answer, NaN where there is no such pair, and ``excess`` what of them lies above one hump.
    """

    answers: tuple[str, ...]
    pairs: int
    failed: int
    top: int
    counts: NDArray[np.int64]
    frequency: list[Interval]
    probability: list[Interval]
    bias: list[Interval]
    total: Interval
    humps: Interval
    profile: Floats
    excess: Floats


def above_one_hump(p: Floats) -> Floats:
    """Compute p - h of distributions (N, K): the mass outside one hump around the maximum.

    >>> above_one_hump(np.array([[0.3, 0.1, 0.6], [0.2, 0.5, 0.3]])).round(2).tolist()
    [[0.2, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    k = p.shape[1]
    raw, places = p.argmax(axis=1)[:, None], np.arange(k)
    hump = np.empty_like(p)
    for d in range(k):  # the least of the answers between the raw one and d
        between = (places >= np.minimum(raw, d)) & (places <= np.maximum(raw, d))
        hump[:, d] = np.where(between, p, np.inf).min(axis=1)
    return p - hump


def led_by_second_hump(p: Floats) -> NDArray[np.bool_]:
    """Mark rows (N,) where a second hump causes most of the shift from raw to expected answer.

    The shift may be tiny: if a model is nearly sure, the rest decides the order of the scores.

    >>> led_by_second_hump(np.array([[0.99, 0.004, 0.0, 0.001, 0.005], [0.6, 0.2, 0.2, 0.0, 0.0]]))
    array([ True, False])
    """
    way = np.abs(np.arange(p.shape[1]) - p.argmax(axis=1)[:, None])
    return np.asarray((above_one_hump(p) * way).sum(axis=1) > 0.5 * (p * way).sum(axis=1))


def count_digits(
    readings: Readings, images: NDArray[np.int64], protocol: AgreementProtocol | None = None
) -> DigitCounts:
    """Describe the digits of N readings; ``images`` (N,) are the clusters of the intervals."""
    protocol = protocol or AgreementProtocol()
    decoded = get_decoder("smoothing").decode(readings)
    raw = get_decoder("raw").decode(readings).score
    read = ~np.isnan(decoded.score)
    top = read & (len(readings.scale.stems) > 1) & (raw >= readings.scale.maximum)
    used = read & ~top
    if not used.any():
        raise InputError("no pair has a reading with a digit to choose; nothing can be counted")
    p, clusters = decoded.distribution[used], images[used]
    k = p.shape[1]
    above = above_one_hump(p)
    total = above.sum(axis=1)
    one_hot = np.eye(k)[p.argmax(axis=1)]
    columns = np.column_stack([one_hot, p, above, total, total > SEEN])  # (n, 3K + 2)

    def means(weights: NDArray[np.int64]) -> Floats:
        return np.asarray(weights @ columns / weights.sum())

    several = bootstrap_all(means, clusters, **protocol.bootstrap)
    counts = one_hot.sum(axis=0).astype(np.int64)
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN: no pair has that answer
        profile, excess = (one_hot.T @ part / counts[:, None] for part in (p, above))
    return DigitCounts(
        decoded.answers, int(used.sum()), int((~read).sum()), int(top.sum()), counts,
        several[:k], several[k : 2 * k], several[2 * k : 3 * k], several[-2],
        several[-1], profile, excess,
    )  # fmt: skip
