"""Shared by all statistics: checks of columns and options, numbering of labels, the warning."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discode.errors import InputError, shortened

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class UndefinedWarning(UserWarning):
    """A statistic is undefined for these rows; NaN is returned."""


def undefined(reason: str) -> float:
    """Warn with ``reason``, on the line of the caller's caller, and return NaN."""
    warnings.warn(reason, UndefinedWarning, stacklevel=3)
    return float("nan")


def columns(**named: ArrayLike) -> list[Floats]:
    """Convert columns to float64 (n,); refuse non-numbers and unequal lengths.

    >>> [column.tolist() for column in columns(x=[1, 2], y=[0.5, 1])]
    [[1.0, 2.0], [0.5, 1.0]]
    """
    result: list[Floats] = []
    for name, values in named.items():
        try:
            if np.iscomplexobj(values):  # numpy would drop the imaginary part
                raise TypeError
            column = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"{name} must be numbers, not {shortened(values)}") from None
        result.append(column)
        _check_shape(name, column.shape, len(result[0]) if result[0].ndim else 0)
    return result


def finite_columns(**named: ArrayLike) -> list[Floats]:
    """Convert columns as :func:`columns` does; refuse rows that are not finite."""
    result = columns(**named)
    if not np.isfinite(result).all():
        raise InputError(
            f"{', '.join(named)} must be finite; remove other rows and report how many"
        )
    return result


def label_codes(labels: ArrayLike | None, name: str, rows: int) -> Ints:
    """Number the labels of the rows from 0, in sorted order.

    Without labels all rows are alike.

    >>> label_codes(["b.jpg", "a.jpg", "b.jpg"], "clusters", 3).tolist()
    [1, 0, 1]
    """
    array = np.zeros(rows) if labels is None else np.asarray(labels)
    _check_shape(name, array.shape, rows)
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise InputError(f"{name} must not be NaN: give every row a label")
    try:
        return np.unique(array, return_inverse=True)[1].astype(np.int64)
    except TypeError:
        raise InputError(
            f"{name} must be all text or all numbers, not {shortened(labels)}"
        ) from None


def counts(weights: ArrayLike, rows: int) -> Ints:
    """Check weights (rows,): they must be counts."""
    array = np.asarray(weights)
    _check_shape("weights", array.shape, rows)
    if rows and (array.dtype.kind not in "iub" or int(array.min()) < 0):
        raise InputError("weights must be whole numbers from 0: how often each row counts")
    return array.astype(np.int64)


def _check_shape(name: str, shape: tuple[int, ...], rows: int) -> None:
    if shape != (rows,):
        raise InputError(f"{name} must have the shape ({rows},), not {shape}")


def generator(resamples: int, seed: int, least: int = 1) -> np.random.Generator:
    """Create the random generator; refuse too few resamples and negative seeds."""
    if resamples < least or seed < 0:
        raise InputError(
            f"resamples={resamples}, seed={seed}: resamples must be {least} or more, seed 0 or more"
        )
    return np.random.default_rng(seed)
