"""The mean of values that arrive in parts, with its interval over clusters."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike

from discode.stats._base import Floats, Ints
from discode.stats._resampling import Interval, bootstrap

MOST = 2_000
"""Clusters that are resampled one by one; more are thrown together, by their names."""


class ClusteredMean:
    """The mean of values, and its bootstrap interval over clusters, such as the images of captions.

    NaN is left out. Memory and time are bounded, however many values there are.

    >>> mean = ClusteredMean()
    >>> mean.add([0.5, 0.75, float("nan")], ["a.jpg", "a.jpg", "b.jpg"])
    >>> mean.add([0.25, 0.5], ["c.jpg", "d.jpg"])
    >>> found = mean.interval()
    >>> mean.clusters, found.value, found.low <= 0.5 <= found.high
    (3, 0.5, True)
    """

    def __init__(self) -> None:
        self._places: dict[str | int, int] = {}
        self._rows = 0
        self._sums: Floats = np.zeros(MOST)
        self._counts: Ints = np.zeros(MOST, np.int64)

    def add(self, values: ArrayLike, names: Iterable[str | None]) -> None:
        """Add values (n,) and the names of their clusters; without one, a row is its own."""
        for value, name in zip(np.asarray(values, np.float64).tolist(), names, strict=True):
            self._rows += 1
            if value == value:  # no NaN
                place = self._place(name or self._rows)
                self._sums[place] += value
                self._counts[place] += 1

    @property
    def clusters(self) -> int:
        return int(np.count_nonzero(self._counts))

    def interval(self, *, resamples: int = 5000, seed: int = 0, level: float = 0.95) -> Interval:
        """Compute the mean over all values with its percentile interval; see :func:`bootstrap`."""
        used = self._counts > 0
        sums, counts = self._sums[used], self._counts[used]
        if not len(sums):
            return Interval.point(np.nan, level)
        return bootstrap(
            lambda weights: float(weights @ sums / (weights @ counts)), np.arange(len(sums)),
            resamples=resamples, seed=seed, level=level,
        )  # fmt: skip

    def _place(self, name: str | int) -> int:
        if len(self._places) < MOST:
            return self._places.setdefault(name, len(self._places))
        found = self._places.get(name)
        return crc32(str(name).encode()) % MOST if found is None else found
