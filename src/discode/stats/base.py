"""What the statistics share: checks of columns and options, labels as numbers, the warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discode.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class UndefinedWarning(UserWarning):
    """A statistic that has no value for these rows; what is returned is NaN."""


def warn(reason: str) -> None:
    """Warn with ``reason``; the line shown is that of the caller's caller."""
    warnings.warn(reason, UndefinedWarning, stacklevel=3)


def undefined(reason: str) -> float:
    """Warn as ``warn`` does, and return NaN."""
    warnings.warn(reason, UndefinedWarning, stacklevel=3)
    return float("nan")


def columns(given: Mapping[str, ArrayLike]) -> list[Floats]:
    """Return the columns as float64 (n,); raise where they are not of equal length.

    >>> [column.tolist() for column in columns({"x": [1, 2], "y": [0.5, 1]})]
    [[1.0, 2.0], [0.5, 1.0]]
    """
    result = []
    for name, values in given.items():
        try:
            if np.iscomplexobj(values):  # numpy would drop the imaginary part
                raise TypeError
            column = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"{name} must be numbers, not {_show(values)}") from None
        if column.ndim != 1:
            raise InputError(f"{name} must have one axis, not the shape {column.shape}")
        result.append(column)
    same_length(given, result)
    return result


def same_length(names: Mapping[str, object], values: list[Any]) -> None:
    """Raise, with every column's length, where they differ."""
    lengths = [len(column) for column in values]
    if len(set(lengths)) > 1:
        shown = ", ".join(f"{name} has {n}" for name, n in zip(names, lengths, strict=True))
        raise InputError(f"columns must be equally long: {shown} rows")


def label_codes(labels: ArrayLike, name: str) -> Ints:
    """Return each row's label as a number from 0, equal labels alike, in sorted order.

    >>> label_codes(["b.jpg", "a.jpg", "b.jpg"], "clusters").tolist()
    [1, 0, 1]
    """
    array = np.asarray(labels)
    if array.ndim != 1:
        raise InputError(f"{name} must have one axis, not the shape {array.shape}")
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise InputError(f"{name} must not be NaN: give every row a label")
    try:
        return np.unique(array, return_inverse=True)[1].astype(np.int64)
    except TypeError:
        raise InputError(f"{name} must be all text or all numbers, not {_show(labels)}") from None


def counts(weights: ArrayLike, rows: int) -> Ints:
    """Return how often each row counts, (rows,); raise where these are not counts."""
    array = np.asarray(weights)
    if array.shape != (rows,):
        raise InputError(f"weights must have the shape ({rows},), not {array.shape}")
    if rows and (array.dtype.kind not in "iub" or int(array.min()) < 0):
        raise InputError("weights must be whole numbers from 0: how often each row counts")
    return array.astype(np.int64)


def generator(seed: int | np.random.Generator) -> np.random.Generator:
    """Return a generator from a seed (the same numbers each time), or the one given."""
    if isinstance(seed, np.random.Generator):
        return seed
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed must be a whole number from 0 or a numpy Generator, not {seed!r}")
    return np.random.default_rng(seed)


def check_resamples(resamples: int) -> None:
    """Raise unless ``resamples`` is a whole number from 1."""
    if isinstance(resamples, bool) or not isinstance(resamples, int | np.integer) or resamples < 1:
        raise InputError(f"resamples must be a whole number from 1, not {resamples!r}")


def check_choice(name: str, given: object, allowed: tuple[str, ...]) -> None:
    """Raise unless ``given`` is one of the allowed words."""
    if given not in allowed:
        raise InputError(f"{name} must be {' or '.join(map(repr, allowed))}, not {given!r}")


def _show(values: object) -> str:
    text = repr(values)
    return text if len(text) <= 60 else f"{text[:57]}..."
