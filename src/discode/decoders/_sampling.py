"""Standard errors of scores that were decoded from sampled answers."""

from __future__ import annotations

import numpy as np

from discode.decoders._base import Decoder, Floats
from discode.readings import Readings
from discode.readings._sampled import counts_of, draws_of, from_counts

REPLICATES = 200
"""Of the bootstrap: a standard error is within 5 % of that of infinitely many."""


def standard_error(decoder: Decoder, readings: Readings) -> Floats | None:
    """Return the standard error (N,) of the scores of sampled readings; NaN for other rows.

    The parametric bootstrap: answers are drawn again from the counts of a row, as many as were
    drawn, decoded, and the standard deviation of the scores is taken (Efron & Tibshirani 1993,
    chapter 6). For smoothing it approximates s / √n. The generator is seeded by the counts, so
    equal rows have equal errors, whatever stands beside them. None if no row was sampled.

    >>> from discode._scales import FIVE
    >>> from discode.decoders import get_decoder
    >>> sampled = from_counts(FIVE, np.array([[[0, 0, 10, 10, 0]]]), np.array([20]))
    >>> error = standard_error(get_decoder("smoothing"), sampled)
    >>> bool(abs(error[0] - 0.5 / 20**0.5) < 0.02)
    True
    """
    draws = draws_of(readings)
    rows = [row for row in np.flatnonzero(draws).tolist() if row not in readings.errors]
    if not draws.any():
        return None
    error = np.full(len(readings), np.nan)
    known: dict[bytes, float] = {}
    counts = counts_of(readings)
    for row in rows:
        cells, n = counts[row], int(draws[row])
        key = cells.tobytes() + n.to_bytes(8, "little")
        if key not in known:
            shares = np.append(cells.ravel(), n - cells.sum()) / n
            rng = np.random.default_rng([n, *cells.ravel().tolist()])
            again = rng.multinomial(n, shares, size=REPLICATES)[:, :-1]
            again = again.reshape(REPLICATES, *cells.shape)
            drawn = from_counts(readings.scale, again, np.full(REPLICATES, n))
            known[key] = float(np.nanstd(decoder.decode(drawn).score, ddof=1))
        error[row] = known[key]
    return error
