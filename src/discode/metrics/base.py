"""What the metrics share: their signature, scores with the reason for every NaN, duplicates."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

import numpy as np
from numpy.typing import NDArray

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
