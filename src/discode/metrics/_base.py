"""What the metrics share: their signature, scores with the reason for every NaN."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import numpy as np
from numpy.typing import NDArray

from discode._pairs import NO_REFERENCES, Pair
from discode._scores import Floats, Metric, Progress, Scores
from discode._signature import Signature
from discode.errors import InputError

NO_IMAGE = "the image is missing"


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
    failed = ~np.isfinite(value)
    value[failed] = np.nan
    for row in np.flatnonzero(failed).tolist():
        reasons.setdefault(row, "the metric returned no finite number")
    return Scores(value, signature, flags={"failed": failed, **(flags or {})}, errors=reasons)


@dataclass
class RowScores:
    """Scores (N,), the reason for each row without one, and (N,) whether a text was cut."""

    value: Floats
    errors: Mapping[int, str] = field(default_factory=dict)
    cut: NDArray[np.bool_] | None = None


class PairMetric(Metric):
    """A metric that scores the pairs that have the references it needs; the others are NaN."""

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
        counts = np.ones(len(pairs), np.int64) if repeats is None else np.asarray(repeats, np.int64)
        lacking = NO_REFERENCES if "references" in self.needs else ""
        reasons = [pair.problem or (not pair.references and lacking) for pair in pairs]
        errors = {number: why for number, why in enumerate(reasons) if why}
        rows = [number for number in range(len(pairs)) if number not in errors]
        value, flags = np.full(len(pairs), np.nan), {}
        if rows:
            scores = self.score_rows([pairs[n] for n in rows], counts[rows])
            if not isinstance(scores, RowScores) or np.shape(scores.value) != (len(rows),):
                raise InputError(
                    f"{type(self).__name__} did not return a score for each of {len(rows)} pairs"
                )
            value[rows] = scores.value
            errors |= {rows[n]: reason for n, reason in scores.errors.items()}
            if scores.cut is not None:
                flags["cut"] = np.zeros(len(pairs), bool)
                flags["cut"][rows] = scores.cut
        report_progress(progress, len(pairs))
        return make_scores(value, errors, self.signature, flags)


def report_progress(progress: Progress | None, done: int) -> None:
    """Report ``done`` more scored pairs to ``progress``, if it is given."""
    if progress is not None and done:
        progress(done)
