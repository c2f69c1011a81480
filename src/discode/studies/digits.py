"""The paper's Fig. "observation": which digits a model prefers, whatever the image and the caption.

A model that rates on digits answers with symbols, and some symbols are likelier than the ratings
around them: the paper calls it symbolic bias, and shows that 0 is likely even where the model says
5, 8 or 9. People's ratings have one hump, so the mass above the best single hump is the measure.
With p the token probabilities (K,) of a pair, renormalised over the answers, and r the raw answer,

    h(d) = min p(x) over the answers x from r to d,   bias(d) = mean over pairs of p(d) - h(d).

h is the largest distribution below p that only falls on the way from r, so bias(d) is the
probability of d that no hump around r explains; a unimodal distribution has bias 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discode.bench import AgreementProtocol
from discode.decoders import get_decoder
from discode.decoders.base import Floats
from discode.errors import InputError
from discode.readings import Readings
from discode.stats import Interval, bootstrap_all

SEEN = 0.01
"""A distribution has a second hump where more than this much of it lies above the first."""


@dataclass(frozen=True, eq=False)
class DigitCounts:
    """What a model's digits look like over N pairs, for K answers.

    Attributes:
        answers: K names, lowest first.
        pairs: How many pairs have a reading.
        failed: How many do not.
        top: How many of the readings say the highest rating by its stem (1.0): there is no digit to
            choose after it, and they are left out of all that follows.
        counts: (K,) how many pairs have each raw answer.
        frequency: K shares of the raw answers.
        probability: K mean token probabilities.
        bias: K values of bias(d), as above.
        total: Their sum, the mean mass above one hump.
        humps: The share of pairs with more than ``SEEN`` above one hump.
        profile: (K, K) the mean token probabilities by raw answer; NaN where there is no such pair.
    """

    answers: tuple[str, ...]
    pairs: int
    failed: int
    top: int
    counts: NDArray[np.int64]
    frequency: tuple[Interval, ...]
    probability: tuple[Interval, ...]
    bias: tuple[Interval, ...]
    total: Interval
    humps: Interval
    profile: Floats


def above_one_hump(p: Floats) -> Floats:
    """Return p - h for distributions (N, K): the mass that no hump around the largest explains.

    >>> above_one_hump(np.array([[0.3, 0.1, 0.6], [0.2, 0.5, 0.3]])).round(2).tolist()
    [[0.2, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    raw = p.argmax(axis=1)
    hump = np.empty_like(p)
    rows, k = np.arange(len(p)), p.shape[1]
    for step in (1, -1):  # away from the raw answer, to the right and to the left
        at = raw.copy()
        lowest = p[rows, raw]
        hump[rows, raw] = lowest
        for _ in range(k - 1):
            at = at + step
            inside = (at >= 0) & (at < k)
            place = at.clip(0, k - 1)
            lowest = np.where(inside, np.minimum(lowest, p[rows, place]), lowest)
            hump[rows[inside], place[inside]] = lowest[inside]
    return p - hump


def count_digits(
    readings: Readings, images: NDArray[np.int64], protocol: AgreementProtocol | None = None
) -> DigitCounts:
    """Describe the digits of N readings; ``images`` (N,) are the clusters of the intervals."""
    protocol = protocol or AgreementProtocol()
    decoded = get_decoder("smoothing").decode(readings)
    stems = readings.scale.stems
    raw = get_decoder("raw").decode(readings)
    read = ~np.isnan(decoded.score)
    top = read & (raw.score >= readings.scale.maximum) if len(stems) > 1 else np.zeros_like(read)
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
        found: Floats = weights @ columns / weights.sum()
        return found

    if protocol.resamples and len(np.unique(clusters)) > 1:
        several = bootstrap_all(
            means, clusters, resamples=protocol.resamples, seed=protocol.seed, level=protocol.level
        )
    else:
        whole = means(np.ones(len(p), np.int64)).tolist()
        several = [Interval(value, np.nan, np.nan, protocol.level) for value in whole]
    counts = one_hot.sum(axis=0).astype(np.int64)
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN: nobody gave that answer
        profile = one_hot.T @ p / counts[:, None]
    return DigitCounts(
        decoded.answers, int(used.sum()), int((~read).sum()), int(top.sum()), counts,
        tuple(several[:k]), tuple(several[k : 2 * k]), tuple(several[2 * k : 3 * k]),
        several[3 * k], several[3 * k + 1], profile,
    )  # fmt: skip
