"""What the metrics share: their signature, scores with the reason for every NaN, duplicates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import numpy as np
from numpy.typing import NDArray

from discode.errors import InputError
from discode.pairs import Pair
from discode.scores import Floats, Progress, Scores
from discode.signature import Signature

NO_REFERENCES = "the pair has no references, which this metric compares with"


def package_version(package: str) -> str:
    """Return ``package-version``, for the signature.

    >>> package_version("no-such-package")
    'no-such-package-none'
    """
    try:
        return f"{package}-{version(package)}"
    except PackageNotFoundError:
        return f"{package}-none"


def make_scores(
    value: Floats,
    errors: Mapping[int, str],
    signature: Signature,
    flags: Mapping[str, NDArray[np.bool_]] | None = None,
) -> Scores:
    """Join (N,) values with the reasons for their NaNs; rows with a reason become NaN."""
    value = np.array(value, np.float64)
    value[list(errors)] = np.nan
    reasons = dict(errors)
    failed = np.isnan(value)
    for row in np.flatnonzero(failed).tolist():
        reasons.setdefault(row, "the metric gave no number")
    return Scores(value, signature, flags={"failed": failed, **(flags or {})}, errors=reasons)


@dataclass
class RowScores:
    """Scores (N,), the reasons for what has none by row, and (N,) whether a text was cut."""

    value: Floats
    errors: Mapping[int, str] = field(default_factory=dict)
    cut: NDArray[np.bool_] | None = None


class PairMetric(ABC):
    """A metric that scores the pairs that have the references it needs; the others are NaN."""

    @property
    @abstractmethod
    def signature(self) -> Signature:
        """How its numbers are made."""

    @property
    @abstractmethod
    def needs(self) -> frozenset[str]:
        """What it needs of a pair."""

    @abstractmethod
    def score_rows(self, pairs: Sequence[Pair], repeats: NDArray[np.int64]) -> RowScores:
        """Score N pairs, at least one, of which the set has ``repeats`` (N,) each."""

    def score_pairs(
        self,
        pairs: Sequence[Pair],
        *,
        repeats: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> Scores:
        """Score N pairs, in order; what cannot be scored is NaN with its reason."""
        counts = _check_repeats(repeats, len(pairs))
        needed = "references" in self.needs
        rows = [n for n, pair in enumerate(pairs) if pair.references or not needed]
        errors = dict.fromkeys({*range(len(pairs))}.difference(rows), NO_REFERENCES)
        value, flags = np.full(len(pairs), np.nan), {}
        if rows:
            scores = self.score_rows([pairs[n] for n in rows], counts[rows])
            value[rows] = scores.value
            errors |= {rows[n]: reason for n, reason in scores.errors.items()}
            if scores.cut is not None:
                flags["cut"] = np.zeros(len(pairs), bool)
                flags["cut"][rows] = scores.cut
        report_progress(progress, len(pairs))
        return make_scores(value, errors, self.signature, flags)


def _check_repeats(repeats: Sequence[int] | None, n: int) -> NDArray[np.int64]:
    if repeats is None:
        return np.ones(n, np.int64)
    counts = np.asarray(repeats)
    if counts.shape != (n,) or not np.issubdtype(counts.dtype, np.integer) or (counts < 0).any():
        raise InputError(f"repeats must be {n} whole numbers of 0 or more, one per pair")
    return counts.astype(np.int64)


def report_progress(progress: Progress | None, done: int) -> None:
    """Tell ``progress``, if there is one, that ``done`` more pairs were scored."""
    if progress is not None and done:
        progress(done)


def unique_keys(keys: Sequence[Hashable]) -> tuple[list[int], NDArray[np.intp]]:
    """Return the index of each distinct key's first occurrence, and (N,) which of them each is.

    >>> first, which = unique_keys(["a", "b", "a"])
    >>> first, which.tolist()
    ([0, 1], [0, 1, 0])
    """
    places: dict[Hashable, int] = {}
    first: list[int] = []
    for number, key in enumerate(keys):
        if key not in places:
            places[key] = len(places)
            first.append(number)
    return first, np.array([places[key] for key in keys], np.intp)
