"""Who is asked. ``open_backend`` turns a model's name into a backend."""

from __future__ import annotations

import os
from collections.abc import Callable

from discode.backends.base import Backend, Choosy
from discode.backends.recorded import Recorded, demo_path
from discode.errors import InputError, suggest

__all__ = ["BACKENDS", "Backend", "Choosy", "Recorded", "demo_path", "open_backend"]


def _recorded(spec: str) -> Backend:
    path, _, model = spec.partition("#")
    return Recorded(path, model=model or None)


def _embedded(spec: str) -> Backend:
    from discode.backends.embedded import Embedded

    return Embedded(spec)


BACKENDS: dict[str, Callable[[str], Backend]] = {
    "recorded": _recorded,
    "embedded": _embedded,
    "demo": lambda spec: Recorded(demo_path() / "readings.jsonl"),
}
"""Scheme to constructor; the constructor gets what stands behind the colon."""

_FILES = (".db", ".sqlite", ".jsonl", ".ndjson", ".parquet")


def open_backend(model: str | os.PathLike[str] | Backend) -> Backend:
    """Return the backend for ``scheme:rest``, for a file of readings, or the one given.

    >>> open_backend("demo").identity.model
    'discode-prototype-b6s'
    """
    if isinstance(model, os.PathLike):
        model = os.fspath(model)
    if not isinstance(model, str):
        if not isinstance(model, Backend):
            raise InputError(f"a model is a name or a Backend, not {type(model).__name__}")
        return model
    if model.partition("#")[0].lower().endswith(_FILES) and not model.startswith("recorded:"):
        return _recorded(model)
    scheme, _, rest = model.partition(":")
    if scheme not in BACKENDS:
        raise InputError(
            f"unknown model {model!r}{suggest(scheme, BACKENDS) or ';'} allowed: "
            f"recorded:FILE (a store, JSONL or Parquet of readings), embedded:FILE.onnx, demo"
        )
    return BACKENDS[scheme](rest)
