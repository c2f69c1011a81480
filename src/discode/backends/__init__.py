"""Who is asked. ``open_backend`` turns a model's name into a backend."""

from __future__ import annotations

import os
from collections.abc import Callable

from discode.backends.base import Backend, Choosy
from discode.backends.embedded import Embedded
from discode.backends.recorded import Recorded
from discode.errors import InputError, lookup

__all__ = ["BACKENDS", "Backend", "Choosy", "Embedded", "Recorded", "open_backend"]


def _recorded(spec: str, threads: int | None) -> Backend:
    if threads is not None:
        raise InputError(f"threads={threads} is for a model that runs here, not for a recording")
    path, _, model = spec.partition("#")
    return Recorded(path, model=model or None)


def _embedded(spec: str, threads: int | None) -> Backend:
    return Embedded(spec or None, threads=threads)


BACKENDS: dict[str, Callable[[str, int | None], Backend]] = {
    "embedded": _embedded,  # the model that ships with the package; embedded:FILE.onnx, another
    "recorded": _recorded,  # recorded:FILE, a store or its JSONL or Parquet export
}
"""Scheme to constructor; it gets what stands behind the colon, and the threads asked for."""

_FILES = (".db", ".sqlite", ".jsonl", ".ndjson", ".parquet")


def open_backend(model: str | os.PathLike[str] | Backend, *, threads: int | None = None) -> Backend:
    """Return the backend for ``scheme:rest``, for a file of readings, or the one given.

    >>> open_backend("embedded", threads=1).capabilities
    frozenset({'hidden'})
    """
    if isinstance(model, os.PathLike):
        model = os.fspath(model)
    if not isinstance(model, str):
        if not isinstance(model, Backend):
            raise InputError(f"a model is a name or a Backend, not {type(model).__name__}")
        if threads is not None:
            raise InputError(f"threads={threads} is for a model given by name, not for a Backend")
        return model
    if model.partition("#")[0].lower().endswith(_FILES) and not model.startswith("recorded:"):
        return _recorded(model, threads)
    scheme, _, rest = model.partition(":")
    opened = lookup(BACKENDS, scheme, "model", also=" (embedded:FILE.onnx, recorded:FILE)")
    return opened(rest, threads)
